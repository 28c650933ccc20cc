"""RESERVE: space that is kept back, and given up when the disk is full."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .filesystem import FULL_ERRNOS

if TYPE_CHECKING:
    from pathlib import Path

    from .filesystem import FileSystem

__all__ = ["Reserve"]


class Reserve:
    """The file RESERVE. It says nothing and need not be durable: the next open makes it again."""

    __slots__ = ("_filesystem", "_path", "size")

    def __init__(self, filesystem: FileSystem, path: Path, size: int) -> None:
        """With `size` 0 there is no file."""
        self._filesystem = filesystem
        self._path = path
        self.size = size

    def make(self, headroom: int) -> bool:
        """Return whether the file is there, or could be made with `headroom` bytes left beside it."""
        filesystem = self._filesystem
        if self.size and filesystem.exists(self._path):
            if self._length() == self.size:
                return True
            filesystem.unlink(self._path)  # another size was asked for, or a crash left half of it
        if filesystem.free_bytes(self._path.parent) < self.size + headroom:
            return False
        if self.size:
            try:
                self._create()
            except OSError as error:
                if error.errno in FULL_ERRNOS:
                    return False
                raise
        return True

    def give_up(self) -> bool:
        """Delete the file; return whether there was one."""
        if not self._filesystem.exists(self._path):
            return False
        self._filesystem.unlink(self._path)
        self._filesystem.sync_dir(self._path.parent)  # some file systems have the blocks back only after that
        return True

    def free_bytes(self) -> int:
        """Return how much space there is beside it."""
        return self._filesystem.free_bytes(self._path.parent)

    def _length(self) -> int:
        fd = self._filesystem.open(self._path)
        try:
            return self._filesystem.size(fd)
        finally:
            self._filesystem.close(fd)

    def _create(self) -> None:
        fd = self._filesystem.open(self._path, create=True)
        try:
            self._filesystem.preallocate(fd, self.size)
        except BaseException:
            self._filesystem.unlink(self._path)
            raise
        finally:
            self._filesystem.close(fd)
