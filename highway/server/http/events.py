"""`/api/v1/events`: what the dashboard shows, as it changes, in server-sent events.

    event: history   once: [[time_ms, received, sent, dropped], ...] of the last ten minutes, counted since the start
    event: rates     once: messages a second by log, over the last minute
    event: state     once a second: all of the overview
    event: records   with `?log=`: new records of that log, at most MAX_RECORDS in a round
    event: skipped   with `?log=`: how many were left out of the round before, because they came too fast

Nothing here hooks into delivery: a tail is read from the log like any other reader's, four times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

from aiohttp import web

from highway.mqtt import matches, validate_topic_filter

from .records import record_as_json
from .room import Room

if TYPE_CHECKING:
    from highway.broker.delivery.feed import Feed

__all__ = ["Events"]

STATE_INTERVAL_S = 1.0
TAIL_INTERVAL_S = 0.25
MAX_RECORDS = 100  # in a round: nobody reads faster than 400 a second
# Looked at in a round, backwards in time from the end: a filter that matches little must not make us read all.
MAX_SCANNED = 2000
MAX_BYTES = 1 << 18  # of payloads in a round


class Events(Room):
    """Streams of events; each costs a turn of the loop a second, and nothing while nobody listens."""

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/api/v1/events", self._events)]

    async def _events(self, request: web.Request) -> web.StreamResponse:
        feed = self.feed_named(request.query["log"]) if "log" in request.query else None
        topic_filter = request.query.get("topic", "#").encode(errors="surrogateescape")
        validate_topic_filter(topic_filter)
        begin = 0 if feed is None else feed.visible
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        response = web.StreamResponse(headers=headers)
        with contextlib.suppress(ConnectionError):  # who listened has gone: there is no other end
            await response.prepare(request)
            await (self._overview(response) if feed is None else self._tail(response, feed, begin, topic_filter))
        return response

    async def _overview(self, response: web.StreamResponse) -> None:
        await _send(response, "history", [list(sample) for sample in self.sampler.samples])
        await _send(response, "rates", self.sampler.rates())
        while True:
            await _send(response, "state", await self.sampler.state())
            await asyncio.sleep(STATE_INTERVAL_S)

    async def _tail(self, response: web.StreamResponse, feed: Feed, offset: int, topic_filter: bytes) -> None:
        """Send what comes at `offset` and later, for ever."""
        rounds = 0
        while True:
            end = feed.visible
            skipped = max(0, end - offset - MAX_SCANNED)
            found, budget = [], MAX_BYTES
            offset += skipped
            while offset < end and (batch := await self.batch(feed, offset)) is not None:
                found += [
                    record
                    for record in batch.records()
                    if offset <= record[0] < end and matches(topic_filter, record[3])
                ]
                offset = max(offset + 1, min(batch.end_offset, end))
            offset = max(offset, end)
            shown: list[dict[str, Any]] = []
            for record in reversed(found[-MAX_RECORDS:]):
                budget -= len(record[5])
                if budget < 0 and shown:
                    break
                shown.append(record_as_json(record))
            skipped += len(found) - len(shown)
            if skipped:
                await _send(response, "skipped", skipped)
            if shown:
                await _send(response, "records", shown[::-1])
            elif rounds % 40 == 0:
                await response.write(b": still here\n\n")  # so that both sides notice when the other has gone
            rounds += 1
            await asyncio.sleep(TAIL_INTERVAL_S)


async def _send(response: web.StreamResponse, event: str, value: Any) -> None:
    data = json.dumps(value, separators=(",", ":"))
    await response.write(f"event: {event}\ndata: {data}\n\n".encode())
