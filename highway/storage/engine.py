"""Storage: the data directory as the broker sees it.

Threads: the loop thread calls every method here and on Log and Meta, and runs every callback. The journal thread and
two pool threads work behind it and post what they have done. With `threads=False` nothing runs by itself: `settle()`
does what is wanted, in the caller, in a fixed order; that is for tests.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING

from highway.errors import DataDirectoryError, DiskFullError, StorageError
from highway.storage.catalogue import Catalogue
from highway.storage.checkpoint.checkpointer import Checkpointer
from highway.storage.disk.descriptors import Descriptors, descriptor_share
from highway.storage.disk.filesystem import FULL_ERRNOS, OsFileSystem
from highway.storage.disk.layout import Layout, lock_directory
from highway.storage.disk.medium import can_sync_whole, check_medium, fit_to_disk
from highway.storage.disk.pool import Mailbox, Pool, Scheduler
from highway.storage.disk.reserve import Reserve
from highway.storage.journal.commit import Committer
from highway.storage.journal.files import JournalFiles
from highway.storage.journal.format import split_position
from highway.storage.journal.journal import Journal
from highway.storage.log.cache import BatchCache
from highway.storage.log.commit_time import CommitTime
from highway.storage.log.retention import SOON_MS, Deletion, Reaper
from highway.storage.log.shared_sync import SharedSync
from highway.storage.maintenance.full_disk import SpaceGuard
from highway.storage.maintenance.maintainer import Maintainer
from highway.storage.maintenance.scrubbing import Scrubber
from highway.storage.recovery.opening import check_format, recover_with_room
from highway.storage.recovery.poison import WatchedFileSystem, drop_caches
from highway.storage.segment.format import MAX_FRAME_BYTES
from highway.storage.settings import Durability, StorageSettings, find_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from highway.clock import Clock
    from highway.metrics import Histogram
    from highway.storage.checkpoint.meta import Meta
    from highway.storage.disk.filesystem import FileSystem
    from highway.storage.log.log import Log
    from highway.storage.recovery.recovery import Recovered
    from highway.storage.recovery.report import RecoveryReport
    from highway.storage.settings import LogSettings

__all__ = ["Storage"]

_POOL_THREADS = 2
_PUT_FLUSH_MS = 100  # a FAST put is in memory only so long at most
_PUT_SYNC_MS = 1000
_CLOSE_PATIENCE_S = 60.0  # without any progress: a disk that answers no more must not keep the process alive for ever

_logger = logging.getLogger(__name__)


class Storage:
    """See the module's text; `open` makes one."""

    def __init__(
        self,
        filesystem: WatchedFileSystem,
        layout: Layout,
        held: tuple[int, int],
        files: Descriptors,
        recovered: Recovered,
        scheduler: Scheduler,
        clock: Clock,
        settings: StorageSettings,
        configured: Sequence[LogSettings],
        *,
        threads: bool,
    ) -> None:
        self.settings = settings
        self.report: RecoveryReport = recovered.report
        self.meta: Meta = recovered.meta
        self.closed = False
        self._filesystem = filesystem
        self._layout = layout
        self._lock, self._root = held
        self._files = files
        self._scheduler = scheduler
        self._threads = threads
        self._mailbox = Mailbox(scheduler, inline=not threads)
        self._pool = Pool(self._mailbox, _POOL_THREADS if threads else 0)
        self._cache = BatchCache(settings.cache_bytes)
        self._time = CommitTime(clock, recovered.last_known_ms)
        self._committer = self._make_committer(recovered, scheduler, clock)
        self._journal_files = JournalFiles(filesystem, layout.journal, settings.journal_file_bytes, clock)
        self._journal = self._make_journal(recovered, clock)
        self._catalogue = Catalogue(
            recovered,
            configured,
            layout,
            files,
            self._pool,
            self._cache,
            self._time,
            self._committer,
            self._journal,
            self._damaged,
        )
        self.logs: dict[str, Log] = self._catalogue.logs
        self._checkpointer = self._make_checkpointer(recovered, clock)
        self._reaper = Reaper(filesystem, self._pool, self._checkpointer, self._time, settings.max_bytes)
        self._reaper.logs = self.logs.values()
        self.maintainer = Maintainer(
            self._reaper.logs,
            files,
            self._cache,
            self._pool,
            scheduler,
            self._time,
            self._committer,
            self._checkpointer,
        )
        self.scrubber = Scrubber(self._reaper.logs, filesystem, self._pool, scheduler, settings)
        self._space = SpaceGuard(
            Reserve(filesystem, layout.reserve, settings.reserve_bytes),
            self._journal_files,
            self._committer,
            self._checkpointer,
            self._reaper,
            self._pool,
            scheduler,
            lambda: self._prepare_spare(self._journal.next_sequence),
        )
        self._committer.on_full = self._space.hit
        self._committer.on_failed = filesystem.mark

    def _make_committer(self, recovered: Recovered, scheduler: Scheduler, clock: Clock) -> Committer:
        committer = Committer(scheduler, clock, recovered.meta, recovered.start.next_entry)
        committer.max_record_bytes = min(self.settings.max_record_bytes, MAX_FRAME_BYTES)
        committer.on_committed = self._committed
        committer.meta_first_entry = recovered.meta_first_entry
        committer.seed_frames(recovered.frames)
        return committer

    def _make_journal(self, recovered: Recovered, clock: Clock) -> Journal:
        files = self._journal_files
        files.distrusted_below = recovered.distrusted_below
        files.adopt(recovered.unused_files)
        files.recycle(split_position(recovered.older_position)[0])
        committer = self._committer
        journal = Journal(
            self._filesystem,
            files,
            recovered.start,
            file_bytes=self.settings.journal_file_bytes,
            post=lambda commit: self._mailbox.post(committer.on_commit, commit),
            request_spare=self._prepare_spare,
            monotonic=clock.monotonic,
        )
        committer.journal = journal
        committer.end_position = journal.start_position
        committer.end_frame = recovered.start.frame_sequence
        return journal

    def _make_checkpointer(self, recovered: Recovered, clock: Clock) -> Checkpointer:
        checkpointer = Checkpointer(
            self._filesystem,
            self._layout.meta,
            recovered.slots,
            self._journal_files,
            self._committer,
            self._pool,
            self._scheduler,
            clock,
            self.settings,
        )
        checkpointer.snapshot_entry = recovered.meta_entry
        checkpointer.logs = self.logs.values()
        if can_sync_whole(self._filesystem, self._layout.logs):
            checkpointer.share_syncs(SharedSync(self._filesystem, self._pool, self._root))
        checkpointer.start_at(self._journal.start_position)
        return checkpointer

    @classmethod
    def open(
        cls,
        directory: Path,
        logs: Sequence[LogSettings],
        *,
        scheduler: Scheduler,
        clock: Clock,
        filesystem: FileSystem | None = None,
        settings: StorageSettings | None = None,
        rebuild: bool = False,
        threads: bool = True,
    ) -> Storage:
        """Return the storage of a data directory, created or recovered; everything in it that survived is visible.

        DataDirectoryError: in use, of a newer format, not writable, on a network file system, or without a readable
        checkpoint. CorruptionError: something is damaged and a log has `on_corruption: refuse`. Damage is otherwise in
        `report`. On a full disk it opens, serves readers, and accepts as soon as there is space.
        """
        layout = Layout(directory)
        filesystem = WatchedFileSystem(filesystem or OsFileSystem(), layout.poison)
        settings = settings or StorageSettings()
        started = clock.monotonic()
        check_medium(filesystem, directory)
        lock = lock_directory(filesystem, layout, clock)
        files = Descriptors(filesystem, descriptor_share())
        storage = None
        root = -1
        try:
            if filesystem.exists(layout.poison):
                _logger.error("a sync has failed in %s: everything is read from the medium", directory)
                drop_caches(filesystem, layout)
                filesystem.direct = True
            check_format(filesystem, layout)
            root = filesystem.open_directory(layout.directory)  # before the first write: see SharedSync
            settings = fit_to_disk(settings, filesystem.total_bytes(directory))
            recovered = recover_with_room(filesystem, layout, logs, files, clock, settings, rebuild=rebuild)
            storage = cls(
                filesystem, layout, (lock, root), files, recovered, scheduler, clock, settings, logs, threads=threads
            )
            storage._start(recovered)
        except BaseException as error:
            if storage is not None:
                storage._stop_threads()
            files.close()
            for fd in (lock, root):
                if fd >= 0:
                    filesystem.close(fd)
            if isinstance(error, OSError):
                reason = f"{directory} can't be opened: {error}"
                raise DataDirectoryError(reason, "check the disk, owner and mode") from error
            raise
        storage.report.seconds = clock.monotonic() - started
        if not storage.report.new:
            level = logging.ERROR if storage.report.damaged else logging.INFO
            _logger.log(level, "recovery: %s", storage.report)
            for line in storage.report.damage_lines():
                _logger.error("recovery: %s", line)
        return storage

    def _start(self, recovered: Recovered) -> None:
        shortage = self._journal.shortage
        try:
            if shortage is not None and recovered.report.new:
                raise OSError(errno.ENOSPC, shortage.detail)
            self._checkpointer.write_first(previous_position=recovered.newest_position)
        except OSError as error:
            if error.errno not in FULL_ERRNOS or recovered.report.new:
                raise
            shortage = DiskFullError(f"the checkpoint can't be written: {error}", "free some space")
        else:
            # The slot that was the older one is overwritten, so what only it needed is free.
            self._journal_files.recycle(split_position(self._checkpointer.previous_position)[0])
            if self._filesystem.direct:
                self._filesystem.unmark()
        self._filesystem.direct = False
        if self._threads:
            self._journal.start()
        if shortage is None:
            self._space.keep_back()
            self._prepare_spare(self._journal.next_sequence)
        else:
            self._space.hit(shortage)  # nothing is accepted before a checkpoint is durable
        self._scheduler.call_later(self.settings.reaper_interval_ms / 1000, self._reap)
        self.scrubber.start()
        if any(log.undurable_entry for log in self.logs.values()):
            self._checkpointer.note_commit()

    def _prepare_spare(self, sequence: int) -> None:
        files = self._journal_files

        def work() -> None:
            try:
                files.prepare(sequence)
            except OSError as error:
                _logger.warning("the next journal file can't be prepared yet: %s", error)

        self._pool.submit(work)

    # What the broker uses.

    @property
    def writable(self) -> bool:
        """Return whether appends are accepted."""
        return self._committer.fault is None and not self.closed

    @property
    def fault(self) -> StorageError | None:
        """Return why not, or None."""
        return self._committer.fault

    @property
    def on_fault(self) -> Callable[[StorageError], None] | None:
        """What is called, in the loop thread, with each new fault: `writable` tells whether appends go on.

        DiskFullError: refuse publishes until `writable` is True again. DiskFailedError with `writable` False: end the
        process. CorruptionError, or any other with `writable` True: say so and go on.
        """
        return self._committer.on_fault

    @on_fault.setter
    def on_fault(self, callback: Callable[[StorageError], None] | None) -> None:
        self._committer.on_fault = callback

    @property
    def backlog_bytes(self) -> int:
        """Return the record bytes that are appended and not yet written to the journal."""
        return self._committer.backlog_bytes

    @property
    def unsynced_bytes(self) -> int:
        """Return the journal bytes that are written and not yet synced."""
        return self._committer.unsynced_bytes

    @property
    def oldest_unsynced_age_seconds(self) -> float:
        """Return how long the oldest record that a power cut could take has been waiting; 0 if there is none."""
        return self._committer.oldest_unsynced_age_s

    @property
    def ack_seconds(self) -> dict[Durability, Histogram]:
        """Return how long the oldest entry of each commit waited for its acknowledgement, by stage."""
        return self._committer.ack_seconds

    @property
    def sync_seconds(self) -> Histogram:
        """Return how long the syncs of the journal took, with what was read back after them."""
        return self._journal.sync_seconds

    @property
    def commit_records(self) -> Histogram:
        """Return how many records the frames of the journal had."""
        return self._journal.commit_records

    @property
    def free_bytes(self) -> int:
        """Return the bytes that are free for the broker on the disk of the data directory. Asks the disk."""
        return self._filesystem.free_bytes(self._layout.directory)

    def now_ms(self) -> int:
        """Return the wall clock, Unix milliseconds; a jump of more than a day is believed after ten minutes."""
        return self._time.now_ms()

    @property
    def clock_settled(self) -> bool:
        """Return whether age is a reason to delete, as of the last `now_ms`: not while the clock is in doubt."""
        return self._time.settled

    def put(self, puts: Sequence[tuple[bytes, bytes | None]], durability: Durability = Durability.BALANCED) -> None:
        """Set keys, or delete those whose value is None; all of them survive or none. `after` tells when they do.

        While the disk is full they wait, the last value of each key, and are the first to be stored when it isn't any
        more: what they say is true already in the memory of whoever puts it, and nobody else would say it again.
        StorageError, and nothing changed, when the disk has failed.
        """
        committer = self._committer
        if isinstance(committer.fault, DiskFullError):
            committer.owed.update(puts)
            return
        if committer.fault is not None:
            raise committer.fault
        if not puts:
            return
        committer.hand_over(committer.put(puts))
        committer.require(durability)
        if durability == Durability.FAST and committer.flush_due_ms > _PUT_FLUSH_MS:
            committer.arm_flush(_PUT_FLUSH_MS)
        if durability != Durability.SAFE and committer.sync_due_ms > _PUT_SYNC_MS:
            committer.arm_sync(_PUT_SYNC_MS)

    def after(self, durability: Durability, callback: Callable[[StorageError | None], None]) -> None:
        """Call back in the loop thread once everything appended and put so far has reached `durability`.

        At once if it has, and for FAST. With an error nothing of it may be acknowledged.
        """
        self._committer.after(durability, callback)

    def add_topic_log(self, entry: str, name: str) -> Log:
        """Return the log `name` of a topic of the `per_topic` entry that was configured as `entry`.

        If there is none it is created, which is durable with the first SAFE entry.
        """
        return self._catalogue.add_topic_log(entry, name)

    def change_logs(self, changed: Sequence[LogSettings], released: Iterable[str] = ()) -> None:
        """Keep the logs named by `changed` by these settings from now on; a `per_topic` entry's are its topics'.

        What isn't there is created. Those `released` are configured no longer: they are kept as the next open would,
        whole, until an operator deletes of them. Nothing is deleted by it: retention looks at its logs in its own time,
        or when `reap` says so.
        """
        self._catalogue.change_logs(changed, released)

    def checkpoint(self, done: Callable[[bool], None] | None = None) -> None:
        """Write a checkpoint now; `done(True)` in the loop thread once it is durable, `done(False)` if it failed."""
        self._checkpointer.request(done or (lambda _: None))

    def reap(self) -> None:
        """Apply retention now."""
        self._reaper.run()

    def plan_retention(
        self, logs: Sequence[LogSettings], done: Callable[[dict[str, Deletion]], None], *, only_new: bool = False
    ) -> None:
        """Find out what retention would delete if logs were kept by `logs`, by name; nothing is changed by asking.

        With `only_new`, what it deletes of them as they are kept now is left out, and what a shorter retention lets
        fall due within a minute and a round of the reaper is taken in. Logs of which it would delete nothing are not in
        the answer, nor are those that don't exist.
        """
        configured = {item.name: item for item in logs}
        found = [(log, find_settings(configured, name)) for name, log in self.logs.items()]
        changes = [(log, item) for log, item in found if item is not None]
        soon_ms = SOON_MS + self.settings.reaper_interval_ms if only_new else 0
        self._reaper.preview(changes, done, only_new=only_new, soon_ms=soon_ms)

    def plan_trim(self, log: Log, offset: int, done: Callable[[Deletion | None], None]) -> None:
        """Find out what `trim` would delete."""
        self._reaper.preview_trim(log, offset, done)

    def trim(self, log: Log, offset: int, done: Callable[[Deletion | None], None]) -> None:
        """Delete the sealed segments of a log that lie wholly below `offset`; `done` once they are gone for good.

        None where there are none, or where the disk didn't let them go.
        """
        self._reaper.trim(log, offset, done)

    @property
    def trimmed(self) -> dict[str, dict[str, int]]:
        """Return what retention has deleted since the open: segments, records and bytes, by reason."""
        trimmed = self._reaper.trimmed
        return {"segments": trimmed.segments, "records": trimmed.records, "bytes": trimmed.bytes}

    @property
    def pulse(self) -> int:
        """Return a number that the journal thread counts up while it works, and after `ask_pulse`: a sign of life."""
        return self._journal.pulse

    def ask_pulse(self) -> None:
        """Ask the journal thread for a sign of life."""
        self._journal.ask_pulse()

    # Behind it.

    def _committed(self) -> None:
        self._checkpointer.note_commit()
        if self._committer.tail_bytes > self.settings.memory_budget:
            for log in sorted(self.logs.values(), key=lambda log: log.tail_bytes, reverse=True)[:4]:
                log.drain()

    def _damaged(self, error: StorageError) -> None:
        if isinstance(error, DiskFullError):
            self._space.hit(error)
        elif self.on_fault is not None:
            self.on_fault(error)

    def _reap(self) -> None:
        if not self.closed:
            self._scheduler.call_later(self.settings.reaper_interval_ms / 1000, self._reap)
            self._reaper.run()
            self.maintainer.begin_round()

    def settle(self) -> None:
        """Do everything that is wanted, in this thread, until nothing is left. Only with `threads=False`."""
        ran = True
        while ran:
            ran = self._pool.run_pending()
            if not self._journal.idle:
                self._journal.run_once()
                ran = True

    def close(self) -> None:
        """Commit, drain, and write a checkpoint with the clean flag; then let go of everything.

        Runs in the loop thread and blocks it. After a disk error it closes without the flag: the next open recovers. On
        a full disk it does what there is room for.
        """
        if self.closed:
            return
        committer = self._committer
        self.maintainer.closed = self.scrubber.closed = True
        self._drive(lambda: not (self._checkpointer.running or self._reaper.running))
        self._drive(lambda: not (self.maintainer.stepping or self.scrubber.stepping))
        self.maintainer.close()
        if committer.stalled:
            self._write_stalled()
        if not self._failed:
            committer.put_owed()
        ended: list[bool] = []
        if not self._failed:
            self._checkpointer.close(ended.append)
            self._drive(lambda: bool(ended))
        if committer.fault is None:
            for log in self.logs.values():
                log.writer.park()
        self._checkpointer.closed = True
        self.closed = True
        if not self._failed:
            committer.fault = StorageError("the storage is closed")
        self._stop_threads()
        self._mailbox.deliver()
        self._let_go()

    def _let_go(self) -> None:
        self._files.close()
        self._filesystem.close(self._root)
        self._filesystem.close(self._lock)

    @property
    def _failed(self) -> bool:
        """Return whether nothing can be written any more: a full disk may still have room for something."""
        fault = self._committer.fault
        return fault is not None and not isinstance(fault, DiskFullError)

    def _write_stalled(self) -> None:
        """Try once more to write what a full disk held up."""
        committer = self._committer
        commits = committer.commits
        self._space.relieve()
        self._drive(lambda: committer.commits > commits)
        if committer.stalled:
            _logger.error("close: %d B that the full disk had no room for are lost", committer.backlog_bytes)

    def _stop_threads(self) -> None:
        self._journal.stop()
        self._pool.close()

    def _drive(self, done: Callable[[], bool]) -> None:
        """Run callbacks in this thread until `done`, or the disk fails."""
        if not self._threads:
            self.settle()
            return
        while not done() and not self._failed:
            if not self._mailbox.wait(_CLOSE_PATIENCE_S):
                _logger.error("close: no answer from the disk for %d s", _CLOSE_PATIENCE_S)
                return
