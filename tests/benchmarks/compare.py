"""`make bench`: Highway beside mosquitto, nats-server, RabbitMQ and amqtt, as far as they are installed, in turns.

Writes REPORT.md with charts. Everything is on loopback, in folders that are deleted, and ends by itself. The full run takes
the better part of an hour; `--only`, `--brokers`, `--rounds` and `--scale` make it shorter.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from highway.cli.load import client as load_client
from highway.cli.load.client import LoadError
from highway.cli.load.disk import measure_disk
from tests.benchmarks.curves import allow_descriptors
from tests.benchmarks.peers import PEERS, Peer, Running
from tests.benchmarks.report import Results, machine, write_report
from tests.benchmarks.rows import ROWS, Row

__all__ = ["run"]

STALL_S = 15.0  # a broker from which nothing comes for so long has no figure


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def run(*, rounds: int, scale: float, only: str = "", brokers: str = "", output: Path) -> Path:
    """Measure and write the report to `output`; returns its path. `only` and `brokers` are texts to look for."""
    load_client.STALL_S = STALL_S
    allow_descriptors()
    peers = [peer for peer in PEERS if _chosen(peer.name, brokers)]
    missing = {peer.name: peer.missing() for peer in peers if peer.missing()}
    peers = [peer for peer in peers if peer.name not in missing]
    rows = [row for row in ROWS if any(_chosen(f"{row.group}: {name}", only) for name in row.names)]
    for name, reason in missing.items():
        say(f"{name}: {reason}")
    results = Results()
    with tempfile.TemporaryDirectory(prefix="highway-bench-") as folder, ExitStack() as stack:
        about = machine(measure_disk(Path(folder), 0.5))
        running = [stack.enter_context(Running(peer, Path(folder) / f"{number}")) for number, peer in enumerate(peers)]
        if any(not row.fresh for row in rows):
            for each in running:
                each.start()
        for number, row in enumerate(rows, 1):
            _measure_row(row, running, results, rounds, scale, Path(folder))
            say(f"[{number}/{len(rows)}] {_line(row, results, peers)}")
        return write_report(output, results, running, missing, about, rounds, scale)


def _chosen(text: str, words: str) -> bool:
    return not words or any(word.strip() in text for word in words.split(";"))


def _measure_row(row: Row, running: list[Running], results: Results, rounds: int, scale: float, folder: Path) -> None:
    for number in range(1 if row.fresh else rounds):
        for each in running:
            if not row.only(each.peer) or results.failed(row.group, row.names[0], each.peer.name):
                continue
            try:
                if row.fresh:
                    with Running(each.peer, folder / f"fresh-{time.time_ns()}-{number}") as own:
                        found = row.measure(own.start(), scale)
                else:
                    found = row.measure(each, scale)
            except (LoadError, OSError, AssertionError) as error:
                for name in row.names:
                    results.add(row.group, name, row.unit, each.peer.name, None, str(error).splitlines()[0])
            else:
                for name, figure in found.items():
                    results.add(row.group, name, row.unit, each.peer.name, figure)


def _line(row: Row, results: Results, peers: list[Peer]) -> str:
    parts = []
    for name in row.names:
        medians = results.medians(row.group, name)
        figures = ", ".join(f"{peer.name} {medians[peer.name]:,.4g}" for peer in peers if peer.name in medians)
        parts.append(f"{row.group}: {name} ({row.unit}): {figures}" if row.unit else f"{row.group}: {name}: {figures}")
    return "\n    ".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of which the median counts (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="messages, as a part of the full measurement")
    parser.add_argument("--only", default="", help='rows with one of these texts in them: "fan-out;resume"')
    parser.add_argument("--brokers", default="", help='brokers with one of these: "SAFE;mosquitto"')
    parser.add_argument("--output", type=Path, default=Path("bench-report"), help="folder for REPORT.md and charts/")
    options = parser.parse_args()
    path = run(
        rounds=options.rounds, scale=options.scale, only=options.only, brokers=options.brokers, output=options.output
    )
    say(f"\n{path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
