"""Open files, bounded: 10,000 logs must not need 10,000 descriptors."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from highway.storage.filesystem import FileSystem

__all__ = ["DEFAULT_DESCRIPTORS", "Descriptors"]

# Half of the soft limit of descriptors on most systems; the rest is for connections until the limit is raised.
DEFAULT_DESCRIPTORS = 512


class _Open:
    """One open file and how many hold it."""

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

    __slots__ = ("_limit", "_lock", "_open", "filesystem")

    def __init__(self, filesystem: FileSystem, limit: int = DEFAULT_DESCRIPTORS) -> None:
        self.filesystem = filesystem
        self._limit = limit
        self._open: OrderedDict[Path, _Open] = OrderedDict()
        self._lock = threading.Lock()

    def acquire(self, path: Path) -> int:
        """Return a descriptor that stays open until `release`."""
        with self._lock:
            opened = self._open.get(path)
            if opened is None:
                opened = self._open[path] = _Open(self.filesystem.open(path, write=True))
            else:
                self._open.move_to_end(path)
            opened.holders += 1
            self._evict()
            return opened.fd

    def adopt(self, path: Path, fd: int) -> None:
        """Take over a descriptor that the caller has just created for `path`; nobody holds it."""
        with self._lock:
            self._open[path] = _Open(fd)
            self._evict()

    def release(self, path: Path) -> None:
        """Undo one `acquire`."""
        with self._lock:
            opened = self._open[path]
            opened.holders -= 1
            if opened.forgotten and not opened.holders:
                del self._open[path]
                self.filesystem.close(opened.fd)
            else:
                self._evict()

    @contextmanager
    def use(self, path: Path) -> Iterator[int]:
        """Hold a descriptor for the length of a `with` block."""
        fd = self.acquire(path)
        try:
            yield fd
        finally:
            self.release(path)

    def forget(self, path: Path) -> None:
        """Close the descriptor of a file that goes away: now, or when its last holder releases it."""
        with self._lock:
            opened = self._open.get(path)
            if opened is None:
                return
            if opened.holders:
                opened.forgotten = True
            else:
                del self._open[path]
                self.filesystem.close(opened.fd)

    def close(self) -> None:
        """Close everything, held or not: for the end of the process's storage."""
        with self._lock:
            for opened in self._open.values():
                self.filesystem.close(opened.fd)
            self._open.clear()

    def __len__(self) -> int:
        return len(self._open)

    def _evict(self) -> None:
        """Close idle files, least recently used first, until the limit holds or all that are left are held."""
        excess = len(self._open) - self._limit
        if excess <= 0:
            return
        for path in [path for path, opened in self._open.items() if not opened.holders][:excess]:
            self.filesystem.close(self._open.pop(path).fd)
