"""Figures that stand for themselves: `python -m tests.benchmarks.absolutes [NAME...]`, each on a broker of its own.

idle      memory and processor with 10,000 idle connections and 10,000 idle logs
topics    memory with 100,000 topics, of which each has a subscription
disk      bytes on the disk of a reading that came alone, of a million, before and after re-framing
restart   seconds until ready after `kill -9` in full traffic, with 10 GB stored (in files with holes)
"""

from __future__ import annotations

import contextlib
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.curve_load import Bench, Work, subscribe_all, topic_windows
from tests.benchmarks.curves import LOGS, ONE_LOG
from tests.benchmarks.replay import cpu_seconds
from tests.benchmarks.rows import varied_readings
from tests.crash.stored import add_stored_logs
from tests.harness import packets

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FIGURES", "disk", "idle", "restart", "topics"]

READING_TOPIC = "highway/A1/telemetry"
STORED_BYTES = 10_000_000_000


def idle(
    folder: Path, connections: int = 10_000, logs: int = 10_000, seconds: float = 60, settle: float = 30
) -> dict[str, float]:
    """MiB of the broker with its idle connections and without, and percent of a processor that it takes to be idle."""
    with Bench(folder, [*LOGS, *ONE_LOG]) as bench:
        bench.run(Work(topic_windows([f"plant/{number}" for number in range(logs)], logs), logs))
        with_logs = bench.rss_mib()
        for number in range(connections):
            bench.hold(f"idle-{number}")
        with_all = bench.rss_mib()
        time.sleep(settle)  # the first messages of the logs go to files with the third checkpoint, and that is work
        percent = _share(bench, seconds)
    return {
        "connections_mib": round(with_all - with_logs, 1),
        "all_mib": round(with_all, 1),
        "cpu_percent": round(percent, 2),
    }


def _share(bench: Bench, seconds: float) -> float:
    """Percent of a processor in so many seconds from now."""
    used, started = cpu_seconds(bench.broker), time.perf_counter()
    time.sleep(seconds)  # what is measured is doing nothing
    return (cpu_seconds(bench.broker) - used) / (time.perf_counter() - started) * 100


def topics(folder: Path, count: int = 100_000) -> dict[str, float]:
    """MiB with so many topics that were published to, and a subscription for each, in ten sessions."""
    names = [f"fleet/{number}/telemetry" for number in range(count)]
    with Bench(folder, ONE_LOG) as bench:
        fresh = bench.rss_mib()
        work = Work(topic_windows(names, count), count)
        bench.run(work)
        published = bench.rss_mib()
        for number in range(10):
            subscribe_all(bench.hold(f"reader-{number}"), names[number::10])
        bench.run(Work(work.windows, count, bench.held, count))
        return {
            "fresh_mib": round(fresh, 1),
            "published_mib": round(published, 1),
            "subscribed_mib": round(bench.rss_mib(), 1),
        }


def disk(folder: Path, readings: int = 1_000_000, publishers: int = 20) -> dict[str, float]:
    """Bytes a reading in the segments and indexes of its log; each publisher has one reading under way and no more.

    They come faster than a sensor's do, so that frames of 4 KiB are asked for: what one of a reading every second leaves.
    """
    entry: dict[str, Any] = {"topic": READING_TOPIC, "log": "readings", "segment_bytes": "4MiB"}
    payloads = varied_readings(readings)
    encoded = [packets.publish(READING_TOPIC, payload, qos=1, packet_id=1) for payload in payloads]
    windows = [[(packet, 4) for packet in encoded[number::publishers]] for number in range(publishers)]
    with Bench(folder, [entry]) as bench:
        bench.broker.stop()
        bench.configure([{**entry, "flush_bytes": "4KiB"}], reaper_interval="1h")
        bench.broker.start()
        bench.run(Work(windows, readings))
        bench.broker.stop()
        before = _log_bytes(bench)
        bench.configure([entry], reaper_interval="1s", checkpoint_interval="1s")
        bench.broker.start()
        after, quiet_since = before, time.monotonic()
        while time.monotonic() < quiet_since + 15:
            time.sleep(0.5)  # until nothing changes any more
            if (now := _log_bytes(bench)) != after:
                after, quiet_since = now, time.monotonic()
    size = sum(map(len, payloads)) / len(payloads)
    return {"payload": round(size, 1), "as_came": round(before / readings, 1), "re_framed": round(after / readings, 1)}


def _log_bytes(bench: Bench) -> int:
    """What the files of the log take: segments and their indexes."""
    total = 0
    for path in bench.broker.data.glob("logs/readings*/*"):
        with contextlib.suppress(FileNotFoundError):  # replaced just now
            total += path.stat().st_size
    return total


def restart(folder: Path, stored: int = STORED_BYTES, messages: int = 200_000) -> dict[str, float]:
    """Seconds from the start of the process until it is ready, with so many bytes in four logs."""
    names = ["safe", "balanced", "fast", "other"]
    entries = [{"topic": f"{name}/#", "log": name, "durability": name.upper()} for name in names[:3]]
    with Bench(folder, entries) as bench:
        bench.broker.stop()
        add_stored_logs(bench.broker.data, names, stored, 64 << 20)
        bench.broker.start()
        bench.run(
            Work(topic_windows([f"{name}/{number}" for name in names for number in range(25)], messages), messages)
        )
        bench.broker.kill()
        started = time.perf_counter()
        bench.broker.start()
        seconds = time.perf_counter() - started
    return {"stored_gb": round(stored / 1e9, 1), "ready_s": round(seconds, 2)}


FIGURES: dict[str, Callable[[Path], dict[str, float]]] = {
    "idle": idle,
    "topics": topics,
    "disk": disk,
    "restart": restart,
}


def main(names: list[str]) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for name in names:
        with tempfile.TemporaryDirectory(prefix="highway-figures-") as folder:
            started = time.perf_counter()
            found = FIGURES[name](Path(folder))
            print(f"{name}: {found} ({time.perf_counter() - started:.0f} s)", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:] or list(FIGURES))
