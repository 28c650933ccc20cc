"""Sessions: seen, moved to another place in their logs, and dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp import web

from highway.broker import administration
from highway.errors import HighwayError

from .room import Room

if TYPE_CHECKING:
    from highway.broker.delivery.feed import Feed

__all__ = ["Sessions"]


class Sessions(Room):
    """`/api/v1/sessions` and what is below it."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/v1/sessions", self._sessions),
            web.get("/api/v1/sessions/{client}", self._session),
            web.post("/api/v1/sessions/{client}/reset", self._reset),
            web.delete("/api/v1/sessions/{client}", self._drop),
        ]

    async def _sessions(self, _: web.Request) -> web.Response:
        return web.json_response(administration.sessions(self.broker))

    async def _session(self, request: web.Request) -> web.Response:
        session = administration.session_of(self.broker, request.match_info["client"])
        detail = administration.session_detail(session)
        now_ms = self.broker.clock.now_ms()
        oldest = [await self._time_of(cursor.feed, at) for cursor, at in administration.unread_batches(session)]
        known = [time_ms for time_ms in oldest if time_ms is not None]
        detail["lag_seconds"] = round((now_ms - min(known)) / 1000, 3) if known else 0.0
        return web.json_response(detail)

    async def _time_of(self, feed: Feed, offset: int) -> int | None:
        """Commit time of the first record at or after an offset, None where there is none."""
        batch = await self.batch(feed, offset)
        if batch is None:
            return None
        return next((record[2] for record in batch.records() if record[0] >= offset), None)

    async def _reset(self, request: web.Request) -> web.Response:
        client, text = request.match_info["client"], request.query.get("to", "")
        done = self.loop.create_future()
        administration.reset_session(self.broker, client, text, done.set_result)
        result = await done
        if isinstance(result, HighwayError):
            raise result
        return web.json_response({"client": client, "positions": result})

    async def _drop(self, request: web.Request) -> web.Response:
        administration.drop_session(self.broker, request.match_info["client"])
        return web.Response(status=204)
