"""One segment of a log: its file of frames, and its index.

Who may do what: one thread at a time appends, syncs or seals; any thread may read at the same time. `length`,
`next_offset` and `durable_length` are set by the appending side only; `length` moves after the frame is in the file, so
that a reader never sees half of one.

What a power cut leaves of each operation:

- `create`: no file, a file without a (whole) header, or an empty segment. It returns when the header and the name are
  durable, so that an append never depends on either.
- `append_frame`: above `durable_length` anything: any of the unsynced frames whole, torn, or zeros. Below it nothing.
- `sync`: after it returns, everything below the length it started with.
- `seal`: the segment is durable before its index is written; of the index any part or nothing: it is checked when
  read, and rebuilt.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING

from highway.errors import CorruptionError, StorageError

from .format import (
    CODEC_ZSTD,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    encode_frame,
    parse_frame_header,
)
from .index import SparseIndex
from .indexed import INDEX_SUFFIX, SEGMENT_SUFFIX, IndexedSegment
from .postings import StoredPostings, TopicPostings
from .scan import DamagedRange, FrameWalk, ScanResult, Window

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from highway.storage.disk.descriptors import Descriptors

    from .format import FrameHeader
    from .records import RecordBatch

__all__ = ["INDEX_SUFFIX", "SEGMENT_SUFFIX", "Segment", "segment_path"]

_ANY_OFFSET = 1 << 63
_SMALL_BYTES = 4096  # of a frame; as many as share an entry of the index
_SOON = 4  # entries of the index, each of a frame or of several small ones
_PARKED_ENTRIES = 32  # below, an active segment's frames are read faster than an index file is written and read

_logger = logging.getLogger(__name__)


def segment_path(directory: Path, base_offset: int) -> Path:
    """Return the file of the segment that starts at `base_offset`: 20 digits, so that names sort as numbers do."""
    return directory / f"{base_offset:020d}{SEGMENT_SUFFIX}"


class Segment(IndexedSegment):
    """See the module's text. Positions are bytes in the file, offsets number records."""

    __slots__ = ("_held", "deleted", "durable_offset", "named", "small_frames", "suspect")

    def __init__(self, path: Path, files: Descriptors) -> None:
        """Use `create`, `open_active` or `open_sealed`."""
        super().__init__(path, files)
        self.suspect = False  # a sync failed: what is above the durable length may not be what reads show
        self.deleted = False
        self.small_frames = 0  # appended since it was opened
        self.durable_offset = self.base_offset  # the lowest that may stand behind that
        self.named = True  # its name, and that of its directory, are durable
        self._held = False  # unsynced: the descriptor must not be closed

    @classmethod
    def create(
        cls,
        directory: Path,
        files: Descriptors,
        *,
        log_uuid: bytes,
        base_offset: int,
        epoch: int,
        created_ms: int,
        salt: int | None = None,
        durable: bool = True,
    ) -> Segment:
        """Return a new, empty segment; FileExistsError if there is a file of that name.

        It is `durable`, or else neither its header nor its name are before the first sync; then no checkpoint may
        mention it, and the next open takes what it finds of it. `salt` is random unless a test sets it.
        """
        if salt is None:
            salt = int.from_bytes(os.urandom(4), "big") or 1
        header = SegmentHeader(log_uuid, base_offset, created_ms, epoch, salt)
        segment = cls(segment_path(directory, base_offset), files)
        filesystem = files.filesystem
        fd = filesystem.open(segment.path, create=True)
        try:
            filesystem.pwrite(fd, header.encode(), 0)
            if durable:
                filesystem.fsync(fd)
                filesystem.sync_dir(directory)
        except BaseException:
            filesystem.close(fd)
            with contextlib.suppress(OSError):
                filesystem.unlink(segment.path)  # on a full disk even its name is missing elsewhere
            raise
        files.adopt(segment.path, fd)
        segment._header = header
        segment._index = SparseIndex(SEGMENT_HEADER_BYTES, base_offset)
        segment._index.topics = TopicPostings()
        segment.named = durable
        segment.durable_length = SEGMENT_HEADER_BYTES
        return segment

    @classmethod
    def open_active(
        cls, path: Path, files: Descriptors, *, position: int | None = None, next_offset: int | None = None
    ) -> tuple[Segment, ScanResult]:
        """Return a segment to append to, and what a scan from `position` on found.

        `position` and `next_offset` are the durable length and the offset after the record before it, from the
        checkpoint; without them everything is scanned. Appends go behind the last frame of the unbroken run of valid
        ones; what is behind it stays in the file until `cut_tail`, so that the caller can keep a copy first. A file
        shorter than `position`, or without a valid header, raises CorruptionError.
        """
        segment = cls(path, files)
        header = segment.header
        start = SEGMENT_HEADER_BYTES if position is None else position
        size = segment.file_size()
        if size < start:
            raise CorruptionError(str(path), size, f"file of {size} B; {start} B of it were durable")
        walk = segment._walk(size, start, header.base_offset if next_offset is None else next_offset)
        result = walk.scan()
        segment.length = result.valid_length
        segment.next_offset = result.next_offset
        segment.durable_length = start
        segment.durable_offset = header.base_offset if next_offset is None else next_offset
        segment._parked = files.filesystem.exists(path.with_suffix(INDEX_SUFFIX))
        return segment, result

    @classmethod
    def open_sealed(cls, path: Path, files: Descriptors) -> Segment:
        """Return a segment to read from. Nothing is read before it is needed: opening always costs the same.

        `length`, `next_offset` and everything else that the index knows is right after the first use of `index`.
        """
        segment = cls(path, files)
        segment.sealed = True
        return segment

    @classmethod
    def take_over(cls, old: Segment, files: Descriptors, length: int, next_offset: int, *, durable: bool) -> Segment:
        """Return the segment whose file has replaced the one of `old`, of which it has header and durable part.

        Unless its name is `durable` it is as suspect as the old one was.
        """
        segment = cls(old.path, files)
        segment._header = old.header
        segment.length = length
        segment.next_offset = next_offset
        segment.durable_length = length if durable else old.durable_length
        segment.durable_offset = next_offset if durable else old.durable_offset
        segment.suspect = not durable
        return segment

    @classmethod
    def rewritten(cls, old: Segment, files: Descriptors, header: SegmentHeader, index: SparseIndex) -> Segment:
        """Return the sealed segment whose file has replaced the one of `old`."""
        segment = cls(old.path, files)
        segment.sealed = True
        segment._header = header
        segment._index = index
        segment._take(index)
        return segment

    # Appending.

    def append_frame(
        self,
        data: bytes,
        *,
        count: int,
        base_offset: int,
        min_ms: int,
        max_ms: int,
        epoch: int,
        codec: int = CODEC_ZSTD,
        level: int = 1,
        topics: Collection[bytes] | None = None,
    ) -> int:
        """Write a frame of encoded records and return its position. OSError: nothing was appended, the same may be
        tried again.

        `topics` are those of the records; None if they aren't known.
        """
        self._refuse_suspect()
        if self.sealed or base_offset < self.next_offset:
            raise StorageError(
                f"{self.path}: {'a sealed segment' if self.sealed else f'offset {self.next_offset} or later expected'},"
                f" a frame of offset {base_offset} given"
            )
        salt = self.header.salt
        head, payload = encode_frame(
            data,
            count=count,
            base_offset=base_offset,
            min_ms=min_ms,
            max_ms=max_ms,
            epoch=epoch,
            salt=salt,
            codec=codec,
            level=level,
        )
        position = self.length
        if self._parked:
            self._unpark()
        self._hold()
        with self._files.use(self.path) as fd:
            self._files.filesystem.pwritev(fd, (head, payload), position)
        with self._lock:
            if self._index is not None:
                self._index.add(parse_frame_header(head, salt), position, topics)
            self.small_frames += len(payload) < _SMALL_BYTES
            self.length = position + len(head) + len(payload)
            self.next_offset = base_offset + count
        return position

    def sync(self) -> None:
        """Make everything appended so far durable. After an OSError never again: the segment is `suspect`."""
        self._refuse_suspect()
        length, next_offset = self.length, self.next_offset
        if length == self.durable_length and self.named:
            return
        filesystem = self._files.filesystem
        with self._files.use(self.path) as fd, self._suspicion():
            filesystem.fdatasync(fd)
            if not self.named:
                filesystem.sync_dir(self.path.parent)
                filesystem.sync_dir(self.path.parent.parent)
        self.mark_durable(length, next_offset)

    def mark_durable(self, length: int, next_offset: int) -> None:
        """Note that everything below `length`, where `next_offset` follows, is durable: `sync` does that, and so must
        who calls syncfs for many segments.
        """
        self.named = True
        self.durable_length = length
        self.durable_offset = next_offset
        with self._lock:
            release = self._held and self.length <= self.durable_length
            if release:
                self._held = False
        if release:
            self._files.release(self.path)

    def cut_tail(self) -> None:
        """Cut what is in the file behind `length`, durably: a torn tail, or the rest of a failed write."""
        with self._files.use(self.path) as fd:
            if self._files.filesystem.size(fd) > self.length:
                self._files.filesystem.truncate(fd, self.length)
                with self._suspicion():
                    self._files.filesystem.fsync(fd)

    @contextlib.contextmanager
    def _suspicion(self) -> Iterator[None]:
        """Take note of a sync that fails: the page cache lies from then on, and a second one would believe it."""
        try:
            yield
        except OSError:
            self.suspect = True
            raise

    def _refuse_suspect(self) -> None:
        if self.suspect:
            raise StorageError(f"{self.path}: a sync of it has failed; it has to be written anew")

    def seal(self) -> None:
        """End appends: sync, cut leftovers of failed writes, and write the index.

        A disk that has no room for the index doesn't keep a segment from being sealed: it only says once more what the
        segment says.
        """
        self.sync()
        self.cut_tail()
        try:
            self.write_index()
        except OSError as error:
            _logger.warning("%s: no index beside it: %s", self.path, error)
        self.sealed = True
        self._parked = False
        self.drop_index()

    def park(self) -> None:
        """Keep the index of an active segment in a file, for a start after a clean stop; nothing depends on it."""
        if self._index is not None and len(self._index) >= _PARKED_ENTRIES and not self._parked:
            self.write_index()

    def _unpark(self) -> None:
        """Take the index from the file that a clean stop left, and remove that before it is wrong."""
        index = self.index
        if isinstance(index.topics, StoredPostings):
            try:
                index.topics = TopicPostings.of(index.topics)
            except (OSError, CorruptionError):
                index.topics = None  # they are made again when somebody asks
        self._parked = False
        with contextlib.suppress(FileNotFoundError):
            self._files.filesystem.unlink(self.path.with_suffix(INDEX_SUFFIX))

    # Reading.

    def read_at(self, offset: int, topics: Collection[bytes] = ()) -> RecordBatch | None:
        """Return the first frame that ends after `offset`: the one that holds it, or in a hole the next one.

        With `topics` frames that hold none of them may be left out. None if there is no such frame in this segment;
        CorruptionError if it is damaged.
        """
        index = self.index
        self._refuse_damaged(offset)
        for entry in self._entries(index, max(index.locate(offset), 0), len(index), topics):
            for position, header, frame in self._frames(index, entry, offset):
                if header.end_offset > offset:
                    return self._batch(header, frame[: header.length], frame[header.length :], position)
        return None

    def may_hold_soon(self, offset: int, topics: Collection[bytes]) -> bool:
        """Return whether one of the next few frames from `offset` on may hold one of `topics`, or all are few."""
        index = self.index
        first = max(index.locate(offset), 0)
        end = first + _SOON
        return end >= len(index) or bool(self._entries(index, first, end, topics))

    def read_before(self, offset: int, topics: Collection[bytes] = ()) -> RecordBatch | None:
        """Return the frame with the greatest record offset below `offset`; None if the segment starts at or after it.

        With `topics` frames that hold none of them may be left out.
        """
        index = self.index
        self._refuse_damaged(offset - 1)
        for entry in reversed(self._entries(index, 0, index.locate(offset - 1) + 1, topics)):
            found: list[tuple[int, FrameHeader, bytes]] = []
            for position, header, frame in self._frames(index, entry, offset - 1):
                if header.base_offset >= offset:
                    break
                if not header.sparse:
                    found.clear()  # it has a record below `offset`, so none in front of it is wanted
                found.append((position, header, frame))
            for position, header, frame in reversed(found):
                batch = self._batch(header, frame[: header.length], frame[header.length :], position)
                if batch.begins_before(offset):
                    return batch
        return None

    def offset_at(self, timestamp_ms: int) -> int | None:
        """Return the offset of the first record committed at or after a time; None if this segment has none."""
        index = self.index
        for entry in range(index.locate_time(timestamp_ms), len(index)):
            for position, header, frame in self._frames(index, entry, _ANY_OFFSET):
                if header.extended and header.max_ms < timestamp_ms:
                    continue
                if header.extended and header.min_ms >= timestamp_ms and not header.sparse:
                    return header.base_offset
                batch = self._batch(header, frame[: header.length], frame[header.length :], position)
                for record in batch.records():
                    if record[2] >= timestamp_ms:
                        return record[0]
        return None

    def damage_at(self, position: int) -> DamagedRange:
        """Return what is lost where a CorruptionError said there is damage: the range, and the next good offset."""
        index = self.index
        entry = index.locate_position(position)
        start, end = index.region(entry) if entry >= 0 else (SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES)
        walk = self._walk(self._end(), start, index.offset_of(entry) if entry >= 0 else self.base_offset)
        try:
            while walk.position < max(end, position + 1) and walk.step() is not None:
                pass
        except CorruptionError as error:
            return walk.skip_damage(error.reason)[0]
        return DamagedRange(position, position, walk.next_offset, walk.next_offset, "no damage: the read failed once")

    def walk(self) -> FrameWalk:
        """Return a way through all frames, each of which it reads and checks; CorruptionError without a header."""
        return self._walk(self._end(), SEGMENT_HEADER_BYTES, self.base_offset)

    def verify(self) -> ScanResult:
        """Read every frame and check it; damage doesn't end the walk."""
        return self.walk().scan(resync=True)

    def read_raw(self, position: int, length: int) -> bytes:
        """Return bytes of the file as they are, zeros where the disk can't read: a copy of what is about to be cut."""
        return Window(self._pread, position + length).salvage(position, length)

    # The end.

    def make_way(self, successor: Path) -> None:
        """Give this file's name to another file: whoever reads from here on may be shown that one's bytes.

        FileNotFoundError: it has been deleted meanwhile, and so must the other be. The caller syncs the directory.
        """
        with self._lock:
            if self.deleted:
                raise FileNotFoundError(f"{self.path} has been deleted")
            self.stale = True
            try:
                self._files.filesystem.rename(successor, self.path)
            except OSError:
                self.stale = False
                raise
            held, self._held = self._held, False
        if held:
            self._files.release(self.path)
        self._files.replace(self.path)

    def close(self) -> None:
        """Give the descriptor back; what isn't synced stays in the page cache."""
        with self._lock:
            held, self._held = self._held, False
        if held:
            self._files.release(self.path)
        self._files.forget(self.path)

    def delete(self) -> None:
        """Remove both files; the caller syncs the directory, once for many segments."""
        self.close()
        filesystem = self._files.filesystem
        with self._lock:
            self.deleted = True  # also what `make_way` has put there
            filesystem.unlink(self.path)
        # An index without its segment is removed at the next open; the other way round one would only be rebuilt.
        with contextlib.suppress(FileNotFoundError):
            filesystem.unlink(self.path.with_suffix(INDEX_SUFFIX))

    def _hold(self) -> None:
        with self._lock:
            if self._held:
                return
            self._held = True
        self._files.acquire(self.path)

    def _refuse_damaged(self, offset: int) -> None:
        """Raise CorruptionError for an offset that a rebuilt index left out: it is no hole."""
        for lost in self.damaged:
            if lost.from_offset <= offset and (lost.to_offset is None or offset < lost.to_offset):
                raise CorruptionError(str(self.path), lost.position, lost.reason)
