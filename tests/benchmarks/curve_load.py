"""What a curve is measured with: one broker that work is added to, publishers of packets that were encoded beforehand,
and the processor time that a message takes of the broker.

Processor time, as what else the machine does changes it less than it changes a rate.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from highway.cli.client import Connection
from highway.cli.load.client import LoadClient, LoadError, PublishCounter, ready
from tests.benchmarks.replay import MIB, cpu_seconds
from tests.harness import packets
from tests.harness.broker_process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

__all__ = [
    "PAYLOAD",
    "Bench",
    "Point",
    "Sender",
    "Work",
    "packet_windows",
    "sender_windows",
    "subscribe_all",
    "topic_windows",
]

PAYLOAD = (
    b'{"ts":1790000000000,"sensor":"A1-003","speed_kmh":84.5,"temp_c":15.25,"lane":2,"vehicle":"car","batt":3.731}'
)
WINDOW = 20
SENDERS = 5
FILTERS_A_PACKET = 500
_ACK_BYTES = 4


class Point(NamedTuple):
    """One size of a curve."""

    size: int
    cpu_us: float  # of the broker, each message
    rate: float  # messages a second
    rss_mib: float


class Sender(LoadClient):
    """A client that sends windows of packets, each window when all of the one before is answered by as many bytes."""

    def __init__(self, where: Connection, client_id: str) -> None:
        super().__init__(where, client_id)
        self._windows: Iterator[tuple[bytes, int]] = iter(())
        self._due = 0

    def begin(self, windows: Sequence[tuple[bytes, int]]) -> bool:
        """Send the first of some windows, which come with the bytes of their answers; False without any."""
        self._windows, self._due = iter(windows), 0
        return self._send()

    def _send(self) -> bool:
        data, self._due = next(self._windows, (b"", 0))
        if data:
            self.socket.sendall(data)
        return bool(data)

    def on_readable(self) -> bool:
        """Take answers; False after the last."""
        self._due -= len(self.receive())
        return self._due > 0 or self._send()


def packet_windows(encoded: Sequence[bytes], answer_bytes: int = _ACK_BYTES) -> list[tuple[bytes, int]]:
    """Packets as windows for a `Sender`."""
    groups = [encoded[at : at + WINDOW] for at in range(0, len(encoded), WINDOW)]
    return [(b"".join(group), answer_bytes * len(group)) for group in groups]


def sender_windows(topics: Sequence[str], count: int, *, retain: bool = False) -> list[tuple[bytes, int]]:
    """Windows of `count` messages, to one topic after the other: no two in a row have the same, and none is a run."""
    known = [
        packets.publish(topic, PAYLOAD, qos=1, packet_id=at % 60_000 + 1, retain=retain)
        for at, topic in enumerate(topics[:count])
    ]
    return packet_windows((known * (count // max(1, len(known)) + 1))[:count])


def topic_windows(topics: Sequence[str], count: int, *, retain: bool = False) -> list[list[tuple[bytes, int]]]:
    """Windows for each sender, `count` messages in all. Each topic has one sender, as a device has."""
    each, more = divmod(count, SENDERS)
    return [sender_windows(topics[number::SENDERS], each + (number < more), retain=retain) for number in range(SENDERS)]


def subscribe_all(client: LoadClient, topic_filters: Sequence[str], qos: int = 0) -> None:
    """Subscribe to many filters, some hundred with each packet."""
    for at in range(0, len(topic_filters), FILTERS_A_PACKET):
        group = topic_filters[at : at + FILTERS_A_PACKET]
        client.socket.sendall(packets.subscribe(1, *((each, qos) for each in group)))
        header = len(packets.remaining_length(2 + len(group))) + 3
        answer = client.take(header + len(group))
        if answer[0] != 0x90 or any(code & 0x80 for code in answer[header:]):
            raise LoadError(f"{client.client_id}: SUBSCRIBE refused")


@dataclass
class Work:
    """What is measured: windows of each sender, how many messages that is, and what is delivered of it to whom."""

    windows: list[list[tuple[bytes, int]]]
    messages: int
    readers: list[LoadClient] = field(default_factory=list)
    deliveries: int = 0  # to all readers together


class Bench:
    """A broker of its own, the clients that stay connected to it, and the senders."""

    def __init__(self, folder: Path, topics: list[dict[str, Any]]) -> None:
        self.broker = BrokerProcess(folder)
        self.configure(topics)
        self.held: list[LoadClient] = []
        self._senders: list[Sender] = []

    def configure(self, topics: list[dict[str, Any]], **storage: str) -> None:
        """Write the configuration that the next start reads."""
        limits = {
            "connect_rate_per_address": "unlimited",
            "max_half_open_per_address": 10_000,
            "max_connections": 20_000,
            "max_connections_per_address": 20_000,
        }
        self.broker.write_config(
            {"topics": topics, "limits": limits, "storage": {"journal_file_bytes": "64MiB", **storage}}
        )

    @property
    def where(self) -> Connection:
        return Connection("127.0.0.1", self.broker.port, None, None, None)

    def hold(self, client_id: str, *, clean: bool = True) -> LoadClient:
        """A client that stays connected until the end."""
        self.held.append(LoadClient(self.where, client_id, clean=clean))
        return self.held[-1]

    def rss_mib(self) -> float:
        return self.broker.rss_bytes() / MIB

    def measure(self, size: int, work: Work, rounds: int) -> Point:
        """The least of some rounds, as others on the machine only ever add to it; one before them warms up."""
        self.run(work)
        points = []
        for _ in range(rounds):
            cpu = cpu_seconds(self.broker)
            seconds = self.run(work)
            cpu = cpu_seconds(self.broker) - cpu
            points.append(Point(size, cpu / work.messages * 1e6, work.messages / seconds, self.rss_mib()))
        return min(points, key=lambda point: point.cpu_us)

    def run(self, work: Work) -> float:
        """Publish, until every answer and delivery has come; seconds."""
        while len(self._senders) < len(work.windows):
            self._senders.append(Sender(self.where, f"sender-{len(self._senders)}"))
        for reader in work.readers:
            reader.counter = PublishCounter()
        due = work.deliveries
        with selectors.DefaultSelector() as selector:
            for reader in work.readers:
                selector.register(reader.socket, selectors.EVENT_READ, reader)
            started = time.perf_counter()
            live = 0
            for sender, windows in zip(self._senders, work.windows, strict=False):
                if sender.begin(windows):
                    selector.register(sender.socket, selectors.EVENT_READ, sender)
                    live += 1
            while live or due > 0:
                for key, _ in ready(selector):
                    if not isinstance(key.data, Sender):
                        due -= key.data.count()
                    elif not key.data.on_readable():
                        selector.unregister(key.fileobj)
                        live -= 1
        if due < 0:
            raise LoadError(f"{-due} messages more than expected were delivered")
        return time.perf_counter() - started

    def __enter__(self) -> Self:
        self.broker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in (*self.held, *self._senders):
            with contextlib.suppress(OSError):
                client.drop()
        self.broker.__exit__(kind, error, trace)
