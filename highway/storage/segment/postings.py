"""Which parts of a segment hold which topic, so that a reader of one topic out of many thousands skips the others.

A topic is known by the CRC32C of its name, and a part is a granule: one entry of the sparse index, or several where
they would be too many. What is said may be too much, never too little: topics whose numbers are equal share their
lists, and nothing is forgotten when numbers or granules are made coarser to stay within bounds.

`TopicPostings` grows with an active segment. `StoredPostings` reads them back from the index file of a sealed one, a
few KiB for a look-up, each part with a checksum of its own:

     +----------+------+-------+---------+-----+-----------------+-----+---------------------+-----+-- - -
     | entries  | bits | shift | buckets | crc | ends of buckets | crc | lists of one bucket | crc | more buckets
     |   u32    |  u8  |  u8   |   u16   | u32 |    u32 each     | u32 |                     | u32 |
     +----------+------+-------+---------+-----+-----------------+-----+---------------------+-----+-- - -
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from itertools import accumulate
from operator import sub
from typing import TYPE_CHECKING, Protocol

from crc32c import crc32c

from highway.errors import CorruptionError

from .byte_order import from_big_endian, to_big_endian

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

__all__ = ["ANYWHERE", "MAX_PAIRS", "MAX_TOPICS", "Postings", "StoredPostings", "TopicPostings", "entries_with"]

# More topics than this in one segment share their lists, so that a client which names a new topic in every message
# costs memory for so many lists and no more. 20,000 sensors of one log still have their own.
MAX_TOPICS = 32_768
_COARSE_BITS = 15
# Pairs of topic and granule: 4 B each in memory, so 16 MiB for a segment at most. Beyond, granules become larger.
MAX_PAIRS = 4 * 1024 * 1024

_TOPICS_PER_BUCKET = 32  # a bucket of lists with a hundred granules each has about 4 KiB
_MAX_EXPONENT = 20  # of buckets, far above what MAX_TOPICS makes: a forged number must not ask for the whole file
_WHOLE_SHIFT = 32  # puts every entry into granule 0
_WIDTHS = {1: "B", 2: "H", 4: "I"}

_HEAD = struct.Struct(
    ">"
    "I"  # entries of the index that are covered
    "B"  # bits of a topic's number
    "B"  # shift: entry >> shift is the granule
    "H"  # buckets, a power of two, as its exponent
)
_CRC = struct.Struct(">I")
_LIST = struct.Struct(
    ">"
    "I"  # number of the topic
    "B"  # bytes of each item: 1, 2 or 4
    "I"  # items: the first granule, then the distance of each from the one before
)
_HEAD_BYTES = _HEAD.size + _CRC.size


class Postings(Protocol):
    """What both kinds answer."""

    def look_up(self, topic: bytes) -> tuple[int, Sequence[int]]:
        """Return (shift, the granules that may hold the topic, ascending); entry >> shift is an entry's granule."""


class _Anywhere:
    """The postings of a segment with damage: a reader of any topic must come across it."""

    __slots__ = ()

    def look_up(self, topic: bytes) -> tuple[int, Sequence[int]]:  # noqa: ARG002  they are all the same
        return _WHOLE_SHIFT, (0,)


ANYWHERE = _Anywhere()


class TopicPostings:
    """The postings of a segment that grows. One thread adds; others may look things up at the same time."""

    __slots__ = ("_pairs", "_state")

    def __init__(self) -> None:
        self._pairs = 0
        # (bits of a topic's number, shift, lists by number): replaced as a whole when it gets coarser.
        self._state: tuple[int, int, dict[int, array[int]]] = (32, 0, {})

    @classmethod
    def of(cls, stored: StoredPostings) -> TopicPostings:
        """Return the same postings in a form that grows."""
        postings = cls()
        lists = dict(stored.lists())
        postings._pairs = sum(map(len, lists.values()))
        postings._state = (stored.bits, stored.shift, lists)
        return postings

    def add(self, entry: int, topics: Iterable[bytes]) -> None:
        """Note that frames of `entry`, which is the last one or new, hold these topics."""
        bits, shift, lists = self._state
        mask = (1 << bits) - 1
        granule = entry >> shift
        added = 0
        for topic in topics:
            number = crc32c(topic) & mask
            found = lists.get(number)
            if found is None:
                lists[number] = array("I", (granule,))
                added += 1
            elif found[-1] != granule:
                found.append(granule)
                added += 1
        self._pairs += added
        if len(lists) > MAX_TOPICS or self._pairs > MAX_PAIRS:
            self._coarsen()

    def _coarsen(self) -> None:
        bits, shift, lists = self._state
        if len(lists) > MAX_TOPICS:
            bits = _COARSE_BITS
        else:
            shift += 1
        step = shift - self._state[1]
        mask = (1 << bits) - 1
        merged: dict[int, set[int]] = {}
        for number, found in lists.items():
            merged.setdefault(number & mask, set()).update([granule >> step for granule in found])
        coarse = {number: array("I", sorted(found)) for number, found in merged.items()}
        self._pairs = sum(map(len, coarse.values()))
        self._state = (bits, shift, coarse)

    def look_up(self, topic: bytes) -> tuple[int, Sequence[int]]:
        bits, shift, lists = self._state
        return shift, lists.get(crc32c(topic) & ((1 << bits) - 1), ())

    def encode(self, entries: int) -> bytes:
        """Return the section's body, for an index of so many entries."""
        bits, shift, lists = self._state
        exponent = max(0, (len(lists) // _TOPICS_PER_BUCKET).bit_length())
        buckets: list[list[bytes]] = [[] for _ in range(1 << exponent)]
        for number in sorted(lists):
            buckets[number & ((1 << exponent) - 1)].append(_encode_list(number, lists[number]))
        head = _HEAD.pack(entries, bits, shift, exponent)
        bodies = [_sealed(b"".join(bucket)) for bucket in buckets]
        table = array("I", accumulate(map(len, bodies)))
        return b"".join((_sealed(head), _sealed(to_big_endian(table)), *bodies))


class StoredPostings:
    """The postings of a sealed segment, in its index file. Threads may share it."""

    __slots__ = ("_at", "_cache", "_ends", "_path", "_read", "bits", "entries", "shift")

    def __init__(self, read: Callable[[int, int], bytes], position: int, path: str) -> None:
        """`read(length, position)` reads the file. CorruptionError: the front of the section is damaged."""
        self._read = read
        self._path = path
        self._cache: dict[int, Sequence[int]] = {}
        head = self._sealed(_HEAD.size, position)
        self.entries, self.bits, self.shift, exponent = _HEAD.unpack(head)
        if exponent > _MAX_EXPONENT or not 0 < self.bits <= 32 or self.shift >= _WHOLE_SHIFT:
            raise CorruptionError(path, position, f"topic postings of {self.bits} bits, 2^{exponent} buckets")
        self._ends = from_big_endian("I", self._sealed(4 << exponent, position + _HEAD_BYTES))
        self._at = position + _HEAD_BYTES + (4 << exponent) + _CRC.size

    def look_up(self, topic: bytes) -> tuple[int, Sequence[int]]:
        """Return what `TopicPostings.look_up` did; CorruptionError if that part of the file is damaged."""
        number = crc32c(topic) & ((1 << self.bits) - 1)
        found = self._cache.get(number)
        if found is None:
            if len(self._cache) >= _TOPICS_PER_BUCKET:
                self._cache.clear()
            bucket = number & (len(self._ends) - 1)
            found = next((granules for listed, granules in self._bucket(bucket) if listed == number), ())
            self._cache[number] = found
        return self.shift, found

    def lists(self) -> Iterator[tuple[int, array[int]]]:
        """Yield every (number of a topic, granules)."""
        for bucket in range(len(self._ends)):
            yield from self._bucket(bucket)

    def _bucket(self, bucket: int) -> Iterator[tuple[int, array[int]]]:
        start = self._ends[bucket - 1] if bucket else 0
        position = self._at + start
        data = self._sealed(self._ends[bucket] - start - _CRC.size, position)
        at = 0
        while at < len(data):
            if at + _LIST.size > len(data):
                raise CorruptionError(self._path, position + at, "topic postings don't fit their bucket")
            number, width, count = _LIST.unpack_from(data, at)
            at += _LIST.size
            if width not in _WIDTHS or at + width * count > len(data):
                raise CorruptionError(self._path, position + at, "topic postings don't fit their bucket")
            yield number, array("I", accumulate(from_big_endian(_WIDTHS[width], data[at : at + width * count])))
            at += width * count

    def _sealed(self, length: int, position: int) -> bytes:
        """Return `length` bytes whose checksum stands behind them."""
        if length < 0:
            raise CorruptionError(self._path, position, "topic postings out of order")
        data = self._read(length + _CRC.size, position)
        body = data[:length]
        if len(data) != length + _CRC.size or _CRC.unpack_from(data, length)[0] != crc32c(body):
            raise CorruptionError(self._path, position, "topic postings with a wrong checksum")
        return body


def entries_with(postings: Postings, topics: Iterable[bytes], first: int, end: int) -> Sequence[int]:
    """Return, ascending, the entries of [first, end) that may hold one of `topics`."""
    wanted: set[int] = set()
    for topic in topics:
        shift, found = postings.look_up(topic)
        if shift >= _WHOLE_SHIFT:
            return range(first, end)
        granules = found[bisect_left(found, first >> shift) :]
        if shift:
            wanted.update(entry for granule in granules for entry in range(granule << shift, (granule + 1) << shift))
        else:
            wanted.update(granules)
    return sorted(entry for entry in wanted if first <= entry < end)


def _encode_list(number: int, granules: array[int]) -> bytes:
    distances = [granules[0], *map(sub, granules[1:], granules)]
    largest = max(distances)
    width = 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 4
    return _LIST.pack(number, width, len(distances)) + to_big_endian(array(_WIDTHS[width], distances))


def _sealed(body: bytes) -> bytes:
    return body + _CRC.pack(crc32c(body))
