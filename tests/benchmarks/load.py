"""Load on a broker over raw sockets, with packets encoded beforehand: the generator must cost less than the broker.

`ingest`   publishers that keep a window of QoS 1 messages unacknowledged; messages a second, by acknowledgements
`fanout`   the same, with subscribers at QoS 0; messages delivered a second, every byte counted
`resume`   a persistent session misses messages, comes back and acknowledges; messages a second
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from dataclasses import dataclass, field

from tests.harness import packets

__all__ = ["Ingest", "LoadError", "fanout", "ingest", "resume"]

PUBACK_BYTES = 4
STALL_S = 30.0


class LoadError(Exception):
    """The broker refused, closed or stalled: there is no figure."""


@dataclass(frozen=True)
class Ingest:
    """Publishers, the window of each and how many messages each sends; `topics` are shared out among them."""

    publishers: int = 8
    window: int = 100
    messages: int = 20_000
    topics: int = 8
    payloads: tuple[bytes, ...] = field(default_factory=lambda: tuple(readings(1000)))


def readings(count: int) -> list[bytes]:
    """Payloads as a roadside sensor sends them, about 110 bytes each."""
    return [
        b'{"ts":%d,"sensor":"A1-%03d","speed_kmh":%d.%d,"temp_c":%d.%02d,"lane":%d,"vehicle":"%b","batt":3.%03d}'
        % (
            1_790_000_000_000 + number * 1000,
            number % 17,
            40 + number * 37 % 90,
            number % 10,
            10 + number * 13 % 20,
            number * 7 % 100,
            number % 4,
            (b"car", b"truck", b"bus", b"moto")[number * 5 % 4],
            number * 11 % 1000,
        )
        for number in range(count)
    ]


class Connection:
    """A blocking socket that is connected as a client."""

    def __init__(self, port: int, client_id: str, *, clean: bool = True) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=STALL_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.splitter = packets.PacketSplitter()
        self.early: list[tuple[int, bytes]] = []
        self.socket.sendall(packets.connect(client_id, clean=clean, keep_alive=0))
        first, body = self.packet()
        if first != 0x20 or body[1]:
            raise LoadError(f"{client_id}: CONNECT refused: {first:#x} {body.hex()}")

    def packet(self) -> tuple[int, bytes]:
        while not self.early:
            data = self.socket.recv(1 << 18)
            if not data:
                raise LoadError("closed by the broker")
            self.early = self.splitter.feed(data)
        return self.early.pop(0)

    def subscribe(self, topic_filter: str, qos: int) -> None:
        self.socket.sendall(packets.subscribe(1, (topic_filter, qos)))
        first, body = self.packet()
        if first != 0x90 or body[2] & 0x80:
            raise LoadError(f"SUBSCRIBE refused: {first:#x} {body.hex()}")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.sendall(packets.DISCONNECT)
        self.socket.close()


class Publisher(Connection):
    """Sends one window after the other, each when the one before is acknowledged."""

    def __init__(self, port: int, number: int, load: Ingest) -> None:
        super().__init__(port, f"bench-pub-{number}")
        topic = f"highway/A{number % load.topics}/telemetry"
        self.windows_left = load.messages // load.window
        self.total = self.windows_left * load.window
        encoded = [
            packets.publish(topic, load.payloads[i % len(load.payloads)], qos=1, packet_id=i % 65_000 + 1)
            for i in range(10 * load.window)
        ]
        self._windows = [b"".join(encoded[k * load.window : (k + 1) * load.window]) for k in range(10)]
        self._ack_bytes = load.window * PUBACK_BYTES
        self._acked = self._sent = 0
        # What one subscriber at QoS 0 gets of all this: the same packets without their packet ids.
        sizes = [len(window) - 2 * load.window for window in self._windows]
        self.delivered_bytes = sum(sizes[k % 10] for k in range(self.windows_left))

    def send(self) -> None:
        self.socket.sendall(self._windows[self._sent % 10])
        self._sent += 1
        self.windows_left -= 1

    def on_readable(self) -> bool:
        """Take acknowledgements; False when the last one is in."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise LoadError("closed by the broker")
        self._acked += len(data)
        if self._acked == self._sent * self._ack_bytes:
            if not self.windows_left:
                return False
            self.send()
        return True


def ingest(port: int, load: Ingest) -> float:
    """Messages a second."""
    publishers = [Publisher(port, number, load) for number in range(load.publishers)]
    started = time.perf_counter()
    _publish(publishers)
    seconds = time.perf_counter() - started
    for publisher in publishers:
        publisher.close()
    return sum(publisher.total for publisher in publishers) / seconds


def _publish(publishers: list[Publisher]) -> None:
    with selectors.DefaultSelector() as selector:
        for publisher in publishers:
            selector.register(publisher.socket, selectors.EVENT_READ, publisher)
            publisher.send()
        live = len(publishers)
        while live:
            for key, _ in _ready(selector):
                if not key.data.on_readable():
                    selector.unregister(key.fileobj)
                    live -= 1


def _ready(selector: selectors.BaseSelector) -> list[tuple[selectors.SelectorKey, int]]:
    events = selector.select(STALL_S)
    if not events:
        raise LoadError(f"nothing came for {STALL_S:g} s")
    return events


def fanout(port: int, load: Ingest, subscribers: int) -> float:
    """Messages delivered a second; LoadError if a subscriber gets another number of bytes than it should."""
    readers = [Connection(port, f"bench-sub-{number}") for number in range(subscribers)]
    for reader in readers:
        reader.subscribe("highway/+/telemetry", 0)
        reader.socket.setblocking(False)
    publishers = [Publisher(port, number, load) for number in range(load.publishers)]
    expected = sum(publisher.delivered_bytes for publisher in publishers)
    got = dict.fromkeys(readers, 0)
    buffer = bytearray(1 << 20)
    with selectors.DefaultSelector() as selector:
        for connection in (*readers, *publishers):
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        started = time.perf_counter()
        for publisher in publishers:
            publisher.send()
        complete = 0
        while complete < len(readers):
            for key, _ in _ready(selector):
                connection = key.data
                if isinstance(connection, Publisher):
                    if not connection.on_readable():
                        selector.unregister(key.fileobj)
                    continue
                got[connection] += connection.socket.recv_into(buffer)
                if got[connection] >= expected:
                    complete += 1
                    selector.unregister(key.fileobj)
        seconds = time.perf_counter() - started
    for connection in (*readers, *publishers):
        connection.socket.close()
    if set(got.values()) != {expected}:
        raise LoadError(f"subscribers got {sorted(set(got.values()))} bytes, expected {expected}")
    return sum(publisher.total for publisher in publishers) * subscribers / seconds


def resume(port: int, load: Ingest, qos: int) -> float:
    """Messages a second that a session which missed them all gets back."""
    client_id = f"bench-resume-{time.time_ns()}"
    session = Connection(port, client_id, clean=False)
    session.subscribe("highway/+/telemetry", qos)
    session.close()
    publishers = [Publisher(port, number, load) for number in range(load.publishers)]
    _publish(publishers)
    total = sum(publisher.total for publisher in publishers)
    for publisher in publishers:
        publisher.close()
    started = time.perf_counter()
    session = Connection(port, client_id, clean=False)
    got = _take(session, session.early)
    while got < total:
        data = session.socket.recv(1 << 18)
        if not data:
            raise LoadError(f"closed after {got} of {total}")
        got += _take(session, session.splitter.feed(data))
    seconds = time.perf_counter() - started
    session.close()
    Connection(port, client_id).close()  # a clean session: the old one is gone
    return total / seconds


def _take(session: Connection, arrived: list[tuple[int, bytes]]) -> int:
    """Acknowledge the PUBLISH packets that arrived; returns how many there were."""
    acks, count = [], 0
    for first, body in arrived:
        if first >> 4 == 3:
            count += 1
            if first & 6:
                name_end = 2 + (body[0] << 8 | body[1])
                acks.append(b"\x40\x02" + body[name_end : name_end + 2])
    if acks:
        session.socket.sendall(b"".join(acks))
    return count
