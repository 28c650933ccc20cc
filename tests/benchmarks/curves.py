"""What a message costs as work grows: `python -m tests.benchmarks.curves [NAME...] [--output DIR]`.

For each curve the broker has more and more of one thing, while the messages that are measured stay the same ones. A cost
that is flat doesn't depend on it. `--list` names the curves. With `--output`, CURVES.md and a chart of each are written.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from highway.cli.load.client import LoadClient
from highway.cli.load.disk import measure_disk
from tests.benchmarks.charts import bar_chart
from tests.benchmarks.curve_load import (
    PAYLOAD,
    Bench,
    Point,
    Work,
    sender_windows,
    subscribe_all,
    topic_windows,
)
from tests.benchmarks.report import machine
from tests.harness import packets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["CURVES", "LOGS", "ONE_LOG", "Curve", "allow_descriptors", "curve_points", "say", "write_curves"]

MESSAGES = 100_000
ROUNDS = 4
ONE_LOG = [{"topic": "#", "log": "all", "durability": "BALANCED"}]
LOGS = [{"topic": "plant/#", "log": "plant", "durability": "BALANCED", "per_topic": True, "max_logs": 100_000}]
FEW = [f"load/{number}/telemetry" for number in range(10)]  # topics of those curves in which topics don't grow


@dataclass(frozen=True)
class Curve:
    """`grow` brings a broker from one size to the next and returns the messages to be measured then."""

    name: str
    title: str  # what there are more and more of
    sizes: tuple[int, ...]
    grow: Callable[[Bench, int, int, int], Work]  # size before, size, messages
    topics: list[dict[str, Any]]


CURVES: list[Curve] = []


def _curve(
    title: str, *sizes: int, topics: list[dict[str, Any]] = ONE_LOG
) -> Callable[[Callable[[Bench, int, int, int], Work]], Callable[[Bench, int, int, int], Work]]:
    def add(grow: Callable[[Bench, int, int, int], Work]) -> Callable[[Bench, int, int, int], Work]:
        CURVES.append(Curve(grow.__name__.lstrip("_"), title, sizes, grow, topics))
        return grow

    return add


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def allow_descriptors() -> None:
    """Let this process, and the brokers that it starts, have as many connections as the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _to_few(messages: int) -> Work:
    return Work(topic_windows(FEW, messages), messages)


@_curve("idle connections", 1, 100, 1_000, 10_000)
def _idle(bench: Bench, before: int, size: int, messages: int) -> Work:
    for number in range(before, size):
        bench.hold(f"idle-{number}")
    return _to_few(messages)


@_curve("busy connections, each with 20 messages under way", 1, 10, 100, 1_000)
def _busy(_bench: Bench, _before: int, size: int, messages: int) -> Work:
    count = max(messages, size * 20) // size * size
    return Work([sender_windows(FEW, count // size)] * size, count)


@_curve("topics that are published to in turn", 10, 1_000, 10_000, 100_000)
def _topics(_bench: Bench, _before: int, size: int, messages: int) -> Work:
    count = max(messages, size)
    return Work(topic_windows([f"fleet/{number}/telemetry" for number in range(size)], count), count)


@_curve("topics, of which each has one subscription", 10, 1_000, 10_000, 100_000)
def _subscribed(bench: Bench, before: int, size: int, messages: int) -> Work:
    topics = [f"fleet/{number}/telemetry" for number in range(size)]
    while len(bench.held) < 10:
        bench.hold(f"reader-{len(bench.held)}")
    for number, reader in enumerate(bench.held):
        subscribe_all(reader, topics[before:][number::10])
    count = max(messages, size)
    return Work(topic_windows(topics, count), count, bench.held, count)


@_curve("subscriptions of others, half of them with wildcards", 10, 1_000, 10_000, 100_000)
def _subscriptions(bench: Bench, before: int, size: int, messages: int) -> Work:
    if not bench.held:
        subscribe_all(bench.hold("reader"), ["load/#"])
        for number in range(10):
            bench.hold(f"other-{number}")
    filters = [f"other/+/{number}/#" if number % 2 else f"other/{number}" for number in range(before, size)]
    for number, other in enumerate(bench.held[1:]):
        subscribe_all(other, filters[number::10])
    work = _to_few(messages)
    return Work(work.windows, messages, bench.held[:1], messages)


@_curve("overlapping wildcards of one client that all match", 1, 10, 100, 1_000)
def _overlapping(bench: Bench, before: int, size: int, messages: int) -> Work:
    if not bench.held:
        bench.hold("reader")
    # Ten levels that are what they are or a `+` each: 1,024 filters for every topic.
    filters = [
        "/".join(("w", "+", *("+" if number >> bit & 1 else f"{bit}" for bit in range(10)))) for number in range(size)
    ]
    subscribe_all(bench.held[0], filters[before:])
    topics = [f"w/{number}/0/1/2/3/4/5/6/7/8/9" for number in range(10)]
    return Work(topic_windows(topics, messages), messages, bench.held, messages)


@_curve("sessions that are away and miss every message", 1, 100, 1_000, 10_000)
def _away(bench: Bench, before: int, size: int, messages: int) -> Work:
    for number in range(before, size):
        session = LoadClient(bench.where, f"away-{number}", clean=False)
        session.subscribe(f"load/{number % 10}/telemetry", 1)
        session.close()
    return _to_few(messages)


def _retain(bench: Bench, before: int, size: int) -> None:
    topics = [f"device/{number}/state" for number in range(before, size)]
    if topics:
        bench.run(Work(topic_windows(topics, len(topics), retain=True), len(topics)))


@_curve("retained messages, of which ten are replaced", 10, 1_000, 10_000, 100_000)
def _retained(bench: Bench, before: int, size: int, messages: int) -> Work:
    _retain(bench, before, size)
    return Work(topic_windows([f"device/{number}/state" for number in range(10)], messages, retain=True), messages)


@_curve("retained messages; a message is a SUBSCRIBE that finds one of them", 10, 1_000, 10_000, 100_000)
def _finding(bench: Bench, before: int, size: int, messages: int) -> Work:
    _retain(bench, before, size)
    count = max(1, messages // 20)
    answer = 5 + len(packets.publish("device/5/state", PAYLOAD, retain=True))
    # One at a time: what two SUBSCRIBEs to one filter find would be sent once.
    return Work([[(packets.subscribe(1, ("device/5/+", 0)), answer)] * count], count)


@_curve("logs of single topics, of which ten are written to", 10, 1_000, 10_000, topics=LOGS)
def _logs(bench: Bench, before: int, size: int, messages: int) -> Work:
    topics = [f"plant/{number}" for number in range(size)]
    fresh = topics[before:]
    if fresh:
        bench.run(Work(topic_windows(fresh, len(fresh)), len(fresh)))
    return Work(topic_windows(topics[:10], messages), messages)


def curve_points(curve: Curve, sizes: Sequence[int], messages: int, rounds: int, folder: Path) -> list[Point]:
    """Measure a curve on a broker of its own, the smallest size first."""
    points, before = [], 0
    with Bench(folder, curve.topics) as bench:
        for size in sizes:
            work = curve.grow(bench, before, size, messages)
            points.append(bench.measure(size, work, rounds))
            before = size
    return points


def _table(points: Sequence[Point]) -> list[str]:
    lines = ["| | CPU µs a message | to the first | messages/s | RSS, MiB |", "|---:|---:|---:|---:|---:|"]
    for point in points:
        growth = f"{point.cpu_us / points[0].cpu_us:.2f}" if points[0].cpu_us else "-"
        lines.append(f"| {point.size:,} | {point.cpu_us:.2f} | {growth} | {point.rate:,.0f} | {point.rss_mib:.0f} |")
    return lines


def write_curves(folder: Path, about: Sequence[str], found: dict[str, list[Point]]) -> Path:
    """Write CURVES.md and its charts to `folder`; returns the file's path."""
    (folder / "charts").mkdir(parents=True, exist_ok=True)
    lines = [
        "# What a message costs as work grows",
        "",
        "Made by `python -m tests.benchmarks.curves`. Processor time is that of the broker, all its threads, in user and",
        f"system mode, least of {ROUNDS} rounds; a message is acknowledged at QoS 1 under BALANCED, and no two messages in a",
        "row have the same topic. The rate is that of the generator and the broker together on this machine.",
        "",
        *about,
    ]
    for curve in CURVES:
        points = found.get(curve.name)
        if not points:
            continue
        rows = {f"{point.size:,}": {"CPU": point.cpu_us} for point in points}
        chart = f"charts/curve-{curve.name}.svg"
        title = f"{curve.name}: {curve.title}"
        (folder / chart).write_text(bar_chart(title, ["CPU"], rows, " µs"), encoding="utf-8")
        lines += ["", f"## {title}", "", f"![{curve.name}]({chart})", "", *_table(points)]
    path = folder / "CURVES.md"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def main() -> int:
    names = [curve.name for curve in CURVES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all of them by default: {', '.join(names)}")
    parser.add_argument("--output", type=Path, help="folder for CURVES.md and charts/")
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"of each round (default {MESSAGES:,})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of which the least counts (default {ROUNDS})")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"there is no curve {', '.join(sorted(unknown))}")
    allow_descriptors()
    found: dict[str, list[Point]] = {}
    with tempfile.TemporaryDirectory(prefix="highway-curves-") as folder:
        about = machine(measure_disk(Path(folder), 0.5))
        for curve in CURVES:
            if options.names and curve.name not in options.names:
                continue
            started = time.perf_counter()
            own = Path(folder) / curve.name
            own.mkdir()
            found[curve.name] = curve_points(curve, curve.sizes, options.messages, options.rounds, own)
            shutil.rmtree(own)
            say(f"\n{curve.name}: {curve.title} ({time.perf_counter() - started:.0f} s)\n")
            say("\n".join(_table(found[curve.name])))
    if options.output:
        say(f"\n{write_curves(options.output, about, found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
