"""The reading side of a log: from the tail and the cache at once, from segments through the pool.

Nothing here appends; `Log` does, and moves the offsets. The loop thread owns all of it.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

from highway.errors import OffsetCorruptError, OffsetGapError, OffsetNotFoundError, StorageError
from highway.storage.gaps import CORRUPTION, Gap, add_gap, find_gap
from highway.storage.segment.records import JoinedBatch, Record, RecordBatch

from .reader import Loaded, Lost, find_time, load_at, load_before

if TYPE_CHECKING:
    from collections.abc import Sequence

    from highway.storage.checkpoint.checkpoint import LogState
    from highway.storage.disk.pool import Pool
    from highway.storage.segment.segment import Segment

    from .cache import BatchCache
    from .commit_time import CommitTime
    from .writer import LogWriter

__all__ = ["LogView"]

_logger = logging.getLogger(__name__)
_base_offset = attrgetter("base_offset")

BatchDone = Callable[[RecordBatch | StorageError], None]
Topics = frozenset[bytes]

_ANY_TOPIC: Topics = frozenset()

# Of a tail of single messages a reader is given so many at a time, decoded in the loop thread: a millisecond. Fewer are
# not worth the join, and the pieces that are kept cover a tail.
_JOINED_BATCHES = 1024
_JOINED_BYTES = 1024 * 1024
_FEW_BATCHES = 32
_MAX_JOINED = 8


class LogView:
    """What can be read of a log, and what is known to be lost of it."""

    __slots__ = (
        "_cache",
        "_drained_end",
        "_joined",
        "_loading",
        "_pool",
        "_state_bytes",
        "_tail",
        "_time",
        "corrupt_records",
        "gaps",
        "high_watermark",
        "log_end_offset",
        "log_id",
        "log_start_offset",
        "name",
        "on_damage",
        "writer",
    )

    def __init__(self, state: LogState, writer: LogWriter, pool: Pool, cache: BatchCache, time: CommitTime) -> None:
        """`state` is what recovery came to: its `next_offset` is where the log goes on."""
        self.name = state.name
        self.log_id = state.log_id
        self.gaps: list[Gap] = list(state.gaps)
        self.corrupt_records = 0  # offsets that reading found damaged since the open
        self.log_start_offset = state.log_start
        self.high_watermark = self.log_end_offset = state.next_offset
        self.on_damage: Callable[[StorageError], None] | None = None
        self.writer = writer
        self._pool = pool
        self._cache = cache
        self._time = time
        self._tail: list[RecordBatch] = []  # what no segment has yet, and what a running job writes
        self._drained_end = state.durable_end  # offset after the last record in a segment
        self._joined: list[RecordBatch] = []  # pieces of the tail for readers that catch up, oldest first
        self._loading: dict[tuple[int, Topics], list[BatchDone]] = {}
        self._state_bytes: bytes | None = None  # the log's part of a checkpoint, while nothing in it changes

    @property
    def stored_bytes(self) -> int:
        """Return the bytes of its segments; what is in the journal only is not among them."""
        segments = self.writer.segments
        return segments[0].length if len(segments) == 1 else sum(segment.length for segment in segments)

    def read(self, offset: int) -> RecordBatch | None:
        """Return the first batch that ends after `offset` if it is in memory; None: `load` it, or there is none."""
        if self.gaps:
            offset = self._skip(offset)
        tail = self._tail
        if tail:
            last = tail[-1]
            if offset >= last.base_offset:
                return last if offset < last.end_offset else None
            if offset >= self._drained_end:
                index = max(bisect_right(tail, offset, key=_base_offset) - 1, 0)
                batch = tail[index]
                return batch if batch.end_offset > offset else tail[index + 1]
        return self._cache.find(self.log_id, offset) if offset >= self.log_start_offset else None

    def read_joined(self, offset: int) -> RecordBatch | None:
        """As `read`, for a reader that goes on behind what it gets: the small batches of a tail come joined.

        A thousand readers that come back to a tail of thousands of messages would take as many millions of steps.
        """
        batch = self.read(offset)
        tail = self._tail
        if batch is None or len(tail) < _FEW_BATCHES or batch.base_offset < tail[0].base_offset:
            return batch
        for piece in self._joined:
            if piece.base_offset <= offset < piece.end_offset:
                return piece
        first = bisect_left(tail, batch.base_offset, key=_base_offset)
        parts = _small_ones(tail[first : first + _JOINED_BATCHES])
        if len(parts) < _FEW_BATCHES:
            return batch
        joined = JoinedBatch(parts)
        self._joined = [*self._joined[1 - _MAX_JOINED :], joined]
        return joined

    def load(self, offset: int, done: BatchDone, topics: Topics = _ANY_TOPIC, *, wide: bool = False) -> None:
        """Call `done` in the loop thread, later, with the first batch that ends after `offset`, from wherever it is.

        With `topics` (names, no filters) batches are left out of which it is known that they hold none of them; `wide`
        joins frames for others who come for other topics, as far as they hold some of these. What is damaged on the way
        becomes a gap, and the batch behind it is returned. OffsetNotFoundError: there is nothing at or after `offset`.
        """
        offset = self._skip(offset)
        waiting = self._loading.get((offset, topics))
        if waiting is not None:
            waiting.append(done)
            return
        self._loading[offset, topics] = [done]
        end = self._drained_end
        batch = self.read(offset)
        if batch is not None or offset >= end:
            in_memory = Loaded(batch, [], is_from_disk=False)
            self._pool.submit(lambda: in_memory, lambda outcome: self._loaded(offset, topics, end, outcome))
            return
        segments = self._segments_from(offset)

        def loaded(outcome: Loaded | Exception) -> None:
            if _replaced(segments):
                for callback in self._loading.pop((offset, topics)):
                    self.load(offset, callback, topics, wide=wide)
            else:
                self._loaded(offset, topics, end, outcome)

        self._pool.submit(lambda: load_at(segments, offset, end, topics, wide=wide), loaded)

    def _skip(self, offset: int) -> int:
        """Return where reading from `offset` may find something: behind the log start and known damage."""
        offset = max(offset, self.log_start_offset)
        gap = find_gap(self.gaps, offset)
        return gap.to_offset if gap is not None else offset

    def _segments_from(self, offset: int) -> list[Segment]:
        segments = self.writer.segments
        return segments[max(bisect_right(segments, offset, key=_base_offset) - 1, 0) :]

    def _loaded(self, offset: int, topics: Topics, end: int, outcome: Loaded | Exception) -> None:
        callbacks = self._loading.pop((offset, topics))
        result = self._result(offset, outcome)
        if isinstance(outcome, Loaded) and outcome.batch is None and self._drained_end > end:
            # Nothing readable was left of what was drained by then, and what came after may have been drained since.
            for done in callbacks:
                self.load(max(offset, end), done, topics)
            return
        for done in callbacks:
            done(result)

    def _result(self, offset: int, outcome: Loaded | Exception) -> RecordBatch | StorageError:
        if isinstance(outcome, StorageError):
            return outcome
        if isinstance(outcome, Exception):
            return StorageError(f"log {self.name}: offset {offset} can't be read: {outcome!r}")
        self.lose(outcome.lost)
        batch = outcome.batch
        if batch is None or batch.end_offset <= self.log_start_offset:
            batch = self.read(max(offset, self.log_start_offset))
            if batch is None and self._tail and offset < self._tail[0].base_offset:
                batch = self._tail[0]
        elif outcome.is_from_disk:
            self._cache.add(self.log_id, batch)
        return batch if batch is not None else self._not_found(offset)

    def lose(self, lost: list[Lost]) -> None:
        """Record damaged ranges as gaps, and say so."""
        for start, to_offset, error in lost:
            from_offset = max(start, self.log_start_offset)
            if to_offset <= from_offset:
                continue
            gaps = add_gap(self.gaps, Gap(from_offset, to_offset, CORRUPTION, self._time.now_ms()))
            if gaps == self.gaps:
                continue  # all of it is known, for whatever reasons
            self.corrupt_records += _size(gaps) - _size(self.gaps)
            self.gaps = gaps
            self._state_bytes = None
            _logger.error("log %s: offsets %d to %d are lost: %s", self.name, from_offset, to_offset - 1, error)
            self._tell(error)

    def read_before(self, offset: int) -> RecordBatch | None:
        """Return the batch with the greatest record offset below `offset` if it is in memory."""
        tail = self._tail
        if tail and offset > tail[0].base_offset:
            return tail[bisect_left(tail, offset, key=_base_offset) - 1]
        batch = self._cache.find(self.log_id, offset - 1) if offset > self.log_start_offset else None
        return batch if batch is not None and batch.begins_before(offset) else None

    def load_before(self, offset: int, done: BatchDone, topics: Topics = _ANY_TOPIC) -> None:
        """Call `done` in the loop thread, later, with the batch that holds the greatest record offset below `offset`.

        With `topics` batches are left out of which it is known that they hold none of them. OffsetNotFoundError: there
        is no record below it.
        """
        batch = self.read_before(offset)
        segments = [segment for segment in self.writer.segments if segment.base_offset < offset]
        end = self._drained_end

        def loaded(outcome: Loaded | Exception) -> None:
            if _replaced(segments):
                self.load_before(offset, done, topics)
                return
            if isinstance(outcome, Exception):
                done(outcome if isinstance(outcome, StorageError) else StorageError(f"log {self.name}: {outcome!r}"))
                return
            self.lose(outcome.lost)
            found = outcome.batch
            if found is None or found.end_offset <= self.log_start_offset:
                done(self._not_found(offset - 1))
                return
            if found is not batch:
                self._cache.add(self.log_id, found)
            done(found)

        self._pool.submit(
            lambda: Loaded(batch, []) if batch is not None else load_before(segments, offset, end, topics), loaded
        )

    def offset_at(self, timestamp_ms: int, done: Callable[[int | StorageError], None]) -> None:
        """Call `done`, later, with the first offset committed at or after a time; `log_end_offset` if none was."""
        segments = list(self.writer.segments)

        def found(outcome: int | Exception | None) -> None:
            if _replaced(segments):
                self.offset_at(timestamp_ms, done)
                return
            if isinstance(outcome, Exception):
                done(outcome if isinstance(outcome, StorageError) else StorageError(f"log {self.name}: {outcome!r}"))
                return
            done(max(self._time_in_tail(timestamp_ms) if outcome is None else outcome, self.log_start_offset))

        self._pool.submit(lambda: find_time(segments, timestamp_ms), found)

    def _time_in_tail(self, timestamp_ms: int) -> int:
        for batch in self._tail:
            if batch.last_ms >= timestamp_ms:
                for record in batch.records():
                    if record[2] >= timestamp_ms:
                        return record[0]
        return self.log_end_offset

    def fetch(self, offset: int, done: Callable[[Record | StorageError], None]) -> None:
        """Call `done`, later, with one record; an OffsetError says why there is none."""

        def loaded(outcome: RecordBatch | StorageError) -> None:
            done(self._pick(offset, outcome))

        if self.log_start_offset <= offset < self.high_watermark:
            self.load(offset, loaded)
        else:
            error = self._not_found(offset)
            self._pool.submit(lambda: error, lambda _: done(error))

    def _pick(self, offset: int, outcome: RecordBatch | StorageError) -> Record | StorageError:
        if isinstance(outcome, RecordBatch) and outcome.base_offset <= offset < outcome.end_offset:
            try:
                record = outcome.record_at(offset)
            except StorageError as error:
                return error
            if record is not None:
                return record
        if isinstance(outcome, StorageError) and not isinstance(outcome, OffsetNotFoundError):
            return outcome
        start, watermark = self.log_start_offset, self.high_watermark
        if not start <= offset < watermark:
            return self._not_found(offset)
        gap = find_gap(self.gaps, offset)
        if gap is not None and gap.reason == CORRUPTION:
            return OffsetCorruptError(self.name, offset, start, watermark, gap.to_offset)
        return OffsetGapError(self.name, offset, start, watermark)

    def _not_found(self, offset: int) -> OffsetNotFoundError:
        return OffsetNotFoundError(self.name, offset, self.log_start_offset, self.high_watermark)

    def _tell(self, error: StorageError) -> None:
        if self.on_damage is not None:
            self.on_damage(error)


def _replaced(segments: Sequence[Segment]) -> bool:
    """Return whether a file may have been replaced while it was read: then what was found means nothing."""
    return any(segment.stale for segment in segments)


def _small_ones(batches: Sequence[RecordBatch]) -> list[RecordBatch]:
    """Return the batches, from the first on, that follow one another and are small together."""
    found: list[RecordBatch] = []
    count = size = 0
    for batch in batches:
        count += batch.count
        size += len(batch.data)
        if count > 2 * _JOINED_BATCHES or size > _JOINED_BYTES or (found and batch.base_offset != found[-1].end_offset):
            break
        found.append(batch)
    return found


def _size(gaps: Sequence[Gap]) -> int:
    return sum(gap.to_offset - gap.from_offset for gap in gaps)
