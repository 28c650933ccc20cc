"""mosquitto_pub and mosquitto_sub, as a user types them."""

from __future__ import annotations

import queue
import shutil
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Self

import pytest

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["MosquittoSub", "mosquitto_pub", "mosquitto_sub", "needs_mosquitto"]

needs_mosquitto = pytest.mark.skipif(
    not all(map(shutil.which, ("mosquitto_pub", "mosquitto_sub", "mosquitto_rr"))),
    reason="mosquitto_pub, mosquitto_sub or mosquitto_rr is not installed (Debian: mosquitto-clients)",
)


def mosquitto_pub(port: int, *arguments: str, stdin: str | None = None) -> None:
    """Run to its end, which must be a good one."""
    subprocess.run(
        ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(port), *arguments],
        check=True,
        input=stdin,
        text=True,
        timeout=30,
        capture_output=True,
    )


def mosquitto_sub(port: int, *arguments: str, timeout: float = 30.0) -> tuple[int, list[str], str]:
    """Run to its end (give it -C, -E or -W); returns exit code, lines of stdout, and stderr."""
    done = subprocess.run(
        ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(port), *arguments],
        check=False,
        text=True,
        timeout=timeout,
        capture_output=True,
    )
    return done.returncode, done.stdout.splitlines(), done.stderr


class MosquittoSub:
    """A mosquitto_sub that runs on, with its lines as they come. Use as a context manager, which ends it."""

    def __init__(self, port: int, *arguments: str) -> None:
        self._process = subprocess.Popen(
            ["mosquitto_sub", "-h", "127.0.0.1", "-p", str(port), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout:
            for line in self._process.stdout:
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def lines(self, count: int, *, timeout: float = 30.0) -> list[str]:
        """The next `count` lines."""
        deadline = time.monotonic() + timeout
        taken: list[str] = []
        while len(taken) < count:
            try:
                line = self._lines.get(timeout=max(0.001, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{len(taken)} of {count} lines in {timeout} s: {taken[-5:]}") from None
            assert line is not None, f"ended after {len(taken)} of {count} lines: {taken[-5:]}"
            taken.append(line)
        return taken

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(10)
        self._reader.join(10)
