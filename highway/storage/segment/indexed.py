"""What a segment knows without reading its records: header, index and topic postings, from wherever they are good.

The header stands in the segment, its copy in the index file, and its salt can be computed from the first frame. The
index stands in the index file, or comes from walking the headers of all frames; topic postings too, or from reading all
frames. Whatever is wrong with an index file, it costs time and nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING

from highway.errors import CorruptionError
from highway.storage.disk.filesystem import read_or_report
from highway.storage.disk.small_files import replace_file

from .format import (
    MAX_FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    FrameHeader,
    SegmentHeader,
    parse_frame_header,
    unpack_payload,
)
from .header_rescue import rescue_header
from .index import IndexFile, SparseIndex
from .postings import ANYWHERE, Postings, TopicPostings, entries_with
from .records import RecordBatch, SparseBatch, topics_of
from .scan import DamagedRange, FrameWalk, Window, region_frames

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from highway.storage.disk.descriptors import Descriptors

__all__ = ["INDEX_SUFFIX", "SEGMENT_SUFFIX", "IndexedSegment"]

SEGMENT_SUFFIX = ".log"
INDEX_SUFFIX = ".idx"

_NO_OFFSET = -1

# Postings that are missing cost reading a whole segment: not twice at once for two readers.
_rebuilding = threading.Lock()

_logger = logging.getLogger(__name__)


class IndexedSegment:
    """See the module's text; `Segment` appends and reads."""

    __slots__ = (
        "_files",
        "_header",
        "_index",
        "_lock",
        "_parked",
        "base_offset",
        "damaged",
        "durable_length",
        "length",
        "next_offset",
        "path",
        "sealed",
        "settled_at",
        "stale",
        "tidy",
    )

    def __init__(self, path: Path, files: Descriptors) -> None:
        self.path = path
        self.base_offset = int(path.name[: -len(SEGMENT_SUFFIX)])
        self.sealed = False
        self.length = SEGMENT_HEADER_BYTES  # where the next frame goes
        self.next_offset = self.base_offset  # the lowest that the next frame may start with
        self.durable_length = 0  # below it a sync has succeeded
        self.damaged: list[DamagedRange] = []  # what rebuilding the index found
        self.stale = False  # the file has been replaced, and this object knows the old one
        # For maintenance, in the loop thread: after how many checkpoints no slot takes it for the active one any more,
        # and whether there is nothing to gain by writing it anew.
        self.settled_at = 0
        self.tidy = False
        self._files = files
        self._header: SegmentHeader | None = None
        self._index: SparseIndex | None = None
        self._parked = False  # active, and its index may stand in a file that a clean stop left
        self._lock = threading.Lock()  # guards _header, _index and the moves of length and next_offset

    @property
    def header(self) -> SegmentHeader:
        """The segment's header; if its own is damaged, from the index file's copy or what the first frame proves."""
        if self._header is None:
            data = self._pread(SEGMENT_HEADER_BYTES, 0)
            try:
                header = SegmentHeader.decode(data, str(self.path))
            except CorruptionError as error:
                header = self._other_header(error)
            if header.base_offset != self.base_offset:
                raise CorruptionError(
                    str(self.path),
                    0,
                    f"segment header of base offset {header.base_offset}, by its name {self.base_offset}",
                )
            self._header = header
        return self._header

    def _other_header(self, error: CorruptionError) -> SegmentHeader:
        path = str(self.path)
        stored = self._read_index_file()
        copy = None
        with contextlib.suppress(CorruptionError):
            if stored is not None:
                copy = SegmentHeader.decode(stored.segment_header, path)
                first = self._pread(MAX_FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES)
                parse_frame_header(first, copy.salt, path=path, position=SEGMENT_HEADER_BYTES)
                _logger.error("%s; its frames are read with the index's copy", error)
                return copy
        # No index, or that of the file which had this name before; or the first frame is damaged as well.
        try:
            header = rescue_header(self._pread, self.base_offset, path)
        except CorruptionError:
            if copy is None:
                raise error from None
            header = copy
        _logger.error("%s; its frames are read with %s", error, "the index's copy" if copy else "what the first proves")
        return header

    @property
    def index(self) -> SparseIndex:
        """The index; the first use reads the .idx file or, without a good one, walks the frame headers."""
        with self._lock:
            if self._index is None:
                self._index = self._load_index()
            return self._index

    def write_index(self) -> None:
        """Replace the .idx file by what `index` says, with postings as far as the segment isn't damaged."""
        index = self.index
        if not isinstance(index.topics, TopicPostings):
            self._build_postings(index)
        if self.stale:
            return
        data = IndexFile(self.header.encode(), index).encode()
        replace_file(self._files.filesystem, self.path.with_suffix(INDEX_SUFFIX), data)

    def drop_index(self) -> None:
        """Forget the index: it is in its file, and what a reader needs of it comes back from there."""
        with self._lock:
            self._index = None

    # Bytes and frames.

    def frames(self) -> Iterator[tuple[FrameHeader, bytes, RecordBatch]]:
        """Yield (header, payload as it is stored, records) of every frame; CorruptionError at the first damage."""
        index = self.index
        for lost in self.damaged:
            raise CorruptionError(str(self.path), lost.position, lost.reason)
        for entry in range(len(index)):
            for position, header, frame in self._frames(index, entry, _NO_OFFSET):
                payload = frame[header.length :]
                yield header, payload, self._batch(header, frame[: header.length], payload, position)

    def file_size(self) -> int:
        """Return the file's length, which is more than `length` if a write failed or a tail is torn."""
        with self._files.use(self.path) as fd:
            return self._files.filesystem.size(fd)

    def _end(self) -> int:
        """Return the position up to which frames are to be expected."""
        return self.file_size() if self.sealed else self.length

    def _pread(self, length: int, position: int) -> bytes:
        with self._files.use(self.path) as fd:
            return read_or_report(self._files.filesystem, fd, self.path, length, position)

    def _batch(self, header: FrameHeader, head: bytes, payload: bytes, position: int) -> RecordBatch:
        data = unpack_payload(header, head, payload, self.header.salt, path=str(self.path), position=position)
        if header.sparse:
            return SparseBatch(
                header.base_offset, header.end_offset, header.record_count, header.min_ms, header.max_ms, data
            )
        batch = RecordBatch(header.base_offset, header.record_count, header.min_ms, header.max_ms, data)
        if not header.extended:
            batch.last_ms = batch.records()[-1][2]  # only the records know
        return batch

    def _frames(self, index: SparseIndex, entry: int, offset: int) -> Iterator[tuple[int, FrameHeader, bytes]]:
        """Yield (position, header, all bytes) of an entry's frames; see `region_frames`."""
        start, end = index.region(entry)
        region = Window(self._pread, end).salvage(start, end - start)
        salt = self.header.salt
        return region_frames(
            region, start, salt, next_offset=index.offset_of(entry), offset=offset, path=str(self.path)
        )

    def _walk(self, length: int, position: int, next_offset: int, *, verify: bool = True) -> FrameWalk:
        header = self.header
        return FrameWalk(
            Window(self._pread, length),
            header.salt,
            position=position,
            next_offset=next_offset,
            epoch=header.epoch,
            path=str(self.path),
            verify=verify,
        )

    def _load_index(self) -> SparseIndex:
        """Return the index from its file if that is good and fits, else by walking the headers up to `_end()`."""
        end = self._end()
        if self.sealed or self._parked:
            stored = self._read_index_file()
            if (
                stored is not None
                and stored.index.end_position == end
                and stored.segment_header == self.header.encode()
            ):
                self._take(stored.index)
                return stored.index
        index = SparseIndex(SEGMENT_HEADER_BYTES, self.base_offset)
        result = self._walk(end, SEGMENT_HEADER_BYTES, self.base_offset, verify=False).scan(
            resync=True, on_frame=index.add
        )
        self.damaged = result.damaged + ([result.tail] if result.tail is not None else [])
        self._take(index)
        return index

    def _take(self, index: SparseIndex) -> None:
        if self.sealed:
            self.length = self.durable_length = index.end_position
            self.next_offset = index.end_offset

    def _read_index_file(self) -> IndexFile | None:
        path = self.path.with_suffix(INDEX_SUFFIX)
        try:
            with self._open_index(path) as fd:
                size = self._files.filesystem.size(fd)
            return IndexFile.load(self._pread_index, size, str(path))
        except (OSError, CorruptionError):
            return None  # whatever is wrong with it, the segment itself says the same

    def _pread_index(self, length: int, position: int) -> bytes:
        with self._open_index(self.path.with_suffix(INDEX_SUFFIX)) as fd:
            return self._files.filesystem.pread(fd, length, position)

    @contextlib.contextmanager
    def _open_index(self, path: Path) -> Iterator[int]:
        fd = self._files.filesystem.open(path)
        try:
            yield fd
        finally:
            self._files.filesystem.close(fd)

    # Topics.

    def _entries(self, index: SparseIndex, first: int, end: int, topics: Collection[bytes]) -> Sequence[int]:
        """Return the entries of [first, end) that have to be read for `topics`; all of them where nobody knows."""
        if not topics:
            return range(first, end)
        postings = index.topics
        if postings is not None:
            try:
                return entries_with(postings, topics, first, end)
            except (OSError, CorruptionError) as error:
                if index.topics is postings:  # and hasn't just been taken out of a file that is gone now
                    _logger.warning("%s: its topic postings are made again: %s", self.path, error)
                    index.topics = None
        return entries_with(self._restored_postings(index), topics, first, end)

    def _restored_postings(self, index: SparseIndex) -> Postings:
        """Return postings after reading all frames for them, once; of a sealed segment its index file has them then."""
        with _rebuilding:
            if index.topics is not None:
                return index.topics
            postings = self._build_postings(index)
            if self.sealed and isinstance(postings, TopicPostings):
                with contextlib.suppress(OSError):
                    self.write_index()
                    self.drop_index()  # from now on they are read from the file, topic by topic
            return postings

    def _build_postings(self, index: SparseIndex) -> Postings:
        """Give the index postings, from its frames; if one is damaged, those that make every reader come across it."""
        postings = TopicPostings()
        done = 0
        while not self.damaged:
            end_position = index.end_position
            try:
                for entry in range(done, len(index)):
                    postings.add(entry, self._topics_of(index, entry))
            except CorruptionError:
                break
            with self._lock:
                if index.end_position == end_position:
                    index.topics = postings
                    return postings
            done = max(len(index) - 1, 0)  # frames came in meanwhile, the first of them perhaps into the last entry
        index.topics = ANYWHERE
        return ANYWHERE

    def _topics_of(self, index: SparseIndex, entry: int) -> Iterable[bytes]:
        topics: set[bytes] = set()
        for position, header, frame in self._frames(index, entry, _NO_OFFSET):
            batch = self._batch(header, frame[: header.length], frame[header.length :], position)
            topics |= topics_of(batch.data, batch.count, str(self.path))
        return topics
