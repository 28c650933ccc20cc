from __future__ import annotations

import contextlib
import struct
from itertools import chain

import pytest
from hypothesis import given, settings, strategies as st

from highway.errors import CorruptionError
from highway.storage.segment.records import (
    FLAG_PROPERTIES,
    FLAG_RETAIN,
    MAX_DELTA_MS,
    MAX_PROPERTIES_BYTES,
    MAX_TOPIC_BYTES,
    RecordBatch,
    RecordHeads,
    decode_records,
    encode_records,
)

BASE_MS = 1_790_000_000_000

topics = st.one_of(
    st.sampled_from([b"highway/A1/telemetry", b"highway/A2/telemetry", b"", b"t"]), st.binary(max_size=40)
)
entries = st.tuples(
    topics,
    st.integers(0, 7),
    st.sampled_from([0, 1, 2, MAX_DELTA_MS]),
    st.one_of(st.just(b""), st.binary(max_size=20)),
    st.one_of(st.just(b""), st.binary(max_size=100)),
)


def expected(entry, offset):
    topic, flags, delta_ms, properties, payload = entry
    return offset, flags | (FLAG_PROPERTIES if properties else 0), BASE_MS + delta_ms, topic, properties, payload


def version_2(key: bytes, committed_ms: int, payload: bytes) -> bytes:
    length = len(key)
    varint = bytearray()
    while length >= 0x80:
        varint.append(length & 0x7F | 0x80)
        length >>= 7
    varint.append(length)
    body = b"\x02" + bytes(varint) + key + struct.pack(">q", committed_ms) + payload
    return struct.pack(">I", len(body)) + body


@given(st.lists(entries, max_size=30), st.integers(0, 1 << 62))
def test_what_is_encoded_is_decoded(written, base_offset):
    decoded = decode_records(encode_records(written), len(written), base_offset, BASE_MS)
    assert decoded == [expected(entry, base_offset + i) for i, entry in enumerate(written)]


@given(st.lists(entries, min_size=1, max_size=12), st.data())
def test_records_split_at_any_record_decode_to_the_same(written, data):
    cut = data.draw(st.integers(0, len(written)))
    whole = decode_records(encode_records(written), len(written), 0, BASE_MS)
    first = decode_records(encode_records(written[:cut]), cut, 0, BASE_MS)
    second = decode_records(encode_records(written[cut:]), len(written) - cut, cut, BASE_MS)
    assert first + second == whole


@given(st.lists(st.binary(max_size=300), max_size=50))
def test_a_run_is_encoded_as_its_records_one_by_one(payloads):
    heads = RecordHeads(b"highway/A1/telemetry", 1, 7)
    one_by_one = encode_records([(b"highway/A1/telemetry", 1, 7, b"", payload) for payload in payloads])
    assert heads.encode(payloads) == one_by_one
    pairs = zip(map(heads.__getitem__, map(len, payloads)), payloads, strict=True)
    assert b"".join(chain.from_iterable(pairs)) == one_by_one


def test_the_largest_topic_and_properties():
    topic, properties = b"t" * MAX_TOPIC_BYTES, b"p" * MAX_PROPERTIES_BYTES
    data = encode_records([(topic, FLAG_RETAIN, MAX_DELTA_MS, properties, b"")])
    assert decode_records(data, 1, 0, 0) == [(0, FLAG_RETAIN | FLAG_PROPERTIES, MAX_DELTA_MS, topic, properties, b"")]


@pytest.mark.parametrize(
    ("topic", "flags", "delta_ms", "properties"),
    [
        (b"t" * (MAX_TOPIC_BYTES + 1), 0, 0, b""),
        (b"t", 256, 0, b""),
        (b"t", 0, MAX_DELTA_MS + 1, b""),
        (b"t", 0, -1, b""),
        (b"t", 0, 0, b"p" * (MAX_PROPERTIES_BYTES + 1)),
    ],
)
def test_what_a_record_cannot_hold_is_refused(topic, flags, delta_ms, properties):
    with pytest.raises(ValueError, match="out of range"):
        RecordHeads(topic, flags, delta_ms, properties)
    with pytest.raises(ValueError, match="out of range"):
        encode_records([(topic, flags, delta_ms, properties, b"")])


def test_the_layout_of_version_3():
    assert encode_records([(b"a/b", 1, 2, b"PP", b"xyz")]) == bytes.fromhex(
        "00000012"  # length after itself: 10 + 3 + 2 + 3
        "03"
        "09"  # QoS 1, has properties
        "00000002"
        "0003"
        "0002"
        "612f62"
        "5050"
        "78797a"
    )


@given(st.lists(st.tuples(st.binary(max_size=200), st.integers(0, 1 << 50), st.binary(max_size=20)), max_size=10))
def test_version_2_is_read(written):
    data = b"".join(version_2(*entry) for entry in written)
    assert decode_records(data, len(written), 5, BASE_MS) == [
        (5 + i, 0, committed_ms, key, b"", payload) for i, (key, committed_ms, payload) in enumerate(written)
    ]


def test_versions_may_alternate():
    new = encode_records([(b"t", 1, 3, b"", b"new")])
    old = version_2(b"t", 9, b"old")
    records = decode_records(new + old + new + new + old + old + new, 7, 0, BASE_MS)
    assert [record[5] for record in records] == [b"new", b"old", b"new", b"new", b"old", b"old", b"new"]
    assert [record[2] for record in records[:2]] == [BASE_MS + 3, 9]


@pytest.mark.parametrize(
    "data",
    [
        b"\x00",
        b"\x00\x00\x00\x00",
        struct.pack(">I", 0) + b"\x03" * 20,  # a record shorter than its own head
        struct.pack(">IBBIHH", 10, 3, 0, 0, 1, 0),  # the topic passes the record
        struct.pack(">IBBIHH", 10, 3, 0, 0, 0, 0xFFFF),
        struct.pack(">IBBIHH", 0xFFFF_FFFF, 3, 0, 0, 0, 0),  # the record passes the data
        struct.pack(">IBBIHH", 10, 1, 0, 0, 0, 0),  # versions that never existed, or don't yet
        struct.pack(">IBBIHH", 10, 4, 0, 0, 0, 0),
        struct.pack(">IB", 15, 2) + b"\xff" * 14,  # a key length that doesn't end
        struct.pack(">IBB", 14, 2, 200) + b"k" * 12,
        struct.pack(">IB", 400, 2) + b"k" * 20,
        encode_records([(b"t", 0, 0, b"", b"")] * 2),  # one record too many
    ],
)
def test_damage_is_a_corruption_error(data):
    with pytest.raises(CorruptionError, match="here"):
        decode_records(data, 1, 0, 0, "here")


@settings(max_examples=300)
@given(st.lists(entries, max_size=5), st.binary(max_size=30), st.data())
def test_arbitrary_bytes_never_raise_anything_else(written, noise, data):
    good = encode_records(written) + version_2(b"k", 1, b"")
    at = data.draw(st.integers(0, len(good)))
    count = len(written) + 1
    with contextlib.suppress(CorruptionError):
        assert len(decode_records(good[:at] + noise + good[at + len(noise) :], count, 0, 0)) == count


def test_a_batch_decodes_once_and_finds_records_by_offset():
    payloads = [b"one", b"two", b"three"]
    batch = RecordBatch(100, 3, BASE_MS, BASE_MS + 5, RecordHeads(b"t", 1, 5).encode(payloads))
    assert batch.end_offset == 103
    assert len(batch) == 3
    assert batch.records() is batch.records()
    assert batch.record_at(101) == (101, 1, BASE_MS + 5, b"t", b"", b"two")
    assert [record[5] for record in batch] == payloads


def test_a_batch_whose_count_is_wrong_says_where():
    with pytest.raises(CorruptionError, match=r"offset 100.*expected 2 records, got 1"):
        RecordBatch(100, 2, 0, 0, RecordHeads(b"t", 1, 5).encode([b"x"])).records()
