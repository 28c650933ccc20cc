"""After a failed sync: the mark POISON, and the open that believes no cached page.

When a sync fails, the kernel counts the pages as clean all the same: reads show what the medium may not have, and the
next sync returns 0. So the mark is set here, in the seam, before anybody sees the error of any sync in the data
directory; who sees it then decides whether something else can be written instead, or nothing any more. The mark itself
needs no sync: what makes the page cache forget the mark makes it forget the pages too.

An open that finds the mark

1. has the kernel drop what it holds of every file;
2. reads checkpoints, snapshots, journal and active segments with O_DIRECT, and recovers what the medium has;
3. copies the journal's tail to new files and syncs them: the old ones are never synced or used again;
4. writes its first checkpoint, which refers to the copy, and removes the mark.
"""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from crc32c import crc32c

from highway.errors import CorruptionError
from highway.storage.journal.files import JournalFile, JournalFiles, journal_path
from highway.storage.journal.format import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FrameHeader,
    encode_frame_header,
    make_position,
    parse_file_header,
    parse_frame_header,
    split_position,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from highway.clock import Clock
    from highway.storage.disk.filesystem import FileSystem
    from highway.storage.disk.layout import Layout

    from .recovery import Recovered

__all__ = ["WatchedFileSystem", "copy_journal", "drop_caches"]

_logger = logging.getLogger(__name__)


class WatchedFileSystem:
    """A `FileSystem` that leaves the mark when a sync fails, and reads the medium while `direct` is set."""

    __slots__ = ("_below", "_mark", "_paths", "direct")

    def __init__(self, below: FileSystem, mark: Path) -> None:
        self._below = below
        self._mark = mark
        self._paths: dict[int, Path] = {}  # of the descriptors opened while `direct`
        self.direct = False

    def mark(self, reason: object) -> None:
        """Set the mark, if it isn't set. Nothing here may hide the error that is on its way."""
        try:
            if self._below.exists(self._mark):
                return
            fd = self._below.open(self._mark, create=True)
            try:
                self._below.pwrite(fd, json.dumps({"reason": str(reason)}).encode() + b"\n", 0)
            finally:
                self._below.close(fd)
        except OSError as error:
            _logger.error("%s can't be written: %s", self._mark, error)

    def unmark(self) -> None:
        """Remove the mark, durably."""
        self._below.unlink(self._mark)
        self._below.sync_dir(self._mark.parent)

    @contextmanager
    def _watch(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.mark(f"a sync failed: {error}")
            raise

    def fdatasync(self, fd: int) -> None:
        with self._watch():
            self._below.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        with self._watch():
            self._below.fsync(fd)

    def sync_dir(self, path: Path) -> None:
        with self._watch():
            self._below.sync_dir(path)

    def syncfs(self, fd: int) -> None:
        with self._watch():
            self._below.syncfs(fd)

    def open_directory(self, path: Path) -> int:
        return self._below.open_directory(path)

    @property
    def syncfs_tells(self) -> bool:
        return self._below.syncfs_tells

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        fd = self._below.open(path, write=write, create=create)
        if self.direct:
            self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        self._paths.pop(fd, None)
        self._below.close(fd)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        if self.direct:
            path = self._paths.get(fd)
            if path is not None:
                return self._below.read_direct(path, length, position)
        return self._below.pread(fd, length, position)

    # Everything else is as below.

    def pwrite(self, fd: int, data: bytes, position: int) -> None:
        self._below.pwrite(fd, data, position)

    def pwritev(self, fd: int, parts: Sequence[bytes], position: int) -> None:
        self._below.pwritev(fd, parts, position)

    def size(self, fd: int) -> int:
        return self._below.size(fd)

    def truncate(self, fd: int, length: int) -> None:
        self._below.truncate(fd, length)

    def allocate(self, fd: int, length: int) -> None:
        self._below.allocate(fd, length)

    def preallocate(self, fd: int, length: int) -> None:
        self._below.preallocate(fd, length)

    def read_direct(self, path: Path, length: int, position: int) -> bytes:
        return self._below.read_direct(path, length, position)

    def drop_cache(self, path: Path) -> None:
        self._below.drop_cache(path)

    def rename(self, source: Path, target: Path) -> None:
        self._below.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._below.link(source, target)

    def unlink(self, path: Path) -> None:
        self._below.unlink(path)

    def mkdir(self, path: Path) -> None:
        self._below.mkdir(path)

    def listdir(self, path: Path) -> list[str]:
        return self._below.listdir(path)

    def exists(self, path: Path) -> bool:
        return self._below.exists(path)

    def lock(self, path: Path) -> int:
        return self._below.lock(path)

    def free_bytes(self, path: Path) -> int:
        return self._below.free_bytes(path)

    def total_bytes(self, path: Path) -> int:
        return self._below.total_bytes(path)

    def kind(self, path: Path) -> str:
        return self._below.kind(path)


def drop_caches(filesystem: FileSystem, layout: Layout) -> None:
    """Have the kernel forget every file that recovery reads, and every segment."""
    for directory in (layout.journal, layout.meta, *_log_directories(filesystem, layout)):
        if filesystem.exists(directory):
            for name in filesystem.listdir(directory):
                filesystem.drop_cache(directory / name)
    for path in (layout.format, *layout.checkpoints):
        if filesystem.exists(path):
            filesystem.drop_cache(path)


def _log_directories(filesystem: FileSystem, layout: Layout) -> list[Path]:
    if not filesystem.exists(layout.logs):
        return []
    return [layout.logs / name for name in filesystem.listdir(layout.logs)]


def copy_journal(filesystem: FileSystem, layout: Layout, recovered: Recovered, file_bytes: int, clock: Clock) -> None:
    """Copy the frames that recovery found to new files, and have `recovered` refer to these; sync them.

    The old files stay as long as a checkpoint needs them. Files that were ready and unused are deleted.
    """
    for path in recovered.unused_files:
        filesystem.unlink(path)
    recovered.unused_files = []
    recovered.distrusted_below = recovered.start.file_sequence
    if not recovered.frames:
        return
    writer = _TailWriter(filesystem, layout, recovered.start.file_sequence, file_bytes, clock)
    try:
        frames = []
        for (last_entry, _, sequence), (header, body) in zip(
            recovered.frames, _read_frames(filesystem, layout, recovered), strict=True
        ):
            frames.append((last_entry, writer.write(header, body), sequence))
        writer.finish()
    finally:
        writer.close()
    recovered.frames = frames
    recovered.start = recovered.start._replace(file_sequence=writer.sequence + 1)
    _logger.warning("%d journal frames are copied to new files", len(frames))


def _read_frames(filesystem: FileSystem, layout: Layout, recovered: Recovered) -> Iterator[tuple[FrameHeader, bytes]]:
    """Yield (header, body) of each of the recovered frames."""
    fd = -1
    sequence = salt = -1
    try:
        for _, position, _ in recovered.frames:
            number, offset = split_position(position)
            path = journal_path(layout.journal, number)
            if number != sequence:
                if fd >= 0:
                    filesystem.close(fd)
                fd = filesystem.open(path)
                salt = parse_file_header(filesystem.pread(fd, FILE_HEADER_BYTES, 0), str(path)).salt
                sequence = number
            header = parse_frame_header(filesystem.pread(fd, FRAME_HEADER_BYTES, offset), 0, salt)
            body = b"" if header is None else filesystem.pread(fd, header.length, offset + FRAME_HEADER_BYTES)
            if header is None or crc32c(body, header.header_crc) != header.body_crc:
                raise CorruptionError(str(path), offset, "a journal frame changed between two readings of it")
            yield header, body
    finally:
        if fd >= 0:
            filesystem.close(fd)


class _TailWriter:
    """Writes frames of other files to new ones, each with the salt of its new file."""

    def __init__(self, filesystem: FileSystem, layout: Layout, sequence: int, file_bytes: int, clock: Clock) -> None:
        self._filesystem = filesystem
        self._files = JournalFiles(filesystem, layout.journal, file_bytes, clock)
        self._file: JournalFile = self._files.take(sequence, lean=True)
        self._offset = FILE_HEADER_BYTES

    @property
    def sequence(self) -> int:
        """The sequence number of the last file."""
        return self._file.sequence

    def write(self, header: FrameHeader, body: bytes) -> int:
        """Write a frame and return its position."""
        length = FRAME_HEADER_BYTES + len(body)
        if self._offset + length > self._files.file_bytes and self._offset > FILE_HEADER_BYTES:
            self._filesystem.fdatasync(self._file.fd)
            following = self._files.take(self._file.sequence + 1, lean=True)
            self._filesystem.close(self._file.fd)
            self._file = following
            self._offset = FILE_HEADER_BYTES
        head = encode_frame_header(body, header.sequence, header.first_entry, header.durable_frame, self._file.salt)
        self._filesystem.pwritev(self._file.fd, (head, body), self._offset)
        position = make_position(self._file.sequence, self._offset)
        self._offset += length
        return position

    def finish(self) -> None:
        """Make everything written durable."""
        self._filesystem.fdatasync(self._file.fd)

    def close(self) -> None:
        """Give the file back."""
        self._filesystem.close(self._file.fd)
