"""The records of one log in order, as the next start would serve them: from the segments, then from the journal."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING

from highway.storage.gaps import find_gap
from highway.storage.log.reader import find_time, load_at, load_before

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from highway.storage.log.reader import Lost
    from highway.storage.recovery.log_recovery import RecoveredLog
    from highway.storage.segment.records import Record, RecordBatch

__all__ = ["iterate_records", "offset_at", "offset_of_last"]

_base_offset = attrgetter("base_offset")


def iterate_records(
    log: RecoveredLog,
    from_offset: int,
    until_offset: int | None,
    on_lost: Callable[[Lost], None],
    topics: frozenset[bytes] = frozenset(),
) -> Iterator[Record]:
    """Yield the records in [`from_offset`, `until_offset`); `on_lost` is told of each range that can't be read.

    With `topics` records of others may be left out, and so may losses that don't concern them.
    """
    end = log.state.next_offset if until_offset is None else until_offset
    for batch in _batches(log, max(from_offset, log.state.log_start), end, on_lost, topics):
        for record in batch.records():
            if from_offset <= record[0] < end:
                yield record


def _batches(
    log: RecoveredLog, offset: int, end: int, on_lost: Callable[[Lost], None], topics: frozenset[bytes]
) -> Iterator[RecordBatch]:
    segments = log.segments
    while offset < min(end, log.segment_end):
        first = max(bisect_right(segments, offset, key=_base_offset) - 1, 0)
        loaded = load_at(segments[first:], offset, log.segment_end, topics)
        for lost in loaded.lost:
            gap = find_gap(log.state.gaps, max(lost.from_offset, offset))
            if gap is None or gap.to_offset < lost.to_offset:
                on_lost(lost)
        if loaded.batch is None:
            break
        yield loaded.batch
        offset = loaded.batch.end_offset
    for _, batch in log.tail:
        if batch.end_offset > offset and batch.base_offset < end:
            yield batch


def offset_at(log: RecoveredLog, timestamp_ms: int) -> int:
    """Return the first offset committed at or after a time; the log's end if none was."""
    found = find_time(log.segments, timestamp_ms)
    if found is not None:
        return found
    for _, batch in log.tail:
        if batch.last_ms >= timestamp_ms:
            return next(record[0] for record in batch.records() if record[2] >= timestamp_ms)
    return log.end


def offset_of_last(log: RecoveredLog, count: int) -> int:
    """Return the offset from which on there are `count` records, or as many as there are."""
    for _, batch in reversed(log.tail):
        if batch.count >= count:
            return batch.end_offset - count
        count -= batch.count
    offset = log.segment_end
    while count:
        found = load_before(log.segments, offset, log.segment_end).batch
        if found is None or found.end_offset <= log.state.log_start:
            return log.state.log_start
        offsets = [record[0] for record in found.records() if record[0] < offset]
        if len(offsets) >= count:
            return max(offsets[-count], log.state.log_start)
        count -= len(offsets)
        offset = found.base_offset
    return log.segment_end if not log.tail else log.tail[0][1].base_offset
