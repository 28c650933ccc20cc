"""A look at the segments of a data directory without opening it: read-only, and also beside a running broker.

Nothing is locked, recovered or mended. What the broker has not yet written to segments (the newest messages, which are
in its memory and in the journal) is not seen. The end of the newest segment may be a frame that is being written just
now; it is reported as a tail and not as damage.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote

from highway.errors import CorruptionError
from highway.storage.segment.format import SEGMENT_HEADER_BYTES, FrameHeader, SegmentHeader
from highway.storage.segment.header_rescue import rescue_header
from highway.storage.segment.index import IndexFile
from highway.storage.segment.scan import FrameWalk, ScanResult, Window
from highway.storage.segment.segment import INDEX_SUFFIX, SEGMENT_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from highway.storage.segment.scan import DamagedRange

__all__ = ["LogInspection", "SegmentInspection", "inspect_log", "list_log_directories"]


@dataclass(slots=True)
class SegmentInspection:
    """What one segment file holds. `frames` are (position in the file, header)."""

    path: Path
    file_bytes: int
    sealed: bool  # has an index beside it
    frames: list[tuple[int, FrameHeader]] = field(default_factory=list)
    damaged: list[DamagedRange] = field(default_factory=list)
    tail: DamagedRange | None = None  # bytes after the last whole frame
    fault: str = ""  # why nothing of it could be read

    @property
    def records(self) -> int:
        return sum(header.record_count for _, header in self.frames)

    @property
    def raw_bytes(self) -> int:
        """Bytes of all records before compression."""
        return sum(header.uncompressed_length for _, header in self.frames)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all frames on disk, with their headers."""
        return sum(header.frame_length for _, header in self.frames)


@dataclass(slots=True)
class LogInspection:
    """What the segments of one log hold, oldest first."""

    name: str
    directory: Path
    segments: list[SegmentInspection] = field(default_factory=list)

    @property
    def damaged(self) -> bool:
        """Whether anything but the end of the newest segment is wrong."""
        return any(
            segment.fault or segment.damaged or (segment.tail is not None and segment is not self.segments[-1])
            for segment in self.segments
        )


def list_log_directories(data_directory: Path) -> dict[str, Path]:
    """Log name -> folder, of every log that has one; empty where there is no data."""
    logs = data_directory / "logs"
    folders = sorted(path for path in logs.iterdir() if path.is_dir()) if logs.is_dir() else []
    return {unquote(path.name.rpartition("-")[0]): path for path in folders}


def inspect_log(name: str, directory: Path, *, verify: bool = False) -> LogInspection:
    """What is in the segments in `directory`. With `verify` every payload is read and checked, not only headers."""
    log = LogInspection(name, directory)
    for path in sorted(directory.glob(f"*{SEGMENT_SUFFIX}")):
        try:
            log.segments.append(_inspect_segment(path, verify=verify))
        except FileNotFoundError:
            continue  # retention was faster
    return log


def _inspect_segment(path: Path, *, verify: bool) -> SegmentInspection:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        length = os.fstat(fd).st_size
        segment = SegmentInspection(path, length, path.with_suffix(INDEX_SUFFIX).exists())
        try:
            header = _segment_header(path, lambda count, position: os.pread(fd, count, position))
        except CorruptionError as error:
            segment.fault = error.reason
            return segment
        window = Window(lambda count, position: os.pread(fd, count, position), length)
        result = _walk(segment, window, header, verify=verify)
    finally:
        os.close(fd)
    segment.damaged = result.damaged
    segment.tail = result.tail
    return segment


def _segment_header(path: Path, read: Callable[[int, int], bytes]) -> SegmentHeader:
    """The header; if it is damaged, its copy in the index, or what the first frame proves."""
    try:
        return SegmentHeader.decode(read(SEGMENT_HEADER_BYTES, 0), str(path))
    except CorruptionError:
        with contextlib.suppress(OSError, CorruptionError):
            index = path.with_suffix(INDEX_SUFFIX)
            return SegmentHeader.decode(IndexFile.decode(index.read_bytes(), str(index)).segment_header, str(path))
        with contextlib.suppress(OSError, CorruptionError, ValueError):
            return rescue_header(read, int(path.name[: -len(SEGMENT_SUFFIX)]), str(path))
        raise


def _walk(segment: SegmentInspection, window: Window, header: SegmentHeader, *, verify: bool) -> ScanResult:
    walk = FrameWalk(
        window,
        header.salt,
        position=SEGMENT_HEADER_BYTES,
        next_offset=header.base_offset,
        epoch=header.epoch,
        path=str(segment.path),
        verify=verify,
    )
    return walk.scan(resync=True, on_frame=lambda frame, position: segment.frames.append((position, frame)))
