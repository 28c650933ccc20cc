"""`/livez` and `/readyz`: for supervisors and load balancers, in a line of text each.

Ready means recovered, listening, and taking messages. What else is wrong doesn't take that away, and is told in lines
of its own: `degraded: ...`.
"""

from __future__ import annotations

from aiohttp import web

from .guards import AUTHORISED
from .room import Room

__all__ = ["Health"]


class Health(Room):
    """Whether the process works, and whether it takes messages."""

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/livez", self._livez), web.get("/readyz", self._readyz)]

    async def _livez(self, _: web.Request) -> web.Response:
        return web.Response(text="the loop turns\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        storage = self.broker.storage
        if not self.condition.listening:
            return web.Response(status=503, text="starting: not all listeners are open\n")
        if not storage.writable:
            return web.Response(status=503, text=f"read-only: {storage.fault}\n")
        lines = ["ready"]
        if request[AUTHORISED]:
            lines += [f"degraded: {item['text']}" for item in self.sampler.attention()]
        return web.Response(text="\n".join(lines) + "\n")
