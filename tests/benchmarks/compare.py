"""`make bench`: Highway and mosquitto side by side, in turns, on this machine. Quote the ratios, not the figures.

mosquitto is started with what comes closest (persistence on, no limits, TCP_NODELAY); it writes nothing to the disk
before its acknowledgement, and Highway's SAFE does. Everything is on loopback and ends by itself.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.benchmarks.load import Ingest, fanout, ingest, resume
from tests.harness.broker_process import BrokerProcess, free_port, wait_until

MODES = ("FAST", "BALANCED", "SAFE")

MOSQUITTO_CONF = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence true
persistence_location {folder}/
set_tcp_nodelay true
max_inflight_messages 0
max_queued_messages 0
queue_qos0_messages true
"""

Measure = Callable[[int], float]


def cases(scale: float) -> list[tuple[str, tuple[str, ...], Measure]]:
    """(name, durability modes, measurement by port)."""
    many = Ingest(messages=_scaled(50_000, scale))
    busy = Ingest(publishers=50, window=20, messages=_scaled(10_000, scale), topics=50)
    two = Ingest(publishers=2, messages=_scaled(20_000, scale))
    four = Ingest(publishers=4, messages=_scaled(25_000, scale))
    return [
        ("ingest QoS 1, 8 publishers x window 100", MODES, lambda port: ingest(port, many)),
        ("ingest QoS 1, 50 x window 20, 50 topics", MODES, lambda port: ingest(port, busy)),
        ("fan-out, 2 publishers to 10 subscribers", ("FAST",), lambda port: fanout(port, two, 10)),
        ("resume QoS 1, 100,000 missed", ("FAST",), lambda port: resume(port, four, 1)),
        ("resume QoS 0, 100,000 missed", ("FAST",), lambda port: resume(port, four, 0)),
    ]


def _scaled(messages: int, scale: float) -> int:
    return max(200, int(messages * scale))


def start_mosquitto(stack: ExitStack) -> int:
    """Start mosquitto until the stack unwinds; returns its port, 0 where it isn't installed."""
    program = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        return 0
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mosquitto-")))
    folder.chmod(0o777)  # it gives up root
    port = free_port()
    config = folder / "mosquitto.conf"
    config.write_text(MOSQUITTO_CONF.format(port=port, folder=folder))
    process = subprocess.Popen([program, "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    wait_until(lambda: _listens(port), what="mosquitto")
    return port


def _listens(port: int) -> bool:
    try:
        ingest(port, Ingest(publishers=1, window=1, messages=1))
    except OSError:
        return False
    return True


def start_highway(stack: ExitStack, mode: str) -> int:
    """Start Highway with that durability until the stack unwinds; returns its port."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="highway-bench-")))
    topics = [{"topic": "highway/+/telemetry", "log": "telemetry", "durability": mode}]
    storage = {"journal_file_bytes": "64MiB"}  # as shipped; the harness has small ones
    return stack.enter_context(BrokerProcess(folder, topics=topics, storage=storage)).port


def run(rounds: int, scale: float) -> None:
    """Print one line of a Markdown table for each case and mode."""
    with ExitStack() as stack:
        ports = {mode: start_highway(stack, mode) for mode in MODES}
        peer = start_mosquitto(stack)
        print(f"{platform.machine()}, Python {platform.python_version()}, {rounds} rounds, medians\n")  # noqa: T201
        print("| | durability | Highway | mosquitto | ratio |\n|---|---|---|---|---|")  # noqa: T201
        for name, modes, measure in cases(scale):
            for mode in modes:
                ours, theirs = [], []
                for _ in range(rounds):  # in turns, so that a slow minute of the machine meets both
                    ours.append(measure(ports[mode]))
                    if peer:
                        theirs.append(measure(peer))
                print(_row(name, mode, ours, theirs), flush=True)  # noqa: T201


def _row(name: str, mode: str, ours: list[float], theirs: list[float]) -> str:
    mine = statistics.median(ours)
    if not theirs:
        return f"| {name} | {mode} | {mine:,.0f}/s | not installed | |"
    other = statistics.median(theirs)
    return f"| {name} | {mode} | {mine:,.0f}/s | {other:,.0f}/s | {mine / other:.2f} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="messages, as a part of the full measurement")
    options = parser.parse_args()
    run(options.rounds, options.scale)
    return 0


if __name__ == "__main__":
    sys.exit(main())
