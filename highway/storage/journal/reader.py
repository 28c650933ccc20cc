"""Reading the journal back: every frame from a checkpoint on, and the verdict about the bytes that are none.

A frame that fails its checks is one of four things:

- *The end.* Nothing valid follows it, or the frame that was to come next is the first of the next file.
- *A torn tail.* Valid frames follow, but nobody has ever known the bad bytes to be synced: a power cut wrote pages out
  of order. The journal is cut there, the valid frames behind it too: what they hold was never acknowledged as durable,
  and showing them would show a hole.
- *Unreadable.* The disk can't read what stands where the next frame would. That is reported like corruption.
- *Corruption.* A later frame, or the checkpoint, says that the journal was synced beyond the bad bytes. Then they were
  good once, and what they held may have been acknowledged. That is reported, and reading goes on behind it.

The first pass looks at every byte, hunting for the magic behind damage; a salt in each file's header keeps payloads and
former lives of a recycled file from being taken for frames.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from highway.errors import CorruptionError
from highway.storage.segment.scan import read_salvaged

from .files import journal_path, list_journal
from .format import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FrameHeader,
    RecordsEntry,
    decode_entries,
    make_position,
    parse_file_header,
    parse_frame_header,
    split_position,
)
from .loss import LostFrames

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from highway.storage.disk.filesystem import FileSystem
    from highway.storage.segment.records import RecordBatch

__all__ = ["FoundFrame", "JournalScan", "TornTail", "read_batches", "read_frames", "scan_journal"]


class FoundFrame(NamedTuple):
    """A valid frame."""

    path: Path
    position: int
    header: FrameHeader

    @property
    def end(self) -> int:
        """The position after the frame."""
        return self.position + FRAME_HEADER_BYTES + self.header.length


class TornTail(NamedTuple):
    """Bytes to cut: from `offset` on nothing of this file counts, nor do the files in `later`."""

    path: Path
    offset: int
    length: int
    later: list[Path]


@dataclass(slots=True)
class JournalScan:
    """What the journal holds from the asked position on."""

    frames: list[FoundFrame] = field(default_factory=list)
    damaged: list[CorruptionError] = field(default_factory=list)
    lost: list[LostFrames] = field(default_factory=list)  # what was durable and isn't valid any more
    torn: TornTail | None = None
    end_position: int = 0
    next_frame: int = 1  # sequence number
    next_entry: int = 1
    files: list[tuple[int, Path]] = field(default_factory=list)  # all files there are


def scan_journal(
    filesystem: FileSystem,
    directory: Path,
    start_position: int,
    next_frame: int,
    next_entry: int,
    durable_frame: int,
) -> JournalScan:
    """Return what stands in the journal from `start_position` on, where frame `next_frame` is expected (-1: any).

    Frames below `durable_frame` were synced, as a checkpoint says. Nothing is changed.
    """
    scan = JournalScan(end_position=start_position, next_frame=next_frame, next_entry=next_entry)
    scan.files = list_journal(filesystem, directory)
    start_sequence, start_offset = split_position(start_position)
    found: list[FoundFrame] = []
    torn_ends: dict[Path, int] = {}
    unreadable: dict[Path, list[tuple[int, int]]] = {}
    for sequence, path in scan.files:
        if sequence >= start_sequence:
            first = start_offset if sequence == start_sequence else FILE_HEADER_BYTES
            found += _scan_file(
                filesystem, path, sequence, first, scan.damaged, torn_ends, unreadable.setdefault(path, [])
            )
    durable_frame = max([durable_frame, *(frame.header.durable_frame for frame in found)])
    _judge(scan, found, durable_frame, directory)
    if scan.torn is None:
        _find_torn_frame(scan, torn_ends)
    for sequence, path in scan.files:
        if sequence >= split_position(scan.end_position)[0] and unreadable.get(path):
            _lose_unreadable(scan, sequence, path, unreadable[path])
    return scan


def read_frames(filesystem: FileSystem, scan: JournalScan) -> Iterator[tuple[FoundFrame, bytes]]:
    """Yield (frame, body) of the scan's frames; one that isn't valid any more joins `scan.damaged`."""
    fd = -1
    path: Path | None = None
    try:
        for frame in scan.frames:
            if frame.path != path:
                if fd >= 0:
                    filesystem.close(fd)
                    fd = -1
                path = frame.path
                fd = filesystem.open(path)
            offset = split_position(frame.position)[1] + FRAME_HEADER_BYTES
            body = read_salvaged(filesystem, fd, path, frame.header.length, offset)
            if crc32c(body, frame.header.header_crc) == frame.header.body_crc:
                yield frame, body
            else:
                reason = "a journal frame changed between two readings of it"
                scan.damaged.append(CorruptionError(str(path), offset, reason))
    finally:
        if fd >= 0:
            filesystem.close(fd)


def read_batches(
    filesystem: FileSystem, directory: Path, start_position: int, end_position: int, log_id: int
) -> list[RecordBatch]:
    """Return what was appended to a log between two positions, at the first of which a frame begins; for a broker that
    runs and knows that all of it is written. CorruptionError for a frame that can't be read.
    """
    batches: list[RecordBatch] = []
    for path, _, body in _frames_between(filesystem, directory, start_position, end_position):
        entries = decode_entries(body, str(path))
        batches += [entry.batch for entry in entries if isinstance(entry, RecordsEntry) and entry.log_id == log_id]
    return batches


def _frames_between(
    filesystem: FileSystem, directory: Path, start_position: int, end_position: int
) -> Iterator[tuple[Path, FrameHeader, bytes]]:
    """Yield (file, header, body) of the frames from one position up to another, all of which are known to be good."""
    start_sequence, offset = split_position(start_position)
    end_sequence, end_offset = split_position(end_position)
    for sequence, path in list_journal(filesystem, directory):
        if start_sequence <= sequence <= end_sequence:
            end = end_offset if sequence == end_sequence else -1
            yield from _file_frames(filesystem, path, offset if sequence == start_sequence else FILE_HEADER_BYTES, end)


def _file_frames(
    filesystem: FileSystem, path: Path, offset: int, end: int
) -> Iterator[tuple[Path, FrameHeader, bytes]]:
    """Yield the frames of one file up to `end`; with -1 up to where no frame follows any more."""
    fd = filesystem.open(path)
    try:
        header = parse_file_header(filesystem.pread(fd, FILE_HEADER_BYTES, 0), str(path))
        while offset != end:
            head = filesystem.pread(fd, FRAME_HEADER_BYTES, offset)
            frame = parse_frame_header(head, 0, header.salt)
            if frame is None and end < 0:
                return
            body = b"" if frame is None else filesystem.pread(fd, frame.length, offset + FRAME_HEADER_BYTES)
            if frame is None or crc32c(body, frame.header_crc) != frame.body_crc:
                raise CorruptionError(str(path), offset, "a journal frame that was written can't be read any more")
            yield path, frame, body
            offset += FRAME_HEADER_BYTES + frame.length
    finally:
        filesystem.close(fd)


def _scan_file(
    filesystem: FileSystem,
    path: Path,
    sequence: int,
    offset: int,
    damaged: list[CorruptionError],
    torn_ends: dict[Path, int],
    unreadable: list[tuple[int, int]],
) -> Iterator[FoundFrame]:
    """Yield the valid frames of one file; note in `torn_ends` where a frame with a valid header but no body ends."""
    fd = filesystem.open(path)
    try:
        data = read_salvaged(filesystem, fd, path, filesystem.size(fd), 0, unreadable)
    finally:
        filesystem.close(fd)
    try:
        header = parse_file_header(data, str(path))
    except CorruptionError as error:
        damaged.append(error)  # a file has its header before it has its name, so this is damage and no torn write
        if FRAME_MAGIC in data:
            unreadable.append((0, len(data.rstrip(b"\0"))))  # without the salt in it nothing of the file can be checked
        return
    if header.sequence != sequence:
        return  # about to be recycled when the process ended: none of its frames is needed
    end = len(data)
    while 0 <= offset < end:
        frame = parse_frame_header(data, offset, header.salt)
        body = offset + FRAME_HEADER_BYTES
        if frame is not None and _body_is_right(data, body, frame):
            yield FoundFrame(path, make_position(sequence, offset), frame)
            offset = body + frame.length
            continue
        if frame is not None:
            torn_ends[path] = min(body + frame.length, end)
        offset = data.find(FRAME_MAGIC, offset + 1)


def _body_is_right(data: bytes, position: int, frame: FrameHeader) -> bool:
    body = memoryview(data)[position : position + frame.length]
    return len(body) == frame.length and crc32c(body, frame.header_crc) == frame.body_crc


def _judge(scan: JournalScan, found: list[FoundFrame], durable_frame: int, directory: Path) -> None:
    """Walk the frames in order and decide at each missing one: the end, a torn tail, or corruption."""
    if scan.next_frame < 0 and found:
        scan.next_frame = found[0].header.sequence  # nobody knows: a rebuild takes what is there
    for index, frame in enumerate(found):
        if frame.header.sequence < scan.next_frame:
            continue
        if frame.header.sequence > scan.next_frame:
            if durable_frame <= scan.next_frame:
                _cut(scan, found[index:])
                return
            _lose(scan, directory, frame.header.sequence, frame)
        scan.frames.append(frame)
        scan.end_position = frame.end
        scan.next_frame = frame.header.sequence + 1
        scan.next_entry = frame.header.first_entry + 1  # at least; whoever decodes the frame knows exactly
    if durable_frame > scan.next_frame:
        _lose(scan, directory, durable_frame, None)
        scan.next_frame = durable_frame


def _lose(scan: JournalScan, directory: Path, until: int, following: FoundFrame | None) -> None:
    """Note that durable frames are missing, and where they stood: between two valid ones, or behind the last."""
    sequence, offset = split_position(scan.end_position)
    length = -1
    if following is not None:
        next_sequence, next_offset = split_position(following.position)
        if next_sequence != sequence and next_offset > FILE_HEADER_BYTES:
            sequence, offset = next_sequence, FILE_HEADER_BYTES  # the journal had rolled
        if next_sequence == sequence:
            length = next_offset - offset
    path = journal_path(directory, sequence)
    next_entry = 0 if following is None else following.header.first_entry
    scan.lost.append(LostFrames(scan.next_frame, until, path, offset, length, next_entry))
    reason = f"journal frames {scan.next_frame} to {until - 1} are gone, although they had been synced"
    scan.damaged.append(CorruptionError(str(path), offset, reason))


def _cut(scan: JournalScan, dropped: list[FoundFrame]) -> None:
    """Note that the journal ends here, and that valid frames behind it have to go."""
    sequence, offset = split_position(scan.end_position)
    path = next((path for number, path in scan.files if number == sequence), dropped[0].path)
    in_file = [split_position(frame.end)[1] for frame in dropped if frame.path == path]
    later = list(dict.fromkeys(frame.path for frame in dropped if frame.path != path))
    scan.torn = TornTail(path, offset, max(in_file, default=offset) - offset, later)


def _find_torn_frame(scan: JournalScan, torn_ends: dict[Path, int]) -> None:
    """Note a last frame whose header made it to the disk and whose body didn't."""
    sequence, offset = split_position(scan.end_position)
    for number, path in scan.files:
        if number == sequence and torn_ends.get(path, 0) > offset:
            scan.torn = TornTail(path, offset, torn_ends[path] - offset, [])


def _lose_unreadable(scan: JournalScan, sequence: int, path: Path, unreadable: list[tuple[int, int]]) -> None:
    """Note that frames may be lost where the disk can't read how the journal goes on: that is no end, and not torn.

    Frames follow each other without a space, so an unreadable block further behind is one that held nothing.
    """
    end_sequence, start = split_position(scan.end_position)
    stop = start + FRAME_HEADER_BYTES
    if sequence > end_sequence:
        start, stop = 0, FILE_HEADER_BYTES + FRAME_HEADER_BYTES
    elif scan.torn is not None and scan.torn.path == path:
        stop = scan.torn.offset + scan.torn.length
    end = start
    for bad_start, bad_end in sorted(unreadable):
        if bad_start < max(stop, end + 1) and bad_end > start:
            end = bad_end
    if end == start:
        return
    scan.torn = None
    until = scan.next_frame + (end - start) // FRAME_HEADER_BYTES + 1
    scan.lost.append(LostFrames(scan.next_frame, until, path, start, -1, 0, end - start))
    scan.next_frame = until
    scan.damaged.append(CorruptionError(str(path), start, "the disk can't read how the journal goes on here"))
