"""The one journal: what was appended and put since the last round becomes one frame, one write and one sync.

The loop thread appends items to `queue` and says with `want_written` and `want_synced` up to which entry it needs which
stage. The journal thread runs `run_once` whenever something is wanted: it drains the queue, writes one frame, syncs and
reads back if asked, and posts a `Commit` for each stage that somebody waits for. There is no linger: while a sync runs
the next batch gathers in the queue.

Entries are numbered from 1 across the life of the data directory; "written 7" means that entries 1 to 7 are written.

The two histograms are written by the journal thread and may be read by any.

Owner of each attribute: `queue` is shared (append in the loop, popleft in the journal thread; both are atomic),
`wanted_*`, `verify`, `sync_bytes` and `lean` are set by the loop and read by the journal thread, all others belong to
the journal thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from crc32c import crc32c

from highway.errors import DiskFailedError, DiskFullError, StorageError
from highway.metrics import Histogram
from highway.metrics.histogram import COMMIT_RECORDS
from highway.storage.disk.filesystem import FULL_ERRNOS
from highway.storage.segment.records import RecordBatch
from highway.storage.settings import LogSettings

from .files import JournalFile
from .format import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    encode_frame_header,
    encode_records_head,
    frame_crcs,
    make_position,
)

if TYPE_CHECKING:
    from pathlib import Path

    from highway.storage.disk.filesystem import FileSystem

    from .files import JournalFiles

__all__ = ["VERIFY_CACHE", "VERIFY_DIRECT", "VERIFY_OFF", "Commit", "Item", "Journal", "JournalStart"]

VERIFY_OFF, VERIFY_CACHE, VERIFY_DIRECT = range(3)


# A frame larger than this only makes the first waiter in it wait longer; a single larger record is still one frame.
_MAX_FRAME_BYTES = 8 * 1024 * 1024

# (log id, batch or None, further encoded entries): all of it goes into the same frame.
Item: TypeAlias = tuple[int, RecordBatch | None, Sequence[bytes]]


class Commit(NamedTuple):
    """What the journal thread tells the loop: how far it has come."""

    written: int  # number of the last entry written
    synced: int  # number of the last entry synced
    frame_position: int  # where the frame begins that was written, or -1
    frame_sequence: int  # its number
    end_position: int  # where the next frame goes, if the file has room for it
    record_bytes: int  # record bytes in the frame
    unsynced_bytes: int  # written and not synced
    error: StorageError | None


class JournalStart(NamedTuple):
    """Where a journal goes on after open."""

    file_sequence: int  # of the first new file
    frame_sequence: int
    next_entry: int


class _WrittenFrame(NamedTuple):
    """A frame to be read back: where its body is, and its header."""

    offset: int
    length: int
    header: bytes


class Journal:
    """Writes frames. `post` is called in the journal thread, with each Commit."""

    def __init__(
        self,
        filesystem: FileSystem,
        files: JournalFiles,
        start: JournalStart,
        *,
        file_bytes: int,
        post: Callable[[Commit], None],
        request_spare: Callable[[int], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queue: deque[Item] = deque()
        self.wanted_written = self.wanted_synced = start.next_entry - 1
        self.verify = VERIFY_CACHE  # the strictest of any log, as the next
        self.sync_bytes = LogSettings("").sync_bytes
        self.sync_seconds = Histogram()
        self.commit_records = Histogram(COMMIT_RECORDS)
        self._monotonic = monotonic
        self._filesystem = filesystem
        self._files = files
        self._file_bytes = file_bytes
        self._post = post
        self._request_spare = request_spare
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._sleeping = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.lean = False  # while the disk is full: files aren't filled with zeros ahead of their frames
        self.shortage: DiskFullError | None = None  # why the first file isn't there, or isn't as it should be
        self._file = self._first_file(start.file_sequence)
        self._offset = FILE_HEADER_BYTES
        self._frame_sequence = start.frame_sequence
        self._written = self._synced = self._posted_written = start.next_entry - 1
        self._durable_frame = start.frame_sequence  # frames below this number are synced
        self._unsynced_bytes = 0
        self._unverified: list[_WrittenFrame] = []  # written since the last sync, all in the current file
        self._stuck: list[Item] = []  # drained, and not written for want of space
        self._retrying = False  # they are to be tried again
        self._dead = False
        self.pulse = 0  # counted up by the journal thread in each of its rounds

    def _first_file(self, sequence: int) -> JournalFile:
        """Return the file to begin with. On a full disk one without zeros, or none (fd -1) until there is space."""
        try:
            return self._files.take(sequence)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            self.shortage = _disk_full(error)
        try:
            return self._files.take(sequence, lean=True)
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise
            return JournalFile(sequence, self._files.path(sequence), -1, 0)

    # Loop thread.

    @property
    def directory(self) -> Path:
        """Return where its files are."""
        return self._files.directory

    @property
    def start_position(self) -> int:
        """Return where the first frame after open will be; to be asked before the first round."""
        return make_position(self._file.sequence, self._offset)

    @property
    def next_sequence(self) -> int:
        """Return the sequence number of the file after the one that is written now."""
        return self._file.sequence + 1

    def want_written(self, entry: int) -> None:
        """Ask for everything up to `entry` to be written."""
        if entry > self.wanted_written:
            self.wanted_written = entry
            if self._sleeping:
                self._sleeping = False
                self._wake.put(True)

    def want_synced(self, entry: int) -> None:
        """Ask for everything up to `entry` to be synced, and read back if `verify` says so."""
        if entry > self.wanted_synced:
            self.wanted_synced = entry
            if self._sleeping:
                self._sleeping = False
                self._wake.put(True)

    def start(self) -> None:
        """Start the journal thread."""
        self._thread = threading.Thread(target=self._run, name="highway-journal", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after the round it is in, and close the files."""
        self._stopping = True
        self._wake.put(True)
        if self._thread is not None:
            self._thread.join()
        if self._file.fd >= 0:
            self._filesystem.close(self._file.fd)
            self._file = self._file._replace(fd=-1)
        self._files.close()

    def retry(self) -> None:
        """Try again what the full disk refused."""
        self._retrying = True
        self._wake.put(True)

    def ask_pulse(self) -> None:
        """Make the thread do a round, though nothing is wanted: `pulse` tells that it did."""
        self._wake.put(True)

    # Journal thread, or the caller in tests without threads.

    @property
    def idle(self) -> bool:
        """Return whether everything that is wanted has been done, as far as it can be now."""
        if self._dead:
            return True
        if self._stuck and not self._retrying:
            return not self._unsynced_bytes or self.wanted_synced <= self._synced
        return self.wanted_written <= self._written and self.wanted_synced <= self._synced

    @property
    def stuck(self) -> bool:
        """Return whether a full disk holds up what was drained."""
        return bool(self._stuck)

    def _run(self) -> None:
        while not self._stopping:
            self._sleeping = True
            if self.idle:
                self._wake.get()
            self._sleeping = False
            self.pulse += 1
            try:
                self.run_once()
            except BaseException as error:  # noqa: BLE001 - a dead journal must not look like a slow one
                self._die(DiskFailedError(f"the journal thread failed: {error!r}"))

    def run_once(self) -> None:
        """Do one round: write what is queued as one frame, and sync if that is wanted or due.

        While a full disk holds up what was drained, and until `retry`, only what is written is synced.
        """
        if self._dead:
            return
        wanted_synced = self.wanted_synced
        items = self._next_items()
        position = -1
        record_bytes = 0
        if items:
            try:
                position, record_bytes = self._write(items)
            except StorageError as error:
                self._die(error)
                return
            except OSError as error:
                self._write_failed(items, error)
                return
        due = wanted_synced > self._synced
        if self._stuck:
            due = due and self._unsynced_bytes > 0
        else:
            due = (
                due and (self._written >= wanted_synced or not self.queue)
            ) or self._unsynced_bytes >= self.sync_bytes
        if not due:
            if position >= 0:
                self._commit(position, record_bytes)
            return
        if self.wanted_written > self._posted_written:
            self._commit(position, record_bytes)
            position = -1
            record_bytes = 0
        try:
            self._sync()
        except StorageError as error:
            self._die(error)
            return
        self._commit(position, record_bytes)

    def _next_items(self) -> list[Item]:
        retrying, self._retrying = self._retrying, False
        if not self._stuck:
            return self._drain()
        if not retrying:
            return []
        items, self._stuck = self._stuck, []
        return items

    def _drain(self) -> list[Item]:
        items: list[Item] = []
        size = 0
        popleft = self.queue.popleft
        try:
            while size < _MAX_FRAME_BYTES:
                item = popleft()
                items.append(item)
                if item[1] is not None:
                    size += len(item[1].data)
        except IndexError:
            pass
        return items

    def _write(self, items: list[Item]) -> tuple[int, int]:
        """Write one frame; return (its position, record bytes in it). After OSError nothing has changed."""
        parts: list[bytes] = []
        record_bytes = records = 0
        entries = 0
        for log_id, batch, extra in items:
            if batch is not None:
                parts.append(encode_records_head(log_id, batch))
                parts.append(batch.data)
                record_bytes += len(batch.data)
                records += batch.count
                entries += 1
            if extra:
                parts.extend(extra)
                entries += len(extra)
        body = b"".join(parts)
        length = FRAME_HEADER_BYTES + len(body)
        if self._file.fd < 0:
            self._file = self._files.take(self._file.sequence, lean=self.lean)
        if self._offset + length > self._file_bytes and self._offset > FILE_HEADER_BYTES:
            self._roll()
        header = encode_frame_header(
            body, self._frame_sequence, self._written + 1, self._durable_frame, self._file.salt
        )
        self._filesystem.pwritev(self._file.fd, (header, body), self._offset)
        position = make_position(self._file.sequence, self._offset)
        self._frame_sequence += 1
        self._offset += length
        self._written += entries
        self._unsynced_bytes += length
        if records:
            self.commit_records.observe(records)
        if self.verify != VERIFY_OFF:
            self._unverified.append(_WrittenFrame(self._offset - len(body), len(body), header))
        return position, record_bytes

    def _roll(self) -> None:
        """Go on in the next file. The old one is synced first, so frames never outlive the ones before them."""
        self._sync()
        following = self._files.take(self._file.sequence + 1, lean=self.lean)
        self._filesystem.close(self._file.fd)
        self._file = following
        self._offset = FILE_HEADER_BYTES
        self._request_spare(following.sequence + 1)

    def _sync(self) -> None:
        """Make everything written durable; DiskFailedError ends the journal, because no later sync can be believed."""
        if self._unsynced_bytes:
            began = self._monotonic()
            try:
                self._filesystem.fdatasync(self._file.fd)
                for frame in self._unverified:
                    self._read_back(frame)
            except OSError as error:
                raise DiskFailedError(f"{self._file.path}: sync failed: {error}", _DISK_HINT) from error
            self.sync_seconds.observe(self._monotonic() - began)
        self._unverified.clear()
        self._synced = self._written
        self._unsynced_bytes = 0
        self._durable_frame = self._frame_sequence

    def _read_back(self, frame: _WrittenFrame) -> None:
        """Check a frame against its CRC: this proves encoding, write and memory, not the medium."""
        if self.verify == VERIFY_DIRECT:
            data = self._filesystem.read_direct(self._file.path, frame.length, frame.offset)
        else:
            data = self._filesystem.pread(self._file.fd, frame.length, frame.offset)
        header_crc, body_crc = frame_crcs(frame.header)
        if len(data) != frame.length or crc32c(data, header_crc) != body_crc:
            raise DiskFailedError(f"{self._file.path}: at byte {frame.offset}: reads back other bytes", _DISK_HINT)

    def _write_failed(self, items: list[Item], error: OSError) -> None:
        if error.errno in FULL_ERRNOS:
            self._stuck = items
            self._post(self._state(-1, 0, _disk_full(error)))
        else:
            self._die(DiskFailedError(f"{self._file.path}: {error}", _DISK_HINT))

    def _die(self, error: StorageError) -> None:
        self._dead = True
        self._post(self._state(-1, 0, error))

    def _commit(self, position: int, record_bytes: int) -> None:
        self._posted_written = self._written
        self._post(self._state(position, record_bytes, None))

    def _state(self, position: int, record_bytes: int, error: StorageError | None) -> Commit:
        sequence = self._frame_sequence - 1
        return Commit(
            self._written,
            self._synced,
            position,
            sequence,
            make_position(self._file.sequence, self._offset),
            record_bytes,
            self._unsynced_bytes,
            error,
        )


def _disk_full(error: OSError) -> DiskFullError:
    return DiskFullError(f"the journal can't be written: {error}", "free some space")


_DISK_HINT = "what was written since the last good sync may be lost; check the disk, then start again"
