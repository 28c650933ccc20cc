"""Stored records: many as JSON Lines, streamed while the log is read, or one by its offset."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from functools import partial
from typing import TYPE_CHECKING, Any

from aiohttp import web

from highway.errors import OffsetError, OffsetNotFoundError, StorageError
from highway.mqtt import concrete_names, matches, validate_topic_filter

from .problems import Problem
from .room import Room

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from highway.broker.delivery.feed import Feed
    from highway.storage import Record

__all__ = ["Records", "record_as_json", "whole_number"]

# Records looked at, or written in one go: enough to make the per-write cost small, little enough to keep the loop's
# turns near a millisecond. A frame has 8192, and turning all of them into JSON takes 40.
RECORDS_PER_TURN = 250
# The same in bytes of payloads: records may be as large as a packet, and a reader that is slow holds what it was
# written.
BYTES_PER_TURN = 128 * 1024
# Who waits for its rate may have gone meanwhile.
LOOK_S = 1.0
MAX_RECORDS = 10_000_000
MAX_NUMBER = 2**63 - 1  # offsets and times are 64-bit numbers


class Records(Room):
    """`/api/v1/logs/{log}/records` and `/api/v1/logs/{log}/records/{offset}`."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/v1/logs/{log}/records", self._records),
            web.get("/api/v1/logs/{log}/records/{offset}", self._record),
        ]

    async def _record(self, request: web.Request) -> web.Response:
        feed = self.feed(request)
        offset = whole_number(request.match_info["offset"], "offset")
        if offset >= feed.visible:
            self.broker.counters.offset_not_found += 1
            raise OffsetNotFoundError(feed.log.name, offset, feed.log.log_start_offset, feed.visible)
        done = self.loop.create_future()
        feed.log.fetch(offset, done.set_result)
        record = await done
        if isinstance(record, StorageError):
            self.broker.counters.offset_not_found += isinstance(record, OffsetError)
            raise record
        return web.json_response(record_as_json(record))

    async def _records(self, request: web.Request) -> web.StreamResponse:
        feed = self.feed(request)
        topic_filter = request.query.get("topic", "#").encode(errors="surrogateescape")
        validate_topic_filter(topic_filter)
        left = min(whole_number(request.query.get("limit", str(MAX_RECORDS)), "limit"), MAX_RECORDS)
        start = await self.offset(feed, request.query.get("from", "earliest"), topic_filter)
        end = feed.visible
        if "until" in request.query:
            end = min(end, await self.offset(feed, request.query["until"], topic_filter))
        response = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
        with contextlib.suppress(ConnectionError):  # who asked has gone
            await response.prepare(request)
            records = self._read(feed, start, end, concrete_names([topic_filter]))
            await _write(response, records, topic_filter, left, partial(self._pay, request))
            await response.write_eof()
        return response

    async def _pay(self, request: web.Request, size: int) -> None:
        """Count bytes that an address is sent against `limits.catchup_bytes`, and wait until it owes nothing.

        ConnectionError if who asked has gone: nobody waits any more.
        """
        wait_s = self._take(request.remote, size)
        self.broker.counters.limited["catchup_bytes"] += wait_s > 0
        while wait_s:
            if request.transport is None:
                raise ConnectionError
            await asyncio.sleep(min(wait_s, LOOK_S))
            wait_s = self._take(request.remote, 0)

    def _take(self, remote: str | None, size: int) -> float:
        rate, now = self.broker.settings.catchup_bytes, self.broker.clock.monotonic()
        # No client id has a NUL in it.
        return 0.0 if rate is None else self.broker.catchup.of(f"\0http {remote}", rate, now).take(size, now)

    async def _read(self, feed: Feed, start: int, end: int, topics: frozenset[bytes]) -> AsyncIterator[Record]:
        """The records of [start, end), some in a turn of the loop; with `topics` those of others may be left out."""
        offset = max(start, feed.log.log_start_offset)
        while offset < end:
            batch = await self.batch(feed, offset, topics)
            if batch is None:
                return
            for number, record in enumerate(batch.records()):
                if not number % RECORDS_PER_TURN:
                    await asyncio.sleep(0)  # live traffic goes first
                if offset <= record[0] < end:
                    yield record
            offset = max(offset + 1, batch.end_offset)


async def _write(
    response: web.StreamResponse,
    records: AsyncIterator[Record],
    topic_filter: bytes,
    left: int,
    pay: Callable[[int], Awaitable[None]],
) -> None:
    """Write what a filter matches, `left` records at most, as fast as it is taken and paid for."""
    lines: list[str] = []
    held = 0

    async def write() -> None:
        await pay(0)  # what other requests of the address owe
        data = ("\n".join(lines) + "\n").encode()
        await response.write(data)
        await pay(len(data))
        lines.clear()

    async for record in records:
        if not left:
            break
        if matches(topic_filter, record[3]):
            lines.append(json.dumps(record_as_json(record), ensure_ascii=False))
            held += len(record[5])
            left -= 1
        if len(lines) >= RECORDS_PER_TURN or held >= BYTES_PER_TURN:
            await write()
            held = 0
    if lines:
        await write()


def whole_number(text: str, what: str) -> int:
    """`text` as a number of at most 64 bits; Problem where it is none."""
    if not (text.isascii() and text.isdigit()):
        raise Problem(400, f"no {what}", f"{what}={text!r}: a whole number is wanted")
    return min(int(text[:30]), MAX_NUMBER)


def record_as_json(record: Record) -> dict[str, Any]:
    """A record as the API shows it: `payload` where it is text, `payload_base64` where it isn't."""
    offset, flags, timestamp_ms, topic_name, _, payload = record
    value = {
        "offset": offset,
        "timestamp": timestamp_ms,
        "topic": topic_name.decode(),
        "qos": flags & 3,
        "retain": bool(flags & 4),
    }
    try:
        value["payload"] = payload.decode()
    except UnicodeDecodeError:
        value["payload_base64"] = base64.b64encode(payload).decode()
    return value
