"""Raw packets of every kind against a running broker: it lives, its memory stays where it was, others don't notice.

    python -m tests.fuzz.live SECONDS [SEED]

Beside the hostile connections there are two honest clients, one of which publishes at a steady pace to the other, and a
keeper of secrets, which publishes to a topic that nobody else may read. Afterwards every honest message has come once
and in its order, no byte of a secret has been received by anybody else, nothing is stored under a topic where only the
keeper and the honest may publish that they did not publish, and the broker stops and starts like any other.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import socket
import statistics
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fuzz.streams import StreamMaker, pieces
from tests.harness.broker_process import BrokerProcess
from tests.harness.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Outcome", "fuzz"]

WORKERS = 3
HONEST_PER_S = 50
# In a run as long as this memory is flat: in its last third the median is at most so many times that of the second.
LONG_S, GROWTH = 120, 1.08
MIB = 1024 * 1024
# Small enough to be full long before the warm-up is over, so that memory can be flat after it.
SETTINGS = {
    "limits": {
        "max_packet": "64KiB",
        "max_sessions": 300,
        "max_retained": 300,
        "max_subscriptions": 50,
        "session_expiry": "1m",
        "reconnect_rate": "unlimited",
        "connect_rate_per_address": "unlimited",
        "connect_timeout": "5s",
        "write_buffer": "16KiB",
    },
    "memory_budget": "4MiB",
    "defaults": {"retention_bytes": "8MiB", "segment_bytes": "1MiB"},
    "storage": {"cache_bytes": "2MiB", "checkpoint_bytes": "4MiB"},
}
ALL = ["publish", "subscribe", "replay", "fetch"]


@dataclass
class Outcome:
    """What became of a run."""

    seed: int
    packets: int = 0
    connections: int = 0
    bytes_received: int = 0
    honest: int = 0
    secrets_written: int = 0
    worst_s: float = 0.0  # the longest way of an honest message
    log_lines: int = 0
    rss: list[int] = field(default_factory=list)  # bytes, once a second
    faults: list[str] = field(default_factory=list)

    def rss_of(self, part: int) -> float:
        """The median of the first, second or last third, in MiB."""
        third = max(1, len(self.rss) // 3)
        return statistics.median(self.rss[part * third : (part + 1) * third] or self.rss[-1:]) / MIB

    @property
    def rss_series(self) -> str:
        """Twelve values over the whole run, in MiB."""
        step = max(1, len(self.rss) // 12)
        return " ".join(f"{value / MIB:.0f}" for value in self.rss[::step])

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.packets:,} packets on {self.connections:,} connections, "
            f"{self.bytes_received:,} bytes came back; {self.honest:,} honest messages, the slowest took "
            f"{self.worst_s * 1000:.0f} ms; {self.secrets_written:,} secrets; {self.log_lines:,} lines of log; RSS {self.rss_of(0):.0f} -> "
            f"{self.rss_of(1):.0f} -> {self.rss_of(2):.0f} MiB ({self.rss_series}); faults: {self.faults or 'none'}"
        )


class _Run:
    """One run: the broker, its clients, and what they saw."""

    def __init__(self, directory: Path, seconds: float, seed: int) -> None:
        self.out = Outcome(seed)
        self.key = secrets.token_hex(8)
        self.secret = secrets.token_hex(16).encode()
        self.end = 0.0
        self.seconds = seconds
        self.lock = threading.Lock()
        # Anybody may be anybody without passwords, but for names that can't be guessed.
        acl = [
            {"allow": ALL, "client": f"keeper-{self.key}", "topic": "#"},
            {"allow": ["subscribe", "replay"], "client": f"reader-{self.key}", "topic": "honest/#"},
            {"allow": "publish", "client": f"writer-{self.key}", "topic": "honest/#"},
            *({"deny": ALL, "topic": topic} for topic in ("secret/#", "honest/#", "forbidden/#")),
            {"allow": ALL, "topic": "#"},
            {"allow": "subscribe", "topic": "$SYS/#"},
        ]
        self.broker = BrokerProcess(directory, auth={"anonymous": True, "acl": acl}, **SETTINGS)

    def go(self) -> Outcome:
        with self.broker:
            self.end = time.monotonic() + self.seconds
            seeds = random.Random(self.out.seed)
            tasks: list[Callable[[], None]] = [self.honest, self.keep_secrets, self.measure]
            tasks += [partial(self.attack, random.Random(seeds.random())) for _ in range(WORKERS)]
            threads = [threading.Thread(target=self.guarded, args=(task,)) for task in tasks]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if self.broker.process is None or self.broker.process.poll() is not None:
                self.out.faults.append("the broker is gone")
                return self.out
            self.guarded(self.look_at_what_is_stored)
            if code := self.broker.stop():
                self.out.faults.append(f"the broker ended with {code}")
            self.broker.start()
            self.guarded(self.look_at_what_is_stored)
        self.out.log_lines = len(self.broker.stderr)
        wrong = self.broker.lines(r"Traceback|Exception|can't be served|never retrieved|CRITICAL")
        self.out.faults += [f"the log says {line!r}" for line in wrong[:5]]
        return self.out

    def guarded(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:  # noqa: BLE001  told at the end, with the seed
            self.out.faults.append(f"{getattr(task, '__name__', 'attack')}: {error!r} at {_place_of(error)}")

    def is_over(self) -> bool:
        return time.monotonic() >= self.end

    # The hostile.

    def attack(self, rng: random.Random) -> None:
        maker = StreamMaker(rng)
        left_open: list[socket.socket] = []
        while not self.is_over():
            data, count = maker.stream()
            sock = socket.create_connection(("127.0.0.1", self.broker.port), timeout=10)
            with self.lock:
                self.out.packets += count
                self.out.connections += 1
            self.talk(sock, data, rng)
            if rng.random() < 0.05:
                left_open.append(sock)  # says no more, and reads nothing
            else:
                self.listen(sock, rng.choice((0.001, 0.003, 0.01, 0.03)))
                sock.close()
            while len(left_open) > 50 or (left_open and self.is_over()):
                old = left_open.pop(rng.randrange(len(left_open)))
                self.listen(old, 0.001)  # what it was sent in all that time
                old.close()

    def talk(self, sock: socket.socket, data: bytes, rng: random.Random) -> None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for piece in pieces(data, rng):
                sock.sendall(piece)

    def listen(self, sock: socket.socket, pause_s: float) -> None:
        """Read what comes until it pauses; there must be nothing secret in it."""
        seen = bytearray()
        sock.settimeout(pause_s)
        with contextlib.suppress(OSError):
            while len(seen) < MIB and (data := sock.recv(1 << 17)):
                seen += data
        with self.lock:
            self.out.bytes_received += len(seen)
        if self.secret in seen:
            self.out.faults.append(f"a secret came out, in {bytes(seen[:200])!r}...")

    # The others.

    def client(self, name: str) -> RawClient:
        return RawClient.connected(self.broker.port, f"{name}-{self.key}", clean=False)

    def honest(self) -> None:
        reader, writer = self.client("reader"), self.client("writer")
        reader.subscribe(("honest/#", 1))
        while not self.is_over():
            begin = time.monotonic()
            payload = b"%d" % self.out.honest
            writer.publish("honest/a", payload, qos=1)
            message = reader.message(timeout=20)
            if message.payload != payload:
                raise AssertionError(f"{message} came instead of {payload!r}")
            took = time.monotonic() - begin
            self.out.honest += 1
            self.out.worst_s = max(self.out.worst_s, took)
            time.sleep(max(0.0, 1 / HONEST_PER_S - took))  # the rate of a client that is honest
        if more := reader.waiting_messages():
            raise AssertionError(f"more came than was published: {more[:3]}")
        reader.disconnect()
        writer.disconnect()

    def keep_secrets(self) -> None:
        keeper = self.client("keeper")
        while not self.is_over():
            number = self.out.secrets_written
            topic = ("secret/x", "secret/y/z")[number % 2]
            keeper.publish(topic, b"%b %d" % (self.secret, number), qos=number % 3, retain=number % 5 == 0)
            self.out.secrets_written += 1
            time.sleep(0.05)  # the rate at which secrets are told
        keeper.ping()
        keeper.disconnect()

    def measure(self) -> None:
        while not self.is_over():
            self.out.rss.append(self.broker.rss_bytes())
            time.sleep(min(1.0, self.seconds / 12))  # between two measurements

    def look_at_what_is_stored(self) -> None:
        """What was published where only some may is all of theirs, stored and retained."""
        with self.client("keeper") as keeper:
            for filters in (("$replay/earliest/secret/#", "$replay/earliest/forbidden/#"), ("secret/#", "forbidden/#")):
                keeper.subscribe(*((name, 0) for name in filters))
            keeper.publish("secret/end", b"end", qos=1)
            found = []
            while (message := keeper.message(timeout=60)).topic != "secret/end" or message.payload != b"end":
                found.append(message)
            foreign = [message for message in found if self.secret not in message.payload and message.payload != b"end"]
            if foreign:
                self.out.faults.append(f"stored without a right: {foreign[:3]}")
            if not any(message.retain for message in found):
                self.out.faults.append("a retained secret is gone")
        with RawClient.connected(self.broker.port, f"reader-{self.key}2", clean=True) as anybody:
            codes = anybody.subscribe(("secret/#", 0), ("$replay/earliest/secret/#", 0), ("$fetch/0/secret/x", 0))
            if codes != [0x80] * 3:
                self.out.faults.append(f"anybody may read secrets: {codes}")


def _place_of(error: BaseException) -> str:
    trace = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(trace.filename).name}:{trace.lineno}"


def fuzz(directory: Path, seconds: float, seed: int) -> Outcome:
    """Run for that many seconds, and a few more to look at what is left; the same seed makes the same streams."""
    outcome = _Run(directory, seconds, seed).go()
    if seconds >= LONG_S and outcome.rss_of(2) > GROWTH * outcome.rss_of(1):
        outcome.faults.append(f"memory grows: {outcome.rss_series} MiB")
    return outcome


def main() -> None:
    """The long form: print the seed first, what happened every now and then, and what came of it."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 300.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else secrets.randbits(32)
    print(f"seed {seed}", flush=True)  # noqa: T201  what a run by hand says
    with tempfile.TemporaryDirectory() as directory:
        outcome = fuzz(Path(directory), seconds, seed)
    print(outcome)  # noqa: T201
    sys.exit(bool(outcome.faults))


if __name__ == "__main__":
    main()
