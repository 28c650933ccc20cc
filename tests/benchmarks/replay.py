"""The figures of coming back: `python -m tests.benchmarks.replay [a] [b] [c] [d]`, each a heading of its own.

a   one session that missed a million messages
b   a thousand sessions that missed a thousand each, all back within a second
c   a subscriber that stops reading, and one that never acknowledges
d   as b, each on a topic of its own in one log
"""

from __future__ import annotations

import string
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

import psutil

from tests.benchmarks.replay_load import Feeder, Probe, Reader, run_readers
from tests.harness.broker_process import BrokerProcess

__all__ = ["herd", "one_session", "own_topics", "stuck"]

TOPICS = [{"topic": "highway/+/telemetry", "log": "telemetry", "durability": "BALANCED"}]
MIB = 1 << 20
ROUNDS = 5


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def cpu_seconds(broker: BrokerProcess) -> float:
    """What the broker has used of the processor, which others on the machine change less than the time it took."""
    assert broker.process is not None
    used = psutil.Process(broker.process.pid).cpu_times()
    return float(used.user + used.system)


def one_session(broker: BrokerProcess, missed: int, qos: int) -> dict[str, float]:
    """RSS growth while a session is away in MiB, catch-up in messages a second, live p99 in ms meanwhile."""
    feeder = Feeder(broker.port)
    feeder.publish(missed // 5)  # caches and buffers that any load fills
    reader = Reader(broker.port, f"away-{qos}", qos, feeder.sent, feeder.sent + missed).subscribe()
    before = broker.rss_bytes()
    ingest = feeder.publish(missed)
    grown = (broker.rss_bytes() - before) / MIB
    feeder.close()
    with Probe(broker.port) as probe:
        cpu = cpu_seconds(broker)
        seconds = run_readers([reader.start()])
        cpu = cpu_seconds(broker) - cpu
    after = (broker.rss_bytes() - before) / MIB
    reader.close()
    return {
        "missed": missed,
        "ingest": round(ingest),
        "grown_mib": round(grown, 1),
        "rate": round(missed / seconds),
        "cpu_us_each": round(cpu / missed * 1e6, 2),
        "live_p99_ms": round(probe.quantile(0.99), 1),
        "live_max_ms": round(probe.latencies_ms[-1], 1),
        "grown_by_catch_up_mib": round(after, 1),
    }


def herd(broker: BrokerProcess, sessions: int, missed: int, qos: int = 1) -> dict[str, float]:
    """Seconds until the last of many sessions has everything, and live p99 in ms meanwhile."""
    feeder = Feeder(broker.port)
    feeder.publish(1000)
    readers = [
        Reader(broker.port, f"herd-{number}", qos, feeder.sent, feeder.sent + missed).subscribe()
        for number in range(sessions)
    ]
    feeder.publish(missed)
    before = broker.rss_bytes()
    with Probe(broker.port) as probe:
        cpu = cpu_seconds(broker)
        started = time.perf_counter()
        for reader in readers:
            reader.start()
        connected = time.perf_counter() - started
        run_readers(readers)
        cpu = cpu_seconds(broker) - cpu
    done = sorted(reader.done_at - started for reader in readers)
    grown = (broker.rss_bytes() - before) / MIB
    for reader in readers:
        reader.close()
    feeder.close()
    return {
        "connected_s": round(connected, 2),
        "first_done_s": round(done[0], 2),
        "median_done_s": round(done[len(done) // 2], 2),
        "last_done_s": round(done[-1], 2),
        "rate": round(sessions * missed / done[-1]),
        "cpu_us_each": round(cpu / sessions / missed * 1e6, 2),
        "live_p99_ms": round(probe.quantile(0.99), 1),
        "live_max_ms": round(probe.latencies_ms[-1], 1),
        "grown_mib": round(grown, 1),
    }


def own_topics(broker: BrokerProcess, sessions: int, missed: int) -> dict[str, float]:
    """Seconds until the last of many sessions has what it missed on a topic of its own, and live p99 in ms meanwhile."""
    letters = string.digits + string.ascii_letters
    topics = [f"highway/{first}{second}/telemetry" for first in letters for second in letters][-sessions:]
    readers = [
        Reader(broker.port, f"own-{number}", 1, 0, missed).subscribe(topic) for number, topic in enumerate(topics)
    ]
    feeder = Feeder(broker.port)
    feeder.publish_to_each(topics, missed)
    feeder.close()
    before = broker.rss_bytes()
    with Probe(broker.port) as probe:
        cpu = cpu_seconds(broker)
        for reader in readers:
            reader.start()
        seconds = run_readers(readers, until=600)
        cpu = cpu_seconds(broker) - cpu
    for reader in readers:
        reader.close()
    return {
        "seconds": round(seconds, 2),
        "cpu_us_each": round(cpu / sessions / missed * 1e6, 2),
        "live_p99_ms": round(probe.quantile(0.99), 1),
        "live_max_ms": round(probe.latencies_ms[-1], 1),
        "grown_mib": round((broker.rss_bytes() - before) / MIB, 1),
    }


def stuck(broker: BrokerProcess, messages: int) -> dict[str, float]:
    """The rate of others with a subscriber that stops reading and one that never acknowledges, to that without them.

    Rounds with and without them take turns, so that what else the machine does falls on both alike.
    """
    feeder = Feeder(broker.port)
    feeder.publish(1000)
    first = feeder.sent
    deaf = [Reader(broker.port, f"deaf-{number}", 1, first, first).subscribe() for number in range(4)]
    free: list[tuple[float, float]] = []  # messages a second, and processor time in microseconds each
    held: list[tuple[float, float]] = []
    _serve(broker, feeder, messages)  # caches and buffers that any load fills
    before = broker.rss_bytes()
    for _ in range(ROUNDS):
        free.append(_serve(broker, feeder, messages))
        for reader in deaf:
            reader.start()  # two of them never read, and two read and never acknowledge
        for reader in deaf[2:]:
            reader.swallow()
        held.append(_serve(broker, feeder, messages))
        grown = (broker.rss_bytes() - before) / MIB
        for reader in deaf:
            reader.close()
    for reader in deaf:
        reader.last = feeder.sent
        reader.start()
    run_readers(deaf)  # both kinds move again, and have everything
    for reader in deaf:
        reader.close()
    feeder.close()
    return {
        "free": round(median(rate for rate, _ in free)),
        "beside_stuck": round(median(rate for rate, _ in held)),
        "ratio": round(median(rate for rate, _ in held) / median(rate for rate, _ in free), 2),
        "cpu_ratio": round(median(cpu for _, cpu in held) / median(cpu for _, cpu in free), 2),
        "grown_mib": round(grown, 1),
        "recovered": sum(reader.next == reader.last for reader in deaf),
    }


def _serve(broker: BrokerProcess, feeder: Feeder, messages: int) -> tuple[float, float]:
    """Messages a second, and CPU us each, from one publisher to one live subscriber that reads and acknowledges."""
    reader = Reader(broker.port, "busy", 1, feeder.sent, feeder.sent + messages)
    reader.subscribe().start()
    thread = threading.Thread(target=feeder.publish, args=(messages,))
    cpu = cpu_seconds(broker)
    thread.start()
    seconds = run_readers([reader])
    thread.join()
    reader.close()
    return messages / seconds, (cpu_seconds(broker) - cpu) / messages * 1e6


def main(which: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, BrokerProcess(Path(folder), topics=TOPICS) as broker:
        with Probe(broker.port) as probe:
            time.sleep(2)  # nothing but the probe: what the machine itself adds
        say(f"idle: {probe}")
        if "a" in which:
            for qos in (1, 0):
                say(f"a: QoS {qos}: {one_session(broker, 1_000_000, qos)}")
        if "b" in which:
            say(f"b: {herd(broker, 1000, 1000)}")
        if "c" in which:
            say(f"c: {stuck(broker, 200_000)}")
        if "d" in which:
            say(f"d: {own_topics(broker, 1000, 300)}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["a", "b", "c", "d"])
