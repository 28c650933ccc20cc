"""The HTTP API: what the broker and its logs hold, for people, scripts and the `highway` command.

It is served on a unix socket in the data directory, where the rights of the file decide who may use it, and on TCP
where the configuration says so. Errors are problem details (RFC 9457); records are JSON Lines, streamed.

    GET    /livez  /readyz
    GET    /api/v1/status  /topics  /sessions  /sessions/{client}  /logs/{log}
    GET    /api/v1/logs/{log}/records?from=<from>&until=<from>&topic=<filter>&limit=<n>
    GET    /api/v1/logs/{log}/records/{offset}
    POST   /api/v1/sessions/{client}/reset?to=<from>
    DELETE /api/v1/sessions/{client}

Owner: the event loop. The broker's callbacks become futures here, one for a request and none for a message.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from aiohttp import web

from highway.broker import administration
from highway.broker.replay.grammar import parse_from
from highway.broker.replay.starting import find_starts
from highway.config.listeners import is_loopback
from highway.errors import HighwayError, OffsetError, OffsetNotFoundError, ProtocolError, StorageError
from highway.mqtt import matches, validate_topic_filter

from .connection import format_address
from .listening import listening_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from highway.broker import Broker
    from highway.broker.delivery.feed import Feed
    from highway.storage import Record, RecordBatch

__all__ = ["ADMIN_SOCKET", "HttpServer"]

ADMIN_SOCKET = "admin.sock"
# Records written in one go: enough to make the per-write cost small, little enough to keep the loop's turns short.
RECORDS_PER_WRITE = 500
MAX_RECORDS = 10_000_000


class HttpServer:
    """The API of one broker."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._loop = loop
        self._runner: web.AppRunner | None = None

    async def start(self, socket_path: Path, address: tuple[str, int] | None) -> None:
        """Serve on the unix socket and, if there is one, on the TCP address. HighwayError if that can't be had."""
        app = web.Application(middlewares=[_problems, _no_strangers])
        app.add_routes(
            [
                web.get("/livez", self._livez),
                web.get("/readyz", self._readyz),
                web.get("/api/v1/status", self._status),
                web.get("/api/v1/topics", self._topics),
                web.get("/api/v1/logs/{log}", self._log),
                web.get("/api/v1/logs/{log}/records", self._records),
                web.get("/api/v1/logs/{log}/records/{offset}", self._record),
                web.get("/api/v1/sessions", self._sessions),
                web.get("/api/v1/sessions/{client}", self._session),
                web.post("/api/v1/sessions/{client}/reset", self._reset),
                web.delete("/api/v1/sessions/{client}", self._drop),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await self._runner.setup()
        await self._serve_unix(self._runner, socket_path)
        if address is not None:
            try:
                await web.TCPSite(self._runner, *address).start()
            except OSError as error:
                where = f"{format_address(*address)} (HTTP)"
                raise listening_error(
                    where, error, if_taken="--http HOST:PORT takes another, --no-http none"
                ) from error

    @property
    def url(self) -> str | None:
        """Where it is served over TCP, with the port that it really has."""
        found = self._runner.addresses if self._runner is not None else []
        return next((f"http://{format_address(*item[:2])}" for item in found if isinstance(item, tuple)), None)

    @staticmethod
    async def _serve_unix(runner: web.AppRunner, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108  of a process that was killed; the directory's lock is ours
        folder = os.open(path.parent, os.O_PATH)
        try:
            # Through the folder's descriptor, as a socket's path may have 107 bytes and the folder's may be longer.
            await web.UnixSite(runner, f"/proc/self/fd/{folder}/{path.name}").start()
        finally:
            os.close(folder)
        os.chmod(path, 0o600)  # noqa: PTH101

    async def close(self) -> None:
        """Stop serving; requests under way are cut."""
        if self._runner is not None:
            await self._runner.cleanup()

    # Health.

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="the loop turns\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        storage = self._broker.storage
        if storage.writable:
            return web.Response(text="ready\n")
        return web.Response(status=503, text=f"read-only: {storage.fault}\n")

    # What there is.

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(administration.status(self._broker))

    async def _topics(self, _: web.Request) -> web.Response:
        return web.json_response([await self._log_fields(feed) for feed in self._broker.feeds.values()])

    async def _log(self, request: web.Request) -> web.Response:
        return web.json_response(await self._log_fields(self._feed(request)))

    async def _log_fields(self, feed: Feed) -> dict[str, Any]:
        totals = await asyncio.to_thread(administration.segment_totals, list(feed.log.writer.segments))
        return administration.log_of(self._broker, feed.log.name, totals)

    def _feed(self, request: web.Request) -> Feed:
        name = request.match_info["log"]
        feed = self._broker.feeds.get(name)
        if feed is None:
            raise _Problem(404, "no such log", f"there is no log {name!r}", logs=sorted(self._broker.feeds))
        return feed

    # Sessions.

    async def _sessions(self, _: web.Request) -> web.Response:
        return web.json_response(administration.sessions(self._broker))

    async def _session(self, request: web.Request) -> web.Response:
        session = administration.session_of(self._broker, request.match_info["client"])
        detail = administration.session_detail(session)
        now_ms = self._broker.clock.now_ms()
        oldest = [await self._time_of(cursor.feed, at) for cursor, at in administration.unread_batches(session)]
        known = [time_ms for time_ms in oldest if time_ms is not None]
        detail["lag_seconds"] = round((now_ms - min(known)) / 1000, 3) if known else 0.0
        return web.json_response(detail)

    async def _time_of(self, feed: Feed, offset: int) -> int | None:
        """Commit time of the first record at or after an offset, None where there is none."""
        batch = await self._batch(feed, offset)
        if batch is None:
            return None
        return next((record[2] for record in batch.records() if record[0] >= offset), None)

    async def _reset(self, request: web.Request) -> web.Response:
        client, text = request.match_info["client"], request.query.get("to", "")
        done = self._loop.create_future()
        administration.reset_session(self._broker, client, text, done.set_result)
        result = await done
        if isinstance(result, HighwayError):
            raise result
        return web.json_response({"client": client, "positions": result})

    async def _drop(self, request: web.Request) -> web.Response:
        administration.drop_session(self._broker, request.match_info["client"])
        return web.Response(status=204)

    # Records.

    async def _record(self, request: web.Request) -> web.Response:
        feed, text = self._feed(request), request.match_info["offset"]
        if not text.isdigit():
            raise _Problem(400, "no offset", f"{text!r} is no offset: a whole number is wanted")
        offset = int(text)
        if offset >= feed.visible:
            raise OffsetNotFoundError(feed.log.name, offset, feed.log.log_start_offset, feed.visible)
        done = self._loop.create_future()
        feed.log.fetch(offset, done.set_result)
        record = await done
        if isinstance(record, StorageError):
            raise record
        return web.json_response(_as_json(record))

    async def _records(self, request: web.Request) -> web.StreamResponse:
        feed = self._feed(request)
        topic_filter = request.query.get("topic", "#").encode()
        validate_topic_filter(topic_filter)
        limit = request.query.get("limit", str(MAX_RECORDS))
        if not limit.isdigit():
            raise _Problem(400, "no limit", f"limit={limit!r}: a whole number is wanted")
        start = await self._offset(feed, request.query.get("from", "earliest"), topic_filter)
        end = feed.visible
        if "until" in request.query:
            end = min(end, await self._offset(feed, request.query["until"], topic_filter))
        response = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
        await response.prepare(request)
        left = min(int(limit), MAX_RECORDS)
        lines: list[str] = []
        async for record in self._read(feed, start, end):
            if not left:
                break
            if matches(topic_filter, record[3]):
                lines.append(json.dumps(_as_json(record), ensure_ascii=False))
                left -= 1
            if len(lines) >= RECORDS_PER_WRITE:
                await response.write(("\n".join(lines) + "\n").encode())
                lines.clear()
        if lines:
            await response.write(("\n".join(lines) + "\n").encode())
        await response.write_eof()
        return response

    async def _offset(self, feed: Feed, text: str, topic_filter: bytes) -> int:
        """The offset that a `<from>` stands for."""
        start = parse_from(text.encode(), self._broker.clock.now_ms())
        done = self._loop.create_future()
        find_starts(start, [topic_filter], [feed], self._broker.scheduler, done.set_result)
        answer = await done
        if isinstance(answer, HighwayError):
            raise answer
        offset: int = answer[feed]
        return offset

    async def _read(self, feed: Feed, start: int, end: int) -> AsyncIterator[Record]:
        """The records of [start, end), batch by batch."""
        offset = max(start, feed.log.log_start_offset)
        while offset < end:
            batch = await self._batch(feed, offset)
            if batch is None:
                return
            for record in batch.records():
                if offset <= record[0] < end:
                    yield record
            offset = max(offset + 1, batch.end_offset)
            await asyncio.sleep(0)  # one batch a turn: live traffic goes first

    async def _batch(self, feed: Feed, offset: int) -> RecordBatch | None:
        """The batch at or after an offset; None where nothing can be read any more."""
        batch = feed.log.read(offset)
        if batch is not None:
            return batch
        done = self._loop.create_future()
        feed.log.load(offset, done.set_result)
        result = await done
        return None if isinstance(result, StorageError) else result


def _as_json(record: Record) -> dict[str, Any]:
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


class _Problem(Exception):  # noqa: N818  it is a problem detail
    def __init__(self, status: int, title: str, detail: str, **members: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.body = {"title": title, "status": status, "detail": detail, **members}


Handler: TypeAlias = "Callable[[web.Request], Awaitable[web.StreamResponse]]"


@web.middleware
async def _no_strangers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Keep out the pages that a browser on this machine shows: they reach the loopback interface as well as we do.

    Such a page comes under a name of its own that it had resolve to 127.0.0.1, or with an `Origin` that isn't ours.
    """
    host = urlsplit(f"//{request.host}").hostname or ""
    if not is_loopback(host):
        raise _Problem(403, "another host", f"asked for {request.host!r}; this is served as localhost or 127.0.0.1")
    origin = request.headers.get("Origin")
    if origin not in (None, f"http://{request.host}"):
        raise _Problem(403, "another origin", f"asked for by a page of {origin}")
    return await handler(request)


@web.middleware
async def _problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except _Problem as problem:
        body = problem.body
    except OffsetError as error:
        body = {
            "title": error.status,
            "status": 404,
            "detail": str(error),
            "log_start_offset": error.log_start_offset,
            "high_watermark": error.high_watermark,
        }
    except ProtocolError as error:
        body = {"title": "bad request", "status": 400, "detail": str(error)}
    except HighwayError as error:
        body = {"title": "not found", "status": 404, "detail": str(error)}
    except web.HTTPError as error:
        body = {"title": error.reason, "status": error.status, "detail": f"{request.method} {request.path}"}
    return web.json_response(body, status=int(str(body["status"])), content_type="application/problem+json")
