"""A client of a benchmark: a socket that is connected by MQTT 3.1.1, and what arrives on it counted."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, TypeVar

from highway.errors import HighwayError
from highway.mqtt.wire import encode_binary, encode_varint

if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable, Iterator

    from highway.cli.client import Connection

__all__ = ["STALL_S", "LoadClient", "LoadError", "PublishCounter", "all_connected", "ready", "subscribe_packet"]

STALL_S = 30.0
RECEIVE_BYTES = 1 << 18
_DISCONNECT = b"\xe0\x00"

Client = TypeVar("Client", bound="LoadClient")


class LoadError(HighwayError):
    """The broker refused, closed or stalled: there is no figure."""


def connect_packet(client_id: str, *, clean: bool, username: str | None, password: str | None) -> bytes:
    """A CONNECT without keep alive."""
    flags = 2 * clean
    payload = encode_binary(client_id.encode())
    if username is not None:
        flags |= 0x80
        payload += encode_binary(username.encode())
    if password is not None:
        flags |= 0x40
        payload += encode_binary(password.encode())
    body = b"\x00\x04MQTT\x04" + bytes((flags, 0, 0)) + payload
    return b"\x10" + encode_varint(len(body)) + body


def subscribe_packet(topic_filter: str, qos: int) -> bytes:
    """A SUBSCRIBE to one filter, with packet id 1."""
    body = b"\x00\x01" + encode_binary(topic_filter.encode()) + bytes((qos,))
    return b"\x82" + encode_varint(len(body)) + body


class PublishCounter:
    """Counts the PUBLISH packets of a stream and collects the acknowledgements that they ask for."""

    __slots__ = ("_rest", "bytes", "packets")

    def __init__(self) -> None:
        self._rest = b""
        self.packets = 0
        self.bytes = 0  # of whole PUBLISH packets

    def feed(self, data: bytes) -> bytes:
        """Return the acknowledgements for what came: PUBACK, PUBREC, or PUBCOMP for a PUBREL."""
        if self._rest:
            data = self._rest + data
        acks: list[bytes] = []
        position, size = 0, len(data)
        while position + 2 <= size:
            body = position + 1
            byte = data[body]
            length = byte & 0x7F
            shift = 0
            body += 1
            while byte >= 0x80 and body < size:
                byte = data[body]
                shift += 7
                length |= (byte & 0x7F) << shift
                body += 1
            end = body + length
            if byte >= 0x80 or end > size:
                break
            first = data[position]
            if first & 0xF0 == 0x30:
                self.packets += 1
                self.bytes += end - position
                if first & 6:
                    name_end = body + 2 + (data[body] << 8 | data[body + 1])
                    acks.append((b"\x40\x02" if first & 2 else b"\x50\x02") + data[name_end : name_end + 2])
            elif first == 0x62:
                acks.append(b"\x70\x02" + data[body:end])
            position = end
        self._rest = data[position:]
        return b"".join(acks)


class LoadClient:
    """A connected client. LoadError if the broker refuses, OSError if it isn't there."""

    def __init__(self, where: Connection, client_id: str, *, clean: bool = True) -> None:
        self.client_id = client_id
        self.counter = PublishCounter()
        opened = socket.create_connection((where.host, where.port), timeout=STALL_S)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = opened
        try:
            if where.tls is not None:
                self.socket = where.tls.wrap_socket(opened, server_hostname=where.host)
            self.socket.sendall(
                connect_packet(client_id, clean=clean, username=where.username, password=where.password)
            )
            answer = self.take(4)
            if answer[0] != 0x20 or answer[3]:
                raise LoadError(f"{client_id}: CONNECT refused with code {answer[3]}")
        except BaseException:
            self.socket.close()
            raise

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        data = b""
        while len(data) < count:
            data += self._some(count - len(data))
        return data

    def _some(self, count: int) -> bytes:
        try:
            data = self.socket.recv(count)
        except TimeoutError:
            raise LoadError(f"{self.client_id}: nothing came for {STALL_S:g} s") from None
        if not data:
            raise LoadError(f"{self.client_id}: closed by the broker")
        return data

    def receive(self) -> bytes:
        """Return what is there, at least a byte; over TLS all that has been decrypted."""
        data = self._some(RECEIVE_BYTES)
        pending = getattr(self.socket, "pending", None)
        while pending is not None and (more := pending()):
            data += self._some(more)
        return data

    def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe; messages may come before the SUBACK is looked for, so it is to be the first thing that is done."""
        self.socket.sendall(subscribe_packet(topic_filter, qos))
        answer = self.take(5)
        if answer[0] != 0x90 or answer[4] & 0x80:
            raise LoadError(f"{self.client_id}: SUBSCRIBE to {topic_filter} refused: {answer.hex()}")

    def count(self) -> int:
        """Take what is there and acknowledge it; how many messages it held."""
        before = self.counter.packets
        acks = self.counter.feed(self.receive())
        if acks:
            self.socket.sendall(acks)
        return self.counter.packets - before

    def close(self) -> None:
        """Disconnect, if that is still possible."""
        with contextlib.suppress(OSError):
            self.socket.sendall(_DISCONNECT)
        self.socket.close()

    def drop(self) -> None:
        """Close without DISCONNECT."""
        self.socket.close()


@contextlib.contextmanager
def all_connected(make: Callable[[int], Client], count: int) -> Iterator[list[Client]]:
    """Yield `count` clients, which are dropped at the end whatever happens; `make` gets their numbers."""
    clients: list[Client] = []
    try:
        for number in range(count):
            clients.append(make(number))  # noqa: PERF401  those that were made before one fails must be known
        yield clients
    finally:
        for client in clients:
            client.drop()


def ready(selector: selectors.BaseSelector) -> list[tuple[selectors.SelectorKey, int]]:
    """Return what `select` does; LoadError if nothing comes."""
    events = selector.select(STALL_S)
    if not events:
        raise LoadError(f"nothing came for {STALL_S:g} s")
    return events
