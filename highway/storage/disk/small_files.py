"""Small files as a whole: read at once, and replaced in one step that no crash divides."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from .filesystem import read_or_report

if TYPE_CHECKING:
    from pathlib import Path

    from .filesystem import FileSystem

__all__ = ["read_file", "replace_file"]


def read_file(filesystem: FileSystem, path: Path) -> bytes:
    """Return all of a small file; CorruptionError if the disk can't read it."""
    fd = filesystem.open(path)
    try:
        return read_or_report(filesystem, fd, path, filesystem.size(fd), 0)
    finally:
        filesystem.close(fd)


def replace_file(filesystem: FileSystem, path: Path, data: bytes) -> None:
    """Make `path` hold `data`, durably and at once: the old content or the new one, whenever the power goes."""
    temporary = path.with_name(path.name + ".tmp")
    if filesystem.exists(temporary):
        filesystem.unlink(temporary)
    fd = filesystem.open(temporary, create=True)
    try:
        try:
            filesystem.pwrite(fd, data, 0)
            filesystem.fsync(fd)
        finally:
            filesystem.close(fd)
        filesystem.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            filesystem.unlink(temporary)  # on a full disk even half of it is missing elsewhere
        raise
    filesystem.sync_dir(path.parent)
