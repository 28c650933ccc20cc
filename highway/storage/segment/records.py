"""Records as bytes and back: version 3 written and read, version 2 read.

      0        4   5   6        10       12       14
     +--------+---+---+--------+--------+--------+-------+------------+---------+
     | length | 3 |flg| delta  | topic  | prop.  | topic | properties | payload |
     |  u32   |u8 |u8 | ms u32 | length | length |       |            |         |
     +--------+---+---+--------+--------+--------+-------+------------+---------+

`length` counts the bytes after itself; the commit time is the frame's min timestamp plus `delta`. A record doesn't
carry its offset: the frame has that of its first record and the others follow. FORMAT.md has the whole story.

Encoding and decoding are on the road of every message, so both avoid one Python call a record: the heads are a dict
that the broker maps over payload lengths, and decoding reuses what consecutive records share.
"""

from __future__ import annotations

import gc
import struct
from array import array
from bisect import bisect_left
from itertools import accumulate, chain, islice, starmap
from typing import TYPE_CHECKING, Any, TypeAlias

from highway.errors import CorruptionError

from .byte_order import from_big_endian

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

__all__ = [
    "FLAG_PROPERTIES",
    "FLAG_QOS_MASK",
    "FLAG_RETAIN",
    "MAX_DELTA_MS",
    "MAX_PROPERTIES_BYTES",
    "MAX_TOPIC_BYTES",
    "RECORD_HEAD_BYTES",
    "JoinedBatch",
    "Record",
    "RecordBatch",
    "RecordHeads",
    "SparseBatch",
    "decode_records",
    "encode_record",
    "encode_records",
    "record_lengths",
    "topics_of",
]

FLAG_QOS_MASK = 0b0000_0011
FLAG_RETAIN = 0b0000_0100
FLAG_PROPERTIES = 0b0000_1000  # set exactly when the properties length isn't 0

MAX_TOPIC_BYTES = 0xFFFF  # MQTT's own limit for a UTF-8 string
MAX_PROPERTIES_BYTES = 0xFFFF
MAX_DELTA_MS = 0xFFFF_FFFF  # 49 days: a frame must not span more

_VERSION = 3
_HEAD = struct.Struct(
    ">"
    "I"  # length of the record after this field
    "B"  # version
    "B"  # flags
    "I"  # commit time, ms after the frame's min timestamp
    "H"  # topic length
    "H"  # properties length
)
_LENGTH = struct.Struct(">I")
_AFTER_LENGTH = struct.Struct(">BBIHH")
_V2_TIME = struct.Struct(">q")

RECORD_HEAD_BYTES = _HEAD.size
_LENGTH_BYTES = _LENGTH.size
_MIN_V2_BYTES = _LENGTH_BYTES + 1 + 1 + _V2_TIME.size  # length, version, an empty key's length, time

# Records decoded at once, after which the collector looks at what is young: it stops tracking the records then, half a
# millisecond for 8192 of them. Left to itself it does so when 10,000 more objects were made than were freed, which is
# never while old batches leave the cache as new ones come, until it has hundreds of thousands to look at, in 25 ms.
_COLLECT_RECORDS = 1024

# (offset, flags, commit time in ms, topic, properties, payload). A plain tuple: a NamedTuple costs twice as much.
Record: TypeAlias = tuple[int, int, int, bytes, bytes, bytes]


class RecordHeads(dict[int, bytes]):
    """Payload length -> the bytes that stand in front of such a payload, for one topic, flags, time and properties.

    A run of payloads is encoded without a Python-level loop:
    `b"".join(chain.from_iterable(zip(map(heads.__getitem__, map(len, payloads)), payloads)))`.
    """

    __slots__ = ("_fixed_length", "_tail")

    def __init__(self, topic: bytes, flags: int, delta_ms: int, properties: bytes = b"") -> None:
        """Lengths and times out of range raise ValueError: the caller checks them at the edge."""
        head = _head_behind_length(topic, flags, delta_ms, properties)
        self._tail = head + topic + properties
        self._fixed_length = len(self._tail)

    def __missing__(self, payload_length: int) -> bytes:
        head = self[payload_length] = (self._fixed_length + payload_length).to_bytes(4, "big") + self._tail
        return head

    def encode(self, payloads: list[bytes]) -> bytes:
        """Return the records of a run of payloads, joined."""
        return b"".join(chain.from_iterable(zip(map(self.__getitem__, map(len, payloads)), payloads, strict=True)))


def _head_behind_length(topic: bytes, flags: int, delta_ms: int, properties: bytes) -> bytes:
    if properties:
        flags |= FLAG_PROPERTIES
    try:
        return _AFTER_LENGTH.pack(_VERSION, flags, delta_ms, len(topic), len(properties))
    except struct.error as error:
        raise ValueError(
            f"a record's topic ({len(topic)} B), properties ({len(properties)} B), flags ({flags}) "
            f"or delta ({delta_ms} ms) is out of range"
        ) from error


def encode_record(topic: bytes, flags: int, delta_ms: int, properties: bytes, payload: bytes) -> bytes:
    """Return one record; ValueError as for RecordHeads, which is quicker from the second of a kind on."""
    tail = _head_behind_length(topic, flags, delta_ms, properties) + topic + properties + payload
    return len(tail).to_bytes(4, "big") + tail


def encode_records(records: list[tuple[bytes, int, int, bytes, bytes]]) -> bytes:
    """Return records of (topic, flags, delta_ms, properties, payload), joined: for rewriting frames and for tests."""
    return b"".join(starmap(encode_record, records))


def decode_records(data: bytes, count: int, base_offset: int, base_ms: int, where: str = "records") -> list[Record]:
    """Return the `count` records that `data` must hold exactly; CorruptionError, with `where`, for anything else."""
    records: list[Record] = []
    append = records.append
    unpack_head = _HEAD.unpack_from
    unpack_length = _LENGTH.unpack_from
    starts_with = data.startswith
    offset = base_offset
    position = 0
    end = len(data)
    # In a run, records share version, flags, time, topic and properties: then `shared` is what stands between length
    # and payload, and one comparison replaces parsing it. It is b"" outside of runs, where looking would only cost.
    shared = topic = properties = b""
    shared_length = flags = timestamp_ms = 0
    try:
        while position < end:
            body = position + 4
            if shared and starts_with(shared, body):
                next_position = body + unpack_length(data, position)[0]
                payload_at = body + shared_length
            else:
                length, version, flags, delta_ms, topic_length, properties_length = unpack_head(data, position)
                next_position = body + length
                if version != _VERSION:
                    record, position = _decode_v2(data, position, offset, where)
                    append(record)
                    offset += 1
                    shared = b""
                    continue
                topic_at = position + 14
                properties_at = topic_at + topic_length
                payload_at = properties_at + properties_length
                timestamp_ms = base_ms + delta_ms
                if starts_with(topic, topic_at) and len(topic) == topic_length:
                    shared = data[body:payload_at]
                    shared_length = payload_at - body
                else:
                    topic = data[topic_at:properties_at]
                    shared = b""
                properties = data[properties_at:payload_at]
            if not payload_at <= next_position <= end:
                raise CorruptionError(where, position, f"record {offset}: its lengths don't fit the {end} B of data")
            append((offset, flags, timestamp_ms, topic, properties, data[payload_at:next_position]))
            position = next_position
            offset += 1
    except struct.error:
        # The only short v2 record that unpack_head can't look at is one with less payload than a v3 head has bytes.
        if end - position >= _MIN_V2_BYTES and data[position + 4] == 2:
            record, position = _decode_v2(data, position, offset, where)
            if position == end:
                append(record)
                return _check_count(records, count, end, where)
        raise CorruptionError(where, position, f"record {offset}: {end - position} B left, too few for one") from None
    return _check_count(records, count, end, where)


def topics_of(data: bytes, count: int, where: str = "records") -> set[bytes]:
    """Return the topics of the `count` records that `data` must hold; CorruptionError where it doesn't."""
    topics: set[bytes] = set()
    add = topics.add
    unpack_head = _HEAD.unpack_from
    position = found = 0
    end = len(data)
    try:
        while position < end:
            length, version, _, _, topic_length, _ = unpack_head(data, position)
            if version != _VERSION:
                break
            at = position + RECORD_HEAD_BYTES
            add(data[at : at + topic_length])
            position += 4 + length
            found += 1
    except struct.error:
        found = -1
    if found == count and position == end:
        return topics
    return {record[3] for record in decode_records(data, count, 0, 0, where)}  # of version 2, or it says what is wrong


def _check_count(records: list[Record], count: int, end: int, where: str) -> list[Record]:
    if len(records) != count:
        raise CorruptionError(where, end, f"expected {count} records, got {len(records)}")
    return records


def _decode_v2(data: bytes, position: int, offset: int, where: str) -> tuple[Record, int]:
    """Return a version 2 record and the position after it: `[length][2][uvarint key length][key][ms, 8 B][payload]`."""
    end = len(data)
    (length,) = _LENGTH.unpack_from(data, position)
    next_position = position + _LENGTH_BYTES + length
    version = data[position + _LENGTH_BYTES]
    if version != 2:
        raise CorruptionError(where, position, f"record {offset}: version {version}, expected 3 or 2")
    if next_position > end:
        raise CorruptionError(where, position, f"record {offset}: {length} B long, {end - position - 4} B left")
    key_length = shift = 0
    cursor = position + _LENGTH_BYTES + 1
    while True:
        if cursor >= next_position or shift > 28:
            raise CorruptionError(where, position, f"record {offset}: its key length doesn't end")
        byte = data[cursor]
        cursor += 1
        key_length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    time_at = cursor + key_length
    payload_at = time_at + _V2_TIME.size
    if payload_at > next_position:
        raise CorruptionError(where, position, f"record {offset}: a key of {key_length} B doesn't fit {length} B")
    (timestamp_ms,) = _V2_TIME.unpack_from(data, time_at)
    return (offset, 0, timestamp_ms, data[cursor:time_at], b"", data[payload_at:next_position]), next_position


def record_lengths(data: bytes) -> Iterator[int]:
    """Yield how many bytes each of the joined records in `data` takes, with its length field."""
    position = 0
    while position < len(data):
        length = _LENGTH_BYTES + int.from_bytes(data[position : position + _LENGTH_BYTES], "big")
        yield length
        position += length


def _settle(records: list[Record]) -> None:
    if len(records) >= _COLLECT_RECORDS:
        gc.collect(0)


class RecordBatch:
    """Records that travel together in memory: one append, several appends of a tail, or one frame read back.

    Offsets are consecutive from `base_offset`. `data` never changes; `records()` decodes it once and keeps the result,
    so whoever counts bytes of cached batches has to allow for that. `encodings` belongs to the broker: it keeps the
    wire form of this batch there, so that ten subscribers cost one encoding.
    """

    __slots__ = ("_by_topic", "_records", "base_ms", "base_offset", "count", "data", "encodings", "last_ms", "topics")

    def __init__(
        self,
        base_offset: int,
        count: int,
        base_ms: int,
        last_ms: int,
        data: bytes,
        topics: Collection[bytes] | None = None,
    ) -> None:
        self.base_offset = base_offset
        self.count = count
        self.base_ms = base_ms  # what the records' deltas are relative to
        self.last_ms = last_ms  # commit time of the last record
        self.data = data
        self.topics = topics  # of all its records, where somebody knows them without a look at each
        self.encodings: dict[Any, Any] = {}
        self._by_topic: dict[bytes, Sequence[int]] | None = None
        self._records: list[Record] | None = None

    @property
    def end_offset(self) -> int:
        """The offset after the last record."""
        return self.base_offset + self.count

    @property
    def held_bytes(self) -> int:
        """What its bytes take once it is decoded: the payloads are copies."""
        return 2 * len(self.data)

    def records(self) -> list[Record]:
        """Return the decoded records; CorruptionError if `data` isn't exactly `count` of them."""
        records = self._records
        if records is None:
            where = f"batch of offset {self.base_offset}"
            records = self._records = decode_records(self.data, self.count, self.base_offset, self.base_ms, where)
            _settle(records)
        return records

    def on_topics(self, topics: Collection[bytes]) -> Sequence[int]:
        """Return the indexes, ascending, of records on some topics: who reads one of a thousand looks at no others."""
        by_topic = self._by_topic
        if by_topic is None:
            by_topic = self._by_topic = self._index_topics()
        if len(by_topic) == 1:
            return range(len(self.records())) if next(iter(by_topic)) in topics else ()
        found = [by_topic[topic] for topic in topics if topic in by_topic]
        return found[0] if len(found) == 1 else sorted(chain.from_iterable(found))

    def _index_topics(self) -> dict[bytes, Sequence[int]]:
        by_topic: dict[bytes, array[int]] = {}
        last, indexes = b"", array("I")
        for index, (_, _, _, topic, _, _) in enumerate(self.records()):
            if topic is not last:
                last = topic
                found = by_topic.get(topic)
                indexes = by_topic[topic] = array("I") if found is None else found
            indexes.append(index)
        return dict(by_topic)

    def record_at(self, offset: int) -> Record | None:
        """Return one record, None where compaction left a hole; the caller checked that `offset` is in the batch."""
        return self.records()[offset - self.base_offset]

    def begins_before(self, offset: int) -> bool:
        """Return whether there is a record below `offset`."""
        return self.base_offset < offset

    def without_head(self, skipped: int) -> RecordBatch:
        """Return the batch without its first `skipped` records."""
        position = sum(islice(record_lengths(self.data), skipped))
        return RecordBatch(
            self.base_offset + skipped, self.count - skipped, self.base_ms, self.last_ms, self.data[position:]
        )

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"RecordBatch({self.base_offset}..{self.end_offset - 1}, {len(self.data)} B, {self.last_ms} ms)"


class JoinedBatch(RecordBatch):
    """Batches that follow one another as one that is decoded, for readers of few of its records. It has no `data`."""

    __slots__ = ("_held_bytes",)

    def __init__(self, batches: Sequence[RecordBatch]) -> None:
        """CorruptionError as from `records`, which is called for each of them."""
        first, last = batches[0], batches[-1]
        super().__init__(first.base_offset, last.end_offset - first.base_offset, first.base_ms, last.last_ms, b"")
        self._held_bytes = sum(len(batch.data) for batch in batches)
        self._records = list(chain.from_iterable(batch.records() for batch in batches))
        _settle(self._records)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes


class SparseBatch(RecordBatch):
    """A frame of a compacted segment: records of some offsets of [base_offset, end_offset), perhaps of none."""

    __slots__ = ("_distances", "_end_offset")

    def __init__(self, base_offset: int, end_offset: int, count: int, base_ms: int, last_ms: int, data: bytes) -> None:
        """`data` has the distance of each record to the one before (u32; of the first to base_offset), then records."""
        super().__init__(base_offset, count, base_ms, last_ms, data[4 * count :])
        self._end_offset = end_offset
        self._distances = data[: 4 * count]

    @property
    def end_offset(self) -> int:
        """The offset after the range that the batch covers."""
        return self._end_offset

    def records(self) -> list[Record]:
        """Return the decoded records with their offsets; CorruptionError if `data` isn't exactly `count` of them."""
        records = self._records
        if records is None:
            where = f"batch of offset {self.base_offset}"
            decoded = decode_records(self.data, self.count, 0, self.base_ms, where)
            offsets = self._offsets(where)
            records = self._records = [(offset, *record[1:]) for offset, record in zip(offsets, decoded, strict=True)]
            _settle(records)
        return records

    def begins_before(self, offset: int) -> bool:
        records = self.records()
        return bool(records) and records[0][0] < offset

    def _offsets(self, where: str) -> list[int]:
        distances = from_big_endian("I", self._distances)
        offsets = [self.base_offset + distance for distance in accumulate(distances)]
        if len(offsets) != self.count or 0 in distances[1:] or (offsets and offsets[-1] >= self._end_offset):
            raise CorruptionError(where, 0, f"{self.count} records whose offsets don't ascend to {self._end_offset}")
        return offsets

    def record_at(self, offset: int) -> Record | None:
        records = self.records()
        index = bisect_left(records, (offset,))
        return records[index] if index < len(records) and records[index][0] == offset else None
