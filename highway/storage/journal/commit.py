"""The loop's side of the journal: what was handed over, what came back, and who waits for it.

Entries are numbered as in journal.py. A log appends an item and asks for the stage it needs; when the journal thread
posts a Commit, the watermarks of all logs concerned move first, then their readers are told, then the waiters.

Everything here belongs to the loop thread.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from highway.errors import DiskFullError, StorageError
from highway.metrics import Histogram
from highway.storage.settings import Durability, LogSettings

from .format import encode_put

if TYPE_CHECKING:
    from highway.clock import Clock
    from highway.storage.checkpoint.meta import Meta
    from highway.storage.disk.pool import Scheduler

    from .journal import Commit, Journal

__all__ = ["Committer", "Touched"]

_NEVER = 1 << 62  # ms: no timer is armed

Callback = Callable[[StorageError | None], None]


class Touched(Protocol):
    """A log with entries on their way."""

    on_visible: Callable[[], None] | None

    def committed(self, written: int, synced: int) -> bool:
        """Move the watermarks; return whether the high watermark has moved."""

    @property
    def waiting(self) -> bool:
        """Return whether it still waits for a commit."""


class Committer:
    """Entries on their way to the disk, and what waits for them."""

    __slots__ = (
        "_clock",
        "_frame_entries",
        "_frames",
        "_handed_over_at",
        "_scheduler",
        "_synced_waiters",
        "_unsynced",
        "_written_waiters",
        "ack_seconds",
        "backlog_bytes",
        "checkpoints",
        "commits",
        "end_frame",
        "end_position",
        "entry",
        "fault",
        "flush_bytes",
        "flush_due_ms",
        "journal",
        "max_record_bytes",
        "meta",
        "meta_first_entry",
        "on_committed",
        "on_failed",
        "on_fault",
        "on_full",
        "owed",
        "stalled",
        "sync_due_ms",
        "synced",
        "tail_bytes",
        "touched",
        "unsynced_bytes",
        "written",
    )

    def __init__(self, scheduler: Scheduler, clock: Clock, meta: Meta, next_entry: int) -> None:
        self.journal: Journal  # set before the first entry
        self.meta = meta
        self.flush_bytes = LogSettings("").flush_bytes  # the least of any log
        self.entry = next_entry - 1  # number of the last entry handed to the journal
        self.written = self.synced = next_entry - 1
        self.meta_first_entry = 0  # the first entry that changed meta and that no snapshot covers, or 0
        self.checkpoints = 0  # written since the open
        self.backlog_bytes = 0  # handed over and not written
        self.unsynced_bytes = 0  # written and not synced
        self.tail_bytes = 0  # in the tails of all logs
        self.fault: StorageError | None = None
        self.touched: list[Touched] = []
        self.flush_due_ms = self.sync_due_ms = _NEVER
        self.on_fault: Callable[[StorageError], None] | None = None
        self.on_committed: Callable[[], None] | None = None  # after each Commit without error
        self.on_full: Callable[[DiskFullError], None] | None = None  # whoever meets a full disk calls it
        self.max_record_bytes = 0  # what an append may be without a closer look
        self.commits = 0  # that have come back
        # From hand-over to the stage that somebody waited for: the oldest of each commit.
        self.ack_seconds = {stage: Histogram() for stage in (Durability.BALANCED, Durability.SAFE)}
        self.on_failed: Callable[[StorageError], None] | None = None  # before anybody is told that the disk has failed
        self.stalled = False  # the journal couldn't write its last frame, for want of space
        self.owed: dict[bytes, bytes | None] = {}  # puts since the disk is full: what a key is to be in the end
        self.end_position = 0  # of the journal as far as it is known here
        self.end_frame = 1  # sequence number of the frame that goes there
        self._scheduler = scheduler
        self._clock = clock
        self._handed_over_at: float | None = None  # monotonic: the oldest that isn't written
        self._unsynced: deque[tuple[int, float]] = deque()  # (last entry, the same) of each frame that isn't synced
        self._written_waiters: deque[tuple[int, Callback]] = deque()
        self._synced_waiters: deque[tuple[int, Callback]] = deque()
        self._frame_entries: list[int] = []  # number of the last entry of each frame since the last checkpoint
        self._frames: list[tuple[int, int]] = []  # (position, sequence) of the same frames

    # Handing over.

    def touch(self, log: Touched) -> None:
        """Have `log` told of the commits to come; its append has just been handed over."""
        if self._handed_over_at is None:
            self._handed_over_at = self._clock.monotonic()
        self.touched.append(log)

    @property
    def oldest_unsynced_age_s(self) -> float:
        """Return how long the oldest record that isn't synced has been waiting for that; 0 if all are."""
        oldest = self._unsynced[0][1] if self._unsynced else self._handed_over_at
        return 0.0 if oldest is None else max(0.0, self._clock.monotonic() - oldest)

    def put(self, puts: Sequence[tuple[bytes, bytes | None]]) -> list[bytes]:
        """Change meta and return the encoded entries, which the caller hands over in one item, before any other."""
        apply = self.meta.apply
        self.meta_first_entry = self.meta_first_entry or self.entry + 1
        for key, value in puts:
            apply(key, value)
        return [encode_put(key, value) for key, value in puts]

    def hand_over(self, extra: Sequence[bytes]) -> int:
        """Give the journal entries that belong to no batch; return the number of the last."""
        self.entry += len(extra)
        self.journal.queue.append((0, None, extra))
        return self.entry

    def require(self, durability: Durability) -> None:
        """See to it that everything handed over reaches `durability` in its time."""
        if durability == Durability.SAFE:
            self.journal.want_synced(self.entry)
        elif durability == Durability.BALANCED:
            self.journal.want_written(self.entry)

    def arm_flush(self, interval_ms: int) -> None:
        """Have what is in memory only written within `interval_ms`."""
        self.flush_due_ms = interval_ms
        self._scheduler.call_later(interval_ms / 1000, self._flush_due)

    def arm_sync(self, interval_ms: int) -> None:
        """Have what is unsynced synced within `interval_ms`."""
        self.sync_due_ms = interval_ms
        self._scheduler.call_later(interval_ms / 1000, self._sync_due)

    def after(self, durability: Durability, callback: Callback) -> None:
        """Call back when everything handed over so far has reached `durability`; at once if it has."""
        if self.fault is not None:
            callback(self.fault)
        elif durability == Durability.FAST:
            callback(None)
        elif durability == Durability.BALANCED:
            self._wait(self._written_waiters, self.written, callback)
            self.journal.want_written(self.entry)
        else:
            self._wait(self._synced_waiters, self.synced, callback)
            self.journal.want_synced(self.entry)

    def when_synced(self, callback: Callback) -> None:
        """Call back when all that the journal can write now is synced, also while the disk is full: for checkpoints."""
        if self.fault is not None and not isinstance(self.fault, DiskFullError):
            callback(self.fault)
            return
        entry = self.written if self.stalled else self.entry
        if entry <= self.synced:
            callback(None)
        else:
            self._synced_waiters.append((entry, callback))
            self.journal.want_synced(entry)

    def _wait(self, waiters: deque[tuple[int, Callback]], reached: int, callback: Callback) -> None:
        if self.entry <= reached:
            callback(None)
        else:
            waiters.append((self.entry, callback))

    def _flush_due(self) -> None:
        self.flush_due_ms = _NEVER
        self.journal.want_written(self.entry)

    def _sync_due(self) -> None:
        self.sync_due_ms = _NEVER
        if self.synced < self.entry:
            self.journal.want_synced(self.entry)

    # Coming back.

    def on_commit(self, commit: Commit) -> None:
        """Take a Commit that the journal thread has posted."""
        self.commits += 1
        now = self._clock.monotonic()
        if commit.frame_position >= 0:
            self._frame_entries.append(commit.written)
            self._frames.append((commit.frame_position, commit.frame_sequence))
            self.stalled = False
            since = now if self._handed_over_at is None else self._handed_over_at
            self._unsynced.append((commit.written, since))
            if self._written_waiters and self._written_waiters[0][0] <= commit.written:
                self.ack_seconds[Durability.BALANCED].observe(now - since)
            # What came since that frame was drained came later than this says: the age is rather too high than too low.
            self._handed_over_at = now if self.entry > commit.written else None
        self.backlog_bytes -= commit.record_bytes
        self.unsynced_bytes = commit.unsynced_bytes
        self.end_position = commit.end_position
        self.end_frame = commit.frame_sequence + 1
        self.written = written = commit.written
        self.synced = synced = commit.synced
        unsynced = self._unsynced
        if unsynced and self._synced_waiters and self._synced_waiters[0][0] <= synced:
            self.ack_seconds[Durability.SAFE].observe(now - unsynced[0][1])
        while unsynced and unsynced[0][0] <= synced:
            unsynced.popleft()
        if isinstance(commit.error, DiskFullError):
            self.stalled = True
            if self.on_full is not None:
                self.on_full(commit.error)
            self._fail_waiters(commit.error, written, written)  # what is written may still be synced
        elif commit.error is not None:
            self.fail(commit.error)
        self._advance(written, synced)
        if commit.error is None and self.on_committed is not None:
            self.on_committed()

    def _advance(self, written: int, synced: int) -> None:
        """Move the watermarks of all logs concerned, then tell their readers, then the waiters."""
        touched, self.touched = self.touched, []
        moved = [log for log in touched if log.committed(written, synced)]
        self.touched += [log for log in touched if log.waiting]
        for log in moved:
            if log.on_visible is not None:
                log.on_visible()
        waiters = self._written_waiters
        while waiters and waiters[0][0] <= written:
            waiters.popleft()[1](None)
        waiters = self._synced_waiters
        while waiters and waiters[0][0] <= synced:
            waiters.popleft()[1](None)

    def refuse(self, error: DiskFullError) -> None:
        """Accept nothing until `resume`."""
        self.fault = error
        if self.on_fault is not None:
            self.on_fault(error)

    def resume(self) -> None:
        """Accept again."""
        if isinstance(self.fault, DiskFullError):
            self.fault = None
            self.put_owed()

    def put_owed(self) -> None:
        """Hand over the puts that a full disk kept waiting, before anything else that comes."""
        owed, self.owed = self.owed, {}
        if owed:
            self.hand_over(self.put(list(owed.items())))
            self.journal.want_synced(self.entry)

    def fail(self, error: StorageError) -> None:
        """Stop accepting for good, and tell everybody whose entries haven't reached what they wait for."""
        first = self.fault is None or isinstance(self.fault, DiskFullError)
        self.fault = error
        if self.on_failed is not None:
            self.on_failed(error)
        self._fail_waiters(error, self.written, self.synced)
        if first and self.on_fault is not None:
            self.on_fault(error)

    def _fail_waiters(self, error: StorageError, written: int, synced: int) -> None:
        for waiters, reached in ((self._written_waiters, written), (self._synced_waiters, synced)):
            failed = [waiter for waiter in waiters if waiter[0] > reached]
            while waiters and waiters[-1][0] > reached:
                waiters.pop()
            for _, callback in failed:
                callback(error)

    # Where the journal has to be read from.

    def seed_frames(self, frames: Sequence[tuple[int, int, int]]) -> None:
        """Take (last entry, position, sequence) of the frames that recovery read and that are still needed."""
        self._frame_entries = [last for last, _, _ in frames]
        self._frames = [(position, sequence) for _, position, sequence in frames]

    def frame_of(self, entry: int) -> tuple[int, int]:
        """Return (position, sequence) of the frame that holds `entry`, or of the next one if it isn't written."""
        index = bisect_left(self._frame_entries, entry)
        return self._frames[index] if index < len(self._frames) else (self.end_position, self.end_frame)

    def forget_frames(self, entry: int) -> None:
        """Drop what is known of frames before the one that holds `entry`."""
        index = bisect_left(self._frame_entries, entry)
        del self._frame_entries[:index]
        del self._frames[:index]
