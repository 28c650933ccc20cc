"""A disk that nothing is written to: what is changed stays in memory, and reads see it.

With it the recovery that a start would do can be done for a look: same code, same verdict, and the directory is as it
was, also beside a running broker. A file is copied into memory when it is first changed; until then it is read from
below, so that a file that grows is seen to grow. Nothing is locked, synced or kept.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from highway.storage.disk.filesystem import FileSystem

__all__ = ["OverlayFileSystem"]


@dataclass(slots=True)
class _Node:
    """One file: `data` once it was changed, otherwise what stands at `below`."""

    below: Path | None
    data: bytearray | None = None


@dataclass(slots=True)
class _Open:
    """One descriptor; `fd` is the file's below, -1 without one."""

    node: _Node
    fd: int


class OverlayFileSystem:
    """A `FileSystem` over another one, of which only the reading methods are called."""

    __slots__ = ("_below", "_directories", "_names", "_next_fd", "_open")

    def __init__(self, below: FileSystem) -> None:
        self._below = below
        self._names: dict[Path, _Node | None] = {}  # what is new or gone (None); everything else is as below
        self._directories: set[Path] = set()
        self._open: dict[int, _Open] = {}
        self._next_fd = 1

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:  # noqa: ARG002  any may write
        if create and self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        if create:
            self._names[path] = _Node(None, bytearray())
        node = self._node(path)
        fd = self._below.open(node.below) if node.data is None and node.below is not None else -1
        self._names.setdefault(path, node)
        return self._add(_Open(node, fd))

    def close(self, fd: int) -> None:
        opened = self._open.pop(fd)
        if opened.fd >= 0:
            self._below.close(opened.fd)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        opened = self._open[fd]
        if opened.node.data is not None:
            return bytes(opened.node.data[position : position + length])
        return self._below.pread(opened.fd, length, position)

    def pwrite(self, fd: int, data: bytes, position: int) -> None:
        content = self._content(fd)
        content.extend(bytes(max(0, position - len(content))))
        content[position : position + len(data)] = data

    def pwritev(self, fd: int, parts: Sequence[bytes], position: int) -> None:
        self.pwrite(fd, b"".join(parts), position)

    def fdatasync(self, fd: int) -> None:
        """Do nothing: nothing is kept."""

    def fsync(self, fd: int) -> None:
        """Do nothing: nothing is kept."""

    def size(self, fd: int) -> int:
        opened = self._open[fd]
        return self._below.size(opened.fd) if opened.node.data is None else len(opened.node.data)

    def truncate(self, fd: int, length: int) -> None:
        content = self._content(fd)
        del content[length:]
        content.extend(bytes(length - len(content)))

    def allocate(self, fd: int, length: int) -> None:
        if length > self.size(fd):
            self.truncate(fd, length)

    def preallocate(self, fd: int, length: int) -> None:
        self.allocate(fd, length)

    def drop_cache(self, path: Path) -> None:
        """Do nothing: a look changes nothing for the broker beside it."""

    def read_direct(self, path: Path, length: int, position: int) -> bytes:
        fd = self.open(path)
        try:
            return self.pread(fd, length, position)
        finally:
            self.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        self._names[target] = self._node(source)
        self._names[source] = None

    def link(self, source: Path, target: Path) -> None:
        if self.exists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
        self._names[target] = self._node(source)

    def unlink(self, path: Path) -> None:
        self._node(path)
        self._names[path] = None

    def mkdir(self, path: Path) -> None:
        self._directories.add(path)

    def sync_dir(self, path: Path) -> None:
        """Do nothing: nothing is kept."""

    def open_directory(self, path: Path) -> int:
        """Return a descriptor of the directory that is read."""
        return self._add(_Open(_Node(path), self._below.open_directory(path)))

    def syncfs(self, fd: int) -> None:
        """Do nothing: nothing is kept."""

    @property
    def syncfs_tells(self) -> bool:
        return True

    def listdir(self, path: Path) -> list[str]:
        new = path in self._directories
        names = set() if new and not self._below.exists(path) else set(self._below.listdir(path))
        names |= {directory.name for directory in self._directories if directory.parent == path}
        for changed, node in self._names.items():
            if changed.parent == path:
                if node is None:
                    names.discard(changed.name)
                else:
                    names.add(changed.name)
        return sorted(names)

    def exists(self, path: Path) -> bool:
        if path in self._names:
            return self._names[path] is not None
        return path in self._directories or self._below.exists(path)

    def lock(self, path: Path) -> int:
        """Return a descriptor that locks nothing."""
        return self.open(path, create=not self.exists(path))

    def free_bytes(self, path: Path) -> int:
        return self._below.free_bytes(path)

    def total_bytes(self, path: Path) -> int:
        return self._below.total_bytes(path)

    def kind(self, path: Path) -> str:
        return self._below.kind(path)

    def _node(self, path: Path) -> _Node:
        """Return the file of that name; FileNotFoundError for one that is gone here."""
        if path not in self._names:
            return _Node(path)
        node = self._names[path]
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return node

    def _add(self, opened: _Open) -> int:
        fd = self._next_fd
        self._next_fd += 1
        self._open[fd] = opened
        return fd

    def _content(self, fd: int) -> bytearray:
        """Return a file's bytes for changing, copied when they are changed for the first time."""
        opened = self._open[fd]
        node = opened.node
        if node.data is None:
            node.data = bytearray(self._below.pread(opened.fd, self._below.size(opened.fd), 0))
        return node.data
