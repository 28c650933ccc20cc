"""The HTTP server of one broker: what the broker and its logs hold, for people, scripts and the `highway` command.

It is served on a unix socket in the data directory, where the rights of the file decide who may use it, and on TCP
where the configuration says so. Errors are problem details (RFC 9457); records are JSON Lines, streamed. Each group of
paths is a `Room` in a module of its own:

    GET    /  /dashboard/{file}                                                              dashboard
    GET    /livez  /readyz                                                                   health
    GET    /metrics                                                                          metrics
    GET    /api/v1/events?log=<log>&topic=<filter>                                           events
    GET    /api/v1/status  /topics  /logs/{log}                                              overview
    GET    /api/v1/logs/{log}/records?from=<from>&until=<from>&topic=<filter>&limit=<n>      records
    GET    /api/v1/logs/{log}/records/{offset}
    GET    /api/v1/sessions  /sessions/{client}                                              sessions
    POST   /api/v1/sessions/{client}/reset?to=<from>
    DELETE /api/v1/sessions/{client}
    GET    /api/v1/config  /retention                                                        configuration
    POST   /api/v1/config/plan?file=<file>  /reload?allow_trim=true
    POST   /api/v1/retention/trim?log=<log>&before=<from>

Owner: the event loop.
"""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING

from aiohttp import web

from highway.server.admission import format_address
from highway.server.listening import listening_error

from .configuration import Configuration
from .dashboard import SECURITY_HEADERS, Dashboard
from .events import Events
from .guards import guard
from .health import Health
from .metrics import Metrics
from .openapi import OpenApi
from .overview import Overview
from .places import Places
from .problems import answer_problems
from .protocol import HttpProtocol
from .records import Records
from .sampler import Sampler
from .sessions import Sessions

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from pathlib import Path

    from highway.broker import Broker
    from highway.config.secret_files import Secret
    from highway.server.condition import Condition

    from .room import Room

__all__ = ["ADMIN_SOCKET", "ROOMS", "HttpServer"]

ADMIN_SOCKET = "admin.sock"
ROOMS: tuple[type[Room], ...] = (
    Health,
    Metrics,
    Overview,
    Records,
    Sessions,
    Configuration,
    Events,
    OpenApi,
    Dashboard,
)


class HttpServer:
    """The API of one broker."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop, condition: Condition) -> None:
        self._broker = broker
        self._loop = loop
        self._condition = condition
        self._sampler = Sampler(broker, condition, loop)
        self._runner: web.AppRunner | None = None
        self._places = Places()
        self._unix: asyncio.Server | None = None
        self._tcp: asyncio.Server | None = None

    async def start(self, socket_path: Path, address: tuple[str, int] | None, token: Secret | None = None) -> None:
        """Serve on the unix socket and, if there is one, on the TCP address. HighwayError if that can't be had.

        With a token, whoever comes over TCP has to show it; without one, only this machine may come.
        """
        app = web.Application(middlewares=[answer_problems, guard(token), self._places.middleware()])
        app.on_response_prepare.append(_add_headers)
        for room in ROOMS:
            app.add_routes(room(self._broker, self._loop, self._condition, self._sampler).routes())
        self._sampler.start()
        # Streams of events never end by themselves: they are cut at once when the broker stops.
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.1)
        await self._runner.setup()
        server = self._runner.server
        assert server is not None

        def connection() -> HttpProtocol:
            return HttpProtocol(server, loop=self._loop, access_log=None)  # type: ignore[arg-type]  # None: no such log

        self._unix = await self._serve_unix(connection, socket_path)
        if address is not None:
            try:
                self._tcp = await self._loop.create_server(
                    partial(self._places.accept, server, connection), *address, backlog=128, reuse_address=True
                )
            except OSError as error:
                where = f"{format_address(*address)} (HTTP)"
                raise listening_error(
                    where, error, if_taken="--http HOST:PORT takes another, --no-http none"
                ) from error

    @property
    def url(self) -> str | None:
        """Where it is served over TCP, with the port that it really has."""
        if self._tcp is None:
            return None
        return f"http://{format_address(*self._tcp.sockets[0].getsockname()[:2])}"

    async def _serve_unix(self, connection: Callable[[], asyncio.Protocol], path: Path) -> asyncio.Server:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108  of a process that was killed; the directory's lock is ours
        folder = os.open(path.parent, os.O_PATH)
        try:
            # Through the folder's descriptor, as a socket's path may have 107 bytes and the folder's may be longer.
            server = await self._loop.create_unix_server(connection, f"/proc/self/fd/{folder}/{path.name}", backlog=128)
        finally:
            os.close(folder)
        os.chmod(path, 0o600)  # noqa: PTH101
        return server

    async def close(self) -> None:
        """Stop serving; requests under way are cut."""
        self._sampler.close()
        for server in (self._unix, self._tcp):
            if server is not None:
                server.close()
        if self._runner is not None:
            await self._runner.cleanup()


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(SECURITY_HEADERS)
