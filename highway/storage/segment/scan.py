"""Walking the frames of a file from a position on, and finding the way again behind damage.

A frame is accepted if its header checksum and its payload checksum are right (both start from the file's salt) and if
it continues the log: its offset is not below the one expected and its epoch not below the one before. Holes between
frames are normal: an unclean open continues at the reserved ceiling.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from highway.errors import CorruptionError
from highway.storage.disk.filesystem import read_or_report

from .format import (
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    MAX_FRAME_HEADER_BYTES,
    FrameHeader,
    parse_frame_header,
    unpack_payload,
)
from .records import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from highway.storage.disk.filesystem import FileSystem

__all__ = ["DamagedRange", "FrameWalk", "ScanResult", "Window", "read_salvaged", "region_frames"]

_WINDOW_BYTES = 256 * 1024
_HUNT_BYTES = 1024 * 1024
_BLOCK_BYTES = 4096  # what a disk can't read it mostly can't read in units of this


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Bytes [position, end_position) that hold no valid frame, and the offsets that may have been in them."""

    position: int
    end_position: int
    from_offset: int
    to_offset: int | None  # exclusive; None: nothing valid follows and the length of the damaged frame isn't known
    reason: str


@dataclass(slots=True)
class ScanResult:
    """What a scan found between its start position and the end of the file."""

    valid_length: int  # end of the unbroken run of valid frames from the start position on
    end_position: int  # end of the last valid frame; larger than valid_length only behind damage
    next_offset: int  # the offset after that last valid frame
    epoch: int  # of that last valid frame
    frames: int = 0
    records: int = 0
    last_ms: int = 0  # max timestamp of all frames, 0 if there are none
    damaged: list[DamagedRange] = field(default_factory=list)  # each with a valid frame behind it
    tail: DamagedRange | None = None  # what stands between end_position and the end of the file

    @property
    def intact(self) -> bool:
        """Whether every byte belonged to a valid frame."""
        return not self.damaged and self.tail is None


class Window:
    """Buffered reading of a file of known length, so that walking small headers isn't one system call each."""

    __slots__ = ("_data", "_read", "_start", "length", "unreadable")

    def __init__(self, read: Callable[[int, int], bytes], length: int) -> None:
        """`read(length, position)` is pread, with CorruptionError for what the disk can't read."""
        self._read = read
        self.length = length
        self.unreadable: list[tuple[int, int]] = []  # what `salvage` put zeros for
        self._start = 0
        self._data = b""

    def peek(self, position: int, length: int) -> bytes:
        """Return `length` bytes from `position`; fewer where the file ends."""
        length = min(length, self.length - position)
        at = position - self._start
        if at < 0 or at + length > len(self._data):
            if length > _WINDOW_BYTES:
                return self._read(length, position)
            try:
                self._data = self._read(min(_WINDOW_BYTES, self.length - position), position)
            except CorruptionError:  # the disk can't read some of it: perhaps only bytes that nobody asked for
                return self._read(length, position)
            self._start = position
            at = 0
        return self._data[at : at + length]

    def salvage(self, position: int, length: int) -> bytes:
        """Return what `peek` does, with zeros for the blocks that the disk can't read: no frame is in zeros."""
        try:
            return self.peek(position, length)
        except CorruptionError:
            end = min(position + length, self.length)
            starts = [position, *range(position - position % _BLOCK_BYTES + _BLOCK_BYTES, end, _BLOCK_BYTES)]
            return b"".join(self._block(at, stop - at) for at, stop in zip(starts, [*starts[1:], end], strict=True))

    def _block(self, position: int, length: int) -> bytes:
        try:
            return self._read(length, position)
        except CorruptionError:
            self.unreadable.append((position, position + length))
            return bytes(length)


def read_salvaged(
    filesystem: FileSystem,
    fd: int,
    path: Path,
    length: int,
    position: int,
    unreadable: list[tuple[int, int]] | None = None,
) -> bytes:
    """Return bytes of a file, zeros for what the disk can't read; fewer where the file ends.

    The ranges that it can't read are added to `unreadable`.
    """
    window = Window(lambda length, position: read_or_report(filesystem, fd, path, length, position), position + length)
    data = window.salvage(position, length)
    if unreadable is not None:
        unreadable += window.unreadable
    return data


class FrameWalk:
    """One way through the frames of one file; `position`, `next_offset` and `epoch` say how far it is."""

    __slots__ = ("_path", "_salt", "_verify", "_window", "epoch", "next_offset", "position")

    def __init__(
        self,
        window: Window,
        salt: int,
        *,
        position: int,
        next_offset: int,
        epoch: int = 0,
        path: str = "frames",
        verify: bool = True,
    ) -> None:
        """Without `verify` payloads are read only where nothing else tells a frame: headers without checksum."""
        self._window = window
        self._salt = salt
        self._path = path
        self._verify = verify
        self.position = position
        self.next_offset = next_offset
        self.epoch = epoch

    def step(self) -> FrameHeader | None:
        """Return the frame at `position` and move behind it; None at the end; CorruptionError, without moving."""
        if self.position >= self._window.length:
            return None
        header = self._frame_at(self.position, verify=self._verify)
        self._take(self.position, header)
        return header

    def skip_damage(self, reason: str) -> tuple[DamagedRange, FrameHeader | None]:
        """Return the damaged range at `position` and the valid frame behind it, and move behind that; call after a
        CorruptionError. None as the frame: nothing valid follows, nothing moved.

        Only frames with a checksum of their header are found: believing the length of one without would let a
        payload send the scan through the whole file for each two bytes.
        """
        start = self.position
        lost = self._trusted_header(start)
        if lost is not None:
            # The header tells what is lost, and where to go on.
            from_offset, to_offset, hunt_from = lost.base_offset, lost.end_offset, start + lost.frame_length
        else:
            from_offset, to_offset, hunt_from = self.next_offset, None, start + 1
        expected = to_offset or from_offset
        for candidate in self._magics(hunt_from):
            try:
                header = self._frame_at(candidate, verify=True, extended_only=True, next_offset=expected)
            except CorruptionError:
                continue
            if to_offset is None or candidate != hunt_from:
                to_offset = header.base_offset
            self._take(candidate, header)
            return DamagedRange(start, candidate, from_offset, to_offset, reason), header
        return DamagedRange(start, self._window.length, from_offset, to_offset, reason), None

    def scan(self, *, resync: bool = False, on_frame: Callable[[FrameHeader, int], None] | None = None) -> ScanResult:
        """Walk to the end, or to the first damage unless `resync`; call `on_frame(header, position)` for each frame."""
        result = ScanResult(self.position, self.position, self.next_offset, self.epoch)
        while True:
            try:
                header = self.step()
            except CorruptionError as error:
                damage, header = self._damage(error, resync=resync)
                if header is None:
                    result.tail = damage
                    return result
                result.damaged.append(damage)
            if header is None:
                return result
            result.end_position = self.position
            if not result.damaged:
                result.valid_length = self.position
            result.next_offset = self.next_offset
            result.epoch = self.epoch
            result.frames += 1
            result.records += header.record_count
            result.last_ms = max(result.last_ms, header.max_ms)
            if on_frame is not None:
                on_frame(header, self.position - header.frame_length)

    def _damage(self, error: CorruptionError, *, resync: bool) -> tuple[DamagedRange, FrameHeader | None]:
        if resync:
            return self.skip_damage(error.reason)
        lost = self._trusted_header(self.position)
        to_offset = None if lost is None else lost.end_offset
        return DamagedRange(self.position, self._window.length, self.next_offset, to_offset, error.reason), None

    def _take(self, position: int, header: FrameHeader) -> None:
        self.position = position + header.frame_length
        self.next_offset = header.end_offset
        if header.extended:
            self.epoch = header.epoch

    def _frame_at(
        self, position: int, *, verify: bool, extended_only: bool = False, next_offset: int | None = None
    ) -> FrameHeader:
        """Return the frame at `position` if it's valid and continues the log; CorruptionError otherwise."""
        window = self._window
        path = self._path
        head = window.peek(position, MAX_FRAME_HEADER_BYTES)
        header = parse_frame_header(head, self._salt, path=path, position=position)
        if extended_only and not header.extended:
            raise CorruptionError(path, position, "frame without extension behind damage")
        expected = self.next_offset if next_offset is None else next_offset
        if header.base_offset < expected:
            raise CorruptionError(path, position, f"frame of offset {header.base_offset}, expected {expected} or later")
        if header.extended and header.epoch < self.epoch:
            raise CorruptionError(path, position, f"frame of epoch {header.epoch}, expected {self.epoch} or later")
        left = window.length - position
        if header.frame_length > left:
            raise CorruptionError(path, position, f"frame of {header.frame_length} B, {left} B left")
        if verify or not header.extended:
            payload = window.peek(position + header.length, header.compressed_length)
            data = unpack_payload(header, head[: header.length], payload, self._salt, path=path, position=position)
            if not header.extended:
                header = _with_times(header, data, path)
        return header

    def _trusted_header(self, position: int) -> FrameHeader | None:
        """Return the header at `position` if its own checksum proves it, whatever its payload looks like."""
        try:
            head = self._window.peek(position, MAX_FRAME_HEADER_BYTES)
            header = parse_frame_header(head, self._salt, path=self._path, position=position)
        except CorruptionError:
            return None
        return header if header.extended and header.base_offset >= self.next_offset else None

    def _magics(self, position: int) -> Iterator[int]:
        """Yield every position from `position` on where a frame with a checksum of its header could start."""
        last = self._window.length - FRAME_HEADER_BYTES
        while position <= last:
            data = self._window.salvage(position, _HUNT_BYTES)
            at = data.find(FRAME_MAGIC)
            while at >= 0:
                yield position + at
                at = data.find(FRAME_MAGIC, at + 1)
            position += max(1, len(data) - 1)  # a magic may lie across two reads


def region_frames(
    region: bytes, start: int, salt: int, *, next_offset: int, offset: int, path: str
) -> Iterator[tuple[int, FrameHeader, bytes]]:
    """Yield (position, header, all bytes) of the frames in `region`, which stands at `start` in the file.

    Only headers are checked. CorruptionError at a damaged one, unless a good one behind it shows that `offset`, which
    the caller is looking for, comes later.
    """
    at = 0
    while at < len(region):
        try:
            head = region[at : at + MAX_FRAME_HEADER_BYTES]
            header = parse_frame_header(head, salt, path=path, position=start + at)
        except CorruptionError as error:
            window = Window(lambda length, position: region[position : position + length], len(region))
            damage, found = FrameWalk(window, salt, position=at, next_offset=next_offset, path=path).skip_damage(
                error.reason
            )
            if found is None or found.base_offset > offset:
                raise
            at, header = damage.end_position, found
        yield start + at, header, region[at : at + header.frame_length]
        at += header.frame_length
        next_offset = header.end_offset


def _with_times(header: FrameHeader, data: bytes, path: str) -> FrameHeader:
    """Return the header of a frame without extension with the timestamps that only its records tell."""
    times = [record[2] for record in decode_records(data, header.record_count, header.base_offset, 0, path)]
    return header._replace(min_ms=min(times), max_ms=max(times))
