"""The manifest of a backup: which files belong to it, with sizes and checksums. It is written last.

`MANIFEST.json` is one object, and its last key is a checksum of the text before it:

    {"format": 1, "created_ms": ..., "source": "...", "checkpoint": 17,
     "logs": [{"name": "telemetry", "log_start_offset": 0, "log_end_offset": 4711}, ...],
     "files": [{"path": "logs/telemetry-00000001/00000000000000000000.log", "bytes": 1234, "crc32c": "..."}, ...],
     "crc32c": "..."}
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from crc32c import crc32c

from highway.errors import CorruptionError, DataDirectoryError
from highway.storage.disk.small_files import read_file, replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from highway.storage.disk.filesystem import FileSystem

__all__ = ["BackupFile", "BackupLog", "Manifest", "read_manifest", "write_manifest"]

_NAME = "MANIFEST.json"
_FORMAT = 1
_CRC = b', "crc32c": "'


@dataclass(frozen=True, slots=True)
class BackupFile:
    """One file of a backup; `path` is relative to it."""

    path: str
    bytes: int
    crc32c: str


@dataclass(frozen=True, slots=True)
class BackupLog:
    """Which offsets of a log a backup holds."""

    name: str
    log_start_offset: int
    log_end_offset: int


@dataclass(slots=True)
class Manifest:
    """See the module's text."""

    created_ms: int
    source: str
    checkpoint: int
    logs: list[BackupLog] = field(default_factory=list)
    files: list[BackupFile] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Return the size of all files."""
        return sum(file.bytes for file in self.files)


def write_manifest(filesystem: FileSystem, backup: Path, manifest: Manifest) -> None:
    """Make the manifest durable: with it the backup is one."""
    head = json.dumps({"format": _FORMAT, **asdict(manifest)}).encode()[:-1]
    replace_file(filesystem, backup / _NAME, head + _CRC + b'%08x"}\n' % crc32c(head))


def read_manifest(filesystem: FileSystem, backup: Path) -> Manifest:
    """Return the manifest; FileNotFoundError without one, CorruptionError if damaged, DataDirectoryError if newer."""
    path = backup / _NAME
    data = read_file(filesystem, path)
    head, _, rest = data.rpartition(_CRC)
    if rest != b'%08x"}\n' % crc32c(head):
        raise CorruptionError(str(path), len(head), "the manifest's checksum is wrong")
    content = json.loads(data)
    if content["format"] != _FORMAT:
        raise DataDirectoryError(f"{path} has format {content['format']}; this version reads {_FORMAT}")
    return Manifest(
        content["created_ms"],
        content["source"],
        content["checkpoint"],
        [BackupLog(**log) for log in content["logs"]],
        [BackupFile(**file) for file in content["files"]],
    )
