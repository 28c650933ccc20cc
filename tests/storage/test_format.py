from __future__ import annotations

import contextlib
import struct

import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given, strategies as st

from highway.errors import CorruptionError, DataDirectoryError
from highway.storage.segment.format import (
    CODEC_NONE,
    CODEC_ZSTD,
    FRAME_FIXED_BYTES,
    FRAME_HEADER_BYTES,
    MAX_FRAME_BYTES,
    MAX_FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_frame,
    encode_frame,
    frame_checksum,
    parse_frame_header,
)
from highway.storage.segment.records import RecordHeads

SALT = 0xC0FFEE01
HEADER = SegmentHeader(bytes(range(16)), 1000, 1_790_000_000_000, 3, SALT)
DATA = RecordHeads(b"highway/A1/telemetry", 1, 0).encode([b"payload %d" % i for i in range(20)])


def frame(data=DATA, count=20, salt=SALT, **changes) -> bytes:
    values = {"count": count, "base_offset": 1000, "min_ms": 5, "max_ms": 9, "epoch": 3, "salt": salt} | changes
    return b"".join(encode_frame(data, **values))


def forged(  # a frame with right checksums around whatever is asked for
    *,
    flags=0x20,
    count=1,
    base_offset=0,
    uncompressed=None,
    payload=b"x" * 20,
    compressed=None,
    salt=SALT,
    times=(1, 1),
) -> bytes:
    uncompressed = len(payload) if uncompressed is None else uncompressed
    compressed = len(payload) if compressed is None else compressed
    fixed = struct.pack(">2sBiqII", b"\xca\xfe", flags, count, base_offset, uncompressed, compressed)
    extension = struct.pack(">Iqq", 0, *times)
    extension += struct.pack(">I", crc32c(extension, crc32c(fixed, salt)))
    if not flags & 0x20:
        extension = b""
    crc = crc32c(payload, crc32c(extension, crc32c(fixed[2:], salt)))
    return fixed + struct.pack(">I", crc) + extension + payload


# The segment header.


@given(
    st.builds(
        SegmentHeader,
        st.binary(min_size=16, max_size=16),
        st.integers(0, (1 << 63) - 1),
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.integers(0, 0xFFFF_FFFF),
        st.integers(0, 0xFFFF_FFFF),
    )
)
def test_a_segment_header_comes_back(header):
    data = header.encode()
    assert len(data) == SEGMENT_HEADER_BYTES
    assert SegmentHeader.decode(data, "p") == header


def test_the_layout_of_the_segment_header():
    data = HEADER.encode()
    assert data[:60] == bytes.fromhex(
        "8948 5759 4c4f 470a"
        "0001"
        "0040"
        "00000000"
        "000102030405060708090a0b0c0d0e0f"
        "00000000000003e8"
        "000001a0c4506c00"
        "00000003"
        "c0ffee01"
        "00000000"
    )
    assert data[60:] == struct.pack(">I", crc32c(data[:60]))


def test_every_damaged_byte_of_a_segment_header_is_noticed():
    good = HEADER.encode()
    for at in range(SEGMENT_HEADER_BYTES):
        for flip in (0x01, 0x80, 0xFF):
            bad = bytearray(good)
            bad[at] ^= flip
            with pytest.raises(CorruptionError):
                SegmentHeader.decode(bytes(bad), "p")


@pytest.mark.parametrize("length", [0, 1, 8, 63])
def test_a_short_segment_header_is_noticed(length):
    with pytest.raises(CorruptionError, match=f"p: at byte 0: segment header: {length} B, expected 64"):
        SegmentHeader.decode(HEADER.encode()[:length], "p")


@pytest.mark.parametrize(("at", "value"), [(8, b"\x00\x02"), (8, b"\x00\x00"), (10, b"\x00\x80"), (12, b"\x80\0\0\0")])
def test_an_intact_header_of_another_format_is_refused_as_that(at, value):
    data = bytearray(HEADER.encode())
    data[at : at + len(value)] = value
    data[60:] = struct.pack(">I", crc32c(bytes(data[:60])))
    with pytest.raises(DataDirectoryError, match="this version reads 1"):
        SegmentHeader.decode(bytes(data), "p")


def test_a_base_offset_past_all_offsets_is_refused():
    with pytest.raises(CorruptionError, match="out of range"):
        SegmentHeader.decode(SegmentHeader(bytes(16), 1 << 63, 0, 0, 1).encode(), "p")


# Frames.


@given(
    st.binary(min_size=14, max_size=2000),
    st.sampled_from([CODEC_NONE, CODEC_ZSTD]),
    st.integers(0, 1 << 62),
    st.integers(0, 0xFFFF_FFFF),
    st.integers(0, 1 << 45),
    st.binary(max_size=10),
)
def test_a_frame_comes_back(data, codec, base_offset, salt, min_ms, behind):
    head, payload = encode_frame(
        data,
        count=1,
        base_offset=base_offset,
        min_ms=min_ms,
        max_ms=min_ms + 1,
        epoch=salt,
        salt=salt,
        codec=codec,
    )
    header, decoded = decode_frame(head + payload + behind, salt)
    assert decoded == data
    assert len(head) == FRAME_HEADER_BYTES == header.length
    assert header.frame_length == len(head) + len(payload)
    assert (header.base_offset, header.end_offset, header.epoch) == (base_offset, base_offset + 1, salt)
    assert (header.min_ms, header.max_ms) == (min_ms, min_ms + 1)
    assert header.crc == frame_checksum(head, payload, salt)


def test_the_layout_of_a_frame():
    data = b"R" * 14
    assert frame(data, count=1, codec=CODEC_NONE)[:23] == bytes.fromhex(
        "cafe200000000100000000000003e80000000e0000000e"
    )
    assert frame(data, count=1, codec=CODEC_NONE)[27:47] == bytes.fromhex("0000000300000000000000050000000000000009")
    assert frame(data, count=1, codec=CODEC_NONE)[51:] == data


def test_what_compression_would_not_make_smaller_is_stored_as_it_is():
    data = bytes(range(256))
    header, decoded = decode_frame(frame(data, count=1), SALT)
    assert header.codec == CODEC_NONE
    assert decoded == data
    assert decode_frame(frame(), SALT)[0].codec == CODEC_ZSTD


def test_every_damaged_byte_of_a_frame_is_noticed():
    for codec in (CODEC_NONE, CODEC_ZSTD):
        good = frame(codec=codec)
        for at in range(len(good)):
            for flip in (0x01, 0x20, 0x80, 0xFF):
                bad = bytearray(good)
                bad[at] ^= flip
                with pytest.raises(CorruptionError):
                    decode_frame(bytes(bad), SALT)


def test_a_frame_cut_anywhere_is_noticed():
    good = frame()
    for length in range(len(good)):
        with pytest.raises(CorruptionError):
            decode_frame(good[:length], SALT)


def test_a_frame_of_another_segment_is_noticed():
    with pytest.raises(CorruptionError, match="checksum"):
        decode_frame(frame(), SALT + 1)
    with pytest.raises(CorruptionError, match="checksum"):
        decode_frame(frame(), 0)


def test_zeros_are_no_frame():
    with pytest.raises(CorruptionError, match="magic 0000, expected cafe"):
        decode_frame(bytes(4096), SALT)
    with pytest.raises(CorruptionError, match="magic 0000, expected cafe"):
        decode_frame(bytes(4096), 0)


def test_a_frame_without_extension_is_read():
    data = forged(flags=0)
    header, payload = decode_frame(data + b"behind", SALT)
    assert (header.length, header.epoch, header.min_ms, header.max_ms) == (FRAME_FIXED_BYTES, 0, 0, 0)
    assert payload == b"x" * 20
    assert not header.extended
    with pytest.raises(CorruptionError, match="frame checksum"):
        decode_frame(data[:-1] + b"y", SALT)


@pytest.mark.parametrize("bit", [0x08, 0x10, 0x80])
def test_an_unknown_flag_refuses_the_frame(bit):
    with pytest.raises(CorruptionError, match="unknown codec or bit"):
        decode_frame(forged(flags=0x20 | bit), SALT)


# Frames with sparse offsets.


TWO = bytes(8) + RecordHeads(b"t", 1, 0).encode([b"1", b"2"])


def sparse(data=TWO, count=2, end_offset=1010, **changes):
    return frame(data, count, end_offset=end_offset, **changes)


@pytest.mark.parametrize("codec", [CODEC_NONE, CODEC_ZSTD])
def test_a_frame_with_sparse_offsets_comes_back(codec):
    data = bytes(80) + DATA
    header, payload = decode_frame(sparse(data, 20, 5000, codec=codec) + b"behind", SALT)
    assert header.length == MAX_FRAME_HEADER_BYTES == FRAME_HEADER_BYTES + 8
    assert (header.sparse, header.extended, header.codec) == (True, True, codec)
    assert (header.base_offset, header.end_offset, header.record_count) == (1000, 5000, 20)
    assert payload == data
    assert not parse_frame_header(frame(), SALT).sparse


def test_a_frame_may_say_of_a_range_that_nothing_is_in_it():
    data = sparse(b"", 0, 1001)
    assert len(data) == MAX_FRAME_HEADER_BYTES
    header, payload = decode_frame(data, SALT)
    assert (header.record_count, header.end_offset, payload) == (0, 1001, b"")


def test_every_damaged_byte_of_a_sparse_frame_is_noticed_and_of_its_header_before_the_payload_is_read():
    good = sparse()
    for at in range(len(good)):
        for flip in (0x01, 0x40, 0xFF):
            bad = bytearray(good)
            bad[at] ^= flip
            with pytest.raises(CorruptionError):
                decode_frame(bytes(bad), SALT)
            if at < MAX_FRAME_HEADER_BYTES and not 23 <= at < 27:
                with pytest.raises(CorruptionError):
                    parse_frame_header(bytes(bad[:MAX_FRAME_HEADER_BYTES]), SALT)
    for length in range(len(good)):
        with pytest.raises(CorruptionError):
            decode_frame(good[:length], SALT)


@pytest.mark.parametrize(
    ("count", "end_offset"), [(2, 1001), (2, 1000), (0, 1000), (0, 999), (2, (1 << 63) - 1), (3, 1010), (-1, 1010)]
)
def test_a_sparse_frame_that_can_not_be_is_refused_though_its_checksums_are_right(count, end_offset):
    if end_offset == (1 << 63) - 1:
        assert parse_frame_header(sparse(end_offset=end_offset), SALT).end_offset == end_offset
        return
    with pytest.raises(CorruptionError, match="frame header: "):
        parse_frame_header(sparse(count=count, end_offset=end_offset), SALT)


def test_sparse_offsets_need_the_extension():
    with pytest.raises(CorruptionError, match="without extension"):
        decode_frame(forged(flags=0x40), SALT)


@pytest.mark.parametrize("codec", range(2, 8))
def test_an_unknown_codec_refuses_the_frame(codec):
    with pytest.raises(CorruptionError, match="unknown codec or bit"):
        decode_frame(forged(flags=0x20 | codec), SALT)


@pytest.mark.parametrize(
    "values",
    [
        {"uncompressed": MAX_FRAME_BYTES + 1, "compressed": MAX_FRAME_BYTES + 1},
        {"uncompressed": 0xFFFF_FFFF, "compressed": 0xFFFF_FFFF},
        {"flags": 0x21, "uncompressed": 0xFFFF_FFFF},
        {"flags": 0x21, "uncompressed": 19},  # grown by its codec
        {"uncompressed": 21},  # no codec, and yet another length
        {"count": 0},
        {"count": -1},
        {"count": 2},  # 20 B can't be two records
        {"count": 0x7FFF_FFFF},
        {"base_offset": -1},
        {"base_offset": (1 << 63) - 1},
        {"times": (2, 1)},
        {"flags": 0, "uncompressed": 0xFFFF_FFFF, "compressed": 0xFFFF_FFFF},
        {"flags": 0, "count": 0},
    ],
)
def test_absurd_headers_are_refused_though_their_checksums_are_right(values):
    with pytest.raises(CorruptionError, match="frame header: "):
        parse_frame_header(forged(**values), SALT)


def test_a_zstd_bomb_is_refused_before_it_is_unpacked():
    bomb = zstandard.ZstdCompressor().compress(bytes(64 * 1024 * 1024))
    assert len(bomb) < 10_000
    with pytest.raises(CorruptionError, match="zstd announces 67108864 B, the frame's header 20000"):
        decode_frame(forged(flags=0x21, payload=bomb, uncompressed=20_000), SALT)


def test_zstd_that_does_not_announce_its_size_is_refused():
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    with pytest.raises(CorruptionError, match="zstd announces"):
        decode_frame(forged(flags=0x21, payload=compressor.compress(bytes(1000)), uncompressed=1000), SALT)


def test_zstd_with_something_behind_it_is_refused():
    payload = zstandard.ZstdCompressor().compress(bytes(1000)) + b"behind"
    with pytest.raises(CorruptionError, match="zstd"):
        decode_frame(forged(flags=0x21, payload=payload, uncompressed=1000), SALT)


def test_zstd_that_is_none_is_refused():
    with pytest.raises(CorruptionError, match="zstd"):
        decode_frame(forged(flags=0x21, uncompressed=1000), SALT)


@pytest.mark.parametrize("data", [b""])
def test_a_frame_of_nothing_is_not_written(data):
    with pytest.raises(ValueError, match="a frame holds 1 to"):
        frame(data)


@given(st.binary(max_size=120), st.integers(0, 60))
def test_arbitrary_bytes_never_raise_anything_else(noise, at):
    good = frame()
    with contextlib.suppress(CorruptionError):
        assert decode_frame(good[:at] + noise, SALT)[1] == DATA
