"""How fast a disk makes a small write durable, in a file written as the journal is: preallocated, then in place."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .client import LoadError
from .publishing import quantile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Disk", "measure_disk"]

_FILE_BYTES = 64 << 20  # as long as a journal file
_WRITE_BYTES = 4096  # a commit of a few dozen readings
_STREAM_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Disk:
    """`sync_ms` is sorted: each a write of 4 KiB and its fdatasync. `stream_bytes_per_second` is synced at the end."""

    file_system: str
    sync_ms: list[float]
    stream_bytes_per_second: float

    @property
    def p50_ms(self) -> float:
        """Half of the syncs are quicker."""
        return quantile(self.sync_ms, 0.5)

    @property
    def p99_ms(self) -> float:
        """One in a hundred is slower."""
        return quantile(self.sync_ms, 0.99)

    def acks_per_second(self, publishers: int) -> float:
        """What SAFE can acknowledge at window 1: while one sync runs, everybody else's next message gathers."""
        return publishers * 1000 / self.p50_ms


def measure_disk(directory: Path, seconds: float, on_progress: Callable[[int], None] | None = None) -> Disk:
    """Measure for that long in a file of 64 MiB that is deleted at the end; progress is in milliseconds.

    LoadError: the directory isn't there, or there isn't room.
    """
    try:
        with tempfile.NamedTemporaryFile(prefix=".highway-bench-", dir=directory) as file:
            fd = file.fileno()
            os.posix_fallocate(fd, 0, _FILE_BYTES)
            started = time.perf_counter()
            _fill(fd)
            stream = _FILE_BYTES / (time.perf_counter() - started)
            return Disk(_file_system(directory), _sync_times(fd, seconds, on_progress), stream)
    except OSError as error:
        raise LoadError(f"can't measure in {directory}: {error.strerror}") from error


def _fill(fd: int) -> None:
    block = os.urandom(_STREAM_BYTES)  # a file system that compresses must not look faster than it is
    for offset in range(0, _FILE_BYTES, _STREAM_BYTES):
        os.pwrite(fd, block, offset)
    os.fsync(fd)


def _sync_times(fd: int, seconds: float, on_progress: Callable[[int], None] | None) -> list[float]:
    block = os.urandom(_WRITE_BYTES)
    times: list[float] = []
    begun = told = time.perf_counter()
    offset = 0
    while True:
        before = time.perf_counter()
        os.pwrite(fd, block, offset)
        os.fdatasync(fd)
        after = time.perf_counter()
        times.append((after - before) * 1000)
        offset = (offset + _WRITE_BYTES) % _FILE_BYTES
        if on_progress is not None and after - told >= 0.1:
            on_progress(int((after - told) * 1000))
            told = after
        if after - begun >= seconds:
            return sorted(times)


def _file_system(directory: Path) -> str:
    """The type of the file system, as /proc tells it; "unknown" if it doesn't."""
    best, kind = "", "unknown"
    wanted = str(directory.resolve()) + "/"
    try:
        with open("/proc/self/mounts", encoding="utf-8") as mounts:  # noqa: PTH123  no path of a user's
            for line in mounts:
                _, place, found, *_ = line.split(" ")
                place = place.replace("\\040", " ").rstrip("/") + "/"
                if wanted.startswith(place) and len(place) >= len(best):
                    best, kind = place, found
    except OSError:
        pass
    return kind
