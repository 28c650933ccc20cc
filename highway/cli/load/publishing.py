"""Publishers that keep a window of messages on the way: each sends the next when all of one is acknowledged.

At QoS 1 a window is done with its PUBACKs, at QoS 2 with its PUBCOMPs. QoS 0 has no acknowledgement: there the window
is what is sent at once, and a PINGREQ behind the last tells when the broker has read everything.
"""

from __future__ import annotations

import selectors
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from highway.mqtt.publish import PublishHeads, encode_qos, encode_qos0

from .client import LoadClient, LoadError, PublishCounter, all_connected, ready

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from highway.cli.client import Connection

__all__ = ["Ingest", "Published", "Publisher", "ingest", "publish_all", "quantile", "readings"]

_ACK_BYTES = 4
_PINGREQ = b"\xc0\x00"
_PINGRESP_BYTES = 2
_VARIETY = 10  # different windows, after which they come again
_ENCODED_BYTES = 8 << 20  # of one topic: fewer different windows where messages are large


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


@dataclass(frozen=True, slots=True)
class Ingest:
    """Publishers, the window of each and how many messages each sends; `topics` are shared out among them."""

    publishers: int = 8
    window: int = 100
    messages: int = 20_000
    topics: int = 8
    qos: int = 1
    topic: str = "highway/A{}/telemetry"
    payloads: tuple[bytes, ...] = field(default_factory=lambda: tuple(readings(1000)))

    @property
    def total(self) -> int:
        """What all of them send, in whole windows."""
        return self.publishers * max(1, self.messages // self.window) * self.window


@lru_cache(maxsize=64)
def _windows(
    topic: bytes, number_of_topic: int, qos: int, window: int, payloads: tuple[bytes, ...]
) -> tuple[tuple[bytes, int], ...]:
    """Encoded windows, and what a subscriber at QoS 0 gets of each in bytes; the same for all publishers of a topic.

    Each topic takes other payloads, as long as there are some.
    """
    largest = max(map(len, payloads)) + len(topic) + 8
    variety = max(1, min(_VARIETY, _ENCODED_BYTES // (largest * window)))
    heads, plain = PublishHeads(0x30 | qos << 1, topic, 2 if qos else 0), PublishHeads(0x30, topic)
    made = []
    for number in range(variety):
        first = (number_of_topic * variety + number) * window
        chosen = [payloads[(first + each) % len(payloads)] for each in range(window)]
        ids = ((number * window + each) % 65_000 + 1 for each in range(window))
        delivered = encode_qos0(plain, chosen)
        encoded = encode_qos(heads, [one.to_bytes(2, "big") for one in ids], chosen) if qos else delivered
        made.append((encoded, len(delivered)))
    return tuple(made)


class Publisher(LoadClient):
    """One of them. `times_ms` holds how long each window took from sending to its last acknowledgement."""

    def __init__(self, where: Connection, number: int, load: Ingest, client_id: str | None = None) -> None:
        super().__init__(where, client_id or f"bench-pub-{number}")
        self.qos = load.qos
        self.window = load.window
        self.left = max(1, load.messages // load.window)
        self.sent = 0
        self.times_ms: list[float] = []
        topic_number = number % load.topics
        topic = load.topic.replace("{}", str(topic_number))
        windows = _windows(topic.encode(), topic_number, load.qos, load.window, load.payloads)
        self._windows = [encoded for encoded, _ in windows]
        self._delivered = [size for _, size in windows]
        self._acked = 0
        self._releases: tuple[bytes, ...] = ()
        if load.qos == 2:
            self._releases = tuple(map(_releases, self._windows))
        self._releasing = False
        self._sent_at = 0.0

    @property
    def messages(self) -> int:
        """How many have been sent."""
        return self.sent * self.window

    def bytes_at_qos0(self) -> int:
        """What one subscriber at QoS 0 gets of everything that was sent and will be."""
        sizes = self._delivered
        return sum(sizes[number % len(sizes)] for number in range(self.sent + self.left))

    def send(self) -> None:
        """Send the next window."""
        self._sent_at = time.perf_counter()
        self._acked = 0
        self.socket.sendall(self._windows[self.sent % len(self._windows)])
        self.sent += 1
        self.left -= 1
        if self.qos == 0 and not self.left:
            self.socket.sendall(_PINGREQ)

    def on_readable(self) -> bool:
        """Take acknowledgements, and go on when the window is done; False when the last one is."""
        data = self.receive()
        self._acked += len(data)
        if self.qos == 0:
            return self._acked < _PINGRESP_BYTES
        if self._acked < self.window * _ACK_BYTES:
            return True
        if self.qos == 2 and not self._releasing:
            self._releasing = True
            self._acked = 0
            self.socket.sendall(self._releases[(self.sent - 1) % len(self._releases)])
            return True
        self._releasing = False
        self.times_ms.append((time.perf_counter() - self._sent_at) * 1000)
        if not self.left:
            return False
        self.send()
        return True


def _releases(window: bytes) -> bytes:
    """The PUBRELs for a window, which hold its packet ids."""
    return PublishCounter().feed(window).replace(b"\x50\x02", b"\x62\x02")


@dataclass(frozen=True, slots=True)
class Published:
    """What came of it; `times_ms` is sorted."""

    messages: int
    seconds: float
    times_ms: list[float]

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which that share of sorted `values` is; 0 without any."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def ingest(
    where: Connection,
    load: Ingest,
    *,
    on_progress: Callable[[int], None] | None = None,
    max_seconds: float | None = None,
) -> Published:
    """Publish, and wait for every acknowledgement; after `max_seconds` no further window is sent."""
    with all_connected(lambda number: Publisher(where, number, load), load.publishers) as publishers:
        started = time.perf_counter()
        publish_all(publishers, on_progress, None if max_seconds is None else started + max_seconds)
        seconds = time.perf_counter() - started
        for publisher in publishers:
            publisher.close()
    times = sorted(time_ms for publisher in publishers for time_ms in publisher.times_ms)
    return Published(sum(publisher.messages for publisher in publishers), seconds, times)


def publish_all(
    publishers: Sequence[Publisher], on_progress: Callable[[int], None] | None = None, until: float | None = None
) -> None:
    """Serve publishers until the last acknowledgement of each."""
    if publishers and publishers[0].qos == 0:
        _pour(publishers, on_progress, until)
        return
    with selectors.DefaultSelector() as selector:
        for publisher in publishers:
            selector.register(publisher.socket, selectors.EVENT_READ, publisher)
            publisher.send()
        live = len(publishers)
        while live:
            events = ready(selector)
            if until is not None and time.perf_counter() > until:
                for publisher in publishers:
                    publisher.left = 0
            for key, _ in events:
                before = key.data.sent
                if not key.data.on_readable():
                    selector.unregister(key.fileobj)
                    live -= 1
                if on_progress is not None and (key.data.sent > before or not key.data.left):
                    on_progress(key.data.window)


def _pour(publishers: Sequence[Publisher], on_progress: Callable[[int], None] | None, until: float | None) -> None:
    """QoS 0: a window from each in turn, then wait until the broker has read the last."""
    live = list(publishers)
    while live:
        if until is not None and time.perf_counter() > until:
            for publisher in live:
                publisher.left = 1
        for publisher in live:
            publisher.send()
            if on_progress is not None:
                on_progress(publisher.window)
        live = [publisher for publisher in live if publisher.left]
    for publisher in publishers:
        while publisher.on_readable():
            pass
        if publisher.left:
            raise LoadError(f"{publisher.client_id}: not everything was sent")
