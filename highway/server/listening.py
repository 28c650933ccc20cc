"""Listening sockets, and what comes in at them: plain TCP at once, TLS after its handshake.

Owner: the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from typing import TYPE_CHECKING

from highway.errors import HighwayError
from highway.log_lines import about

from .admission import format_address
from .connection import LINGER_S, Connection
from .websocket import WebSocketTransport

if TYPE_CHECKING:
    from highway.config import Listener

    from .admission import Place
    from .connection import Connections
    from .tls import TlsContexts

__all__ = ["Door", "listening_error", "open_door"]

logger = logging.getLogger("highway.server")

# Connections that the kernel holds for us while a turn of the loop lasts: a fleet that reconnects comes at once.
BACKLOG = 4096
# Handshakes begun in one turn of the loop: each may cost a millisecond (RSA), and everybody else waits for them.
ACCEPT_BATCH = 16
# Out of file descriptors or memory: time for some to come free, as asyncio gives it.
ACCEPT_RETRY_S = 1.0


class Door:
    """A listener with its sockets: more than one where a host name has several addresses."""

    __slots__ = ("_connections", "_contexts", "_listener", "_servers", "_sockets", "_task")

    def __init__(self, listener: Listener, connections: Connections, contexts: TlsContexts) -> None:
        self._listener = listener
        self._connections = connections
        self._contexts = contexts
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._task: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        """What is served where, with the port that it really has."""
        listener = self._listener
        address = format_address(listener.host, self.port)
        if listener.websocket is not None:
            return f"MQTT over WebSocket on {'wss' if listener.tls else 'ws'}://{address}{listener.websocket}"
        return f"MQTT over TLS on {address}" if listener.tls else f"MQTT on {address}"

    @property
    def host(self) -> str:
        """The address to connect to from this machine."""
        return _REACHED_AT.get(self._listener.host, self._listener.host)

    @property
    def address(self) -> tuple[object, ...]:
        """What makes the socket, and what is spoken there: a listener of another name may go on with it."""
        return self._listener.address

    @property
    def is_plain(self) -> bool:
        """Whether any client can connect without being told about certificates or paths."""
        return self._listener.tls is None and self._listener.websocket is None

    @property
    def port(self) -> int:
        """The port, which isn't the configured one where that is 0."""
        port: int = self._sockets[0].getsockname()[1]
        return port

    async def open(self) -> None:
        """Listen. HighwayError if an address can't be had; then `close` is due, too."""
        listener = self._listener
        loop = self._connections.loop
        try:
            found = await loop.getaddrinfo(
                listener.host, listener.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, address in dict.fromkeys((item[0], item[4]) for item in found):
                # SO_REUSEADDR, and IPv6 for itself: `::` leaves the IPv4 side of the port to others.
                opened = socket.create_server(address, family=family, backlog=BACKLOG)
                opened.setblocking(False)
                self._sockets.append(opened)
        except OSError as error:
            raise listening_error(f"{listener} ({listener.name})", error) from error
        if listener.tls is None:
            for opened in self._sockets:
                self._servers.append(await loop.create_server(self._make, sock=opened, backlog=BACKLOG))
        else:
            self._task = loop.create_task(self._serve_tls(), name=f"TLS at {listener.name}")

    def change(self, listener: Listener) -> None:
        """Go by other settings that leave the socket as it is."""
        self._listener = listener

    def close(self) -> None:
        """Stop listening; connections that are established stay."""
        for server in self._servers:
            server.close()
        if self._task is not None:
            self._task.cancel()
        for opened in self._sockets:
            if opened.fileno() >= 0:  # a server has closed its own
                self._connections.loop.remove_reader(opened)
                opened.close()

    def _make(self, place: Place | None = None, accepted_at: float | None = None) -> Connection | WebSocketTransport:
        connection = Connection(self._connections, place, accepted_at, self._listener.name)
        path = self._listener.websocket
        return connection if path is None else WebSocketTransport(connection, self._connections, path)

    # asyncio's own server would do the handshakes, too, but it tells nobody of those that fail, which is what whoever
    # gives out certificates to a fleet has to know.

    async def _serve_tls(self) -> None:
        loop = self._connections.loop
        async with asyncio.TaskGroup() as group:
            for opened in self._sockets:
                loop.add_reader(opened, self._accept, opened, group)
            await loop.create_future()  # until cancelled, and the handshakes under way with it

    def _accept(self, listening: socket.socket, group: asyncio.TaskGroup) -> None:
        connections = self._connections
        for _ in range(ACCEPT_BATCH):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.error("%s: can't accept: %s", self._listener.name, _reason(error))
                connections.loop.remove_reader(listening)
                connections.loop.call_later(ACCEPT_RETRY_S, self._accept_again, listening, group)
                return
            place = connections.admission.enter(address, accepted.close)
            if place is None:
                accepted.close()
                continue
            accepted.setblocking(False)
            task = group.create_task(self._shake_hands(accepted, place), name=f"TLS handshake with {place.peer}")
            place.turn_out = task.cancel

    def _accept_again(self, listening: socket.socket, group: asyncio.TaskGroup) -> None:
        if listening.fileno() >= 0:
            self._connections.loop.add_reader(listening, self._accept, listening, group)

    async def _shake_hands(self, accepted: socket.socket, place: Place) -> None:
        """Make a connection of an accepted socket; one that fails or takes too long is closed and logged."""
        connections, extra = self._connections, about(peer=place.peer)
        accepted_at = connections.loop.time()
        is_made = False
        try:
            wait_s = connections.admission.wait_s(place, accepted_at)
            if wait_s:
                connections.broker.counters.limited["connect_rate_per_address"] += 1
                await asyncio.sleep(wait_s)
            await connections.loop.connect_accepted_socket(
                lambda: self._make(place, accepted_at),
                accepted,
                ssl=self._contexts[self._listener.name],
                ssl_handshake_timeout=connections.admission.patience_s(place),
                ssl_shutdown_timeout=LINGER_S,
            )
            is_made = True
        except (OSError, EOFError) as error:
            logger.info("no TLS connection at %s: %s", self._listener.name, _reason(error), extra=extra)
        except Exception:
            # Whatever one peer can bring about must not end the group, and with it the listener.
            logger.exception("no TLS connection at %s", self._listener.name, extra=extra)
            accepted.close()
        finally:
            if not is_made:
                connections.admission.leave(place)


def listening_error(where: str, error: OSError, *, if_taken: str = "is another broker running there?") -> HighwayError:
    """What to raise where an address can't be had; `if_taken` is what to say where somebody else has it."""
    hint = if_taken if error.errno == errno.EADDRINUSE else _HINTS.get(error.errno or 0, "")
    return HighwayError(f"can't listen on {where}: {_reason(error)}", hint)


async def open_door(listener: Listener, connections: Connections, contexts: TlsContexts) -> Door:
    """The opened door of `listener`. HighwayError if its address can't be had."""
    door = Door(listener, connections, contexts)
    try:
        await door.open()
    except BaseException:
        door.close()
        raise
    return door


# An address that means all of them -> one of them.
_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}

# errno -> what to do about it.
_HINTS = {
    errno.EADDRNOTAVAIL: "this machine has no such address",
    errno.EACCES: "ports below 1024 need the capability CAP_NET_BIND_SERVICE",
    errno.EAFNOSUPPORT: "this machine has no IPv6",
    socket.EAI_NONAME: "no such host name",
}

# OpenSSL's reason -> what the peer did.
_TLS_REASONS = {
    "HTTP_REQUEST": "it sent an HTTP request without TLS",
    "WRONG_VERSION_NUMBER": "what it sent is not TLS",
    "UNSUPPORTED_PROTOCOL": "it speaks no TLS newer than 1.1",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "it doesn't trust our certificate",
    "NO_SHARED_CIPHER": "it knows no cipher that we accept",
}


def _reason(error: OSError | EOFError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return _TLS_REASONS.get(error.reason, error.reason.lower().replace("_", " "))
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    strerror = error.strerror if isinstance(error, OSError) else None
    return strerror or str(error) or "the peer closed the connection"
