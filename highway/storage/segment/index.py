"""The sparse index of one segment: where the frame of an offset, or of a time, is.

In memory it is three parallel arrays (base offset, position, max timestamp) and totals. A sealed segment keeps it in
`<base20>.idx`; nothing is lost with that file, because walking the frame headers gives the same again. Commit time
never decreases within a log, so one bisect finds an offset and one finds a time.

The topic postings stand in the same file, behind a checksum of what is in front of them, so that whoever wants only
the index doesn't read them. Without the file they come from reading all frames.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from crc32c import crc32c

from highway.errors import CorruptionError

from .byte_order import from_big_endian, to_big_endian
from .format import SEGMENT_HEADER_BYTES, FrameHeader
from .postings import ANYWHERE, Postings, StoredPostings, TopicPostings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

__all__ = ["INDEX_INTERVAL_BYTES", "INDEX_INTERVAL_RECORDS", "INDEX_MAGIC", "INDEX_VERSION", "IndexFile", "SparseIndex"]

# Frames share an entry until together they pass one of these, so that a log of tiny frames has no index as large as
# itself. What has to be read for an entry is one frame or at most 4 KiB.
INDEX_INTERVAL_BYTES = 4096
INDEX_INTERVAL_RECORDS = 1024

INDEX_MAGIC = b"\x89HWYIDX\n"
INDEX_VERSION = 1

_SECTION_TOTALS = 1
_SECTION_ENTRIES = 2
_SECTION_POSTINGS = 3
_SECTION_FRONT = 4  # checksum of everything in front of it
_SECTION_VERSION = 1

_FRONT_BYTES = 64 * 1024  # read at once; the front of a segment with 2,600 entries fits

_FILE = struct.Struct(
    ">"
    "8s"  # magic
    "H"  # version
    "H"  # number of sections
)
_SECTION = struct.Struct(
    ">"
    "H"  # kind
    "H"  # version of that kind
    "I"  # length of what follows
)
_TOTALS = struct.Struct(
    ">"
    "Q"  # length of the segment that the index covers
    "Q"  # offset after the last record
    "Q"  # frames
    "Q"  # records
    "Q"  # bytes of the records before the codec
    "q"  # min timestamp, ms
    "q"  # max timestamp, ms
)
_CRC = struct.Struct(">I")
_SECTIONS_AT = _FILE.size + SEGMENT_HEADER_BYTES


class SparseIndex:
    """Entries in the order of the file, and totals. One thread adds; others may look things up at the same time."""

    __slots__ = (
        "_entry_records",
        "_max_ms",
        "_offsets",
        "_positions",
        "end_offset",
        "end_position",
        "frames",
        "last_ms",
        "min_ms",
        "raw_bytes",
        "records",
        "topics",
    )

    def __init__(self, end_position: int = SEGMENT_HEADER_BYTES, end_offset: int = 0) -> None:
        self._offsets = array("q")
        self._positions = array("q")
        self._max_ms = array("q")
        self._entry_records = 0  # records in the frames of the last entry
        self.end_position = end_position  # after the last frame
        self.end_offset = end_offset  # after the last record
        self.frames = 0
        self.records = 0
        self.raw_bytes = 0  # of all records before the codec
        self.min_ms = 0  # 0 while there are no frames
        self.last_ms = 0  # the largest commit time so far
        self.topics: Postings | None = None  # None: not known, any frame may hold any topic

    def add(self, header: FrameHeader, position: int, topics: Collection[bytes] | None = None) -> None:
        """Count the frame at `position`, which is behind all added before, and note its topics if they are known."""
        end_position = position + header.frame_length
        last_ms = max(self.last_ms, header.max_ms) if self.frames else header.max_ms
        shares_entry = (
            bool(self._positions)
            and end_position - self._positions[-1] <= INDEX_INTERVAL_BYTES
            and self._entry_records + header.record_count <= INDEX_INTERVAL_RECORDS
        )
        if topics is not None and isinstance(self.topics, TopicPostings):
            # Before a reader can see the frame, or it would take it for one without its topic.
            self.topics.add(len(self._offsets) - shares_entry, topics)
        elif self.topics is not ANYWHERE:
            self.topics = None
        if shares_entry:
            self._max_ms[-1] = last_ms
            self._entry_records += header.record_count
        else:
            # A reader without a lock bisects `_offsets` or `_max_ms`: what it looks up then is there already.
            self._positions.append(position)
            self._max_ms.append(last_ms)
            self._offsets.append(header.base_offset)
            self._entry_records = header.record_count
        if not self.frames:
            self.min_ms = header.min_ms
        self.end_position = end_position
        self.end_offset = header.end_offset
        self.last_ms = last_ms
        self.frames += 1
        self.records += header.record_count
        self.raw_bytes += header.uncompressed_length

    def __len__(self) -> int:
        return len(self._offsets)

    def locate(self, offset: int) -> int:
        """Return the entry whose frames hold `offset` if any does: the last that starts at or below it, or -1."""
        return bisect_right(self._offsets, offset) - 1

    def locate_time(self, timestamp_ms: int) -> int:
        """Return the first entry with a record committed at or after `timestamp_ms`; `len(self)` if none has one."""
        return bisect_left(self._max_ms, timestamp_ms, 0, len(self._offsets))

    def locate_position(self, position: int) -> int:
        """Return the entry whose bytes include `position`, or -1 before the first."""
        return bisect_right(self._positions, position, 0, len(self._offsets)) - 1

    def region(self, entry: int) -> tuple[int, int]:
        """Return [start, end) of an entry's frames in the file; damage between frames may be included."""
        end = self.end_position
        if entry + 1 < len(self._offsets):
            end = self._positions[entry + 1]
        return self._positions[entry], end

    def offset_of(self, entry: int) -> int:
        """Return the offset of an entry's first record."""
        return self._offsets[entry]

    def arrays(self) -> tuple[array[int], array[int], array[int]]:
        """Return offsets, positions and max timestamps as they are, not copies."""
        return self._offsets, self._positions, self._max_ms

    @classmethod
    def restore(cls, totals: tuple[int, ...], arrays: tuple[array[int], array[int], array[int]]) -> SparseIndex:
        """Return the index of which `totals` and `arrays` came."""
        index = cls(totals[0], totals[1])
        _, _, index.frames, index.records, index.raw_bytes, index.min_ms, index.last_ms = totals
        index._offsets, index._positions, index._max_ms = arrays
        # How many records the last entry has isn't stored: a frame added later starts an entry of its own.
        index._entry_records = INDEX_INTERVAL_RECORDS
        return index

    def entries(self) -> list[tuple[int, int, int]]:
        """Return (offset, position, max timestamp) of every entry."""
        return list(zip(self._offsets, self._positions, self._max_ms, strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SparseIndex):
            return NotImplemented
        return self._state() == other._state()

    __hash__ = None  # type: ignore[assignment]

    def _state(self) -> tuple[object, ...]:
        return (*self.totals(), self.entries())

    def totals(self) -> tuple[int, int, int, int, int, int, int]:
        """Return what the index file keeps beside the entries, in its order."""
        return (
            self.end_position,
            self.end_offset,
            self.frames,
            self.records,
            self.raw_bytes,
            self.min_ms,
            self.last_ms,
        )


@dataclass(frozen=True, slots=True)
class IndexFile:
    """The content of an .idx file: a copy of the segment's header, and the index.

    The copy tells whether the two files belong together, and keeps the salt, without which no frame could be checked
    any more, if the segment's own first sector goes bad.
    """

    segment_header: bytes
    index: SparseIndex

    def encode(self) -> bytes:
        """Return the file's bytes, checksums included."""
        index = self.index
        arrays = b"".join(map(to_big_endian, index.arrays()))
        sections = [(_SECTION_TOTALS, _TOTALS.pack(*index.totals())), (_SECTION_ENTRIES, arrays)]
        postings = isinstance(index.topics, TopicPostings)
        parts = [_FILE.pack(INDEX_MAGIC, INDEX_VERSION, len(sections) + 2 * postings), self.segment_header]
        for kind, body in sections:
            parts += (_SECTION.pack(kind, _SECTION_VERSION, len(body)), body)
        if isinstance(index.topics, TopicPostings):
            front = _CRC.pack(crc32c(b"".join(parts)))
            body = index.topics.encode(len(index))
            parts += (_SECTION.pack(_SECTION_FRONT, _SECTION_VERSION, len(front)), front)
            parts += (_SECTION.pack(_SECTION_POSTINGS, _SECTION_VERSION, len(body)), body)
        data = b"".join(parts)
        return data + _CRC.pack(crc32c(data))

    @classmethod
    def load(cls, read: Callable[[int, int], bytes], size: int, path: str) -> IndexFile:
        """Return what `encode` wrote, without reading more than it must; postings are read when they are asked for.

        `read(length, position)` reads the file, now and later. CorruptionError as for `decode`.
        """
        front = _Front(read, size, path)
        found = front.sections()
        if found is None:
            return cls.decode(read(size, 0), path)
        sections, position = found
        index = _index(sections.get((_SECTION_TOTALS, 1)), sections.get((_SECTION_ENTRIES, 1)), path)
        index.topics = _postings(read, position, path, len(index))
        return cls(front.data[_FILE.size : _SECTIONS_AT], index)

    @classmethod
    def decode(cls, data: bytes, path: str) -> IndexFile:
        """Return what `encode` wrote, without postings; CorruptionError for anything that isn't to be believed."""
        if len(data) < _SECTIONS_AT + _CRC.size:
            raise CorruptionError(path, 0, f"index of {len(data)} B, too short")
        magic, version, count = _FILE.unpack_from(data)
        if magic != INDEX_MAGIC or version != INDEX_VERSION:
            raise CorruptionError(path, 0, f"index magic {magic.hex()}, version {version}; expected {INDEX_VERSION}")
        body_end = len(data) - _CRC.size
        (stored,) = _CRC.unpack_from(data, body_end)
        computed = crc32c(data[:body_end])
        if stored != computed:
            raise CorruptionError(path, body_end, f"index checksum {stored:08x}, expected {computed:08x}")
        sections = _sections(data, count, body_end, path)
        index = _index(sections.get((_SECTION_TOTALS, 1)), sections.get((_SECTION_ENTRIES, 1)), path)
        return cls(data[_FILE.size : _SECTIONS_AT], index)


class _Front:
    """What stands in front of the postings, read piece by piece."""

    def __init__(self, read: Callable[[int, int], bytes], size: int, path: str) -> None:
        self._read = read
        self._size = size
        self._path = path
        self.data = read(min(size, _FRONT_BYTES), 0)

    def sections(self) -> tuple[dict[tuple[int, int], bytes], int] | None:
        """Return the sections and the position behind their checksum, or None if the file has none for them alone."""
        self._need(_SECTIONS_AT)
        magic, version, count = _FILE.unpack_from(self.data)
        if magic != INDEX_MAGIC or version != INDEX_VERSION:
            raise CorruptionError(
                self._path, 0, f"index magic {magic.hex()}, version {version}; expected {INDEX_VERSION}"
            )
        found: dict[tuple[int, int], bytes] = {}
        position = _SECTIONS_AT
        for _ in range(count):
            self._need(position + _SECTION.size)
            kind, version, length = _SECTION.unpack_from(self.data, position)
            body = position + _SECTION.size
            self._need(body + length)
            if kind == _SECTION_FRONT:
                if length != _CRC.size or _CRC.unpack_from(self.data, body)[0] != crc32c(self.data[:position]):
                    raise CorruptionError(self._path, position, "the checksum of the index's front is wrong")
                return found, body + length
            found[kind, version] = self.data[body : body + length]
            position = body + length
        return None

    def _need(self, length: int) -> None:
        if length > self._size:
            raise CorruptionError(self._path, len(self.data), f"index section up to {length}, file of {self._size} B")
        if length > len(self.data):
            self.data += self._read(length - len(self.data), len(self.data))
        if length > len(self.data):
            raise CorruptionError(self._path, len(self.data), "the index file got shorter")


def _postings(read: Callable[[int, int], bytes], position: int, path: str, entries: int) -> StoredPostings | None:
    """Return the postings whose section starts at `position`; None if they can't be used: then they are rebuilt."""
    head = read(_SECTION.size, position)
    if len(head) < _SECTION.size or _SECTION.unpack(head)[:2] != (_SECTION_POSTINGS, 1):
        return None
    try:
        postings = StoredPostings(read, position + _SECTION.size, path)
    except CorruptionError:
        return None
    return postings if postings.entries == entries else None


def _sections(data: bytes, count: int, end: int, path: str) -> dict[tuple[int, int], bytes]:
    """Return body by (kind, version): one of a kind or version that isn't known is nobody's, and does no harm."""
    sections = {}
    position = _SECTIONS_AT
    for _ in range(count):
        if position + _SECTION.size > end:
            raise CorruptionError(path, position, "index section doesn't fit the file")
        kind, version, length = _SECTION.unpack_from(data, position)
        position += _SECTION.size
        if position + length > end:
            raise CorruptionError(path, position, f"index section of {length} B, {end - position} B left")
        sections[kind, version] = data[position : position + length]
        position += length
    if position != end:
        raise CorruptionError(path, position, f"{end - position} B behind the last index section")
    return sections


def _index(totals: bytes | None, entries: bytes | None, path: str) -> SparseIndex:
    if totals is None or entries is None or len(totals) != _TOTALS.size or len(entries) % 24:
        raise CorruptionError(path, _SECTIONS_AT, "index without usable totals and entries")
    third = len(entries) // 3
    offsets, positions, max_ms = (from_big_endian("q", entries[i * third : (i + 1) * third]) for i in range(3))
    index = SparseIndex.restore(_TOTALS.unpack(totals), (offsets, positions, max_ms))
    if not (_ascending(offsets) and _ascending(positions)) or any(
        not SEGMENT_HEADER_BYTES <= position < index.end_position for position in positions
    ):
        raise CorruptionError(path, _SECTIONS_AT, "index entries out of order")
    return index


def _ascending(values: array[int]) -> bool:
    return all(a < b for a, b in pairwise(values))
