"""The checkpoint: where each log's durable part ends and where the journal has to be read from.

Two files, `CHECKPOINT.a` and `CHECKPOINT.b`, are overwritten in turn, so that a torn write leaves the other one. The
newest valid one wins. One file:

      0       8     10      12       16         24         32        40      48      56       64        72      76
     +-------+-----+-------+--------+----------+----------+---------+-------+-------+--------+---------+-------+---- - -
     | magic | fmt | flags | body   | sequence | journal  | journal | meta  | next  | durable| written | log   | logs,
     |  8 B  | u16 | u16   | length | u64      | position | frame   | entry | entry | frame  | ms, i64 | count | crc32c
     |       |     |       | u32    |          | u64      | u64     | u64   | u64   | u64    |         | u32   |
     +-------+-----+-------+--------+----------+----------+---------+-------+-------+--------+---------+-------+---- - -

Flag bit 0: the broker closed in order. Then every next offset is exact and no reservation is open.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crc32c import crc32c

from highway.errors import CorruptionError, DataDirectoryError
from highway.storage.disk.small_files import read_file
from highway.storage.gaps import Gap

if TYPE_CHECKING:
    from pathlib import Path

    from highway.storage.disk.filesystem import FileSystem

__all__ = [
    "NO_SEGMENT",
    "Checkpoint",
    "CheckpointSlots",
    "LogState",
    "encode_checkpoint",
    "encode_log_state",
    "parse_checkpoint",
]

_MAGIC = b"HWCHKP\r\n"
_FORMAT = 1
_FLAG_CLEAN = 1
NO_SEGMENT = -1

_HEADER = struct.Struct(
    ">"
    "8s"  # magic
    "H"  # format
    "H"  # flags
    "I"  # length of what follows the header, without the CRC
    "Q"  # sequence of the checkpoint
    "Q"  # journal position to read from
    "Q"  # sequence number of the journal frame there
    "Q"  # first journal entry that the meta snapshot doesn't cover
    "Q"  # number of the next journal entry
    "Q"  # number of the first journal frame that wasn't synced
    "q"  # written, ms
    "I"  # log count
)
_LOG = struct.Struct(
    ">"
    "I"  # log id
    "16s"  # uuid
    "q"  # base offset of the active segment, -1 without one
    "Q"  # durable length of the active segment
    "Q"  # offset after the last record in the durable part
    "Q"  # next offset: everything below was durable
    "Q"  # log start offset
    "I"  # epoch
    "Q"  # reserved ceiling, 0 without a reservation
    "q"  # last commit time, ms
    "H"  # name length
    "I"  # gap count
)
_GAP = struct.Struct(">QQqB")  # from, to (exclusive), when ms, length of the reason
_CRC_BYTES = 4


@dataclass(slots=True)
class LogState:
    """What a checkpoint says about one log."""

    log_id: int
    name: str
    uuid: bytes
    active_base: int = NO_SEGMENT
    durable_length: int = 0
    durable_end: int = 0
    next_offset: int = 0
    log_start: int = 0
    epoch: int = 1
    ceiling: int = 0
    last_ms: int = 0
    gaps: list[Gap] = field(default_factory=list)


@dataclass(slots=True)
class Checkpoint:
    """Everything a checkpoint says."""

    sequence: int = 0
    clean: bool = False
    journal_position: int = 0
    journal_frame: int = 1
    meta_entry: int = 1
    next_entry: int = 1
    durable_frame: int = 1  # journal frames below this number were synced
    written_ms: int = 0
    logs: list[LogState] = field(default_factory=list)


def encode_log_state(state: LogState) -> bytes:
    """Return the bytes of one log in a checkpoint."""
    name = state.name.encode()
    parts = [
        _LOG.pack(
            state.log_id,
            state.uuid,
            state.active_base,
            state.durable_length,
            state.durable_end,
            state.next_offset,
            state.log_start,
            state.epoch,
            state.ceiling,
            state.last_ms,
            len(name),
            len(state.gaps),
        ),
        name,
    ]
    for gap in state.gaps:
        reason = gap.reason.encode()
        parts += (_GAP.pack(gap.from_offset, gap.to_offset, gap.when_ms, len(reason)), reason)
    return b"".join(parts)


def encode_checkpoint(checkpoint: Checkpoint, logs: list[bytes]) -> bytes:
    """Return a checkpoint's bytes; `logs` are the encoded states, and `checkpoint.logs` isn't looked at."""
    body = b"".join(logs)
    header = _HEADER.pack(
        _MAGIC,
        _FORMAT,
        _FLAG_CLEAN if checkpoint.clean else 0,
        len(body),
        checkpoint.sequence,
        checkpoint.journal_position,
        checkpoint.journal_frame,
        checkpoint.meta_entry,
        checkpoint.next_entry,
        checkpoint.durable_frame,
        checkpoint.written_ms,
        len(logs),
    )
    return b"".join((header, body, crc32c(body, crc32c(header)).to_bytes(_CRC_BYTES, "big")))


def parse_checkpoint(data: bytes, path: str) -> Checkpoint:
    """Return a checkpoint; CorruptionError if it is damaged, DataDirectoryError if a newer version wrote it."""
    if len(data) < _HEADER.size + _CRC_BYTES:
        raise CorruptionError(path, 0, f"a checkpoint has at least {_HEADER.size + _CRC_BYTES} B, this one {len(data)}")
    magic, file_format, flags, length, *numbers, log_count = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise CorruptionError(path, 0, f"expected magic {_MAGIC!r}, got {magic!r}")
    end = _HEADER.size + length
    if len(data) < end + _CRC_BYTES:
        raise CorruptionError(path, 12, f"the checkpoint says that it has {end + _CRC_BYTES} B; there are {len(data)}")
    if crc32c(memoryview(data)[:end]) != int.from_bytes(data[end : end + _CRC_BYTES], "big"):
        raise CorruptionError(path, end, "the checkpoint's checksum is wrong")
    if file_format != _FORMAT or flags & ~_FLAG_CLEAN:
        raise DataDirectoryError(f"{path} has format {file_format}, flags {flags:#x}; this version reads {_FORMAT}")
    sequence, position, frame, meta_entry, next_entry, durable, written_ms = numbers
    clean = bool(flags & _FLAG_CLEAN)
    checkpoint = Checkpoint(sequence, clean, position, frame, meta_entry, next_entry, durable, written_ms)
    at = _HEADER.size
    try:
        for _ in range(log_count):
            state, at = _parse_log_state(data, at)
            checkpoint.logs.append(state)
    except (struct.error, UnicodeDecodeError) as error:
        raise CorruptionError(path, at, f"a log's state can't be read: {error}") from None
    if at != end:
        raise CorruptionError(path, at, f"{log_count} logs don't fill the checkpoint's {end} B")
    return checkpoint


def _parse_log_state(data: bytes, at: int) -> tuple[LogState, int]:
    log_id, uuid, base, length, end, following, start, epoch, ceiling, last_ms, name_length, gap_count = (
        _LOG.unpack_from(data, at)
    )
    at += _LOG.size
    name = data[at : at + name_length].decode()
    at += name_length
    gaps = []
    for _ in range(gap_count):
        from_offset, to_offset, when_ms, reason_length = _GAP.unpack_from(data, at)
        at += _GAP.size
        gaps.append(Gap(from_offset, to_offset, data[at : at + reason_length].decode(), when_ms))
        at += reason_length
    return LogState(log_id, name, uuid, base, length, end, following, start, epoch, ceiling, last_ms, gaps), at


class CheckpointSlots:
    """The two files. `write` may run in any thread, but only one at a time."""

    __slots__ = ("_directory", "_filesystem", "_target", "damaged", "sequence")

    def __init__(self, filesystem: FileSystem, directory: Path) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._target = 0
        self.sequence = 0
        self.damaged: list[CorruptionError] = []

    def load(self) -> list[Checkpoint]:
        """Return the valid checkpoints, newest first; the damaged ones are in `damaged` afterwards."""
        found: list[tuple[int, int, Checkpoint]] = []
        for slot, path in enumerate(self._paths()):
            if not self._filesystem.exists(path):
                continue
            try:
                checkpoint = parse_checkpoint(read_file(self._filesystem, path), str(path))
            except CorruptionError as error:
                self.damaged.append(error)
            else:
                found.append((checkpoint.sequence, slot, checkpoint))
        found.sort(reverse=True)
        if found:
            self.sequence = found[0][0]
            self._target = 1 - found[0][1]  # never overwrite the only good one
        return [checkpoint for _, _, checkpoint in found]

    def write(self, checkpoint: Checkpoint, logs: list[bytes]) -> None:
        """Make `checkpoint` durable in the older slot, under the next sequence number."""
        checkpoint.sequence = self.sequence + 1
        data = encode_checkpoint(checkpoint, logs)
        path = self._paths()[self._target]
        create = not self._filesystem.exists(path)
        fd = self._filesystem.open(path, write=True, create=create)
        try:
            self._filesystem.pwrite(fd, data, 0)
            self._filesystem.fdatasync(fd)
        finally:
            self._filesystem.close(fd)
        if create:
            self._filesystem.sync_dir(self._directory)
        self.sequence += 1
        self._target = 1 - self._target

    def _paths(self) -> list[Path]:
        return [self._directory / "CHECKPOINT.a", self._directory / "CHECKPOINT.b"]
