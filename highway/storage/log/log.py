"""One log: its offsets, its tail in memory, and who may see what of it.

    log_start_offset   first offset that may be readable; moved by retention and by nothing else. Inclusive.
    high_watermark     readers see what is below; moved by appends (FAST), by commits, and by nothing else. Exclusive.
    log_end_offset     the offset of the next record; moved by `append` and by nothing else. Exclusive.
    recovery_point     first offset that a power cut now could take.

    log_start_offset <= high_watermark <= log_end_offset, and recovery_point <= log_end_offset.

A record is visible when all before it are, and it has reached its own point: FAST at append, BALANCED when the journal
has it, SAFE when the journal is synced. FAST and BALANCED records can be seen and then lost with the power, so they
show only below a ceiling that is durable: see `ceiling`.

Tail: batches from `append` on until they stand in a segment frame. What is in the journal, and visible, is drained.

The loop thread owns all of this.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING

from highway.errors import DiskFailedError, DiskFullError, RecordTooLargeError
from highway.storage.checkpoint.checkpoint import LogState, encode_log_state
from highway.storage.disk.filesystem import FULL_ERRNOS
from highway.storage.segment.format import MAX_FRAME_BYTES
from highway.storage.segment.records import MAX_DELTA_MS, RecordBatch, record_lengths
from highway.storage.settings import Durability, LogSettings

from .ceiling import OffsetCeiling
from .commit_time import FAR_MS
from .retention import SegmentFacts
from .rewriting import JournalRange, Rewritten, fits_behind
from .view import LogView
from .writer import SETTLING_CHECKPOINTS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from highway.storage.disk.pool import Pool
    from highway.storage.journal.commit import Committer
    from highway.storage.segment.segment import Segment

    from .cache import BatchCache
    from .commit_time import CommitTime
    from .shared_sync import SharedSync
    from .writer import LogWriter, Synced, Written

__all__ = ["Log"]

_MAX_FAILURES = 3  # a disk that fails more often in a row is given up
_BASE_AGE_MS = 1000  # a base time serves this long, so that not every drain splits the batches behind it

_logger = logging.getLogger(__name__)
_end_offset = attrgetter("end_offset")


class Log(LogView):
    """See the module's text."""

    __slots__ = (
        "_base_ms",
        "_ceiling",
        "_committer",
        "_drained_entry",
        "_durability",
        "_durable",
        "_entries",
        "_failures",
        "_flush_done",
        "_flush_shared",
        "_flush_target",
        "_job_bytes",
        "_last_ms",
        "_new_base",
        "_pending",
        "_touched",
        "_undurable_entry",
        "epoch",
        "on_visible",
        "settings",
        "tail_bytes",
        "uuid",
    )

    def __init__(
        self,
        state: LogState,
        settings: LogSettings,
        writer: LogWriter,
        committer: Committer,
        pool: Pool,
        cache: BatchCache,
        time: CommitTime,
    ) -> None:
        """`state` is what recovery came to: its `next_offset` is where the log goes on."""
        super().__init__(state, writer, pool, cache, time)
        self.uuid = state.uuid
        self.settings = settings
        self.epoch = state.epoch
        self.on_visible: Callable[[], None] | None = None
        self.tail_bytes = 0
        self._committer = committer
        self._durability = settings.durability
        self._entries: list[int] = []  # number of the last journal entry of each batch of the tail
        self._job_bytes = 0
        self._drained_entry = 0  # entry of the last batch that is in a segment
        self._durable = (state.active_base, state.durable_length, state.durable_end)
        self._undurable_entry = 0  # entry of the first batch that isn't durable in a segment, 0 without one
        # (end offset, entry, durability) of the appends that aren't visible yet.
        self._pending: deque[tuple[int, int, int]] = deque()
        self._touched = False
        self._last_ms = state.last_ms
        self._base_ms = 0
        self._new_base = True
        self._ceiling = OffsetCeiling(
            state.log_id, state.ceiling, committer, time, needed=self._durability != Durability.SAFE
        )
        self._flush_done: Callable[[], None] | None = None
        self._flush_shared: SharedSync | None = None
        self._flush_target = 0
        self._failures = 0  # of jobs on segments, one after the other, that weren't about space

    # Appending.

    def delta_ms(self) -> int:
        """Return what the records of the next append must carry: commit time after the base of the tail's buffer."""
        now = self._time.now_ms()
        last = self._last_ms
        if now < last:
            if last - now <= FAR_MS:
                now = last
            else:
                self._new_base = True  # the last time was a wrong clock's: going on from it would pin it for years
        self._last_ms = now
        if self._new_base or now - self._base_ms > MAX_DELTA_MS:
            self._new_base = False
            self._base_ms = now
        return now - self._base_ms

    def append(
        self,
        data: bytes,
        count: int,
        durability: Durability | None = None,
        puts: Sequence[tuple[bytes, bytes | None]] = (),
        topics: Collection[bytes] | None = None,
    ) -> int:
        """Append `count` encoded records that carry the last `delta_ms()`; return the offset of the first.

        `puts` change Meta in the same journal frame: both or neither survive. `durability` can only raise the log's.
        `topics` are those of all the records; None: they are looked at one by one when they go to a segment.
        StorageError, and nothing accepted, while the disk is full or has failed; RecordTooLargeError for what no frame
        takes, or a record above the limit.
        """
        committer = self._committer
        if committer.fault is not None:
            raise committer.fault
        if len(data) > committer.max_record_bytes:
            self._refuse_large(data)
        if not self._base_ms:
            self.delta_ms()
        base = self.log_end_offset
        self.log_end_offset = end = base + count
        batch = RecordBatch(base, count, self._base_ms, self._last_ms, data, topics)
        extra: Sequence[bytes] = ()
        entry = committer.entry + 1
        if puts:
            extra = committer.put(puts)
            entry += len(extra)
        committer.entry = entry
        committer.journal.queue.append((self.log_id, batch, extra))
        size = len(data)
        committer.backlog_bytes += size
        committer.tail_bytes += size
        self.tail_bytes += size
        self._state_bytes = None
        self._tail.append(batch)
        self._entries.append(entry)
        if not self._undurable_entry:
            self._undurable_entry = entry
        if not self._touched:
            self._touched = True
            committer.touch(self)
        ceiling = self._ceiling
        if end > ceiling.reserve_at:
            ceiling.reserve(end)
        level = self._durability
        if durability is not None and durability > level:
            level = durability
        self._owe(level, entry)
        if level or self._pending or end > ceiling.offset:
            self._pending.append((end, entry, level))
            return base
        self.high_watermark = end
        assert self.log_start_offset <= end <= self.log_end_offset
        if self.on_visible is not None:
            self.on_visible()
        return base

    def _refuse_large(self, data: bytes) -> None:
        """Raise RecordTooLargeError if one of many records is above the limit, or all of them together."""
        limit = self._committer.max_record_bytes
        if len(data) > MAX_FRAME_BYTES:
            raise RecordTooLargeError(f"log {self.name}: {len(data)} B in one append; a frame holds {MAX_FRAME_BYTES}")
        for length in record_lengths(data):
            if length > limit:
                raise RecordTooLargeError(f"log {self.name}: a record of {length} B; the limit is {limit}")

    def _owe(self, level: int, entry: int) -> None:
        """Ask the journal for what `entry` needs: now, or by a timer."""
        committer = self._committer
        if level == Durability.SAFE:
            committer.journal.want_synced(entry)
            return
        settings = self.settings
        if committer.sync_due_ms > settings.sync_interval_ms:
            committer.arm_sync(settings.sync_interval_ms)
        if level == Durability.BALANCED or committer.backlog_bytes >= committer.flush_bytes:
            committer.journal.want_written(entry)
        elif committer.flush_due_ms > settings.flush_interval_ms:
            committer.arm_flush(settings.flush_interval_ms)

    @property
    def acknowledge_at(self) -> Durability:
        """Return the point at which the last append is to be acknowledged: the log's; SAFE while it reserves offsets.

        Who has an acknowledgement and then asks for the end of the log must find it behind the message.
        """
        return Durability.SAFE if self.log_end_offset > self._ceiling.offset else self._durability

    @property
    def room(self) -> int:
        """Return how many records can be appended now and acknowledged at the log's own point."""
        return self._ceiling.room(self.log_end_offset)

    # Commits.

    @property
    def waiting(self) -> bool:
        """Return whether a commit has something to tell this log."""
        return self._touched

    def committed(self, written: int, synced: int) -> bool:
        """Move the high watermark as far as these stages let it; return whether it moved."""
        reservations = self._ceiling.reservations
        if reservations and self._ceiling.committed(synced):
            self._state_bytes = None
        ceiling = self._ceiling.offset
        pending = self._pending
        before = watermark = self.high_watermark
        while pending:
            end, entry, level = pending[0]
            if entry > synced and (level == 2 or end > ceiling or (level == 1 and entry > written)):
                break
            watermark = end
            pending.popleft()
        self.high_watermark = watermark
        assert self.log_start_offset <= watermark <= self.log_end_offset
        self._touched = bool(pending or reservations or (self._entries and self._entries[-1] > written))
        if (
            self.tail_bytes - self._job_bytes >= self.settings.flush_bytes
            or watermark - self._drained_end >= self.settings.flush_records
        ):
            self.drain()
        return watermark > before

    @property
    def recovery_point(self) -> int:
        """Return the first offset that a power cut now could take."""
        synced = self._committer.synced
        if self._drained_entry > synced:
            return self._durable[2]
        index = bisect_right(self._entries, synced)
        return self._tail[index].base_offset if index < len(self._tail) else self.log_end_offset

    # Into segments.

    def drain(self, limit: int | None = None) -> bool:
        """Write a frame of what may be drained, about `flush_bytes` of it; return whether a job was started."""
        if self.writer.busy or self.writer.suspect:
            return False
        count, size = self._drainable(self.settings.flush_bytes if limit is None else limit)
        if not count:
            return False
        self._job_bytes = size
        if self._last_ms - self._base_ms > _BASE_AGE_MS:
            self._new_base = True
        self.writer.write(self._tail[:count], self._time.now_ms(), self._drained)
        return True

    def _drainable(self, limit: int) -> tuple[int, int]:
        """Return (count, bytes) of the batches at the tail's front that one frame can take."""
        tail = self._tail
        usable = min(
            bisect_right(self._entries, self._committer.written),
            bisect_right(tail, self.high_watermark, key=_end_offset),
        )
        size = 0
        for index in range(usable):
            batch = tail[index]
            if index and not fits_behind(tail[0], tail[index - 1], batch, size, limit):
                return index, size
            size += len(batch.data)
        return usable, size

    def _drained(self, outcome: Written | Exception) -> None:
        self._job_bytes = 0
        if isinstance(outcome, Exception):
            self._segment_failed(outcome)
            if not self.writer.busy:
                self._end_flush()
            return
        self._failures = 0
        count = outcome.batches
        size = sum(len(frame.data) for frame in outcome.frames)
        self._drained_end = self._tail[count - 1].end_offset
        self._drained_entry = self._entries[count - 1]
        self._take_active(outcome.segment)
        del self._tail[:count], self._entries[:count]
        if self._joined:
            self._joined = [piece for piece in self._joined if piece.end_offset > self._drained_end]
        self.tail_bytes -= size
        self._committer.tail_bytes -= size
        for frame in outcome.frames:
            if frame.end_offset > self.log_start_offset:
                self._cache.add(self.log_id, frame)
        if self._flush_done is not None:
            self._continue_flush()
        elif self.tail_bytes >= self.settings.flush_bytes:
            self.drain()

    def _take_active(self, segment: Segment) -> None:
        """Take the active segment, new or not: rolling to a new one has made everything before it durable."""
        segments = self.writer.segments
        if segments and segments[-1] is segment:
            return
        if segments:
            segments[-1].settled_at = self._committer.checkpoints + SETTLING_CHECKPOINTS
        segments.append(segment)
        if segment.named:  # no checkpoint may mention it before
            self._durable = (segment.base_offset, segment.durable_length, max(self._durable[2], segment.base_offset))
            self._state_bytes = None

    def roll(self, done: Callable[[], None]) -> bool:
        """Begin a new active segment, if the active one holds anything; return whether a job was started."""
        segments = self.writer.segments
        if self.writer.busy or self.writer.suspect or self._tail or not segments:
            return False
        if segments[-1].next_offset == segments[-1].base_offset:
            return False

        def rolled(outcome: Segment | Exception) -> None:
            if isinstance(outcome, Exception):
                self._segment_failed(outcome)
            else:
                self._undurable_entry = self._entries[0] if self._entries else 0
                self._take_active(outcome)
            if self._flush_done is not None:
                self._continue_flush()
            done()

        self.writer.roll(max(self._drained_end, segments[-1].next_offset), self._time.now_ms(), rolled)
        return True

    @property
    def unsynced(self) -> bool:
        """Return whether a segment has frames that a checkpoint must sync, or has to be written anew."""
        return (bool(self._undurable_entry) and self._drained_end > self._durable[2]) or self.writer.suspect

    def flush(self, done: Callable[[], None], *, everything: bool, shared: SharedSync | None = None) -> None:
        """Make durable in segments what is in them, or with `everything` what can be drained now too; then call `done`.

        It is called also when a disk error got in the way. One flush at a time. With `shared` the sync is left to it.
        """
        assert self._flush_done is None
        self._flush_done = done
        self._flush_shared = shared
        self._flush_target = self.high_watermark if everything else self._drained_end
        self._continue_flush()

    def _continue_flush(self) -> None:
        if self.writer.busy:
            return
        if self.writer.suspect:
            self._rewrite()
            return
        if self._drained_end < self._flush_target and self.drain():
            return
        if not self.unsynced:
            self._end_flush()
            return
        end = self._drained_end

        def synced(outcome: Synced | Exception) -> None:
            if isinstance(outcome, Exception):
                self._segment_failed(outcome)
                if self.writer.busy:
                    return  # the segment is being written anew, and the flush ends with that
            elif outcome.segment is not None:
                self._take_active(outcome.segment)
                self._now_durable(outcome.segment, outcome.length, end)
            self._end_flush()

        self.writer.sync(synced, self._flush_shared)

    def _now_durable(self, segment: Segment, length: int, end: int) -> None:
        """Note that all below offset `end` is durable in segments: the last of it below `length` of the active."""
        self._failures = 0
        self._durable = (segment.base_offset, length, end)
        self._undurable_entry = self._entries[0] if self._entries else 0
        self._state_bytes = None

    def _end_flush(self) -> None:
        done, self._flush_done = self._flush_done, None
        if done is not None:
            done()

    def _segment_failed(self, error: Exception) -> None:
        """Keep the tail after a job that failed: it is tried again, and the journal has the records until it succeeds.

        A segment whose sync failed is written anew at once. When that fails as well, again and again, the disk is not
        to be trusted with anything.
        """
        if isinstance(error, OSError) and error.errno in FULL_ERRNOS and not self.writer.suspect:
            _logger.warning("log %s: the segment can't be written: %s", self.name, error)
            self._tell(DiskFullError(f"log {self.name}: {error}", "free some space"))
            return
        self._failures += 1
        failed = DiskFailedError(f"log {self.name}: its segment can't be written: {error!r}")
        if self._failures >= _MAX_FAILURES:
            self._committer.fail(failed)
            return
        self._tell(failed)
        if self.writer.suspect and self._failures == 1:
            self._rewrite()

    def _rewrite(self) -> None:
        """Have the active segment written anew, from its durable part and the journal; a flush goes on behind that."""
        committer = self._committer
        end = self._drained_end
        start = committer.frame_of(self._undurable_entry)[0] if self._undurable_entry else committer.end_position
        directory = committer.journal.directory
        source = JournalRange(directory, start, committer.end_position, self.log_id, end, self.gaps)

        def rewritten(outcome: Rewritten | Exception) -> None:
            error = outcome if isinstance(outcome, Exception) else outcome.error
            if isinstance(outcome, Rewritten):
                self.writer.segments[-1] = outcome.segment
            if error is not None:
                self._segment_failed(error)
                if not self.writer.busy:
                    self._end_flush()
                return
            segment = self.writer.segments[-1]
            self._now_durable(segment, segment.durable_length, end)
            _logger.warning("log %s: %s is written anew", self.name, segment.path)
            if self._flush_done is not None:
                self._continue_flush()

        self.writer.rewrite(source, rewritten)

    # For Storage.

    def change(self, settings: LogSettings) -> None:
        """Keep the log by other settings from the next append on; what is under way ends as it began."""
        self._durability = settings.durability
        if settings.cleanup != self.settings.cleanup:
            for segment in self.writer.segments:
                segment.tidy = False  # what one kind of maintenance has done is nothing to the other
        self.settings = self.writer.settings = settings
        self._ceiling.change(needed=settings.durability != Durability.SAFE)

    def tail_facts(self) -> list[SegmentFacts]:
        """Return what is in no segment yet as if it were one, without a length; nothing where there is nothing."""
        count = self.log_end_offset - self._drained_end
        return [SegmentFacts(self._drained_end, 0, count, self._last_ms)] if count else []

    @property
    def last_ms(self) -> int:
        """Return the commit time of the newest record, 0 if there has been none."""
        return self._last_ms

    def restore_tail(self, batches: Sequence[tuple[int, RecordBatch]]) -> None:
        """Take the (entry, batch) pairs that recovery read from the journal and no segment has."""
        for entry, batch in batches:
            self._tail.append(batch)
            self._entries.append(entry)
            self.tail_bytes += len(batch.data)
        self._committer.tail_bytes += self.tail_bytes
        if batches:
            self._undurable_entry = batches[0][0]

    @property
    def undurable_entry(self) -> int:
        """Return the first journal entry whose records no durable segment has, or 0."""
        return self._undurable_entry

    def trim(self, offset: int) -> list[Segment]:
        """Move the log start up to `offset`; return the sealed segments that lie wholly below it, already let go of.

        The caller makes the new log start durable before it deletes them.
        """
        if offset <= self.log_start_offset:
            return []
        self.log_start_offset = offset
        assert self.log_start_offset <= self.high_watermark <= self.log_end_offset
        segments = self.writer.segments
        count = 0
        while count + 1 < len(segments) and segments[count + 1].base_offset <= offset:
            count += 1
        gone = segments[:count]
        del segments[:count]
        self.gaps = [gap for gap in self.gaps if gap.to_offset > offset]
        self._cache.discard_below(self.log_id, offset)
        self._state_bytes = None
        return gone

    def encoded_state(self, *, clean: bool) -> bytes:
        """Return `state` as it stands in a checkpoint."""
        if clean:
            return encode_log_state(self.state(clean=True))
        if self._state_bytes is None:
            self._state_bytes = encode_log_state(self.state(clean=False))
        return self._state_bytes

    def state(self, *, clean: bool) -> LogState:
        """Return what a checkpoint must say about this log now."""
        base, length, end = self._durable
        return LogState(
            self.log_id,
            self.name,
            self.uuid,
            base,
            length,
            end,
            self.log_end_offset if clean else self.recovery_point,
            self.log_start_offset,
            self.epoch,
            0 if clean else self._ceiling.offset,
            self._last_ms,
            self.gaps,
        )
