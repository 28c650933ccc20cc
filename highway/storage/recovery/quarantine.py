"""Bytes that recovery takes out of use are kept, as evidence and for an operator's last attempt."""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from highway.errors import CorruptionError
from highway.storage.disk.small_files import read_file

if TYPE_CHECKING:
    from pathlib import Path

    from highway.storage.disk.filesystem import FileSystem

__all__ = ["Quarantine"]

_MAX_BYTES = 256 * 1024 * 1024  # copies together; what is there is never deleted, so beyond this nothing is added

_logger = logging.getLogger(__name__)


class Quarantine:
    """The directory `quarantine/`."""

    __slots__ = ("_directory", "_filesystem")

    def __init__(self, filesystem: FileSystem, directory: Path) -> None:
        self._filesystem = filesystem
        self._directory = directory

    def keep(self, path: Path, position: int, data: bytes) -> bool:
        """Keep a copy of bytes that are about to be cut from `path`; the same bytes are kept once.

        False: there is no copy, because the quarantine or the disk is full. Recovery goes on then, a tool shouldn't.
        """
        target = self._directory / f"{path.parent.name}-{path.name}-{position}"
        if self._filesystem.exists(target):
            with contextlib.suppress(OSError, CorruptionError):
                if read_file(self._filesystem, target) == data:
                    return True
            target = target.with_name(f"{target.name}-{len(self._filesystem.listdir(self._directory))}")
        if not data:
            return True
        if self._used() + len(data) > _MAX_BYTES:
            _logger.warning("%s: %d B cut at byte %d aren't kept: the quarantine is full", path, len(data), position)
            return False
        try:
            fd = self._filesystem.open(target, create=True)
            try:
                self._filesystem.pwrite(fd, data, 0)
                self._filesystem.fdatasync(fd)
            finally:
                self._filesystem.close(fd)
            self._filesystem.sync_dir(self._directory)
        except OSError as error:
            _logger.warning("%s: a copy of %d B cut at byte %d can't be kept: %s", path, len(data), position, error)
            with contextlib.suppress(OSError):
                self._filesystem.unlink(target)  # half of it is no evidence, and takes space
            return False
        return True

    def move(self, path: Path) -> None:
        """Take a whole file out of use."""
        target = self._directory / f"{path.parent.name}-{path.name}"
        number = 0
        while self._filesystem.exists(target):
            number += 1
            target = self._directory / f"{path.parent.name}-{path.name}-{number}"
        self._filesystem.rename(path, target)
        self._filesystem.sync_dir(self._directory)
        self._filesystem.sync_dir(path.parent)

    def _used(self) -> int:
        used = 0
        for name in self._filesystem.listdir(self._directory):
            fd = self._filesystem.open(self._directory / name)
            try:
                used += self._filesystem.size(fd)
            finally:
                self._filesystem.close(fd)
        return used
