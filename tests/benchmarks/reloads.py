"""What reloads take from publishers: `python -m tests.benchmarks.reloads [--rounds 5] [--seconds 10] [--every 0.5]`.

Rounds alternate, without reloads and with one every so many seconds, and each pair gives a ratio: of the messages a
second, and of the processor time that the broker takes for a message, which others on the machine change less. Every
other pair begins with reloads, so that what changes with time favours neither. Each reload changes the retention, or
nothing at all (`--unchanged`). Publishers are connected all the time of a round, and fail if they are disconnected; what
they were told is stored is counted at the end.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.replay import cpu_seconds, say
from tests.harness.broker_process import ROOT, BrokerProcess

__all__ = ["main"]


class Admin(http.client.HTTPConnection):
    """The broker's socket for commands, on one connection."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))

    def ask(self, method: str, path: str) -> Any:
        self.request(method, f"/api/v1/{path}")
        answer = self.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return json.loads(body)


class Reloads(threading.Thread):
    """Reloads a broker every so many seconds until `end`."""

    def __init__(self, broker: BrokerProcess, texts: list[str], every: float) -> None:
        super().__init__(daemon=True)
        self._broker, self._texts, self._every = broker, texts, every
        self._over = threading.Event()
        self.took_ms: list[float] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._reload()
        except BaseException as error:  # noqa: BLE001  raised in `end`
            self.error = error

    def _reload(self) -> None:
        admin = Admin(self._broker.data / "admin.sock")
        while not self._over.wait(self._every):
            self._texts.append(self._texts.pop(0))
            self._broker.config.write_text(self._texts[0])
            began = time.perf_counter()
            plan = admin.ask("POST", "reload")
            self.took_ms.append((time.perf_counter() - began) * 1000)
            assert len(plan["changes"]) == (len(self._texts) > 1), plan
        admin.close()

    def end(self) -> None:
        self._over.set()
        self.join()
        if self.error is not None:
            raise self.error


def publish(broker: BrokerProcess, seconds: float) -> tuple[int, float, float]:
    """Messages that were acknowledged, how many a second, and microseconds of the broker's processor time for each."""
    cpu = cpu_seconds(broker)
    command = [sys.executable, "-m", "highway", "bench", "publish", "-t", "load", "-n", "1000000000", "--json"]
    done = subprocess.run(
        [*command, "-p", str(broker.port), "--seconds", str(seconds)], cwd=ROOT, capture_output=True, check=True
    )
    cpu = cpu_seconds(broker) - cpu
    found = json.loads(done.stdout)
    return found["messages"], found["messages"] / found["seconds"], cpu / found["messages"] * 1e6


def entries(count: int, durability: str, days: int) -> list[dict[str, Any]]:
    """The entry that is published to, whose retention changes, and others beside it."""
    load = {"topic": "load/#", "log": "load", "durability": durability, "retention": f"{days}d"}
    return [load, *({"topic": f"other/{n}/#", "log": f"other{n}"} for n in range(count - 1))]


def config_texts(broker: BrokerProcess, count: int, durability: str) -> list[str]:
    texts = []
    for days in (8, 7):
        broker.write_config({"topics": entries(count, durability, days)})
        texts.append(broker.config.read_text())
    return texts[::-1]  # the broker starts with what was written last


def main() -> None:
    """Run it all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of rounds, without reloads and with them")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each round")
    parser.add_argument("--every", type=float, default=0.5, help="seconds between one reload and the next")
    parser.add_argument("--entries", type=int, default=1, help="topic entries in the configuration")
    parser.add_argument("--durability", default="BALANCED", help="of the log that is published to")
    parser.add_argument("--unchanged", action="store_true", help="the files hold the same each time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
        broker = BrokerProcess(Path(name))
        texts = config_texts(broker, options.entries, options.durability)
        texts = texts[:1] if options.unchanged else texts
        with broker:
            total, _, _ = publish(broker, options.seconds / 2)
            rates, costs, took_ms = [], [], []
            for number in range(options.rounds):
                reloads = Reloads(broker, texts, options.every)
                figures = {}
                for disturbed in (False, True) if number % 2 == 0 else (True, False):
                    if disturbed:
                        reloads.start()
                    messages, *figures[disturbed] = publish(broker, options.seconds)
                    if disturbed:
                        reloads.end()
                    total += messages
                (rate, cost), (rate_with, cost_with) = figures[False], figures[True]
                rates.append(rate_with / rate)
                costs.append(cost_with / cost)
                took_ms += reloads.took_ms
                say(
                    f"{number + 1}: {rate:,.0f}/s -> {rate_with:,.0f}/s: {rates[-1]:.3f}; "
                    f"{cost:.2f} -> {cost_with:.2f} us each: {costs[-1]:.3f}; {len(reloads.took_ms)} reloads"
                )
            stored = next(log["log_end_offset"] for log in Admin(broker.data / "admin.sock").ask("GET", "topics"))
            assert stored == total, f"{total} messages acknowledged and {stored} stored"
    say(
        f"median of {options.rounds}: {median(rates):.3f} of the messages a second, "
        f"{median(costs):.3f} of the processor time for each\n"
        f"{len(took_ms)} reloads, {median(took_ms):.1f} ms in the middle and {max(took_ms):.1f} ms at most; "
        f"{total:,} messages acknowledged, and all stored"
    )


if __name__ == "__main__":
    main()
