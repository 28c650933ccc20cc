"""Figures that stand for themselves: `python -m tests.benchmarks.absolutes [NAME...] [--output DIR]`.

Each is measured on a broker of its own; with `--output`, ABSOLUTES.md is written there.

idle      memory and processor with 10,000 idle connections and 10,000 idle logs
topics    memory with 100,000 topics, of which each has a subscription
disk      bytes on the disk of a reading that came alone, of a million, before and after re-framing
restart   seconds until ready after `kill -9` in full traffic, with 10 GB stored (in files with holes)
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highway.cli.load.disk import measure_disk
from tests.benchmarks.curve_load import Bench, Work, subscribe_all, topic_windows
from tests.benchmarks.curves import LOGS, ONE_LOG, allow_descriptors, say
from tests.benchmarks.replay import cpu_seconds
from tests.benchmarks.report import machine
from tests.benchmarks.rows import varied_readings
from tests.crash.stored import add_stored_logs
from tests.harness import packets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["FIGURES", "WANTED", "disk", "idle", "restart", "topics", "write_figures"]

READING_TOPIC = "highway/A1/telemetry"
STORED_BYTES = 10_000_000_000


def _mb(bench: Bench) -> float:
    return bench.broker.rss_bytes() / 1e6


def idle(
    folder: Path, connections: int = 10_000, logs: int = 10_000, seconds: float = 60, settle: float = 30
) -> dict[str, float]:
    """Memory of the broker with its idle connections and without, and percent of a processor that it takes to be idle."""
    with Bench(folder, [*LOGS, *ONE_LOG]) as bench:
        bench.run(Work(topic_windows([f"plant/{number}" for number in range(logs)], logs), logs))
        with_logs = _mb(bench)
        for number in range(connections):
            bench.hold(f"idle-{number}")
        with_all = _mb(bench)
        time.sleep(settle)  # the first messages of the logs go to files with the third checkpoint, and that is work
        percent = _share(bench, seconds)
    return {
        f"{connections:,} idle connections, MB": with_all - with_logs,
        f"with {logs:,} idle logs, the whole broker, MB": with_all,
        "processor with all idle, %": percent,
    }


def _share(bench: Bench, seconds: float) -> float:
    """Percent of a processor in so many seconds from now."""
    used, started = cpu_seconds(bench.broker), time.perf_counter()
    time.sleep(seconds)  # what is measured is doing nothing
    return (cpu_seconds(bench.broker) - used) / (time.perf_counter() - started) * 100


def topics(folder: Path, count: int = 100_000) -> dict[str, float]:
    """Memory with so many topics that were published to, and a subscription for each, in ten sessions."""
    names = [f"fleet/{number}/telemetry" for number in range(count)]
    with Bench(folder, ONE_LOG) as bench:
        fresh = _mb(bench)
        work = Work(topic_windows(names, count), count)
        bench.run(work)
        published = _mb(bench)
        for number in range(10):
            subscribe_all(bench.hold(f"reader-{number}"), names[number::10])
        bench.run(Work(work.windows, count, bench.held, count))
        return {
            "a broker that has just started, MB": fresh,
            f"{count:,} topics, MB": published,
            f"{count:,} topics, each with a subscription, MB": _mb(bench),
        }


def disk(folder: Path, readings: int = 1_000_000, publishers: int = 20, quiet: float = 15) -> dict[str, float]:
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
        while time.monotonic() < quiet_since + quiet:
            time.sleep(0.5)  # until nothing changes any more
            if (now := _log_bytes(bench)) != after:
                after, quiet_since = now, time.monotonic()
    return {
        "a reading of 110 bytes, as it came, bytes": before / readings,
        "a reading of 110 bytes, re-framed, bytes": after / readings,
    }


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
    return {f"ready after kill -9 at {stored / 1e9:g} GB, s": seconds}


FIGURES: dict[str, Callable[[Path], dict[str, float]]] = {
    "idle": idle,
    "topics": topics,
    "disk": disk,
    "restart": restart,
}

# What is asked of them, at most.
WANTED = {
    "10,000 idle connections, MB": 100,
    "processor with all idle, %": 1,
    "100,000 topics, each with a subscription, MB": 500,
    "a reading of 110 bytes, re-framed, bytes": 30,
    "ready after kill -9 at 10 GB, s": 5,
}


def write_figures(folder: Path, about: Sequence[str], found: dict[str, float]) -> Path:
    """Write ABSOLUTES.md to `folder`; returns the file's path."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["# Figures that stand for themselves", "", "Made by `python -m tests.benchmarks.absolutes`.", "", *about]
    lines += ["", *_table(found)]
    path = folder / "ABSOLUTES.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _table(found: dict[str, float]) -> list[str]:
    lines = ["| | at most | measured | |", "|---|---:|---:|---|"]
    for name, figure in found.items():
        wanted = WANTED.get(name)
        verdict = "" if wanted is None else "yes" if figure <= wanted else "**no**"
        lines.append(f"| {name} | {'' if wanted is None else wanted} | {figure:.4g} | {verdict} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all of them by default: {', '.join(FIGURES)}")
    parser.add_argument("--output", type=Path, help="folder for ABSOLUTES.md")
    options = parser.parse_args()
    if unknown := set(options.names) - set(FIGURES):
        parser.error(f"there is no figure {', '.join(sorted(unknown))}")
    allow_descriptors()
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="highway-figures-") as folder:
        about = machine(measure_disk(Path(folder), 0.5))
        for name in options.names or FIGURES:
            own = Path(folder) / name
            own.mkdir()
            found |= FIGURES[name](own)
            shutil.rmtree(own)
    say("\n".join(_table(found)))
    if options.output:
        say(f"\n{write_figures(options.output, about, found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
