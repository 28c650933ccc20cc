"""Open files, bounded: 10,000 logs must not need 10,000 descriptors."""

from __future__ import annotations

import resource
import threading
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .filesystem import FileSystem

__all__ = ["DEFAULT_DESCRIPTORS", "Descriptors", "descriptor_share"]

DEFAULT_DESCRIPTORS = 512  # half of the soft limit on most systems


def descriptor_share() -> int:
    """Return how many files are kept open: a quarter of what the process may have at most, the rest is for connections.

    More are open while they are not synced: up to one for each log that was written to since the last checkpoint.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DEFAULT_DESCRIPTORS if soft == resource.RLIM_INFINITY else max(1, min(DEFAULT_DESCRIPTORS, soft // 4))


class _Held:
    """An open file and how many hold it."""

    __slots__ = ("fd", "forgotten", "holders")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.holders = 0
        self.forgotten = False


class Descriptors:
    """A cache of writable descriptors by path; the least recently used that nobody holds is closed past the limit.

    A file with unsynced writes must be held (`acquire`) until it is synced: Linux reports a failed write-back to
    descriptors that were open when it happened, so closing and reopening could turn an error into silence.
    Methods may be called from any thread.
    """

    __slots__ = ("_held", "_idle", "_limit", "_lock", "_replaced", "filesystem")

    def __init__(self, filesystem: FileSystem, limit: int = DEFAULT_DESCRIPTORS) -> None:
        self.filesystem = filesystem
        self._limit = limit
        self._held: dict[Path, _Held] = {}
        self._idle: OrderedDict[Path, int] = OrderedDict()  # least recently used first
        self._replaced: dict[int, _Held] = {}  # by descriptor: held, and no longer what their path leads to
        self._lock = threading.Lock()

    def acquire(self, path: Path) -> int:
        """Return a descriptor that stays open until `release`."""
        with self._lock:
            held = self._held.get(path)
            if held is None:
                fd = self._idle.pop(path, -1)
                if fd < 0:
                    fd = self.filesystem.open(path, write=True)
                held = self._held[path] = _Held(fd)
                self._evict()
            held.holders += 1
            return held.fd

    def adopt(self, path: Path, fd: int) -> None:
        """Take over a descriptor that the caller has just created for `path`; nobody holds it."""
        with self._lock:
            self._idle[path] = fd
            self._evict()

    def release(self, path: Path, fd: int = -1) -> None:
        """Undo one `acquire`, which returned `fd`; without it, of the file that has the name now."""
        with self._lock:
            held = self._replaced.get(fd) or self._held[path]
            held.holders -= 1
            if held.holders:
                return
            if self._replaced.pop(fd, None) is None:
                del self._held[path]
            if held.forgotten:
                self.filesystem.close(held.fd)
            else:
                self._idle[path] = held.fd
                self._evict()

    @contextmanager
    def use(self, path: Path) -> Iterator[int]:
        """Hold a descriptor for the length of a `with` block."""
        fd = self.acquire(path)
        try:
            yield fd
        finally:
            self.release(path, fd)

    def forget(self, path: Path) -> None:
        """Close the descriptor of a file that goes away: now, or when its last holder releases it."""
        with self._lock:
            held = self._held.get(path)
            if held is not None:
                held.forgotten = True
            elif path in self._idle:
                self.filesystem.close(self._idle.pop(path))

    def replace(self, path: Path) -> None:
        """Forget a file whose name goes to another one: who holds it keeps it, the next `acquire` opens the new one."""
        self.forget(path)
        with self._lock:
            held = self._held.pop(path, None)
            if held is not None:
                self._replaced[held.fd] = held

    def close(self) -> None:
        """Close everything, held or not: for the end of the process's storage."""
        with self._lock:
            held = (*self._held.values(), *self._replaced.values())
            for fd in (*self._idle.values(), *(file.fd for file in held)):
                self.filesystem.close(fd)
            self._idle.clear()
            self._held.clear()
            self._replaced.clear()

    def __len__(self) -> int:
        return len(self._held) + len(self._replaced) + len(self._idle)

    def _evict(self) -> None:
        """Close idle files until the limit holds or all that are left are held."""
        while self._idle and len(self) > self._limit:
            self.filesystem.close(self._idle.popitem(last=False)[1])
