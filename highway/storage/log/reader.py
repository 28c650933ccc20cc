"""Reads that need the disk: they run in the pool, on the segments as they were when the read was asked for.

A damaged frame never ends a read. What it held is reported as a range of lost offsets, which the log records as a gap,
and the read goes on behind it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from highway.errors import CorruptionError
from highway.storage.segment.records import JoinedBatch, SparseBatch

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from highway.storage.segment.records import RecordBatch
    from highway.storage.segment.segment import Segment

__all__ = ["Loaded", "Lost", "find_time", "load_at", "load_before"]

# Where wide reads end: at the first frame behind a multiple of so many offsets, so that readers who stand at different
# places meet at the next end and read on together. What is joined bounds the memory of places: 20 MiB, once decoded.
WIDE_RECORDS = 32_768
WIDE_BYTES = 4 * 1024 * 1024


class Lost(NamedTuple):
    """Offsets that a read couldn't get, and why."""

    from_offset: int
    to_offset: int  # exclusive
    error: CorruptionError


class Loaded(NamedTuple):
    """What a read found, and what it found damaged on the way."""

    batch: RecordBatch | None
    lost: list[Lost]
    # False: the batch was in memory. The cache would find it instead of the frame that it is drained into.
    is_from_disk: bool = True


def load_at(
    segments: Sequence[Segment], offset: int, end_offset: int, topics: Collection[bytes] = (), *, wide: bool = False
) -> Loaded:
    """Return the first batch that ends after `offset`; `end_offset` is the offset after the last segment.

    With `topics` batches that hold none of them may be left out. `wide`: join what follows as long as it holds them.
    """
    wide = wide and bool(topics)
    lost: list[Lost] = []
    for index, segment in enumerate(segments):
        following = segments[index + 1].base_offset if index + 1 < len(segments) else end_offset
        if offset < segment.base_offset:
            lost.append(_between(segments, index))
            offset = segment.base_offset
        while offset < following:
            try:
                # A wide read leaves none out that is near, or it would begin elsewhere for each of those who wait.
                batch = segment.read_at(offset, () if wide and segment.may_hold_soon(offset, topics) else topics)
            except CorruptionError as error:
                damage = _damage(segment, error, following)
                if damage.to_offset <= offset:
                    damage = Lost(min(damage.from_offset, offset), following, error)
                lost.append(damage)
                offset = damage.to_offset
            except FileNotFoundError as error:
                lost.append(_missing(segment, offset, following, error))
                offset = following
            else:
                if batch is None:
                    break
                if batch.count:
                    if wide:
                        batch = _widened(segment, batch, topics, following)
                    _decode(batch, topics)
                    return Loaded(batch, lost)
                offset = batch.end_offset  # a compaction left nothing there
    return Loaded(None, lost)


def _widened(segment: Segment, batch: RecordBatch, topics: Collection[bytes], following: int) -> RecordBatch:
    """Return `batch` joined with the frames behind it, in which others on other topics find theirs.

    It ends where no frame near holds one of `topics`: there it is one reader's way no more, and perhaps nobody's.
    """
    if isinstance(batch, SparseBatch) or (batch.count > 1 and _concerns_mostly(batch, topics)):
        return batch
    parts, size = [batch], len(batch.data)
    stop = min(following, batch.base_offset - batch.base_offset % WIDE_RECORDS + WIDE_RECORDS)
    with suppress(CorruptionError, FileNotFoundError):  # whoever comes to what is damaged is told
        while (end := parts[-1].end_offset) < stop and size < WIDE_BYTES:
            found = segment.read_at(end) if segment.may_hold_soon(end, topics) else None
            if found is None or found.base_offset != end or isinstance(found, SparseBatch):
                break
            size += len(found.data)
            if found.count > WIDE_RECORDS or size > 2 * WIDE_BYTES:
                break
            found.records()
            parts.append(found)
    return JoinedBatch(parts) if len(parts) > 1 else batch


def _concerns_mostly(batch: RecordBatch, topics: Collection[bytes]) -> bool:
    """Return whether a reader of `topics` takes so much of a batch that a wider one would gain it nothing."""
    try:
        return len(batch.on_topics(topics)) * 16 > batch.count
    except CorruptionError:
        return True


def _decode(batch: RecordBatch, topics: Collection[bytes] = ()) -> None:
    """Decode it here: a frame takes milliseconds, for which everybody whom the loop serves would wait."""
    with suppress(CorruptionError):  # the checksum was right, so it was written like that: whoever reads it is told
        batch.records()
        if topics:
            batch.on_topics(topics)


def load_before(segments: Sequence[Segment], offset: int, end_offset: int, topics: Collection[bytes] = ()) -> Loaded:
    """Return the batch with the greatest record offset below `offset`; with `topics` others may be left out."""
    lost: list[Lost] = []
    following = end_offset
    for segment in reversed(segments):
        while segment.base_offset < offset:
            try:
                batch = segment.read_before(offset, topics)
            except CorruptionError as error:
                damage = _damage(segment, error, following)
                if damage.from_offset >= offset:
                    damage = Lost(offset - 1, following, error)
                lost.append(damage)
                offset = damage.from_offset
            except FileNotFoundError as error:
                lost.append(_missing(segment, segment.base_offset, following, error))
                break
            else:
                if batch is not None:
                    _decode(batch)
                    return Loaded(batch, lost)
                break
        following = segment.base_offset
    return Loaded(None, lost)


def find_time(segments: Sequence[Segment], timestamp_ms: int) -> int | None:
    """Return the first offset committed at or after a time, or None if no segment has one."""
    for segment in segments:
        try:
            # Their indexes are small and stay in memory. No bisect: an empty or damaged one has no time at all.
            offset = None if segment.index.last_ms < timestamp_ms else segment.offset_at(timestamp_ms)
        except (CorruptionError, FileNotFoundError):
            continue  # whoever reads there is told; a look-up by time only needs the nearest that is readable
        if offset is not None:
            return offset
    return None


def _damage(segment: Segment, error: CorruptionError, following: int) -> Lost:
    """Return the range that is lost where `error` says."""
    try:
        damage = segment.damage_at(error.position)
    except (CorruptionError, FileNotFoundError):
        return Lost(segment.base_offset, following, error)  # no header, no frame: the whole segment is lost
    to_offset = following if damage.to_offset is None else min(damage.to_offset, following)
    return Lost(damage.from_offset, to_offset, error)


def _between(segments: Sequence[Segment], index: int) -> Lost:
    """Return the hole in front of a segment. The log knows those that a crash left; others are segments that are gone.

    In front of the first segment it begins at 0: the log clips it to its start.
    """
    segment = segments[index]
    from_offset = segments[index - 1].index.end_offset if index else 0
    reason = f"no segment holds the offsets from {from_offset} up to here"
    return Lost(from_offset, segment.base_offset, CorruptionError(str(segment.path), 0, reason))


def _missing(segment: Segment, offset: int, following: int, error: FileNotFoundError) -> Lost:
    return Lost(offset, following, CorruptionError(str(segment.path), 0, f"the segment is gone: {error}"))
