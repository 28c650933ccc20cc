"""What damaged frames of the journal held: nothing of it is used, but every offset in it is accounted for.

A frame that fails its checksum mostly still tells what was in it: its entries fill it exactly, their offsets are the
ones that are missing. Then exactly these are recorded as lost. Where it doesn't, every log that has no later entry in
the journal is assumed to have lost as many records as there was room for, because none of these offsets may be given
to another message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from highway.errors import CorruptionError
from highway.storage.gaps import CORRUPTION, find_gap
from highway.storage.segment.records import RECORD_HEAD_BYTES, RecordBatch
from highway.storage.segment.scan import read_salvaged

from .format import (
    FRAME_HEADER_BYTES,
    Entry,
    RecordsEntry,
    ReserveEntry,
    decode_entries,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from highway.storage.disk.filesystem import FileSystem
    from highway.storage.recovery.log_recovery import RecoveredLog

__all__ = ["RESERVATION_BOUND", "LostFrames", "account_for", "read_lost"]

RESERVATION_BOUND = 1 << 24  # more offsets than any reservation holds


class LostFrames(NamedTuple):
    """Frames `first` to `until` - 1, which were durable and aren't valid any more, and where they stood."""

    first: int
    until: int
    path: Path
    offset: int
    length: int  # -1: nothing valid follows
    next_entry: int  # first entry of the valid frame behind them, 0 without one
    room: int = 0  # bytes that they may have taken, where nothing can be read


def account_for(lost: LostFrames, data: bytes, logs: Mapping[int, RecoveredLog], unreserved: Collection[str]) -> None:
    """Move the logs' next offsets behind everything that the frames may have held; call it after the replay.

    `data` is what stands there, `unreserved` the names of logs that never reserve offsets.
    """
    entries = _entries(lost, data)
    if entries is not None and _explain(entries, logs):
        return
    room = max(len(data), lost.room) // RECORD_HEAD_BYTES + 1
    for log in logs.values():
        state = log.state
        if not lost.next_entry or log.last_entry < lost.next_entry:
            state.next_offset = max(state.next_offset, log.end) + room
        if state.name not in unreserved:
            state.ceiling = max(state.ceiling, state.next_offset, log.end) + RESERVATION_BOUND


def read_lost(filesystem: FileSystem, lost: LostFrames) -> bytes:
    """Return what stands where the frames stood; without a valid frame behind them, up to where the zeros begin."""
    try:
        fd = filesystem.open(lost.path)
    except FileNotFoundError:
        return b""
    try:
        if lost.length >= 0:
            return read_salvaged(filesystem, fd, lost.path, lost.length, lost.offset)
        data = read_salvaged(filesystem, fd, lost.path, max(filesystem.size(fd) - lost.offset, 0), lost.offset)
        length = FRAME_HEADER_BYTES + int.from_bytes(data[4:8], "big")  # perhaps: the header may be what is damaged
        return data[: max(length, len(data.rstrip(b"\0")))]
    finally:
        filesystem.close(fd)


def _entries(lost: LostFrames, data: bytes) -> list[Entry] | None:
    """Return the entries of one lost frame as they seem to be, or None."""
    if lost.until != lost.first + 1:
        return None
    # What follows says where it ended, or else its own header, damaged or not.
    end = len(data) if lost.length >= 0 else FRAME_HEADER_BYTES + int.from_bytes(data[4:8], "big")
    if not FRAME_HEADER_BYTES < end <= len(data):
        return None
    try:
        return list(decode_entries(data[FRAME_HEADER_BYTES:end], str(lost.path)))
    except (CorruptionError, UnicodeDecodeError):
        return None


def _until(batch: RecordBatch) -> int:
    """Return the offset after a batch, or where it can't be behind if it is the batch that is damaged."""
    try:
        batch.records()
    except CorruptionError:
        return batch.base_offset + len(batch.data) // RECORD_HEAD_BYTES
    return batch.end_offset


def _explain(entries: list[Entry], logs: Mapping[int, RecoveredLog]) -> bool:
    """Take the entries' word for what is lost, if all of it is missing and nothing contradicts it."""
    ends: dict[int, int] = {}
    for entry in entries:
        if not isinstance(entry, RecordsEntry):
            continue
        log = logs.get(entry.log_id)
        if log is None:
            return False
        start, until = max(entry.batch.base_offset, log.segment_end), _until(entry.batch)
        gap = find_gap(log.state.gaps, start)
        if start >= until or (gap is not None and gap.reason == CORRUPTION):
            continue  # a segment has it, or a later batch of the log has shown the hole
        if start != ends.get(entry.log_id, log.end):
            return False
        ends[entry.log_id] = until
    for log_id, end in ends.items():
        logs[log_id].state.next_offset = max(logs[log_id].state.next_offset, end)
    for entry in entries:
        if isinstance(entry, ReserveEntry) and entry.log_id in logs:
            state = logs[entry.log_id].state
            state.ceiling = max(state.ceiling, min(entry.ceiling, state.next_offset + RESERVATION_BOUND))
    return True
