"""The salt of a segment whose header is gone, from its first frame."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c

from highway.errors import CorruptionError
from highway.storage.segment.format import SEGMENT_HEADER_BYTES, SegmentHeader, encode_frame
from highway.storage.segment.header_rescue import rescue_header, start_of_crc
from highway.storage.segment.records import RecordHeads

SALT = 0xDEADBEEF
HEADER = SegmentHeader(b"u" * 16, 1000, 5, 3, SALT)
RECORDS = RecordHeads(b"t", 1, 0).encode([b"one", b"two"])


def frame(base_offset=1000, salt=SALT, data=RECORDS):
    return b"".join(
        encode_frame(data, count=2, base_offset=base_offset, min_ms=7, max_ms=9, epoch=4, salt=salt, codec=0)
    )


def rescue(content):
    return rescue_header(lambda length, position: content[position : position + length], 1000, "f")


def test_a_checksum_runs_backwards():
    rng = random.Random(1)
    for length in range(60):
        data, start = rng.randbytes(length), rng.getrandbits(32)
        assert start_of_crc(data, crc32c(data, start)) == start


@pytest.mark.parametrize("damaged", [bytes(64), b"\xff" * 64, HEADER.encode()[:63] + b"?"])
def test_the_first_frame_tells_the_salt(damaged):
    found = rescue(damaged + frame() + b"whatever follows")
    assert (found.salt, found.base_offset, found.epoch, found.created_ms) == (SALT, 1000, 4, 7)
    assert found.log_uuid == damaged[16:32]


def test_a_first_frame_with_sparse_offsets_tells_it_too():
    data = b"".join(
        encode_frame(
            bytes(8) + RECORDS, count=2, base_offset=1000, min_ms=7, max_ms=9, epoch=4, salt=SALT, end_offset=2000
        )
    )
    assert rescue(bytes(64) + data + b"whatever").salt == SALT
    for position in range(len(data)):
        content = bytearray(bytes(64) + data)
        content[64 + position] ^= 0x10
        with pytest.raises(CorruptionError):
            rescue(bytes(content))


@pytest.mark.parametrize("position", range(SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES + len(frame())))
def test_a_damaged_first_frame_proves_nothing(position):
    content = bytearray(bytes(64) + frame())
    content[position] ^= 0x10
    with pytest.raises(CorruptionError):
        rescue(bytes(content))


@pytest.mark.parametrize("content", [b"", bytes(64), bytes(64) + frame()[:40], bytes(64) + frame(base_offset=999)])
def test_no_frame_or_one_of_another_place_proves_nothing(content):
    with pytest.raises(CorruptionError):
        rescue(content)


def test_a_frame_in_a_payload_is_not_looked_for():
    forged = frame(salt=123)
    inner = RecordHeads(b"t", 1, 0).encode([forged, b""])
    content = bytearray(bytes(64) + frame(data=inner))
    content[SEGMENT_HEADER_BYTES + 20] ^= 1
    with pytest.raises(CorruptionError):
        rescue(bytes(content))
