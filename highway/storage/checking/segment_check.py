"""Reading one segment and its index as a whole, and what is wrong with them; nothing is judged here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from highway.errors import CorruptionError
from highway.storage.segment.format import SEGMENT_HEADER_BYTES, FrameHeader, SegmentHeader
from highway.storage.segment.index import IndexFile, SparseIndex
from highway.storage.segment.scan import DamagedRange, FrameWalk, Window
from highway.storage.segment.segment import INDEX_SUFFIX, Segment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from highway.storage.disk.descriptors import Descriptors

__all__ = ["SegmentCheck", "check_segment"]


@dataclass(slots=True)
class SegmentCheck:
    """What stands in one segment."""

    path: Path
    base_offset: int
    size: int
    frames: int = 0
    records: int = 0
    end_offset: int = 0  # after the last record that can be read
    fault: str = ""  # why no frame of it can be read
    header_fault: str = ""  # what is wrong with a header that something else made good
    damaged: list[DamagedRange] = field(default_factory=list)  # each with a valid frame behind it
    tail: DamagedRange | None = None  # what stands behind the last valid frame
    holes: list[tuple[int, int]] = field(default_factory=list)  # offsets between undamaged frames that neither has
    has_index: bool = False
    index_fault: CorruptionError | None = None
    index_difference: str = ""  # what an undamaged index says wrongly: of an older state, if the segment is open again


def check_segment(path: Path, files: Descriptors, on_bytes: Callable[[int], None]) -> SegmentCheck:
    """Read every byte of a segment and its index; FileNotFoundError if it is gone. `on_bytes` is told of progress."""
    stored = _read_index(path, files)  # first: while there is an index the segment doesn't grow
    segment = Segment.open_sealed(path, files)
    size = segment.file_size()
    check = SegmentCheck(path, segment.base_offset, size, end_offset=segment.base_offset)
    check.has_index = stored is not None
    try:
        SegmentHeader.decode(segment.read_raw(0, SEGMENT_HEADER_BYTES), str(path))
    except CorruptionError as error:
        check.header_fault = error.reason
    try:
        header = segment.header
    except CorruptionError as error:
        check.fault, check.header_fault = error.reason, ""
        on_bytes(size)
        return check
    index = SparseIndex(SEGMENT_HEADER_BYTES, segment.base_offset)
    positions = _walk(segment, header, check, index, on_bytes)
    if isinstance(stored, CorruptionError):
        check.index_fault = stored
    elif stored is not None and check.tail is None and not check.damaged:
        check.index_difference = _difference(stored, header, index, positions)
        if check.index_difference and not isinstance(_read_index(path, files), IndexFile):
            # The segment was written anew in between, and gets another index.
            check.has_index, check.index_difference = False, ""
    segment.close()
    return check


def _read_index(path: Path, files: Descriptors) -> IndexFile | CorruptionError | None:
    """Return the index file, what is wrong with it, or None if there is none."""
    index = path.with_suffix(INDEX_SUFFIX)
    filesystem = files.filesystem
    try:
        fd = filesystem.open(index)
    except FileNotFoundError:
        return None
    try:
        return IndexFile.decode(filesystem.pread(fd, filesystem.size(fd), 0), str(index))
    except CorruptionError as error:
        return error
    except OSError as error:
        return CorruptionError(str(index), 0, f"the disk can't read it: {error}")
    finally:
        filesystem.close(fd)


def _walk(
    segment: Segment,
    header: SegmentHeader,
    check: SegmentCheck,
    index: SparseIndex,
    on_bytes: Callable[[int], None],
) -> dict[int, FrameHeader]:
    """Read all frames into `check` and `index`; return them by position."""
    frames: dict[int, FrameHeader] = {}
    holes: list[tuple[int, int]] = []
    done = 0

    def on_frame(frame: FrameHeader, position: int) -> None:
        nonlocal done
        if frame.base_offset > check.end_offset:
            holes.append((check.end_offset, frame.base_offset))
        check.end_offset = frame.end_offset
        frames[position] = frame
        index.add(frame, position)
        on_bytes(position + frame.frame_length - done)
        done = position + frame.frame_length

    walk = FrameWalk(
        Window(lambda length, position: segment.read_raw(position, length), check.size),
        header.salt,
        position=SEGMENT_HEADER_BYTES,
        next_offset=header.base_offset,
        epoch=header.epoch,
        path=str(segment.path),
    )
    result = walk.scan(resync=True, on_frame=on_frame)
    on_bytes(max(check.size - done, 0))
    check.frames, check.records = result.frames, result.records
    check.damaged, check.tail = result.damaged, result.tail
    damaged_to = {damage.to_offset for damage in result.damaged}
    check.holes = [hole for hole in holes if hole[1] not in damaged_to]
    return frames


def _difference(stored: IndexFile, header: SegmentHeader, index: SparseIndex, frames: dict[int, FrameHeader]) -> str:
    """Return in what an index differs from the frames, or ""."""
    if SegmentHeader.decode(stored.segment_header, "index") != header:
        return "the index is of another segment"
    if stored.index.totals() != index.totals():
        return f"the index says {stored.index.totals()}, the frames {index.totals()}"
    for offset, position, _ in stored.index.entries():
        if position not in frames or frames[position].base_offset != offset:
            return f"the index has a frame of offset {offset} at byte {position}, the segment hasn't"
    return ""
