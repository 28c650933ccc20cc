"""The real broker as a process of its own: started, killed and started again on one directory."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil

from tests.harness.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from tests.harness.nursery import Forked, Nursery

__all__ = ["BrokerProcess", "free_port", "wait_until"]

START_SECONDS = 20.0  # the promise is 5; a busy test machine gets more
STOP_SECONDS = 10.0
ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "highway"]


# Below what the system gives of itself, to clients or to whoever asks for any port: a broker that is started again
# finds its port as it left it. Each process of a parallel run has a part of them.
_PORTS = range(10_240, 32_768)
_WORKERS = 8


def _candidates() -> Iterator[int]:
    part = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % _WORKERS
    ports = _PORTS[part::_WORKERS]
    begin = random.SystemRandom().randrange(len(ports))  # other runs on this machine begin elsewhere
    return itertools.cycle([*ports[begin:], *ports[:begin]])


_ports = _candidates()


def free_port() -> int:
    """A port of 127.0.0.1 where nobody listens; the next call returns another one."""
    for port in _ports:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError


def wait_until(condition: Callable[[], object], *, timeout: float = 10.0, what: str = "the condition") -> None:
    """Poll until `condition` is true; AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come true within {timeout} s"
        time.sleep(0.01)


class BrokerProcess:
    """A broker on a data directory and a port of its own, kept over restarts.

    Where there is a `nursery`, it comes from there; otherwise it is started as a user does.
    """

    nursery: Nursery | None = None

    def __init__(self, directory: Path, *, topics: list[dict[str, Any]] | None = None, **settings: Any) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.port = free_port()
        self.config = directory / "highway.yaml"
        self.program = PROGRAM
        self.environment: dict[str, str] = {}  # beside our own
        self.process: subprocess.Popen[str] | Forked | None = None
        self.stderr: list[str] = []  # the lines of every run so far
        self._reader: threading.Thread | None = None
        self._changed = threading.Condition()
        self.write_config({"topics": topics or [], **settings})

    def write_config(self, settings: dict[str, Any]) -> None:
        """Write the file that the next start reads. JSON is YAML too, and leaves nothing to quoting."""
        whole = {
            "data_dir": str(self.data),
            "listeners": {"local": {"bind": "127.0.0.1", "port": self.port}},
            **settings,
            # Small files, as tests make many data directories.
            "storage": {"journal_file_bytes": "4MiB", "reserve_bytes": "1MiB", **settings.get("storage", {})},
        }
        self.config.write_text(json.dumps(whole, indent=1))

    def spawn(self, *, stopped: bool = False) -> None:
        """Start the process without waiting for anything; a stopped one, of a nursery, runs once it gets SIGCONT."""
        assert self.process is None, "already running"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HIGHWAY__")}
        environment |= {"PYTHONPATH": str(ROOT), **self.environment}
        words = ["serve", "-c", str(self.config)]
        if self.nursery is not None and self.program == PROGRAM:
            self.process = self.nursery.start(words, environment, stopped=stopped)
        else:
            assert not stopped
            self.process = subprocess.Popen(
                [*self.program, *words],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        self._reader = threading.Thread(target=self._read_stderr, args=(self.process,), daemon=True)
        self._reader.start()

    def start(self) -> Self:
        """Start and wait for `highway: ready`."""
        mark = len(self.stderr)
        self.spawn()
        try:
            self.wait_for_line(r"^highway: ready", since=mark, timeout=START_SECONDS)
        except AssertionError:
            self.kill()
            raise
        return self

    def _read_stderr(self, process: subprocess.Popen[str] | Forked) -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                with self._changed:
                    self.stderr.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for_line(self, pattern: str, *, since: int = 0, timeout: float = 10.0) -> str:
        """The first line on stderr, from line `since` on, that the pattern is found in."""
        deadline = time.monotonic() + timeout
        with self._changed:
            position = since
            while True:
                while position < len(self.stderr):
                    if re.search(pattern, self.stderr[position]):
                        return self.stderr[position]
                    position += 1
                ended = self._reader is not None and not self._reader.is_alive()
                remaining = deadline - time.monotonic()
                shown = "; stderr:\n" + "\n".join(self.stderr[since:][-50:])
                assert not ended, f"the process ended without a line like {pattern!r}{shown}"
                assert remaining > 0, f"no line like {pattern!r} within {timeout} s{shown}"
                self._changed.wait(min(remaining, 0.2))

    def lines(self, pattern: str, *, since: int = 0) -> list[str]:
        return [line for line in self.stderr[since:] if re.search(pattern, line)]

    def kill(self) -> None:
        """`kill -9`."""
        assert self.process is not None
        self.process.kill()
        self._ended(5.0)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self._ended(STOP_SECONDS)

    def wait(self, timeout: float = START_SECONDS) -> int:
        """Wait for an end that the broker comes to by itself; returns the exit code."""
        return self._ended(timeout)

    def _ended(self, timeout: float) -> int:
        assert self.process is not None
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not end within {timeout} s; stderr:\n" + "\n".join(self.stderr[-50:])) from None
        finally:
            if self._reader is not None:
                self._reader.join(5.0)
            self.process = None
        return code

    def restart(self) -> Self:
        """`kill -9` and start again."""
        self.kill()
        return self.start()

    def client(self, client_id: str, *, clean: bool = True, **settings: object) -> RawClient:
        """A connected client."""
        return RawClient.connected(self.port, client_id, clean=clean, **settings)

    def rss_bytes(self) -> int:
        assert self.process is not None
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            if kind is None:
                self.stop()
            else:
                self.kill()
        if kind is not None:
            print("\n".join(self.stderr[-100:]))  # noqa: T201 - pytest shows it with the failure
