"""Ten thousand `per_topic` logs at one message a second each: `python -m tests.benchmarks.many_logs [LOGS] [SECONDS]`.

Prints the memory, descriptors and processor time that they take, and how long it takes to stop cleanly, to start again,
and to start after a kill.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil

from tests.harness import packets
from tests.harness.broker_process import BrokerProcess, wait_until
from tests.harness.raw_client import RawClient, close_all

__all__ = ["main"]

TOPICS = [{"topic": "plant/#", "log": "plant", "durability": "BALANCED", "per_topic": True, "max_logs": 100_000}]
MIB = 1 << 20
SLICES = 50  # of a second
PAYLOAD = b'{"t":21.5,"h":40,"p":1013,"battery":3.1,"ok":true}'


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


class Sensors:
    """All sensors on one connection: each publishes once a second at QoS 1."""

    def __init__(self, port: int, logs: int) -> None:
        self._client = RawClient.connected(port, "sensors")
        self._packets = [
            packets.publish(f"plant/{n // 100}/{n}", PAYLOAD, qos=1, packet_id=n % 65535 + 1) for n in range(logs)
        ]
        self.sent = self.acked = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while data := self._client.socket.recv(1 << 16):
                self.acked += len(data) // 4
        except OSError:
            return

    def publish(self, seconds: int) -> float:
        """Publish for so many seconds; returns how many seconds the last of it came too late."""
        self._client.socket.settimeout(60)
        began = time.monotonic()
        size = len(self._packets) // SLICES
        for number in range(seconds * SLICES):
            time.sleep(max(0.0, began + number / SLICES - time.monotonic()))  # the rate of the publishers
            at = number % SLICES * size
            self._client.socket.sendall(b"".join(self._packets[at : at + size]))
            self.sent += size
        wait_until(lambda: self.acked >= self.sent, timeout=60, what="the last acknowledgement")
        return time.monotonic() - began - seconds

    def close(self) -> None:
        self._client.socket.shutdown(socket.SHUT_RDWR)
        self._client.close()


def figures(broker: BrokerProcess) -> str:
    assert broker.process is not None
    process = psutil.Process(broker.process.pid)
    used = process.cpu_times()
    return (
        f"{process.memory_info().rss / MIB:.0f} MiB, {process.num_fds()} descriptors, {used.user + used.system:.1f} s"
    )


def timed_start(broker: BrokerProcess) -> float:
    began = time.monotonic()
    broker.start()
    return time.monotonic() - began


def timed_stop(broker: BrokerProcess) -> float:
    began = time.monotonic()
    assert broker.process is not None
    broker.process.send_signal(signal.SIGTERM)
    assert broker.wait(120) == 0
    return time.monotonic() - began


def main(logs: int = 10_000, seconds: int = 60) -> None:
    """Run it all."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
        broker = BrokerProcess(Path(name), topics=TOPICS)
        say(f"start, new: {timed_start(broker):.2f} s; {figures(broker)}")
        sensors = Sensors(broker.port, logs)
        say(f"first message of {logs} logs: {sensors.publish(1) + 1:.2f} s; {figures(broker)}")
        sensors.close()
        say(f"stop with {logs} fresh logs: {timed_stop(broker):.2f} s")
        say(f"start after it: {timed_start(broker):.2f} s; {figures(broker)}")
        sensors = Sensors(broker.port, logs)
        most = 0
        for _ in range(seconds // 10):
            late = sensors.publish(10)
            assert broker.process is not None
            most = max(most, psutil.Process(broker.process.pid).num_fds())
            say(f"10 s of {logs} messages a second, {late:.2f} s late: {figures(broker)}")
        say(f"most descriptors seen: {most}")
        broker.kill()
        say(f"start after kill -9: {timed_start(broker):.2f} s; {figures(broker)}")
        sensors.close()
        say(f"stop: {timed_stop(broker):.2f} s")
        close_all()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
