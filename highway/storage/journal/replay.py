"""From a frame of the journal back to what has to be done again, at the pace that a bounded recovery needs.

A journal may hold a million appends of one record. What a segment has is recognised by its head and left alone, and
appends of a log that continue each other within a frame become one batch again.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from highway.errors import CorruptionError
from highway.storage.segment.records import RecordBatch

from .format import RECORDS, RECORDS_HEAD, RecordsEntry, decode_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from highway.storage.recovery.log_recovery import RecoveredLog

    from .format import Entry

__all__ = ["replay_frame"]

_MAX_RECORDS = 4096  # of a joined batch: a reader decodes it as a whole


class _Run:
    """Appends of one log that continue each other."""

    __slots__ = ("base_ms", "base_offset", "end_offset", "entry", "last_ms", "parts")

    def __init__(self, entry: int, base_offset: int, base_ms: int) -> None:
        self.entry = entry  # the first one's: that far back the journal is needed for any of them
        self.base_offset = self.end_offset = base_offset
        self.base_ms = base_ms
        self.last_ms = 0
        self.parts: list[bytes] = []

    def batch(self) -> RecordBatch:
        count = self.end_offset - self.base_offset
        return RecordBatch(self.base_offset, count, self.base_ms, self.last_ms, b"".join(self.parts))


def replay_frame(
    body: bytes, entry: int, path: str, logs: Mapping[int, RecoveredLog], apply: Callable[[int, Entry], None]
) -> int:
    """Call `apply(number, entry)` for what is in a frame whose CRC was right; return the number after its last entry.

    `entry` is the number of its first. Records that a segment of their log has are only noted in the log. The order of
    entries holds within each log, and between records and all else. CorruptionError, after all that could be read.
    """
    runs: dict[int, _Run] = {}
    position, end = 0, len(body)
    unpack, head_bytes = RECORDS_HEAD.unpack_from, RECORDS_HEAD.size
    try:
        while position < end:
            if body[position] != RECORDS:
                found, position = decode_entry(body, position, path)
                _apply_runs(runs, apply)
                if position <= end:
                    apply(entry, found)
                entry += 1
                continue
            _, log_id, base_offset, base_ms, last_ms, count, length = unpack(body, position)
            start = position + head_bytes
            position = start + length
            if position > end:
                break
            log = logs.get(log_id)
            if log is not None and base_offset + count <= log.segment_end:
                log.last_entry = entry
            else:
                run = runs.get(log_id)
                if (
                    run is None
                    or base_offset != run.end_offset
                    or base_ms != run.base_ms
                    or base_offset - run.base_offset >= _MAX_RECORDS
                ):
                    if run is not None:
                        apply(run.entry, RecordsEntry(log_id, run.batch()))
                    run = runs[log_id] = _Run(entry, base_offset, base_ms)
                run.parts.append(body[start:position])
                run.end_offset = base_offset + count
                run.last_ms = last_ms
            entry += 1
    except (struct.error, UnicodeDecodeError):
        raise CorruptionError(path, position, "a journal entry can't be read") from None
    finally:
        _apply_runs(runs, apply)
    if position != end:
        raise CorruptionError(path, position, f"a journal entry is longer than its frame of {end} B")
    return entry


def _apply_runs(runs: dict[int, _Run], apply: Callable[[int, Entry], None]) -> None:
    for log_id, run in runs.items():
        apply(run.entry, RecordsEntry(log_id, run.batch()))
    runs.clear()
