"""Brokers out of a parent that has imported everything already, so that a start costs 0.1 s of a core instead of 0.7.

What runs is `highway serve` in a process of its own, forked from a process that holds the loaded modules and nothing
else: no loop, no thread, no open file. A thousand crashes are affordable that way, and hundreds of tests with a broker.

    python -m tests.harness.nursery <fd>      the parent: one request after the other on a Unix socket
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
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Forked", "Nursery"]

_REQUEST_BYTES = 1 << 17
_ROOT = Path(__file__).parents[2]


def main(control: socket.socket) -> None:
    """Serve requests until the other end closes: `start` forks a broker, `reap` waits for one that has ended."""
    import argon2  # noqa: F401
    import uvloop  # noqa: F401

    import highway.cli.serve
    import highway.server.access.plugin_loading
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
                os.environ.clear()
                os.environ.update(request["environment"])
                if request["stopped"]:
                    os.kill(os.getpid(), signal.SIGSTOP)
                code = run(request["start"])
            except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on as a second nursery
                traceback.print_exc()
            os._exit(code)
        os.close(stderr)
        control.send(json.dumps(child).encode())


class Nursery:
    """The parent process, as a context manager; there is none until the first broker is asked for."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def _open(self) -> socket.socket:
        if self._control is None:
            self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.harness.nursery", str(other.fileno())],
                    cwd=_ROOT,
                    env={**os.environ, "PYTHONPATH": str(_ROOT)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[other.fileno()],
                )
        return self._control

    def start(self, arguments: list[str], environment: dict[str, str], *, stopped: bool = False) -> Forked:
        """A broker that runs `highway <arguments>`; a stopped one does so once it gets SIGCONT."""
        reader, writer = os.pipe()
        request = json.dumps({"start": arguments, "environment": environment, "stopped": stopped}).encode()
        with self._lock:
            control = self._open()
            socket.send_fds(control, [request], [writer])
            os.close(writer)
            pid = self._answer(control)
        return Forked(self, pid, reader)

    def reap(self, pid: int) -> int:
        """The exit code of a broker that has ended; negative for a signal."""
        with self._lock:
            control = self._open()
            control.send(json.dumps({"reap": pid}).encode())
            return self._answer(control)

    def _answer(self, control: socket.socket) -> int:
        data = control.recv(_REQUEST_BYTES)
        assert data, "the nursery has ended"
        return int(json.loads(data))

    def close(self) -> None:
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.wait(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Forked:
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
            poller = select.poll()  # a test may have thousands of files open
            poller.register(self._handle, select.POLLIN)
            if not poller.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(f"broker {self.pid}", timeout or 0.0)
            self.returncode = self._nursery.reap(self.pid)
            os.close(self._handle)
        return self.returncode


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
