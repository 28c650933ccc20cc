"""The broker's durable state as keys and values, and the snapshots that let the journal forget it.

Sessions, subscriptions, positions, retained messages and QoS 2 ids live here: in memory as one dict, on disk as the
puts and deletes in the journal. A snapshot is a file with all of it, `meta/<entry20>.snap`, named by the first journal
entry that it doesn't cover:

      0       8      12      16        24       32
     +-------+------+-------+---------+--------+- - - - - - - - - - - - - - - - - - - - - - -+-------+
     | magic | form.| flags | entry   | count  | count times: key length u32, value length   | crc32c|
     |  8 B  | u32  | u32   | u64     | u64    | u32, key, value                             | u32   |
     +-------+------+-------+---------+--------+- - - - - - - - - - - - - - - - - - - - - - -+-------+

The newest two are kept, and of the newest a copy, `meta/<entry20>.copy`: there is nothing else that the sessions could
be read from again once the journal has been recycled.
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING

from crc32c import crc32c

from highway.errors import CorruptionError
from highway.storage.disk.small_files import read_file, replace_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from highway.storage.disk.filesystem import FileSystem

__all__ = [
    "COPY_SUFFIX",
    "SNAPSHOT_SUFFIX",
    "Meta",
    "list_snapshots",
    "load_snapshot",
    "parse_snapshot",
    "write_snapshot",
]

_MAGIC = b"HWMETA\r\n"
_FORMAT = 1
_HEADER = struct.Struct(">8sIIQQ")
_LENGTHS = struct.Struct(">II")
_CRC_BYTES = 4
_KIND_BYTES = 2
_KEPT_SNAPSHOTS = 2
COPY_SUFFIX = ".copy"
SNAPSHOT_SUFFIX = ".snap"

_logger = logging.getLogger(__name__)


class Meta:
    """The state, as everything put so far left it. The loop thread owns it; only Storage changes it.

    Keys of one kind begin with the same two bytes, such as `s/`: each kind is kept apart, so that asking for one
    doesn't cost what all others have.
    """

    __slots__ = ("_kinds",)

    def __init__(self, values: dict[bytes, bytes] | None = None) -> None:
        self._kinds: dict[bytes, dict[bytes, bytes]] = {}
        for key, value in (values or {}).items():
            self.apply(key, value)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of `key`, or None."""
        kind = self._kinds.get(key[:_KIND_BYTES])
        return None if kind is None else kind.get(key)

    def items(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Return the (key, value) pairs whose key begins with `prefix`, as they are now.

        That of a kind costs what it returns; a longer one looks at all keys of its kind.
        """
        if len(prefix) == _KIND_BYTES:
            return iter(list(self._kinds.get(prefix, {}).items()))
        kinds = [kind for start, kind in self._kinds.items() if start.startswith(prefix[:_KIND_BYTES])]
        return iter([item for kind in kinds for item in kind.items() if item[0].startswith(prefix)])

    def __len__(self) -> int:
        return sum(map(len, self._kinds.values()))

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Set `key`, or delete it when `value` is None: for Storage, together with the journal entry that says so."""
        kind = self._kinds.get(key[:_KIND_BYTES])
        if value is not None:
            if kind is None:
                kind = self._kinds[key[:_KIND_BYTES]] = {}
            kind[key] = value
        elif kind is not None:
            kind.pop(key, None)


def write_snapshot(filesystem: FileSystem, directory: Path, items: Iterable[tuple[bytes, bytes]], entry: int) -> None:
    """Make a durable snapshot of everything before journal entry `entry`, then forget all but the newest two."""
    parts = [b""]
    count = 0
    for key, value in items:
        parts += (_LENGTHS.pack(len(key), len(value)), key, value)
        count += 1
    parts[0] = _HEADER.pack(_MAGIC, _FORMAT, 0, entry, count)
    data = b"".join(parts)
    data += crc32c(data).to_bytes(_CRC_BYTES, "big")
    target = directory / f"{entry:020}.snap"
    copy = target.with_suffix(COPY_SUFFIX)
    replace_file(filesystem, copy, data)
    replace_file(filesystem, target, data)
    for _, path in list_snapshots(filesystem, directory)[:-_KEPT_SNAPSHOTS]:
        filesystem.unlink(path)
    for name in filesystem.listdir(directory):
        if name.endswith(COPY_SUFFIX) and name < copy.name:
            filesystem.unlink(directory / name)


def list_snapshots(filesystem: FileSystem, directory: Path) -> list[tuple[int, Path]]:
    """Return (entry, path) of the snapshots, oldest first."""
    names = filesystem.listdir(directory)
    return sorted(
        (int(name[:20]), directory / name)
        for name in names
        if len(name) == 25 and name.endswith(".snap") and name[:20].isdecimal()
    )


def parse_snapshot(data: bytes, path: str) -> tuple[int, dict[bytes, bytes]]:
    """Return (entry, values); CorruptionError when anything is wrong with it."""
    if len(data) < _HEADER.size + _CRC_BYTES:
        raise CorruptionError(path, 0, f"a snapshot has at least {_HEADER.size + _CRC_BYTES} B, this one {len(data)}")
    end = len(data) - _CRC_BYTES
    if crc32c(memoryview(data)[:end]) != int.from_bytes(data[end:], "big"):
        raise CorruptionError(path, end, "the snapshot's checksum is wrong")
    magic, file_format, flags, entry, count = _HEADER.unpack_from(data)
    if magic != _MAGIC or file_format != _FORMAT or flags:
        raise CorruptionError(path, 0, f"expected format {_FORMAT}, got magic {magic!r}, {file_format}, flags {flags}")
    values = {}
    position = _HEADER.size
    for _ in range(count):
        if position + _LENGTHS.size > end:
            break
        key_length, value_length = _LENGTHS.unpack_from(data, position)
        middle = position + _LENGTHS.size + key_length
        values[data[position + _LENGTHS.size : middle]] = data[middle : middle + value_length]
        position = middle + value_length
    if position != end or len(values) != count:
        raise CorruptionError(path, position, f"the snapshot's {count} entries don't fill its {end} B")
    return entry, values


def load_snapshot(filesystem: FileSystem, path: Path) -> tuple[int, dict[bytes, bytes]]:
    """Return (entry, values) of a snapshot, from its copy if it is damaged; CorruptionError if both are."""
    try:
        return parse_snapshot(read_file(filesystem, path), str(path))
    except CorruptionError as error:
        copy = path.with_suffix(COPY_SUFFIX)
        try:
            found = parse_snapshot(read_file(filesystem, copy), str(copy))
        except (FileNotFoundError, CorruptionError):
            raise error from None
        _logger.error("%s; its copy is used", error)
        return found
