"""MQTT over WebSocket: stands between a TCP or TLS transport and a `Connection`, and is to each the other one.

The `Connection` sees a transport that carries MQTT bytes, and nothing of frames. All that one chunk from the network
holds goes on to it as one chunk, and what it writes in one turn of the loop leaves as one frame.

Handshake and frames are the business of `websockets`, whose core without sockets takes 3 microseconds a frame; a
framework's WebSocket wants a task for each connection and an await for each frame.

Owner: the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

if TYPE_CHECKING:
    from .connection import Connection, Connections

__all__ = ["WebSocketTransport"]

logger = logging.getLogger("highway.server")

# [MQTT-6.0.0-3] A client that offers neither is refused. [MQTT-6.0.0-4] The first is chosen where it is offered; the
# second is all that some clients of 3.1 ask for.
SUBPROTOCOLS = [Subprotocol("mqtt"), Subprotocol("mqttv3.1")]
# A frame leaves before its turn of the loop is over when it is this large, so that the write buffer below knows of it.
FRAME_BYTES = 64 * 1024
# Room in one message for what a client sends together with a packet of the largest size.
COMPANY_BYTES = 1024 * 1024
# What may come before a CONNECT is complete, beside itself: the handshake and the heads of frames.
HANDSHAKE_BYTES = 64 * 1024


class WebSocketTransport(asyncio.Protocol, asyncio.Transport):
    """One WebSocket connection: the protocol of the transport below, and the transport of `connection`."""

    __slots__ = (
        "_below",
        "_closing",
        "_connection",
        "_early_bytes",
        "_fault",
        "_flush_due",
        "_path",
        "_shared",
        "_unsent",
        "_unsent_bytes",
        "_websocket",
    )

    def __init__(self, connection: Connection, shared: Connections, path: str) -> None:
        super().__init__()
        self._connection = connection
        self._shared = shared
        self._path = path
        # The protocol below is told of the largest packet, too; this keeps it from being gathered in vain.
        max_size = shared.broker.settings.max_packet_bytes + COMPANY_BYTES
        self._websocket = ServerProtocol(subprotocols=SUBPROTOCOLS, max_size=max_size)
        self._below: asyncio.Transport | None = None
        self._closing = False
        self._fault = ""  # what the peer did wrong
        self._early_bytes = 0
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._flush_due = False

    # The transport below calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast("asyncio.Transport", transport)
        self._connection.connection_made(self)

    def data_received(self, data: bytes) -> None:
        connection, websocket = self._connection, self._websocket
        if not self._early_bytes and not b"GET ".startswith(data[:4]):
            connection.fail("this listener is for WebSocket, and what came first is no HTTP request")
            return
        websocket.receive_data(data)
        payload = self._take_payload()
        if payload and not self._closing:
            connection.data_received(payload)
        if not connection.has_connect:
            self._early_bytes += len(data)
            connection.holds(self._early_bytes)
            most = HANDSHAKE_BYTES + self._shared.broker.settings.max_connect_packet_bytes
            if self._early_bytes > most and not self._fault:
                self._fault = f"more than {most} bytes, and no CONNECT among them"
                websocket.fail(CloseCode.MESSAGE_TOO_BIG)
        if not self._closing:
            if self._fault:
                connection.fail(self._fault)
            elif websocket.state not in (State.CONNECTING, State.OPEN):
                connection.close()  # as the peer asks for
        self._send_out()
        if self._connection.congested:
            self._connection.mind_unread()  # pongs are answers, too

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._below = None
        self._unsent.clear()
        self._connection.connection_lost(exc)

    # The connection calls these.

    def write(self, data: Any) -> None:
        """Send MQTT bytes, in one frame with all others of this turn of the loop."""
        if self._closing or not data:
            return  # an empty frame would say nothing
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes >= FRAME_BYTES:
            self._send_frame()
        elif not self._flush_due:
            self._flush_due = True
            self._shared.loop.call_soon(self._flush)

    def close(self) -> None:
        """Send what was written, say goodbye, and end with the peer's answer or when the connection's patience does."""
        below = self._below
        if self._closing or below is None:
            return
        self._send_frame()
        self._closing = True
        if self._websocket.state is State.OPEN:
            self._websocket.send_close(CloseCode.NORMAL_CLOSURE)
            below.resume_reading()  # the answer has to be seen
            self._send_out()
        else:
            self._send_out()
            below.close()

    def abort(self) -> None:
        if self._below is not None:
            self._below.abort()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        if self._below is not None:
            self._below.pause_reading()

    def resume_reading(self) -> None:
        if self._below is not None:
            self._below.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._below is not None:
            self._below.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes + (0 if self._below is None else self._below.get_write_buffer_size())

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._below is None else self._below.get_extra_info(name, default)

    # Between the two.

    def _take_payload(self) -> bytes:
        """The MQTT bytes of the frames that have come; answers a handshake, and notes a fault."""
        websocket = self._websocket
        events = websocket.events_received()
        parts = []
        for event in events:
            if isinstance(event, Request):
                self._answer(event, alone=len(events) == 1)
            elif not isinstance(event, Frame):
                continue  # for clients
            elif event.opcode is Opcode.BINARY or event.opcode is Opcode.CONT:
                parts.append(event.data)  # [MQTT-6.0.0-2] packets and frames need not meet
            elif event.opcode is Opcode.TEXT:
                # [MQTT-6.0.0-1] Other data frames than binary ones end the connection.
                self._fault = "a WebSocket text frame"
                websocket.fail(CloseCode.UNSUPPORTED_DATA, "MQTT is sent in binary frames")
                break
        error = websocket.parser_exc or websocket.handshake_exc
        if error is not None and not self._fault:
            self._fault = f"WebSocket: {error}"
        return b"".join(parts)

    def _answer(self, request: Request, *, alone: bool) -> None:
        websocket = self._websocket
        path = request.path.partition("?")[0]
        if path != self._path:
            self._fault = f"WebSocket: it asks for the path {path!r}"
            response = websocket.reject(HTTPStatus.NOT_FOUND, f"MQTT is at {self._path}\n")
        elif not alone:
            self._fault = "WebSocket: frames that did not wait for the answer to the handshake"
            websocket.data_to_send()  # a pong among them would stand in front of the answer
            response = websocket.reject(HTTPStatus.BAD_REQUEST, "frames have to wait for this answer\n")
        else:
            response = websocket.accept(request)
        websocket.send_response(response)

    def _flush(self) -> None:
        self._flush_due = False
        if not self._closing:
            self._send_frame()

    def _send_frame(self) -> None:
        if not self._unsent:
            return
        data = b"".join(self._unsent)
        self._unsent.clear()
        self._unsent_bytes = 0
        if self._websocket.state is State.OPEN:
            self._websocket.send_binary(data)
            self._send_out()

    def _send_out(self) -> None:
        """Hand on what the protocol wants sent; the end of its stream is the end of the connection."""
        below = self._below
        if below is None:
            return
        for data in self._websocket.data_to_send():
            if data:
                below.write(data)
            else:
                below.close()
