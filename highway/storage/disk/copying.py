"""Copying files of a data directory, durably and with their checksum."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .filesystem import FileSystem

__all__ = ["Copied", "checksum_of", "copy_file", "link_file"]

_CHUNK_BYTES = 1024 * 1024
_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP})  # another disk, or one without links


class Copied(NamedTuple):
    """What was read."""

    bytes: int
    crc: int


def checksum_of(filesystem: FileSystem, path: Path, on_bytes: Callable[[int], None]) -> Copied:
    """Return size and CRC32C of a file."""
    fd = filesystem.open(path)
    try:
        return _read(filesystem, fd, None, on_bytes, lambda _data, _position: None)
    finally:
        filesystem.close(fd)


def copy_file(
    filesystem: FileSystem,
    source: Path,
    target: Path,
    on_bytes: Callable[[int], None],
    length: int | None = None,
) -> Copied:
    """Copy a file, or its first `length` bytes, over what may be at `target`; the caller syncs the directory."""
    fd = filesystem.open(source)
    try:
        if filesystem.exists(target):
            filesystem.unlink(target)
        copy = filesystem.open(target, create=True)
        try:
            copied = _read(
                filesystem, fd, length, on_bytes, lambda data, position: filesystem.pwrite(copy, data, position)
            )
            filesystem.fsync(copy)
        finally:
            filesystem.close(copy)
    finally:
        filesystem.close(fd)
    return copied


def link_file(filesystem: FileSystem, source: Path, target: Path) -> bool:
    """Give a file a second name; False if this can't be done there."""
    try:
        filesystem.link(source, target)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    return True


def _read(
    filesystem: FileSystem,
    fd: int,
    length: int | None,
    on_bytes: Callable[[int], None],
    on_data: Callable[[bytes, int], None],
) -> Copied:
    position = crc = 0
    while length is None or position < length:
        wanted = _CHUNK_BYTES if length is None else min(_CHUNK_BYTES, length - position)
        data = filesystem.pread(fd, wanted, position)
        if not data:
            break
        on_data(data, position)
        crc = crc32c(data, crc)
        position += len(data)
        on_bytes(len(data))
    return Copied(position, crc)
