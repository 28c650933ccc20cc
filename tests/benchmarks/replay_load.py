"""Readers that come back, over raw sockets: every message is checked, and the generator costs less than the broker.

All packets of a feed have one length, so that a chunk of a thousand is taken apart by `struct` at once. A payload begins
with a counter; a reader holds what it gets against the counter that it expects next.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import struct
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Self

from tests.harness import packets
from tests.harness.broker_process import ROOT

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["PAYLOAD_BYTES", "TOPIC", "Feeder", "Probe", "Reader", "run_readers"]

TOPIC = "highway/A1/telemetry"
PAYLOAD_BYTES = 100
STALL_S = 60.0

_HEAD_BYTES = 2 + 2 + len(TOPIC)  # first byte, length, topic length, topic: a packet of less than 128 bytes
_LENGTH = {qos: _HEAD_BYTES + (2 if qos else 0) + PAYLOAD_BYTES for qos in (0, 1)}
assert max(_LENGTH.values()) <= 129, "the remaining length would take two bytes"
_FIELDS = {
    0: struct.Struct(f">B{_HEAD_BYTES - 1}x20s{PAYLOAD_BYTES - 20}x"),
    1: struct.Struct(f">B{_HEAD_BYTES - 1}x2s20s{PAYLOAD_BYTES - 20}x"),
}


def payload(number: int) -> bytes:
    """The payload with that counter."""
    return (b"%020d" % number).ljust(PAYLOAD_BYTES, b".")


def connect(port: int, client_id: str, *, clean: bool, receive_buffer: int | None = None) -> socket.socket:
    """A connected client, past its CONNACK."""
    opened = socket.socket()
    if receive_buffer:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    opened.settimeout(STALL_S)
    opened.connect(("127.0.0.1", port))
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.sendall(packets.connect(client_id, clean=clean, keep_alive=0))
    answer = b""
    while len(answer) < 4:
        answer += opened.recv(4 - len(answer))
    assert answer[0] == 0x20, answer
    assert answer[3] == 0, answer
    return opened


def subscribe(opened: socket.socket, topic_filter: str, qos: int) -> None:
    """SUBSCRIBE and SUBACK, on a connection that gets nothing else yet."""
    opened.sendall(packets.subscribe(1, (topic_filter, qos)))
    answer = b""
    while len(answer) < 5:
        answer += opened.recv(5 - len(answer))
    assert answer[0] == 0x90, answer
    assert answer[4] == qos, answer


class Feeder:
    """A publisher of counters that keeps a window of QoS 1 messages unacknowledged."""

    def __init__(self, port: int, client_id: str = "feeder", window: int = 2000) -> None:
        self._socket = connect(port, client_id, clean=True)
        self._window = window
        self.sent = 0

    def publish(self, count: int) -> float:
        """Publish `count` messages and wait for every acknowledgement; messages a second."""
        started = time.perf_counter()
        first, end = self.sent, self.sent + count
        head = packets.publish(TOPIC, payload(0), qos=1, packet_id=1)[:_HEAD_BYTES]
        ack_bytes = 0
        while ack_bytes < 4 * count:
            stop = min(end, first + ack_bytes // 4 + self._window)
            if stop > self.sent:
                self._socket.sendall(
                    b"".join(
                        b"".join((head, (number % 65_000 + 1).to_bytes(2, "big"), payload(number)))
                        for number in range(self.sent, stop)
                    )
                )
                self.sent = stop
            data = self._socket.recv(1 << 16)
            assert data, "closed by the broker"
            ack_bytes += len(data)
        return count / (time.perf_counter() - started)

    def publish_to_each(self, topics: list[str], count: int) -> None:
        """Publish `count` messages to each of some topics, as long as TOPIC all of them: one to each, then the next."""
        assert {len(topic) for topic in topics} == {len(TOPIC)}
        heads = [packets.publish(topic, payload(0), qos=1, packet_id=1)[:_HEAD_BYTES] for topic in topics]
        for number in range(count):
            tail = b"\x00\x01" + payload(number)
            self._socket.sendall(b"".join(head + tail for head in heads))
            left = 4 * len(topics)
            while left:
                data = self._socket.recv(left)
                assert data, "closed by the broker"
                left -= len(data)

    def close(self) -> None:
        self._socket.close()


class Reader:
    """A session that reads, acknowledges and checks `[first, last)`; repetitions (DUP) of what came before are counted."""

    def __init__(self, port: int, client_id: str, qos: int, first: int, last: int) -> None:
        self.client_id = client_id
        self.qos = qos
        self.next = first
        self.last = last
        self.repeated = 0
        self._port = port
        self._rest = b""
        self.socket: socket.socket | None = None
        self.done_at = 0.0

    def subscribe(self, topic_filter: str = TOPIC) -> Self:
        """Make the session, and leave."""
        with connect(self._port, self.client_id, clean=False) as opened:
            subscribe(opened, topic_filter, self.qos)
            opened.sendall(packets.DISCONNECT)
            assert opened.recv(1) == b""
        return self

    def start(self) -> Self:
        """Come back: CONNECT is sent, and nothing waited for."""
        self.socket = socket.create_connection(("127.0.0.1", self._port), timeout=STALL_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(packets.connect(self.client_id, clean=False, keep_alive=0))
        self._rest = b""
        self._connack = 4
        return self

    def on_readable(self) -> bool:
        """Take what is there, acknowledge and check it; True when the last message is in."""
        assert self.socket is not None
        data = self.socket.recv(1 << 18)
        assert data, f"{self.client_id}: closed by the broker at {self.next}"
        if self._connack:
            taken = data[: self._connack]
            self._connack -= len(taken)
            data = data[len(taken) :]
        data = self._rest + data
        length = _LENGTH[self.qos]
        whole = len(data) - len(data) % length
        self._rest = data[whole:]
        if whole:
            self.take(data[:whole])
        if self.next == self.last:
            self.done_at = time.perf_counter()
            return True
        return False

    def take(self, data: bytes) -> None:
        columns = list(zip(*_FIELDS[self.qos].iter_unpack(data), strict=True))
        if self.qos:
            assert self.socket is not None
            self.socket.sendall(b"".join(b"\x40\x02" + packet_id for packet_id in columns[1]))
        numbers = list(map(int, columns[-1]))
        if any(first & 8 for first in columns[0]):
            self.repeated += len(numbers)
            numbers = [number for number in numbers if number >= self.next]
        expected = range(self.next, self.next + len(numbers))
        assert numbers == list(expected), f"{self.client_id}: got {numbers[:3]}.., expected {expected}"
        self.next = expected.stop

    def swallow(self) -> None:
        """Read what is there until nothing comes for a moment, and acknowledge none of it; where we are stays."""
        assert self.socket is not None
        self.socket.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            while self.socket.recv(1 << 18):
                pass

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()


def run_readers(readers: list[Reader], *, until: float = STALL_S) -> float:
    """Serve readers that were started until each has all; seconds. AssertionError if nothing comes for a while."""
    started = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            assert reader.socket is not None
            selector.register(reader.socket, selectors.EVENT_READ, reader)
        left = len(readers)
        while left:
            events = selector.select(STALL_S)
            assert events, f"nothing came for {STALL_S:g} s, and {left} readers wait"
            assert time.perf_counter() - started < until, f"{left} readers are not done after {until:g} s"
            for key, _ in events:
                if key.data.on_readable():
                    selector.unregister(key.fileobj)
                    left -= 1
    return time.perf_counter() - started


class Probe:
    """A process of its own that publishes to the live end of the log and times each message until a subscriber has it."""

    def __init__(self, port: int, rate: int = 200) -> None:
        words = [sys.executable, "-m", "tests.benchmarks.replay_load", str(port), str(rate)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self.latencies_ms: list[float] = []

    def stop(self) -> Self:
        out, _ = self._process.communicate(b"\n", timeout=30)
        self.latencies_ms = sorted(json.loads(out))
        return self

    def quantile(self, share: float) -> float:
        return self.latencies_ms[min(len(self.latencies_ms) - 1, int(len(self.latencies_ms) * share))]

    def __str__(self) -> str:
        return (
            f"live p50 {self.quantile(0.5):.1f} p99 {self.quantile(0.99):.1f} max {self.latencies_ms[-1]:.1f} ms "
            f"({len(self.latencies_ms)})"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            if kind is None:
                self.stop()
            else:
                self._process.kill()
                self._process.communicate()


def _probe(port: int, rate: int) -> None:
    topic = f"highway/probe-{port}/telemetry"
    subscriber, publisher = connect(port, "probe-sub", clean=True), connect(port, "probe-pub", clean=True)
    subscribe(subscriber, topic, 0)
    for opened in (subscriber, publisher):
        opened.setblocking(False)
    splitter = packets.PacketSplitter()
    latencies: list[float] = []
    sent, due, stopping = 0, time.perf_counter(), False
    with selectors.DefaultSelector() as selector:
        for source in (subscriber, publisher, sys.stdin):
            selector.register(source, selectors.EVENT_READ)
        print("ready", flush=True)  # noqa: T201
        while not stopping or len(latencies) < sent:
            if not stopping and time.perf_counter() >= due:
                body = b"%020d" % time.perf_counter_ns()
                publisher.send(packets.publish(topic, body, qos=1, packet_id=sent % 60_000 + 1))
                sent += 1
                due += 1 / rate
            for key, _ in selector.select(STALL_S if stopping else max(0.0, due - time.perf_counter())):
                if key.fileobj is sys.stdin:
                    stopping = True
                    selector.unregister(sys.stdin)
                elif key.fileobj is publisher:
                    publisher.recv(1 << 16)
                else:
                    now = time.perf_counter_ns()
                    for first, body in splitter.feed(subscriber.recv(1 << 16)):
                        latencies.append((now - int(packets.parse_publish(first, body).payload)) / 1e6)
    json.dump(latencies, sys.stdout)


if __name__ == "__main__":
    _probe(int(sys.argv[1]), int(sys.argv[2]))
