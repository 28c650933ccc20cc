"""What is measured, row by row: load on brokers that run, and costs of brokers that are started for it.

A measurement gives one figure by row name; rates are messages a second and higher is better, everything else is less is
better. `scale` is the part of the full load: a hundredth of it shows that a row works, and nothing else.
"""

from __future__ import annotations

import random
import selectors
import socket
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from highway.cli.load.client import LoadClient, LoadError, all_connected
from highway.cli.load.publishing import Ingest, ingest, quantile
from highway.cli.load.reading import fanout, replay, resume
from tests.harness import packets

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.peers import Peer, Running

__all__ = ["ROWS", "Row", "amount"]

# Messages of all publishers together, before `share` and `scale`; more where they are quick.
INGEST_MESSAGES = 160_000
INGEST_SECONDS = 5.0
BYTES_AT_MOST = 256 << 20
FANOUT_DELIVERIES = 1_000_000
MISSED = 100_000
TOPICS = 100
IDLE = 10_000
STORM = 2_000


@dataclass(frozen=True)
class Row:
    """A measurement, and the names of what it gives. `fresh`: on a broker that is started for it, with an empty folder."""

    group: str
    names: tuple[str, ...]
    measure: Callable[[Running, float], dict[str, float]]
    unit: str
    is_rate: bool = True
    fresh: bool = False
    only: Callable[[Peer], bool] = lambda _: True


def amount(running: Running, scale: float, full: int, *, least: int = 1) -> int:
    """How many of `full` this broker gets."""
    return max(least, int(full * scale * running.peer.share))


# Ingest.


def _ingest(name: str, load: Ingest) -> Row:
    def measure(running: Running, scale: float) -> dict[str, float]:
        size = max(map(len, load.payloads))
        full = min(INGEST_MESSAGES, BYTES_AT_MOST // size)
        each = max(load.window, amount(running, scale, full) // load.publishers)
        done = ingest(running.where, replace(load, messages=each), max_seconds=INGEST_SECONDS)
        return {name: done.rate}

    return Row("ingest", (name,), measure, "/s")


def _ingest_rows() -> list[Row]:
    base = Ingest()
    rows = [_ingest(f"QoS {qos}, 8 x window 100", replace(base, qos=qos)) for qos in (1, 0, 2)]
    rows += [
        _ingest(f"QoS 1, {text}, 8 x window 100", replace(base, payloads=(b"x" * size,)))
        for text, size in (("100 B", 100), ("1 KiB", 1024), ("64 KiB", 65_536))
    ]
    rows += [
        _ingest(f"QoS 1, {publishers} x window {window}", replace(base, publishers=publishers, window=window))
        for publishers in (1, 8, 50, 1000)
        for window in (1, 20, 100)
        if (publishers, window) != (8, 100)
    ]
    busy = replace(base, publishers=50, window=20, topics=50)
    return [
        *rows,
        _ingest("QoS 1, 50 x window 20, 50 topics", busy),
        _ingest("QoS 1, 200 x window 1", replace(base, publishers=200, window=1)),
    ]


# Fan-out.


def _fanout(subscribers: int, qos: int) -> Row:
    name = f"2 to {subscribers}, QoS {qos}"

    def measure(running: Running, scale: float) -> dict[str, float]:
        full = max(2_000, min(40_000, FANOUT_DELIVERIES // subscribers))
        window = 100 if scale >= 1 else 10
        each = max(window, amount(running, scale, full) // 2)
        done = fanout(running.where, Ingest(publishers=2, window=window, messages=each), subscribers, qos=qos)
        return {name: done.rate}

    return Row("fan-out", (name,), measure, "/s")


# Latency.

_LATENCY = ("p50", "p99")


def _latency(running: Running, scale: float) -> dict[str, float]:
    """Milliseconds from sending a QoS 1 message until a subscriber at QoS 0 has it; the next is sent then."""
    topic = "highway/latency/telemetry"
    times: list[float] = []
    with (
        all_connected(lambda _: LoadClient(running.where, "bench-latency-sub"), 1) as (subscriber,),
        all_connected(lambda _: LoadClient(running.where, "bench-latency-pub"), 1) as (publisher,),
    ):
        subscriber.subscribe(topic, 0)
        payload = b"x" * 100
        expected = len(packets.publish(topic, payload))
        for number in range(amount(running, scale, 5_000, least=20)):
            message = packets.publish(topic, payload, qos=1, packet_id=number % 60_000 + 1)
            started = time.perf_counter()
            publisher.socket.sendall(message)
            subscriber.take(expected)
            times.append((time.perf_counter() - started) * 1000)
            publisher.take(4)
    times.sort()
    return {"p50": quantile(times, 0.5), "p99": quantile(times, 0.99)}


# Reading the past.


def _resume(qos: int) -> Row:
    name = f"resume, {MISSED:,} missed, QoS {qos}"

    def measure(running: Running, scale: float) -> dict[str, float]:
        each = amount(running, scale, MISSED, least=400) // 4
        return {name: resume(running.where, Ingest(publishers=4, messages=each), qos).rate}

    return Row("catching up", (name,), measure, "/s")


_REPLAY = f"replay of one topic of {TOPICS}, records passed"


def _replay(running: Running, scale: float) -> dict[str, float]:
    """Records of a log that are passed a second to find those of one topic, of which ten stand together in a thousand."""
    topic = "highway/many-{}/telemetry"
    started_ms = int(time.time() * 1000)
    each = amount(running, scale, 4 * MISSED, least=TOPICS * 10) // TOPICS
    load = Ingest(publishers=TOPICS, window=10, messages=each, topics=TOPICS, topic=topic)
    done = ingest(running.where, load)
    wanted = done.messages // TOPICS
    # In the rounds before the same was stored, and in other rows much more.
    got = replay(running.where, topic.replace("{}", "42"), start=f"@{started_ms}", limit=wanted, max_seconds=60)
    if got.messages < wanted:
        raise LoadError(f"{got.messages} of {wanted} came")
    return {_REPLAY: done.messages / got.seconds}


# Costs: each on a broker of its own.

_IDLE = ("idle connection, KiB", "processor with all idle, %")


def _idle(running: Running, scale: float) -> dict[str, float]:
    count = max(20, int(IDLE * scale))
    before = running.rss_bytes()
    with all_connected(lambda number: LoadClient(running.where, f"bench-idle-{number}"), count):
        grown = running.rss_bytes() - before
        used, started = running.cpu_seconds(), time.perf_counter()
        time.sleep(max(0.2, 3 * min(scale, 1.0)))  # what is measured is doing nothing
        share = (running.cpu_seconds() - used) / (time.perf_counter() - started)
    return {_IDLE[0]: grown / count / 1024, _IDLE[1]: share * 100}


_STORM = f"connection storm, {STORM:,} at once"


def _storm(running: Running, scale: float) -> dict[str, float]:
    """Connections a second: all sockets connect and send CONNECT at once, and the last CONNACK ends it."""
    count = max(20, int(STORM * scale))
    sockets: list[socket.socket] = []
    try:
        started = time.perf_counter()
        with selectors.DefaultSelector() as selector:
            for number in range(count):
                opened = socket.create_connection(("127.0.0.1", running.port), timeout=30)
                sockets.append(opened)
                opened.sendall(packets.connect(f"bench-storm-{number}", keep_alive=0))
                selector.register(opened, selectors.EVENT_READ)
            left = count
            while left:
                events = selector.select(30)
                if not events:
                    raise LoadError(f"{left} of {count} have no CONNACK")
                for key, _ in events:
                    assert isinstance(key.fileobj, socket.socket)
                    if key.fileobj.recv(4) != b"\x20\x02\x00\x00":
                        raise LoadError("refused")
                    selector.unregister(key.fileobj)
                    left -= 1
        return {_STORM: count / (time.perf_counter() - started)}
    finally:
        for opened in sockets:
            opened.close()


def varied_readings(count: int) -> tuple[bytes, ...]:
    """Readings of 110 bytes of which no two are the same, in the order of their times: what compresses, and no more."""
    chance = random.Random(7)
    time_ms, readings = 1_790_000_000_000, []
    for _ in range(count):
        time_ms += chance.randrange(20, 2000)
        readings.append(
            b'{"ts":%d,"sensor":"A1-%03d","speed_kmh":%.1f,"temp_c":%.2f,"lane":%d,"vehicle":"%b","batt":%.3f}'
            % (
                time_ms,
                chance.randrange(17),
                chance.gauss(84, 14),
                chance.gauss(15, 2),
                chance.randrange(4),
                chance.choice((b"car", b"car", b"car", b"truck", b"bus", b"moto")),
                chance.uniform(3.3, 4.1),
            )
        )
    return tuple(readings)


_STORED = ("restart after kill -9, s", "disk, bytes a message", "memory, MiB")


def _stored(running: Running, scale: float) -> dict[str, float]:
    """A session is away and misses messages; then the broker is killed, and starts again.

    Disk: how much the folder grows from a clean stop to the next, for a reading of 110 bytes. Memory: of the broker while
    the session is away.
    """
    keeper = LoadClient(running.where, "bench-stored", clean=False)
    keeper.subscribe("highway/+/telemetry", 1)
    keeper.close()
    each = amount(running, scale, 2 * MISSED, least=400) // 4
    # Windows come again after ten: of 1,000, and four topics, that is beyond what a frame holds.
    load = Ingest(4, min(1000, each), each, topics=4, payloads=varied_readings(40_000))
    ingest(running.where, load)
    running.stop()
    before = running.disk_bytes()
    running.start(prepare=False)
    missed = ingest(running.where, load).messages
    memory = running.rss_bytes()
    running.stop()
    grown = running.disk_bytes() - before
    running.start(prepare=False)
    ingest(running.where, load)
    running.kill()
    started = time.perf_counter()
    running.start(prepare=False)
    seconds = time.perf_counter() - started
    return {_STORED[0]: seconds, _STORED[1]: grown / missed, _STORED[2]: memory / (1 << 20)}


ROWS: list[Row] = [
    *_ingest_rows(),
    *(_fanout(subscribers, qos) for qos in (0, 1) for subscribers in (1, 10, 100, 1000)),
    Row("latency, one in flight", _LATENCY, _latency, "ms", is_rate=False),
    *map(_resume, (1, 0)),
    Row("catching up", (_REPLAY,), _replay, "/s", only=lambda peer: peer.is_highway),
    Row("costs", (_STORM,), _storm, "/s", fresh=True),
    Row("costs", _IDLE, _idle, "", is_rate=False, fresh=True),
    Row("costs", _STORED, _stored, "", is_rate=False, fresh=True),
]
