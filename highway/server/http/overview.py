"""The broker as a whole and its logs."""

from __future__ import annotations

from aiohttp import web

from highway.broker import administration

from .room import Room

__all__ = ["Overview"]


class Overview(Room):
    """`/api/v1/status`, `/topics`, `/logs` and `/logs/{log}`."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/v1/status", self._status),
            web.get("/api/v1/topics", self._topics),
            web.get("/api/v1/logs/{log}", self._log),
        ]

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(administration.status(self.broker))

    async def _topics(self, _: web.Request) -> web.Response:
        return web.json_response(await self.fields_of([*self.broker.feeds.values()]))

    async def _log(self, request: web.Request) -> web.Response:
        return web.json_response(await self.log_fields(self.feed(request)))
