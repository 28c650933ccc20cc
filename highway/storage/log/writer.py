"""The way of one log's records into its segments: frames, rolls and syncs, one job in the pool at a time.

Because no two jobs of a log run at once, the pool side may change the active segment without a lock; the loop thread
learns of it when the job's result arrives and changes `segments` only then. In a crash:

- while a frame is written: the journal has its records, and recovery cuts what is torn.
- while rolling: the old segment is synced before the new one exists, so a frame of the new one never outlives one of
  the old; an empty new segment is reused.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from highway.errors import StorageError
from highway.storage.segment.format import CODECS
from highway.storage.segment.frame_builder import SPLIT_RECORDS, worth_splitting
from highway.storage.segment.records import RecordBatch, topics_of
from highway.storage.segment.segment import Segment, segment_path

from .rewriting import JournalRange, Rewritten, rewrite

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from highway.storage.disk.descriptors import Descriptors
    from highway.storage.disk.pool import Pool
    from highway.storage.settings import LogSettings

    from .shared_sync import SharedSync

__all__ = ["SETTLING_CHECKPOINTS", "LogWriter", "Mark", "Synced", "Written", "roll_age_ms"]

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_MAX_ROLL_AGE_MS = 24 * 60 * 60 * 1000

# A checkpoint names the active segment and how much of it is durable, so a sealed one may only be written anew when
# neither slot names it. The checkpoint that is under way at a roll may name it; the two after it don't.
SETTLING_CHECKPOINTS = 3

# An active segment with so many small frames is sealed, because only sealed ones are written anew with larger ones.
_MAX_SMALL_FRAMES = 4096


class Written(NamedTuple):
    """What a write job did."""

    frames: list[RecordBatch]  # each with all records of a frame, joined
    batches: int  # how many of the given batches these are: not all, if the disk was full in between
    segment: Segment  # a new one if it had to roll, now or in an earlier job that failed after that


class Mark(NamedTuple):
    """What there is to sync: a segment up to a length, and the offset that follows there."""

    segment: Segment
    length: int
    next_offset: int


class Synced(NamedTuple):
    """Where a log's durable part ends."""

    segment: Segment | None
    length: int


def roll_age_ms(settings: LogSettings) -> int:
    """Return how old an active segment gets: an eighth of the retention, at most a day, so that quiet logs age too."""
    if settings.retention_ms is None:
        return _MAX_ROLL_AGE_MS
    return max(1000, min(_MAX_ROLL_AGE_MS, settings.retention_ms // 8))


class LogWriter:
    """See the module's text. `write`, `roll`, `sync` and `segments` belong to the loop thread."""

    __slots__ = (
        "_active",
        "_directory",
        "_files",
        "_pool",
        "_uuid",
        "busy",
        "epoch",
        "segments",
        "settings",
    )

    def __init__(
        self, directory: Path, files: Descriptors, pool: Pool, settings: LogSettings, uuid: bytes, epoch: int
    ) -> None:
        self._directory = directory
        self._files = files
        self._pool = pool
        self._uuid = uuid
        self._active: Segment | None = None
        self.settings = settings
        self.epoch = epoch
        self.segments: list[Segment] = []  # oldest first; the last one is active
        self.busy = False

    def adopt(self, segments: list[Segment]) -> None:
        """Take the segments that recovery found, the active one last."""
        self.segments = segments
        for segment in segments:
            segment.settled_at = SETTLING_CHECKPOINTS  # the older slot may be from before they were sealed
        self._active = segments[-1] if segments else None

    def write(self, batches: Sequence[RecordBatch], now_ms: int, done: Callable[[Written | Exception], None]) -> None:
        """Write `batches`, whose offsets follow one another and which share a base time, as one frame or a few."""
        self._submit(lambda: self._write(batches, now_ms), done)

    def roll(self, base_offset: int, now_ms: int, done: Callable[[Segment | Exception], None]) -> None:
        """Seal the active segment and begin an empty one at `base_offset`."""
        self._submit(lambda: self._roll(base_offset, now_ms), done)

    def park(self) -> None:
        """Keep the index of the active segment for the next start: at a clean stop, in the loop thread."""
        if self._active is None or self._active.sealed:
            return
        try:
            self._active.park()
        except (OSError, StorageError) as error:  # the next start reads the segment for it
            _logger.warning("%s: its index isn't kept: %s", self._active.path, error)

    def sync(self, done: Callable[[Synced | Exception], None], shared: SharedSync | None = None) -> None:
        """Make everything written durable: now, or together with other logs."""
        if shared is None or self._active is None:
            self._submit(self._sync, done)
        else:
            shared.add(self, done)

    def mark_to_sync(self) -> Mark:
        """Return how far a sync that begins now reaches; while `busy` with nothing else."""
        assert self._active is not None
        return Mark(self._active, self._active.length, self._active.next_offset)

    def distrust(self) -> None:
        """Have the active segment written anew, as what it holds unsynced may not be what a read of it shows."""
        active = self._active
        if active is not None and not active.sealed and (active.length > active.durable_length or not active.named):
            active.suspect = True

    @property
    def suspect(self) -> bool:
        """Return whether a sync of the active segment failed, so that it has to be written anew; while not `busy`."""
        return self._active is not None and self._active.suspect

    def rewrite(self, source: JournalRange, done: Callable[[Rewritten | Exception], None]) -> None:
        """Write the active segment anew."""
        self._submit(lambda: self._rewrite(source), done)

    def _submit(self, work: Callable[[], T], done: Callable[[T | Exception], None]) -> None:
        self.busy = True

        def finished(outcome: T | Exception) -> None:
            self.busy = False
            done(outcome)

        self._pool.submit(work, finished)

    # Pool.

    def _write(self, batches: Sequence[RecordBatch], now_ms: int) -> Written:
        before = self._active
        if before is None or before.sealed or self._is_full(before, now_ms):
            self._roll(batches[0].base_offset, now_ms)
        active = self._active
        assert active is not None
        frames: list[RecordBatch] = []
        written = 0
        for part, topics in _parts(batches):
            frame = _joined(part)
            try:
                self._write_frame(active, frame, topics)
            except OSError:
                if not frames:
                    raise
                break  # what has been written counts; the rest meets the same error again
            frames.append(frame)
            written += len(part)
        return Written(frames, written, active)

    def _write_frame(self, active: Segment, frame: RecordBatch, topics: set[bytes]) -> None:
        active.append_frame(
            frame.data,
            count=frame.count,
            base_offset=frame.base_offset,
            min_ms=frame.base_ms,
            max_ms=frame.last_ms,
            epoch=self.epoch,
            codec=CODECS[self.settings.compression],
            level=self.settings.compression_level,
            topics=topics,
        )

    def _is_full(self, active: Segment, now_ms: int) -> bool:
        if active.length >= self.settings.segment_bytes or active.small_frames >= _MAX_SMALL_FRAMES:
            return True
        return active.next_offset > active.base_offset and self.is_old(active, now_ms)

    def is_old(self, active: Segment, now_ms: int) -> bool:
        """Return whether a segment is so old that it should be sealed."""
        return now_ms - active.header.created_ms >= roll_age_ms(self.settings)

    def _roll(self, base_offset: int, now_ms: int) -> Segment:
        first = self._active is None
        if self._active is None:
            self._make_directory()
        elif not self._active.sealed:
            self._active.seal()
        path = segment_path(self._directory, base_offset)
        if self._files.filesystem.exists(path):
            self._files.filesystem.unlink(path)  # of a roll that failed on the way, on a full disk
        self._active = Segment.create(
            self._directory,
            self._files,
            log_uuid=self._uuid,
            base_offset=base_offset,
            epoch=self.epoch,
            created_ms=now_ms,
            # The journal has all of a log that no checkpoint knows a segment of: its sync can wait for the next one.
            durable=not first,
        )
        return self._active

    def _rewrite(self, source: JournalRange) -> Rewritten:
        assert self._active is not None
        rewritten = rewrite(self._active, self._files, source, self.settings, self.epoch)
        self._active = rewritten.segment
        return rewritten

    def _make_directory(self) -> None:
        filesystem = self._files.filesystem
        if not filesystem.exists(self._directory):
            filesystem.mkdir(self._directory)

    def _sync(self) -> Synced:
        active = self._active
        if active is None:
            return Synced(None, 0)
        active.sync()
        return Synced(active, active.durable_length)


def _parts(batches: Sequence[RecordBatch]) -> list[tuple[Sequence[RecordBatch], set[bytes]]]:
    """Return what goes into each frame, and its topics; all into one where splitting would not keep topics apart."""
    parts: list[tuple[Sequence[RecordBatch], set[bytes]]] = []
    start = count = 0
    topics: set[bytes] = set()
    for number, batch in enumerate(batches, 1):
        # Those that came from a publisher know theirs; those that recovery read from the journal have to be looked at.
        topics.update(topics_of(batch.data, batch.count) if batch.topics is None else batch.topics)
        count += batch.count
        if count >= SPLIT_RECORDS:
            parts.append((batches[start:number], topics))
            start, count, topics = number, 0, set()
    if start < len(batches):
        parts.append((batches[start:], topics))
    sets = [part[1] for part in parts]
    return parts if worth_splitting(sets) else [(batches, set().union(*sets))]


def _joined(batches: Sequence[RecordBatch]) -> RecordBatch:
    first, last = batches[0], batches[-1]
    if len(batches) == 1:
        return first
    count = last.end_offset - first.base_offset
    data = b"".join([batch.data for batch in batches])
    return RecordBatch(first.base_offset, count, first.base_ms, last.last_ms, data)
