"""The broker as a whole and its logs."""

from __future__ import annotations

from typing import Any

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
        return web.json_response(administration.status(self.broker) | {"configuration": self._configuration()})

    def _configuration(self) -> dict[str, Any]:
        """Where the configuration in force is from, and how the last reload went."""
        condition, reloader = self.condition, self.condition.reloader
        return {
            "source": None if reloader is None else str(reloader.source),
            "reload_error": condition.reload_error,
            "reload_failed_ms": condition.reload_failed_ms if condition.reload_error is not None else None,
            "needs_restart": [] if reloader is None else reloader.waiting,
        }

    async def _topics(self, _: web.Request) -> web.Response:
        return web.json_response(await self.fields_of([*self.broker.feeds.values()]))

    async def _log(self, request: web.Request) -> web.Response:
        return web.json_response(await self.log_fields(self.feed(request)))
