"""A client on a plain socket that sends exactly the bytes of a test, and sees exactly the bytes of the broker."""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import time
from typing import TYPE_CHECKING, Self

from tests.harness import packets

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

    from tests.harness.packets import Message

__all__ = [
    "CONNACK",
    "PUBACK",
    "PUBCOMP",
    "PUBLISH",
    "PUBREC",
    "PUBREL",
    "SUBACK",
    "UNSUBACK",
    "RawClient",
    "close_all",
]

# Packet types, as the high half of the first byte.
CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK = 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x90, 0xB0

_opened: list[RawClient] = []


def close_all() -> None:
    """Close every client made since the last call: tests that cut and rejoin need not keep count."""
    while _opened:
        _opened.pop().close()


class RawClient:
    """One connection. Messages that come while something else is awaited are kept and acknowledged in turn."""

    def __init__(
        self,
        port: int,
        *,
        host: str = "127.0.0.1",
        timeout: float = 10.0,
        receive_buffer: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.timeout = timeout
        self.socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        _opened.append(self)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        self.socket.connect((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self._splitter = packets.PacketSplitter()
        self._packets: list[tuple[int, bytes]] = []
        self._messages: list[Message] = []
        self._ids = itertools.cycle(range(1, 65536))
        self.auto_ack = True
        self.session_present = False

    @classmethod
    def connected(cls, port: int, client_id: str, *, clean: bool = True, **settings: object) -> RawClient:
        """A client past its CONNACK 0; `settings` are those of CONNECT."""
        client = cls(port)
        client.login(client_id, clean=clean, **settings)
        return client

    def login(self, client_id: str, **settings: object) -> bool:
        """CONNECT and CONNACK 0; returns Session Present."""
        self.send(packets.connect(client_id, **settings))  # type: ignore[arg-type]
        body = self.expect(CONNACK)
        assert body[1] == 0, f"CONNACK {body.hex()}"
        self.session_present = bool(body[0])
        return self.session_present

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cut the connection without DISCONNECT."""
        self.socket.close()

    def reset(self) -> None:
        """Cut the connection with RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def disconnect(self) -> None:
        """Leave with DISCONNECT, and wait until the broker has closed too."""
        self.send(packets.DISCONNECT)
        self.expect_closed(within=self.timeout)
        self.close()

    def next_id(self) -> int:
        return next(self._ids)

    def send(self, data: bytes | str) -> None:
        """Send bytes, or hex text."""
        self.socket.sendall(bytes.fromhex(data) if isinstance(data, str) else data)

    def read_packet(self, *, timeout: float | None = None) -> tuple[int, bytes] | None:
        """The next packet as (first byte, body); None at the end of the stream. Raises TimeoutError."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while not self._packets:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError("no packet in time")
            self.socket.settimeout(remaining)
            try:
                data = self.socket.recv(1 << 18)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._packets.extend(self._splitter.feed(data))
        return self._packets.pop(0)

    def read_packets(self) -> list[tuple[int, bytes]] | None:
        """All packets that are there, at least one and however long it takes; None at the end of the stream."""
        self.socket.settimeout(None)
        while not self._packets:
            data = self.socket.recv(1 << 18)
            if not data:
                return None
            self._packets.extend(self._splitter.feed(data))
        found, self._packets = self._packets, []
        return found

    def expect(self, kind: int, *, timeout: float | None = None) -> bytes:
        """The body of the next packet of `kind`; messages on the way are kept."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            found = self.read_packet(timeout=max(0.001, deadline - time.monotonic()))
            assert found is not None, f"closed while waiting for packet type {kind:#x}"
            first_byte, body = found
            if first_byte & 0xF0 == kind and kind != PUBLISH:
                return body
            self._handle(first_byte, body)

    def expect_bytes(self, expected: bytes | str, *, timeout: float | None = None) -> None:
        """The next packets are exactly these bytes."""
        wanted = bytes.fromhex(expected) if isinstance(expected, str) else expected
        got = b""
        while len(got) < len(wanted):
            found = self.read_packet(timeout=timeout)
            if found is None:
                break
            got += packets.packet(*found)
        assert got == wanted, f"got {got.hex()}, expected {wanted.hex()}"

    def expect_in_any_order(self, *expected: str) -> None:
        """The next packets are these, each hex text; the specification orders acks, but not those of unlike kinds."""
        got: list[str] = []
        for _ in expected:
            found = self.read_packet()
            assert found is not None, f"closed after {got}"
            got.append(packets.packet(*found).hex())
        assert sorted(got) == sorted(expected)

    def expect_closed(self, *, within: float = 5.0) -> list[tuple[int, bytes]]:
        """The stream ends in time; returns the packets before its end."""
        seen: list[tuple[int, bytes]] = []
        deadline = time.monotonic() + within
        while True:
            try:
                found = self.read_packet(timeout=max(0.001, deadline - time.monotonic()))
            except TimeoutError:
                raise AssertionError(f"still open after {within} s; it sent {seen}") from None
            if found is None:
                return seen
            seen.append(found)

    def _handle(self, first_byte: int, body: bytes) -> None:
        kind = first_byte & 0xF0
        if kind == PUBLISH:
            message = packets.parse_publish(first_byte, body)
            self._messages.append(message)
            if self.auto_ack and message.qos:
                self.send(packets.ack(PUBACK if message.qos == 1 else PUBREC, message.packet_id))
        elif kind == PUBREL and self.auto_ack:
            self.send(packets.ack(PUBCOMP, int.from_bytes(body[:2], "big")))

    def subscribe(self, *filters: tuple[str, int]) -> list[int]:
        """SUBSCRIBE; returns the codes of the SUBACK."""
        packet_id = self.next_id()
        self.send(packets.subscribe(packet_id, *filters))
        body = self.expect(SUBACK)
        assert int.from_bytes(body[:2], "big") == packet_id
        return list(body[2:])

    def unsubscribe(self, *filters: str) -> None:
        packet_id = self.next_id()
        self.send(packets.unsubscribe(packet_id, *filters))
        assert self.expect(UNSUBACK) == packet_id.to_bytes(2, "big")

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        """PUBLISH and its whole handshake."""
        packet_id = self.next_id()
        self.send(packets.publish(topic, payload, qos=qos, packet_id=packet_id, retain=retain))
        identifier = packet_id.to_bytes(2, "big")
        if qos == 1:
            assert self.expect(PUBACK) == identifier
        elif qos == 2:
            assert self.expect(PUBREC) == identifier
            self.send(packets.ack(0x62, packet_id))
            assert self.expect(PUBCOMP) == identifier

    def ping(self, *, timeout: float | None = None) -> None:
        """PINGREQ and PINGRESP: all that was sent before has been taken in, and what it caused on this connection."""
        self.send(packets.PINGREQ)
        self.expect(0xD0, timeout=timeout)

    def messages(self, count: int, *, timeout: float | None = None) -> list[Message]:
        """The next `count` messages; fewer in time is an error that shows them."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while len(self._messages) < count:
            try:
                found = self.read_packet(timeout=max(0.001, deadline - time.monotonic()))
            except TimeoutError:
                raise AssertionError(f"{len(self._messages)} of {count} messages: {self._messages[:20]}") from None
            assert found is not None, f"closed after {len(self._messages)} of {count} messages"
            self._handle(*found)
        taken, self._messages = self._messages[:count], self._messages[count:]
        return taken

    def message(self, *, timeout: float | None = None) -> Message:
        return self.messages(1, timeout=timeout)[0]

    def waiting_messages(self) -> list[Message]:
        """Every message up to the PINGRESP of a PINGREQ sent now."""
        self.ping()
        taken, self._messages = self._messages, []
        return taken

    def quiet_for(self, seconds: float) -> None:
        """Nothing comes and the connection stays open for so long: the absence is what is tested."""
        with contextlib.suppress(TimeoutError):
            found = self.read_packet(timeout=seconds)
            raise AssertionError(f"got {found}, expected silence")
