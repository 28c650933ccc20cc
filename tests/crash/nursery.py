"""Brokers out of a parent that has imported everything already, so that a start costs 0.1 s instead of 0.5.

What runs is `highway serve` in a process of its own, forked from a process that holds the loaded modules and nothing
else: no loop, no thread, no open file. A thousand crashes are affordable that way. The campaigns start every tenth
broker as a user does, by `python -m highway serve`, and those starts count as recovery time like all others.

    python -m tests.crash.nursery <fd>      the parent: one request after the other on a Unix socket
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, Self

from tests.harness.broker_process import ROOT, BrokerProcess

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["CrashBroker", "Nursery"]

_REQUEST_BYTES = 65536


def main(control: socket.socket) -> None:
    """Serve requests until the other end closes: `start` forks a broker, `reap` waits for one that has ended."""
    import uvloop  # noqa: F401

    import highway.cli.serve
    import highway.server.daemon  # noqa: F401
    from highway.cli.main import run

    while True:
        data, descriptors, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 1)
        if not data:
            return
        request = json.loads(data)
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            control.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
            continue
        (stderr,) = descriptors
        child = os.fork()
        if child == 0:
            control.close()
            os.dup2(stderr, 2)
            os.close(stderr)
            code = 1
            try:
                if request["stopped"]:
                    os.kill(os.getpid(), signal.SIGSTOP)
                code = run(request["start"])
            except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on as a second nursery
                traceback.print_exc()
            os._exit(code)
        os.close(stderr)
        control.send(json.dumps(child).encode())


class Nursery:
    """The parent process, as a context manager."""

    def __init__(self) -> None:
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HIGHWAY__")}
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.nursery", str(other.fileno())],
                cwd=ROOT,
                env={**environment, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
            )

    def start(self, arguments: list[str], *, stopped: bool = False) -> _Forked:
        """A broker that runs `highway <arguments>`; a stopped one does so once it gets SIGCONT."""
        reader, writer = os.pipe()
        request = json.dumps({"start": arguments, "stopped": stopped}).encode()
        with self._lock:
            socket.send_fds(self._control, [request], [writer])
            os.close(writer)
            pid = self._answer()
        return _Forked(self, pid, reader)

    def reap(self, pid: int) -> int:
        """The exit code of a broker that has ended; negative for a signal."""
        with self._lock:
            self._control.send(json.dumps({"reap": pid}).encode())
            return self._answer()

    def _answer(self) -> int:
        data = self._control.recv(_REQUEST_BYTES)
        assert data, "the nursery has ended"
        return int(json.loads(data))

    def close(self) -> None:
        self._control.close()
        self._process.wait(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Forked:
    """The part of `subprocess.Popen` that BrokerProcess needs, for a process whose parent is the nursery."""

    def __init__(self, nursery: Nursery, pid: int, stderr: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stderr = os.fdopen(stderr, encoding="utf-8", errors="replace")
        self._nursery = nursery
        self._handle = os.pidfd_open(pid)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ready, _, _ = select.select([self._handle], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired(f"broker {self.pid}", timeout or 0.0)
            self.returncode = self._nursery.reap(self.pid)
            os.close(self._handle)
        return self.returncode


class CrashBroker(BrokerProcess):
    """A broker whose data may stand on another file system, and which may come from the nursery."""

    def __init__(self, directory: Any, *, data: Any = None, nursery: Nursery | None = None, **settings: Any) -> None:
        super().__init__(directory)
        self.data = data or self.data
        self.nursery = nursery
        self.longest_start = 0.0  # seconds from the start of a process to `highway: ready`
        self.write_config(settings)

    def spawn(self, *, stopped: bool = False) -> None:
        if self.nursery is None:
            super().spawn()
            return
        assert self.process is None, "already running"
        self.process = self.nursery.start(["serve", "-c", str(self.config)], stopped=stopped)  # type: ignore[assignment]
        self._reader = threading.Thread(target=self._read_stderr, args=(self.process,), daemon=True)
        self._reader.start()

    def start(self) -> Self:
        started = time.monotonic()
        super().start()
        self.longest_start = max(self.longest_start, time.monotonic() - started)
        return self


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
