"""Frames out of the records of other frames: larger ones, and without the records that nobody needs any more.

What goes in comes in pieces: records of consecutive offsets, encoded. What comes out covers every offset that went in,
with or without a record, and nothing else: a hole that was there before stays a hole.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, NamedTuple

from .byte_order import to_big_endian
from .records import MAX_DELTA_MS, RecordBatch, topics_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .records import Record

__all__ = ["SPLIT_RECORDS", "Frame", "FrameBuilder", "Piece", "pieces_of", "worth_splitting"]

# As large as those that a busy log writes at once: it reads as fast, and compresses as well as larger ones.
_MAX_RECORDS = 8192
_MAX_BYTES = 1024 * 1024

# What is written at once becomes several frames of about so many records where it is of more topics than this, so that
# a reader of one topic has something to skip. Frames of this size compress as well as larger ones (measured on
# telemetry: 19.4 B a record, with 8192 records a frame 20.3 B). With fewer topics most frames would hold each of them.
SPLIT_RECORDS = 512
_SPLIT_TOPICS = 256

_MAX_DISTANCE = 0xFFFF_FFFF
_LENGTH = struct.Struct(">I")
_DELTA_AT = 6


class Piece(NamedTuple):
    """Encoded records of consecutive offsets, whose deltas count from `base_ms`."""

    base_offset: int
    record_count: int  # `count` is a method of every tuple
    base_ms: int
    last_ms: int
    data: bytes
    topics: set[bytes]

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""
        return self.base_offset + self.record_count


class Frame(NamedTuple):
    """What `encode_frame` needs, and the topics of the records."""

    data: bytes
    record_count: int
    base_offset: int
    end_offset: int | None  # None: its records have all offsets from the base on
    min_ms: int
    max_ms: int
    epoch: int
    topics: set[bytes]


class FrameBuilder:
    """Takes what other frames held, in order, and gives the frames that it makes of it."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._records = self._bytes = 0
        self._epoch = 0
        self._start = self._end = -1  # of the range that the pieces cover; -1: nothing
        self._last_ms = 0

    def add(self, base_offset: int, end_offset: int, epoch: int, last_ms: int, pieces: Sequence[Piece]) -> list[Frame]:
        """Take what is left of a frame that covered [base_offset, end_offset); return frames that are complete now."""
        done = [] if self._takes(base_offset, epoch, pieces) else self.flush()
        if self._start < 0:
            self._start = base_offset
        if pieces or not self._pieces:
            self._epoch = epoch
        self._end = end_offset
        self._last_ms = last_ms
        for piece in pieces:
            self._pieces.append(piece)
            self._records += piece.record_count
            self._bytes += len(piece.data)
        return done

    def _takes(self, base_offset: int, epoch: int, pieces: Sequence[Piece]) -> bool:
        """Return whether one frame can hold what is there and `pieces`."""
        if self._start < 0:
            return True
        if base_offset != self._end:
            return False
        if not self._pieces or not pieces:
            # An empty frame says nothing but that a range is empty; as soon as it has a record it is like any other.
            return not pieces or pieces[0].base_offset - self._start <= _MAX_DISTANCE
        first = self._pieces[0]
        return (
            epoch == self._epoch
            and min(piece.base_ms for piece in pieces) >= first.base_ms  # unless the clock was set back
            and max(piece.last_ms for piece in pieces) - first.base_ms <= MAX_DELTA_MS
            and pieces[-1].end_offset - self._start <= _MAX_DISTANCE
            and self._records + sum(piece.record_count for piece in pieces) <= _MAX_RECORDS
            and self._bytes + sum(len(piece.data) for piece in pieces) <= _MAX_BYTES
        )

    def flush(self) -> list[Frame]:
        """Return what is still to be written."""
        if self._start < 0:
            return []
        start, end, pieces = self._start, self._end, self._pieces
        self._pieces = []
        self._records = self._bytes = 0
        self._start = self._end = -1
        if not pieces:
            return [Frame(b"", 0, start, end, self._last_ms, self._last_ms, self._epoch, set())]
        parts = list(_parts(pieces))
        starts = [start, *(part[0].base_offset for part in parts[1:])]
        ends = [*starts[1:], end]
        return [_frame(*row, self._epoch) for row in zip(parts, starts, ends, strict=True)]


def pieces_of(batch: RecordBatch, keep: Callable[[Record], bool] | None = None) -> list[Piece]:
    """Return the records of a batch, or those that `keep` says yes to, in as few pieces as they can be."""
    if keep is None and type(batch) is RecordBatch:
        topics = topics_of(batch.data, batch.count)
        return [Piece(batch.base_offset, batch.count, batch.base_ms, batch.last_ms, batch.data, topics)]
    pieces: list[Piece] = []
    run: list[Record] = []
    start = position = 0
    for record in batch.records():
        following = position + 4 + _LENGTH.unpack_from(batch.data, position)[0]
        wanted = keep is None or keep(record)
        if run and (not wanted or record[0] != run[-1][0] + 1):
            pieces.append(_piece(batch, run, start, position))
            run = []
        if wanted:
            if not run:
                start = position
            run.append(record)
        position = following
    if run:
        pieces.append(_piece(batch, run, start, position))
    return pieces


def _piece(batch: RecordBatch, run: list[Record], start: int, end: int) -> Piece:
    topics = {record[3] for record in run}
    return Piece(run[0][0], len(run), batch.base_ms, run[-1][2], batch.data[start:end], topics)


def worth_splitting(topics: Sequence[set[bytes]]) -> bool:
    """Return whether parts that hold these topics should be frames of their own: whether a reader could skip many."""
    everything: set[bytes] = set().union(*topics)
    return len(everything) > _SPLIT_TOPICS and sum(map(len, topics)) * 2 <= len(topics) * len(everything)


def _parts(pieces: Sequence[Piece]) -> Iterator[Sequence[Piece]]:
    """Yield the pieces of each frame."""
    parts: list[Sequence[Piece]] = []
    start = count = 0
    for number, piece in enumerate(pieces, 1):
        count += piece.record_count
        if count >= SPLIT_RECORDS or number == len(pieces):
            parts.append(pieces[start:number])
            start, count = number, 0
    if worth_splitting([set().union(*(piece.topics for piece in part)) for part in parts]):
        yield from parts
    else:
        yield pieces


def _frame(pieces: Sequence[Piece], start: int, end: int, epoch: int) -> Frame:
    base_ms = pieces[0].base_ms
    records = b"".join([_shifted(piece.data, piece.base_ms - base_ms) for piece in pieces])
    count = sum(piece.record_count for piece in pieces)
    last_ms = max(piece.last_ms for piece in pieces)
    topics: set[bytes] = set().union(*(piece.topics for piece in pieces))
    if count == end - start:
        return Frame(records, count, start, None, base_ms, last_ms, epoch, topics)
    return Frame(_distances(pieces, start) + records, count, start, end, base_ms, last_ms, epoch, topics)


def _distances(pieces: Sequence[Piece], start: int) -> bytes:
    distances = array("I")
    before = start
    for piece in pieces:
        distances.append(piece.base_offset - before)
        distances.extend([1] * (piece.record_count - 1))
        before = piece.end_offset - 1
    return to_big_endian(distances)


def _shifted(data: bytes, shift_ms: int) -> bytes:
    """Return records whose deltas count from a time `shift_ms` earlier; those of version 2 have no delta."""
    if not shift_ms:
        return data
    changed = bytearray(data)
    position = 0
    while position < len(data):
        if data[position + 4] != 2:
            at = position + _DELTA_AT
            _LENGTH.pack_into(changed, at, _LENGTH.unpack_from(data, at)[0] + shift_ms)
        position += 4 + _LENGTH.unpack_from(data, position)[0]
    return bytes(changed)
