"""Writing checkpoints: what is in segments becomes durable there, and the journal gets shorter.

One checkpoint at a time, in steps; each continues in the loop thread when the one before has come back:

1. The journal is synced, so that no segment ever holds durably what the journal could still lose.
2. Logs with frames that aren't synced are synced, hundreds of them together; those whose tail has waited long or is
   large are drained first.
3. If the journal since the last snapshot of Meta is long, or the broker closes, a snapshot is written.
4. The checkpoint is written: the journal is needed from the first entry on that neither a durable segment nor the
   snapshot has. A quiet log's tail may sit out a few checkpoints; then its journal files are kept.
   On a full disk the checkpoint is of what the journal has written, and there is no new snapshot.
5. Journal files that neither checkpoint slot needs are recycled, and who waited for the checkpoint is called.

The loop thread owns all of this.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from highway.errors import DiskFailedError, DiskFullError
from highway.storage.disk.filesystem import FULL_ERRNOS
from highway.storage.journal.format import split_position

from .checkpoint import Checkpoint, CheckpointSlots
from .meta import write_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from highway.clock import Clock
    from highway.storage.disk.filesystem import FileSystem
    from highway.storage.disk.pool import Pool, Scheduler
    from highway.storage.journal.commit import Committer
    from highway.storage.journal.files import JournalFiles
    from highway.storage.log.log import Log
    from highway.storage.log.shared_sync import SharedSync
    from highway.storage.settings import StorageSettings

__all__ = ["Checkpointer"]

_PATIENCE = 3  # checkpoints that the tail of a quiet log may sit out
_QUIET_BYTES = 64 * 1024  # a larger tail is drained at every checkpoint
_FLUSHES_AT_ONCE = 32
_EMPTIED_AT_CLOSE = 1000  # logs; of more, quiet ones leave their tails to the journal: a stop must not take that long
_MANY = 64  # logs to be synced: from there on a sync of the file system takes less time than one of each
_SYNCED_TOGETHER = 256  # their files are open until then

_logger = logging.getLogger(__name__)


class Checkpointer:
    """See the module's text."""

    def __init__(
        self,
        filesystem: FileSystem,
        meta_directory: Path,
        slots: CheckpointSlots,
        files: JournalFiles,
        committer: Committer,
        pool: Pool,
        scheduler: Scheduler,
        clock: Clock,
        settings: StorageSettings,
    ) -> None:
        self.logs: Iterable[Log] = ()
        self.running = False
        self.closed = False  # no further checkpoint starts
        self.snapshot_entry = 1  # first entry that the newest snapshot doesn't cover
        self.previous_position = 0  # where the newest valid checkpoint reads the journal from
        self._filesystem = filesystem
        self._meta_directory = meta_directory
        self._slots = slots
        self._files = files
        self._committer = committer
        self._pool = pool
        self._scheduler = scheduler
        self._clock = clock
        self._settings = settings
        self._armed = False
        self._again = False
        self._clean = False
        self._dirty = False  # something besides the journal has changed
        self._waiting: list[Callable[[bool], None]] = []  # for the next checkpoint that starts
        self._callbacks: list[Callable[[bool], None]] = []  # for the running one
        self._to_flush: deque[tuple[Log, bool]] = deque()  # and whether everything is to be drained
        self._flushing = 0  # logs that are at it
        self._shared: SharedSync | None = None  # where the file system can do it
        self._share = False  # whether the running checkpoint does
        self._starting = False
        self._cut_entries = [committer.entry] * _PATIENCE  # last entry at each of the last checkpoints
        self._last_entry = committer.entry
        self._last_position = 0
        self._snapshot: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._snapshot_position = 0
        self._uncovered_entry = 0  # the first entry that changed meta before the running snapshot's copy

    @property
    def count(self) -> int:
        """How many were written since the open."""
        return self._committer.checkpoints

    def share_syncs(self, shared: SharedSync) -> None:
        """Sync many segments by one sync of the file system."""
        self._shared = shared
        shared.on_add = self._flush_more
        shared.on_failed = self._distrust

    def start_at(self, position: int) -> None:
        """Count the journal's length from `position`."""
        self._last_position = self._snapshot_position = position

    # When.

    def note_commit(self) -> None:
        """Look at what a commit left: a timer runs while something is owed, and much journal doesn't wait for it."""
        if self._distance(self._last_position) >= self._settings.checkpoint_bytes:
            self.request()
        elif not self._armed and not self.closed:
            self._armed = True
            self._scheduler.call_later(self._settings.checkpoint_interval_ms / 1000, self._due)

    def _due(self) -> None:
        self._armed = False
        if self._dirty or self._committer.entry > self._last_entry or any(log.undurable_entry for log in self.logs):
            self.request()

    def _distance(self, position: int) -> int:
        """Return about how many bytes of journal there are since `position`."""
        sequence, offset = split_position(position)
        end_sequence, end_offset = split_position(self._committer.end_position)
        return (end_sequence - sequence) * self._settings.journal_file_bytes + end_offset - offset

    def request(self, done: Callable[[bool], None] | None = None) -> None:
        """Write a checkpoint now, or after the one that is running; `done(True)` once it is durable."""
        self._dirty = self._dirty or done is not None
        if done is not None:
            self._waiting.append(done)
        if self.running:
            self._again = done is not None or self._again
        elif not self.closed:
            self._begin(clean=False)

    def close(self, done: Callable[[bool], None]) -> None:
        """Write the last checkpoint, with the clean flag if everything could be made durable; none may be running."""
        self.closed = True
        self._waiting.append(done)
        self._begin(clean=True)

    # The steps.

    def _begin(self, *, clean: bool) -> None:
        committer = self._committer
        self.running = True
        self._clean = clean
        self._dirty = False
        self._callbacks, self._waiting = self._waiting, []
        self._last_position = committer.end_position
        self._last_entry = committer.entry
        self._snapshot = None
        long = self._distance(self._snapshot_position) >= self._settings.checkpoint_bytes
        if committer.meta_first_entry and (clean or long) and not committer.stalled:
            # The copy and the entry number belong together; nothing of it is written before that entry is durable.
            self._snapshot = (committer.entry + 1, list(committer.meta.items()))
            self._uncovered_entry = committer.meta_first_entry
            committer.meta_first_entry = 0
        committer.when_synced(self._journal_synced)

    def _journal_synced(self, error: Exception | None) -> None:
        if error is not None:
            self._end(durable=False)
            return
        empties = self._clean and sum(1 for log in self.logs if log.undurable_entry) <= _EMPTIED_AT_CLOSE
        patience = 0 if self._clean else self._cut_entries[0]
        for log in self.logs:
            everything = bool(log.undurable_entry) and (
                empties
                or log.tail_bytes >= _QUIET_BYTES
                or log.undurable_entry <= patience
                or self._distance(self._committer.frame_of(log.undurable_entry)[0]) >= self._settings.checkpoint_bytes
            )
            if everything or log.unsynced:
                self._to_flush.append((log, everything))
        self._cut_entries = [*self._cut_entries[1:], self._last_entry]
        self._share = self._shared is not None and len(self._to_flush) > _MANY
        self._flush_more()

    def _flush_more(self) -> None:
        """Keep a few logs at it, so that ten thousand results don't come to the loop thread at once."""
        if self._starting:
            return  # called from within the loop below
        self._starting = True
        shared = self._shared if self._share else None
        while self._to_flush and self._has_room(shared):
            log, everything = self._to_flush.popleft()
            self._flushing += 1
            log.flush(self._flushed, everything=everything, shared=shared)
        self._starting = False
        if not self._flushing:
            self._flushed_all()
        elif shared is not None and len(shared) == self._flushing:
            shared.run()

    def _distrust(self) -> None:
        for log in self.logs:
            log.writer.distrust()

    def _has_room(self, shared: SharedSync | None) -> bool:
        """Return whether another log can begin to flush; those that wait for the shared sync are at nothing."""
        if shared is None:
            return self._flushing < _FLUSHES_AT_ONCE
        at_it = self._flushing - len(shared)
        return not shared.running and at_it < _FLUSHES_AT_ONCE and self._flushing < _SYNCED_TOGETHER

    def _flushed(self) -> None:
        self._flushing -= 1
        self._flush_more()

    def _flushed_all(self) -> None:
        if self._snapshot is None:
            self._write()
            return
        entry, items = self._snapshot
        self._pool.submit(
            lambda: write_snapshot(self._filesystem, self._meta_directory, items, entry), self._snapshot_written
        )

    def _snapshot_written(self, outcome: Exception | None) -> None:
        if isinstance(outcome, Exception):
            self._keep_uncovered()
            if self._is_full(outcome):
                self._write()  # a checkpoint without it is better than none: it lets retention and the journal go on
            else:
                self._failed(outcome)
            return
        assert self._snapshot is not None
        self.snapshot_entry = self._snapshot[0]
        self._snapshot = None
        self._snapshot_position = self._committer.frame_of(self.snapshot_entry)[0]
        self._write()

    def compose(self, *, clean: bool) -> tuple[Checkpoint, list[bytes]]:
        """Return what a checkpoint says now, and the encoded states of its logs."""
        committer = self._committer
        first_needed = committer.synced + 1
        if committer.meta_first_entry:
            first_needed = min(first_needed, committer.meta_first_entry)
        encoded = []
        for log in self.logs:
            if log.undurable_entry:
                first_needed = min(first_needed, log.undurable_entry)
            encoded.append(log.encoded_state(clean=clean))
        position, frame = committer.frame_of(first_needed)
        durable_frame = committer.frame_of(committer.synced + 1)[1]
        now_ms = self._clock.now_ms()
        checkpoint = Checkpoint(
            0, clean, position, frame, self.snapshot_entry, committer.entry + 1, durable_frame, now_ms
        )
        committer.forget_frames(first_needed)
        return checkpoint, encoded

    def write_first(self, *, previous_position: int) -> None:
        """Write, in this thread, the checkpoint that ends an open; it clears the clean flag before the first append."""
        checkpoint, encoded = self.compose(clean=False)
        self._slots.write(checkpoint, encoded)
        self.previous_position = min(previous_position or checkpoint.journal_position, checkpoint.journal_position)

    def _write(self) -> None:
        clean = self._clean and self._committer.synced >= self._committer.entry
        checkpoint, encoded = self.compose(clean=clean)
        below = split_position(self.previous_position)[0]

        def work() -> None:
            self._slots.write(checkpoint, encoded)
            if self._clean:
                return  # after the last checkpoint the journal isn't touched any more
            # From now on the older slot is the one that was the newest until now.
            self._files.recycle(below)

        self._pool.submit(work, lambda outcome: self._written(outcome, checkpoint.journal_position))

    def _written(self, outcome: Exception | None, position: int) -> None:
        if isinstance(outcome, Exception):
            self._failed(outcome)
            return
        self.previous_position = position
        self._committer.checkpoints += 1
        self._end(durable=True)

    def _is_full(self, error: Exception) -> bool:
        """Return whether it is want of space, and then tell whoever looks after that."""
        if not isinstance(error, OSError) or error.errno not in FULL_ERRNOS:
            return False
        _logger.warning("checkpoint: %s", error)
        if self._committer.on_full is not None:
            self._committer.on_full(DiskFullError(f"the checkpoint can't be written: {error}", "free some space"))
        return True

    def _failed(self, error: Exception) -> None:
        if not self._is_full(error):
            self._committer.fail(DiskFailedError(f"the checkpoint can't be written: {error!r}"))
        self._end(durable=False)

    def _end(self, *, durable: bool) -> None:
        self.running = False
        self._keep_uncovered()
        callbacks, self._callbacks = self._callbacks, []
        for done in callbacks:
            done(durable)
        if self._again and not self.closed:
            self._again = False
            self._begin(clean=False)
        elif not self.closed and self._committer.fault is None:
            self.note_commit()

    def _keep_uncovered(self) -> None:
        """Take note that a snapshot came to nothing: what it would have covered is still only in the journal."""
        if self._snapshot is not None:
            self._snapshot = None
            self._committer.meta_first_entry = self._uncovered_entry
