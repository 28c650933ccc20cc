"""What is where in a data directory, who may open it, and what to say when it can't be opened."""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from crc32c import crc32c

from highway.errors import CorruptionError, DataDirectoryError, DirectoryInUseError
from highway.storage.disk.small_files import read_file

if TYPE_CHECKING:
    from highway.clock import Clock

    from .filesystem import FileSystem

__all__ = [
    "DATA_FORMAT",
    "Layout",
    "encode_format",
    "is_whole_in_directory",
    "lock_directory",
    "parse_format",
]

DATA_FORMAT = 1
_FORMAT_CRC = b', "crc32c": "'
_MAX_NAME_BYTES = 200  # of a log directory's name before its uuid: file names end at 255 B


class Layout:
    """The paths of one data directory."""

    __slots__ = ("directory", "format", "journal", "lock", "logs", "meta", "poison", "quarantine", "reserve")

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lock = directory / "LOCK"
        self.format = directory / "FORMAT"
        self.poison = directory / "POISON"
        self.reserve = directory / "RESERVE"
        self.journal = directory / "journal"
        self.meta = directory / "meta"
        self.logs = directory / "logs"
        self.quarantine = directory / "quarantine"

    @property
    def checkpoints(self) -> tuple[Path, Path]:
        """Return the two slots."""
        return self.directory / "CHECKPOINT.a", self.directory / "CHECKPOINT.b"

    def log_directory(self, name: str, log_uuid: bytes) -> Path:
        """Return where the log's segments are: its name percent-encoded, never a raw topic, and part of its uuid."""
        return self.logs / f"{quote(name, safe='')[:_MAX_NAME_BYTES]}-{log_uuid[:4].hex()}"


def is_whole_in_directory(name: str) -> bool:
    """Return whether all of a log's name stands in that of its directory, where a rebuild looks for it."""
    return len(quote(name, safe="")) <= _MAX_NAME_BYTES


def lock_directory(filesystem: FileSystem, layout: Layout, clock: Clock) -> int:
    """Return a descriptor whose lock keeps other processes out; DirectoryInUseError names the one that has it.

    The kernel drops the lock with the process, so a killed broker leaves nothing to clean up.
    """
    try:
        if not filesystem.exists(layout.directory):
            filesystem.mkdir(layout.directory)
        if not filesystem.exists(layout.format):  # a first open that was interrupted may have left the name unsynced
            with contextlib.suppress(PermissionError):  # somebody else has made it, who may look into the parent
                filesystem.sync_dir(layout.directory.parent)
        fd = filesystem.lock(layout.lock)
    except BlockingIOError:
        raise DirectoryInUseError(f"{layout.directory}: {_holder(filesystem, layout)}", "stop it first") from None
    except OSError as error:
        raise DataDirectoryError(
            f"{layout.directory} can't be written: {error.strerror or error}", "check its owner and mode"
        ) from error
    holder = {"pid": os.getpid(), "boot_id": _boot_id(), "start_ms": clock.now_ms()}
    try:
        filesystem.truncate(fd, 0)
        filesystem.pwrite(fd, json.dumps(holder).encode() + b"\n", 0)
    except OSError:
        pass  # the lock holds without it; a full disk must not keep the broker from starting to serve reads
    return fd


def encode_format(version: int | None = None) -> bytes:
    """Return the content of FORMAT for a new data directory: JSON, and a checksum of what stands before it."""
    version = version or DATA_FORMAT
    content = {"format": version, "min_reader": version, "uuid": uuid.uuid4().hex}
    head = json.dumps(content).encode()[:-1]
    return head + _FORMAT_CRC + b'%08x"}\n' % crc32c(head)


def parse_format(data: bytes, path: str) -> tuple[int, int]:
    """Return (format, oldest format of a reader that can read it); CorruptionError when it is damaged."""
    head, found, rest = data.rpartition(_FORMAT_CRC)
    if found and rest != b'%08x"}\n' % crc32c(head):
        raise CorruptionError(path, len(head), "the checksum of FORMAT is wrong")
    try:
        content = json.loads(data)
        written, needed = int(content["format"]), int(content["min_reader"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptionError(path, 0, f"FORMAT can't be read: {error!r}") from None
    if not found and (written, needed, len(content)) != (1, 1, 3):  # the first directories came without
        raise CorruptionError(path, len(data), "FORMAT has no checksum")
    return written, needed


def _holder(filesystem: FileSystem, layout: Layout) -> str:
    """Return "in use by pid N" as the LOCK file tells it."""
    try:
        holder = json.loads(read_file(filesystem, layout.lock))
        return f"in use by pid {int(holder['pid'])}"
    except (OSError, ValueError, KeyError, TypeError, CorruptionError):
        return "in use by another process"


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
