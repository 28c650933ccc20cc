"""Places for HTTP connections over TCP, so that nobody can take all the descriptors that clients and logs need.

Where all are taken, the oldest that nothing is being done for makes room: one that has asked for nothing yet, that has
its answer, or whose asker has not shown who it is. Where there is none, the newcomer is closed.

Owner: the event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from aiohttp import web

from .guards import AUTHORISED

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.typedefs import Middleware

    from .problems import Handler

__all__ = ["MAX_CONNECTIONS", "Places"]

MAX_CONNECTIONS = 256  # a dashboard takes one or two, and a scraper one


class Places:
    """The connections that are open, and those of them that something is being done for."""

    __slots__ = ("_busy",)

    def __init__(self) -> None:
        self._busy: dict[asyncio.Protocol, int] = {}

    def middleware(self) -> Middleware:
        """Notes the requests under way; it stands behind the one that says who may ask."""

        @web.middleware
        async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
            protocol = request.protocol
            if not request[AUTHORISED]:
                return await handler(request)
            self._busy[protocol] = self._busy.get(protocol, 0) + 1
            try:
                return await handler(request)
            finally:
                self._busy[protocol] -= 1
                if not self._busy[protocol]:
                    del self._busy[protocol]

        return noted

    def accept(self, server: web.Server, connection: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """The protocol of a new connection to `server`: a `connection`, or one that closes it."""
        open_now = [handler for handler in server.connections if _is_over_tcp(handler.transport)]
        too_many = (
            len(open_now) + 1 - MAX_CONNECTIONS
        )  # several are accepted in a turn, and are among these in the next
        idle = [handler for handler in open_now if handler not in self._busy]
        if len(idle) < too_many:
            return _Refusal()
        for handler in idle[: max(0, too_many)]:
            handler.force_close()
        return connection()


def _is_over_tcp(transport: asyncio.BaseTransport | None) -> bool:
    return transport is not None and isinstance(transport.get_extra_info("sockname"), tuple)


class _Refusal(asyncio.Protocol):
    """Closes its connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()
