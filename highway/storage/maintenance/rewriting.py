"""Writing the records of a sealed segment anew, beside it and in larger frames, and putting the result in its place.

Offsets never change. A frame keeps those of its records implicit as long as there are no holes among them; otherwise it
has sparse offsets, and covers the range up to the next frame, so that nobody takes a hole for a loss.

What a crash leaves: a `.tmp` file that the next start removes; or the old segment, perhaps without index; or the new
one, with its own index or without. The new file has another salt, so that no index of the old one is taken for its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from highway.errors import CorruptionError
from highway.storage.segment.format import (
    CODECS,
    SEGMENT_HEADER_BYTES,
    FrameHeader,
    encode_frame,
    frame_head,
    parse_frame_header,
)
from highway.storage.segment.frame_builder import FrameBuilder, pieces_of
from highway.storage.segment.index import SparseIndex
from highway.storage.segment.postings import TopicPostings
from highway.storage.segment.segment import INDEX_SUFFIX, Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from highway.storage.disk.descriptors import Descriptors
    from highway.storage.log.cache import BatchCache
    from highway.storage.log.log import Log
    from highway.storage.segment.frame_builder import Frame
    from highway.storage.segment.records import Record, RecordBatch
    from highway.storage.settings import LogSettings

__all__ = ["RewriteTask", "SegmentRewriter"]

_STEP_BYTES = 256 * 1024  # of what is read, in one go
_STEP_FRAMES = 256
_WHOLE_RECORDS = 512  # a frame of so many records, or so many bytes, stays as it is if nothing of it is left out
_WHOLE_BYTES = 64 * 1024
_TEMPORARY_SUFFIX = ".log.tmp"

_logger = logging.getLogger(__name__)


class SegmentRewriter:
    """Reads a sealed segment, step by step, and writes the one that takes its place.

    `step` until it returns 0, then `commit` and `finish`, or `abandon`; any thread, but one at a time. CorruptionError
    from `step`: something is damaged, or of a version that isn't written any more, and has to stay as it is.
    """

    def __init__(
        self,
        segment: Segment,
        files: Descriptors,
        settings: LogSettings,
        keep: Callable[[Record], bool] | None = None,
    ) -> None:
        """With `keep` the records are left out that it says no to."""
        self.segment = segment
        self.length = SEGMENT_HEADER_BYTES  # of the new file
        self.records = self.kept = 0  # so far
        self._files = files
        self._settings = settings
        self._keep = keep
        self._path = segment.path.with_suffix(_TEMPORARY_SUFFIX)
        salt = int.from_bytes(os.urandom(4), "big") or 1
        self._header = dataclasses.replace(segment.header, salt=salt)
        self._index = SparseIndex(SEGMENT_HEADER_BYTES, segment.base_offset)
        self._index.topics = TopicPostings()
        self._builder = FrameBuilder()
        self._source = segment.frames()
        self._fd = -1

    def step(self) -> int:
        """Go on a little; return how many bytes were read, 0 at the end."""
        filesystem = self._files.filesystem
        if self._fd < 0:
            if filesystem.exists(self._path):
                filesystem.unlink(self._path)
            self._fd = filesystem.open(self._path, create=True)
            filesystem.pwrite(self._fd, self._header.encode(), 0)
        size = 0
        for number, (header, payload, batch) in enumerate(self._source, 1):
            if not header.extended:
                raise CorruptionError(str(self.segment.path), 0, "frames without extension aren't written any more")
            self._take(header, payload, batch)
            size += header.frame_length
            if size >= _STEP_BYTES or number >= _STEP_FRAMES:
                return size
        if not size:
            self._write_all(self._builder.flush())
        return size

    def commit(self) -> Segment:
        """Put the new file into the place of the segment, and return it: everybody must use that one from now on.

        OSError: nothing has changed.
        """
        filesystem = self._files.filesystem
        old = self.segment
        filesystem.fsync(self._fd)
        self._close()
        # If the new header is damaged one day, an index with the old salt is the last that may be beside it.
        with contextlib.suppress(FileNotFoundError):
            filesystem.unlink(old.path.with_suffix(INDEX_SUFFIX))
            filesystem.sync_dir(old.path.parent)
        old.make_way(self._path)
        return Segment.rewritten(old, self._files, self._header, self._index)

    def finish(self, segment: Segment) -> None:
        """Make it durable that `segment`, which `commit` returned, is in its place, and give it an index."""
        segment.write_index()  # which syncs the directory, and so the segment's own name
        segment.drop_index()

    def abandon(self) -> None:
        """Leave everything as it was."""
        self._close()
        with contextlib.suppress(OSError):
            self._files.filesystem.unlink(self._path)

    def _close(self) -> None:
        if self._fd >= 0:
            self._files.filesystem.close(self._fd)
            self._fd = -1

    def _take(self, header: FrameHeader, payload: bytes, batch: RecordBatch) -> None:
        self.records += batch.count
        pieces = pieces_of(batch, self._keep)
        kept = sum(piece.record_count for piece in pieces)
        self.kept += kept
        is_large = batch.count >= _WHOLE_RECORDS or header.uncompressed_length >= _WHOLE_BYTES
        if is_large and kept == batch.count:
            self._write_all(self._builder.flush())
            topics: set[bytes] = set().union(*(piece.topics for piece in pieces))
            self._write(frame_head(header, payload, self._header.salt), payload, topics)
            return
        done = self._builder.add(header.base_offset, header.end_offset, header.epoch, header.max_ms, pieces)
        self._write_all(done)

    def _write_all(self, frames: Sequence[Frame]) -> None:
        for frame in frames:
            head, payload = encode_frame(
                frame.data,
                count=frame.record_count,
                base_offset=frame.base_offset,
                min_ms=frame.min_ms,
                max_ms=frame.max_ms,
                epoch=frame.epoch,
                salt=self._header.salt,
                codec=CODECS[self._settings.compression],
                level=self._settings.compression_level,
                end_offset=frame.end_offset,
            )
            self._write(head, payload, frame.topics)

    def _write(self, head: bytes, payload: bytes, topics: Collection[bytes]) -> None:
        self._files.filesystem.pwritev(self._fd, (head, payload), self.length)
        self._index.add(parse_frame_header(head, self._header.salt), self.length, topics)
        self.length += len(head) + len(payload)


class RewriteTask(ABC):
    """Work on the segments of one log, in steps; the kinds of it say in `_run` which, and what of them is kept."""

    def __init__(self, log: Log, files: Descriptors, cache: BatchCache) -> None:
        self.log = log
        self._files = files
        self._cache = cache
        self._rewriter: SegmentRewriter | None = None
        self._replaced: tuple[Segment, Segment] | None = None  # and what has taken its place
        self._work = self._run()

    def step(self) -> int:
        """Do a little, in the pool; return the bytes that count for the rate, 0 at the end."""
        return next(self._work, 0)

    def note(self) -> None:
        """Take over what a step has changed, in the loop thread, after each."""
        replaced, self._replaced = self._replaced, None
        if replaced is None:
            return
        old, new = replaced
        segments = self.log.writer.segments
        if old in segments:  # otherwise retention has taken it meanwhile, and is going to delete the file
            segments[segments.index(old)] = new
        self._cache.discard_below(self.log.log_id, new.next_offset)

    def abandon(self) -> None:
        """Leave the segment that is under way as it was; what is done is done. No step is running."""
        if self._rewriter is not None:
            self._rewriter.abandon()
            self._rewriter = None

    @abstractmethod
    def _run(self) -> Iterator[int]:
        """Do the work; yield as `step` returns."""

    def _rewrite(
        self,
        segment: Segment,
        is_worth_it: Callable[[SegmentRewriter], bool],
        keep: Callable[[Record], bool] | None = None,
    ) -> Iterator[int]:
        """Write one segment anew, unless it isn't worth it in the end. CorruptionError: it stays as it is."""
        self._rewriter = rewriter = SegmentRewriter(segment, self._files, self.log.settings, keep)
        try:
            while size := rewriter.step():
                yield size
        except CorruptionError:
            self.abandon()
            raise
        if not is_worth_it(rewriter):
            self.abandon()
            segment.tidy = True
            return
        before = segment.length
        new = rewriter.commit()
        self._rewriter = None
        new.tidy = True
        self._replaced = segment, new
        _logger.info(
            "log %s: %s: %d of %d records, %d of %d B are left",
            *(self.log.name, new.path.name, rewriter.kept, rewriter.records, rewriter.length, before),
        )
        yield 1  # the log has the new one when this goes on
        rewriter.finish(new)
