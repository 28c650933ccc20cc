"""What the broker tells systemd, on a real notification socket, and what it leaves out when a part of it hangs."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from highway.server import supervisor as module
from highway.server.supervisor import Supervisor
from tests.harness import packets
from tests.harness.broker_process import BrokerProcess, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

WATCHDOG_S = 0.8


class Listener:
    """systemd's end of a notification socket."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.told: list[str] = []
        self.fed_at: list[float] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while data := self.socket.recv(65_536):
            self.told += data.decode().split("\n")
            if b"WATCHDOG=1" in data:
                self.fed_at.append(time.monotonic())

    def heard(self, start: str) -> list[str]:
        return [line for line in self.told if line.startswith(start)]

    def wait_for_food(self) -> None:
        count = len(self.fed_at)
        wait_until(lambda: len(self.fed_at) > count + 1, what="a fed watchdog")

    def wait_for_hunger(self) -> None:
        wait_until(lambda: time.monotonic() - self.fed_at[-1] > 2 * WATCHDOG_S, what="a watchdog that bites")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self.socket.getsockname())
        self._thread.join(5)
        self.socket.close()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    with Listener(tmp_path / "notify") as opened:
        yield opened


@pytest.fixture
def supervised(tmp_path: Path, listener: Listener) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path, topics=[{"topic": "safe/#", "log": "safe", "durability": "SAFE"}])
    process.program = [sys.executable, str(Path(__file__).with_name("hanging.py"))]
    process.environment = {
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": f"{WATCHDOG_S * 1e6:.0f}",
        "HANG": str(tmp_path / "hang"),
    }
    yield process
    (tmp_path / "hang").unlink(missing_ok=True)
    if process.process is not None:
        process.kill()


def test_a_whole_life_is_told(supervised: BrokerProcess, listener: Listener) -> None:
    supervised.start()
    listener.wait_for_food()
    with supervised.client("sensor") as client:
        client.publish("safe/x", b"1")
        wait_until(lambda: listener.heard("STATUS=serving: 1 clients, 1 messages in, 0 out"), what="the status")
    assert supervised.stop() == 0
    wait_until(lambda: listener.heard("STOPPING=1"), what="STOPPING=1")
    told = listener.told
    assert told.index("EXTEND_TIMEOUT_USEC=60000000") < told.index("READY=1") < told.index("WATCHDOG=1")
    assert told.index(f"STATUS=recovering {supervised.data}") < told.index("READY=1")
    assert told.index("WATCHDOG=1") < told.index("STOPPING=1")


@pytest.mark.parametrize("thread", ["loop", "journal"])
def test_the_watchdog_starves_while_a_thread_hangs(
    supervised: BrokerProcess, listener: Listener, thread: str, tmp_path: Path
) -> None:
    supervised.start()
    listener.wait_for_food()
    hang = tmp_path / "hang"
    with supervised.client("sensor") as client:
        hang.write_text(thread)
        if thread == "loop":
            assert supervised.process is not None
            os.kill(supervised.process.pid, signal.SIGUSR1)
        else:
            client.send(packets.publish("safe/x", b"1", qos=1, packet_id=1))
        listener.wait_for_hunger()
        hang.unlink()
        listener.wait_for_food()


def test_without_a_watchdog_and_without_systemd_nothing_is_fed(tmp_path: Path, listener: Listener) -> None:
    class Never:
        pulse = 1

        def ask_pulse(self) -> None:
            raise AssertionError

    Supervisor({"NOTIFY_SOCKET": str(tmp_path / "notify")}).watch(None, Never(), str)  # type: ignore[arg-type]
    other = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
    Supervisor(other).watch(None, Never(), str)  # type: ignore[arg-type]
    nobody = Supervisor({"WATCHDOG_USEC": "1000000"})
    nobody.watch(None, Never(), str)  # type: ignore[arg-type]
    with nobody.busy("recovering"):
        nobody.ready("serving")
    gone = Supervisor({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    gone.ready("serving")  # says so in the log, and goes on
    assert listener.told == []


def test_more_time_is_asked_for_only_while_something_moves(
    tmp_path: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROGRESS_S", 0.05)
    supervisor = Supervisor({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    moving = [0.0]
    monkeypatch.setattr(module, "_work_done", lambda: (moving[0], 0, 0))
    with supervisor.busy("recovering"):
        stuck = re.compile(r"STATUS=recovering, for \d+ s: the disk doesn't answer")
        wait_until(lambda: len([line for line in listener.told if stuck.fullmatch(line)]) >= 3)
        assert len(listener.heard("EXTEND_TIMEOUT_USEC=")) == 1

        def moved() -> bool:
            moving[0] += 1.0
            return len(listener.heard("EXTEND_TIMEOUT_USEC=")) >= 3

        wait_until(moved, what="more time")


def test_an_abstract_socket_is_reached() -> None:
    name = f"highway-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(f"\0{name}")
        opened.settimeout(5)
        Supervisor({"NOTIFY_SOCKET": f"@{name}"}).stopping()
        assert opened.recv(100) == b"STOPPING=1\nSTATUS=stopping"


def test_work_is_seen() -> None:
    before = module._work_done()
    end = time.process_time() + 0.02
    while time.process_time() < end:
        pass
    assert module._work_done()[0] - before[0] > module.MOVING_S
