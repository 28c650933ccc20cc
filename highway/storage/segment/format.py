"""Segment headers and frames, byte by byte: written, read and checked in one place.

      0     2   3      7            15         19         23      27
     +-----+---+------+------------+----------+----------+-------+
     |CA FE|flg|count |base offset | uncompr. | compr.   | crc32c|   27 bytes, every frame
     +-----+---+------+------------+----------+----------+-------+
     | epoch | min timestamp | max timestamp | header crc32c |      24 bytes, if flag bit 5 is set
     +-------+---------------+---------------+---------------+
     27      31              39              47              51     then the records, through the codec
     +-----------+
     |end offset |                                                  8 bytes, if flag bit 6 is set: sparse offsets
     +-----------+
     51          59     then a distance for each record and the records, through the codec

Both checksums start from the segment's random salt. A payload that a client publishes may be a valid frame in every
other way, and stored without compression it would look like one to a scan behind a damaged region; the salt is what the
client can't know. The magic is what a scan hunts for behind damage; the header's checksum says whether it found a
frame before any length in it is believed. FORMAT.md has the field tables.

Every length is checked against its limit before anything of that size is allocated.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass
from typing import NamedTuple

import zstandard
from crc32c import crc32c

from highway.errors import CorruptionError, DataDirectoryError

from .records import RECORD_HEAD_BYTES

__all__ = [
    "CODECS",
    "CODEC_NONE",
    "CODEC_ZSTD",
    "FORMAT_VERSION",
    "FRAME_EXTENSION_BYTES",
    "FRAME_FIXED_BYTES",
    "FRAME_HEADER_BYTES",
    "FRAME_MAGIC",
    "MAX_FRAME_BYTES",
    "MAX_FRAME_HEADER_BYTES",
    "SEGMENT_HEADER_BYTES",
    "SEGMENT_MAGIC",
    "SPARSE_DISTANCE_BYTES",
    "FrameHeader",
    "SegmentHeader",
    "decode_frame",
    "encode_frame",
    "frame_checksum",
    "frame_head",
    "header_checksum",
    "parse_frame_header",
    "unpack_payload",
]

FORMAT_VERSION = 1
SEGMENT_MAGIC = b"\x89HWYLOG\n"  # not text, and a transfer that changes line ends breaks it (PNG's idea)
SEGMENT_HEADER_BYTES = 64

FRAME_MAGIC = b"\xca\xfe"
# More than any frame the writer makes (flush_bytes, 1 MiB) and the largest MQTT packet (256 MiB); small enough that a
# forged length can't take the machine down.
MAX_FRAME_BYTES = 256 * 1024 * 1024

CODEC_NONE = 0
CODEC_ZSTD = 1
CODECS = {"none": CODEC_NONE, "zstd": CODEC_ZSTD}

_CODEC_MASK = 0b0000_0111
_FLAG_EXTENSION = 0b0010_0000
_FLAG_SPARSE = 0b0100_0000
_KNOWN_FLAGS = _CODEC_MASK | _FLAG_EXTENSION | _FLAG_SPARSE
_MAX_OFFSET = (1 << 63) - 1
_MIN_RECORD_BYTES = RECORD_HEAD_BYTES  # a version 2 record without key and payload is as long

_SEGMENT = struct.Struct(
    ">"
    "8s"  # magic
    "H"  # format version
    "H"  # header length
    "I"  # flags: none is assigned, a set bit refuses the segment
    "16s"  # log uuid
    "Q"  # base offset
    "q"  # created, Unix ms
    "I"  # epoch in which it was created
    "I"  # salt: random, start of every checksum of a frame
    "4x"  # reserved, zero
)
_FIXED = struct.Struct(
    ">"
    "2s"  # magic
    "B"  # flags: bits 0-2 codec, bit 5 extension, bit 6 sparse offsets
    "i"  # record count
    "q"  # base offset
    "I"  # uncompressed length
    "I"  # compressed length
)
_EXTENSION = struct.Struct(
    ">"
    "I"  # epoch
    "q"  # min timestamp, ms
    "q"  # max timestamp, ms
)
_CRC = struct.Struct(">I")
_END_OFFSET = struct.Struct(">q")  # of a frame with sparse offsets
_EXTENDED = struct.Struct(_FIXED.format + "I" + _EXTENSION.format[1:] + "I")  # all 51 bytes at once

FRAME_FIXED_BYTES = _FIXED.size + _CRC.size
FRAME_EXTENSION_BYTES = _EXTENSION.size + _CRC.size
FRAME_HEADER_BYTES = FRAME_FIXED_BYTES + FRAME_EXTENSION_BYTES
_HEADER_CRC_AT = FRAME_HEADER_BYTES - _CRC.size
MAX_FRAME_HEADER_BYTES = FRAME_HEADER_BYTES + _END_OFFSET.size  # with sparse offsets
SPARSE_DISTANCE_BYTES = 4


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first 64 bytes of a segment."""

    log_uuid: bytes
    base_offset: int
    created_ms: int
    epoch: int
    salt: int

    def encode(self) -> bytes:
        """Return the header as it stands in the file."""
        head = _SEGMENT.pack(
            SEGMENT_MAGIC,
            FORMAT_VERSION,
            SEGMENT_HEADER_BYTES,
            0,
            self.log_uuid,
            self.base_offset,
            self.created_ms,
            self.epoch,
            self.salt,
        )
        return head + _CRC.pack(crc32c(head))

    @classmethod
    def decode(cls, data: bytes, path: str) -> SegmentHeader:
        """Return what `encode` wrote. CorruptionError for damage, DataDirectoryError for an intact newer format."""
        if len(data) < SEGMENT_HEADER_BYTES:
            raise CorruptionError(path, 0, f"segment header: {len(data)} B, expected {SEGMENT_HEADER_BYTES}")
        magic, version, length, flags, log_uuid, base_offset, created_ms, epoch, salt = _SEGMENT.unpack_from(data)
        if magic != SEGMENT_MAGIC:
            raise CorruptionError(path, 0, f"segment header: magic {magic.hex()}, expected {SEGMENT_MAGIC.hex()}")
        (stored,) = _CRC.unpack_from(data, _SEGMENT.size)
        computed = crc32c(data[: _SEGMENT.size])
        if stored != computed:
            raise CorruptionError(path, 0, f"segment header: checksum {stored:08x}, expected {computed:08x}")
        if version != FORMAT_VERSION or length != SEGMENT_HEADER_BYTES or flags:
            raise DataDirectoryError(
                f"{path}: segment format {version} (header {length} B, flags {flags:#x}); this version reads "
                f"{FORMAT_VERSION} (header {SEGMENT_HEADER_BYTES} B, flags 0x0)",
                "start the version of Highway that wrote it",
            )
        if base_offset > _MAX_OFFSET:
            raise CorruptionError(path, 0, f"segment header: base offset {base_offset} is out of range")
        return cls(log_uuid, base_offset, created_ms, epoch, salt)


class FrameHeader(NamedTuple):
    """What stands in front of a frame's payload. Without the extension epoch and timestamps are 0."""

    codec: int
    record_count: int  # `count` is a method of every tuple
    base_offset: int
    uncompressed_length: int
    compressed_length: int
    crc: int
    epoch: int
    min_ms: int
    max_ms: int
    length: int  # of the header itself: 51, 27 without extension, 59 with sparse offsets
    sparse_end: int = -1  # the offset after the range that a frame with sparse offsets covers

    @property
    def extended(self) -> bool:
        """Whether the frame has epoch, timestamps and a checksum of its header."""
        return self.length >= FRAME_HEADER_BYTES

    @property
    def sparse(self) -> bool:
        """Whether records are missing in the range of offsets that the frame covers; their offsets are written out."""
        return self.sparse_end >= 0

    @property
    def frame_length(self) -> int:
        """Bytes of header and payload together."""
        return self.length + self.compressed_length

    @property
    def end_offset(self) -> int:
        """The offset after the last record, or after the range that the frame covers."""
        return self.base_offset + self.record_count if self.sparse_end < 0 else self.sparse_end


class _Codecs(threading.local):
    """The zstd contexts of one thread: they are expensive to make and must not be shared."""

    def __init__(self) -> None:
        self.compressors: dict[int, zstandard.ZstdCompressor] = {}
        self.decompressor = zstandard.ZstdDecompressor()

    def compress(self, data: bytes, level: int) -> bytes:
        compressor = self.compressors.get(level)
        if compressor is None:
            compressor = self.compressors[level] = zstandard.ZstdCompressor(level=level, write_content_size=True)
        return compressor.compress(data)


_codecs = _Codecs()


def header_checksum(head: bytes, salt: int) -> int:
    """Return the CRC32C over the header of a frame (51 or 59 bytes), without both of its checksums."""
    crc = crc32c(head[FRAME_FIXED_BYTES:_HEADER_CRC_AT], crc32c(head[: _FIXED.size], salt))
    return crc32c(head[FRAME_HEADER_BYTES:], crc) if len(head) > FRAME_HEADER_BYTES else crc


def frame_checksum(head: bytes, payload: bytes, salt: int) -> int:
    """Return the CRC32C over a header (27, 51 or 59 bytes, without magic and its own field) and the payload."""
    crc = crc32c(head[2 : _FIXED.size], salt)
    if len(head) > FRAME_FIXED_BYTES:
        crc = crc32c(head[FRAME_FIXED_BYTES:], crc)
    return crc32c(payload, crc)


def encode_frame(
    data: bytes,
    *,
    count: int,
    base_offset: int,
    min_ms: int,
    max_ms: int,
    epoch: int,
    salt: int,
    codec: int = CODEC_ZSTD,
    level: int = 1,
    end_offset: int | None = None,
) -> tuple[bytes, bytes]:
    """Return (header, payload) of a frame that holds the encoded records `data`, whose deltas count from `min_ms`.

    With `end_offset` it has sparse offsets: it covers the range up to there, and in front of the records `data` has the
    distance of each to the one before it. A payload that compression would not make smaller is stored as it is.
    ValueError for what a frame can't hold.
    """
    if not (0 if end_offset is not None and not count else 1) <= len(data) <= MAX_FRAME_BYTES:
        raise ValueError(f"a frame holds 1 to {MAX_FRAME_BYTES} B of records, not {len(data)}")
    payload = data
    if codec == CODEC_ZSTD:
        payload = _codecs.compress(data, level)
        if len(payload) >= len(data):
            payload = data
            codec = CODEC_NONE
    head = frame_head(
        FrameHeader(
            *(codec, count, base_offset, len(data), len(payload), 0, epoch, min_ms, max_ms, 0),
            sparse_end=-1 if end_offset is None else end_offset,
        ),
        payload,
        salt,
    )
    return head, payload


def frame_head(header: FrameHeader, payload: bytes, salt: int) -> bytes:
    """Return the bytes of a header in front of `payload`, as it is stored; `crc` and `length` are worked out."""
    flags = header.codec | _FLAG_EXTENSION | (_FLAG_SPARSE if header.sparse else 0)
    fixed = _FIXED.pack(
        FRAME_MAGIC, flags, header.record_count, header.base_offset, header.uncompressed_length, len(payload)
    )
    extension = _EXTENSION.pack(header.epoch, header.min_ms, header.max_ms)
    end = _END_OFFSET.pack(header.sparse_end) if header.sparse else b""
    extension += _CRC.pack(crc32c(end, crc32c(extension, crc32c(fixed, salt)))) + end
    crc = crc32c(payload, crc32c(extension, crc32c(fixed[2:], salt)))
    return b"".join((fixed, _CRC.pack(crc), extension))


def parse_frame_header(data: bytes, salt: int, *, path: str = "frame", position: int = 0) -> FrameHeader:
    """Return the header at the start of `data`, of which 59 bytes should be there if the file has them.

    CorruptionError, with `path` and `position`, if it isn't one. The checksum of an extended header is checked; one
    without extension has none, so that its lengths are only to be trusted after `unpack_payload`.
    """
    if not data.startswith(FRAME_MAGIC):
        raise CorruptionError(path, position, f"frame magic {data[:2].hex() or 'missing'}, expected cafe")
    if len(data) < FRAME_FIXED_BYTES:
        raise CorruptionError(path, position, f"frame header: {len(data)} B, expected at least {FRAME_FIXED_BYTES}")
    flags = data[2]
    if flags & ~_KNOWN_FLAGS or flags & _CODEC_MASK > CODEC_ZSTD:
        raise CorruptionError(path, position, f"frame flags {flags:#04x}: unknown codec or bit")
    sparse_end = -1
    if flags & _FLAG_EXTENSION:
        length = MAX_FRAME_HEADER_BYTES if flags & _FLAG_SPARSE else FRAME_HEADER_BYTES
        if len(data) < length:
            raise CorruptionError(path, position, f"frame header: {len(data)} B, expected {length}")
        _, _, count, base_offset, raw, stored, crc, epoch, min_ms, max_ms, header_crc = _EXTENDED.unpack_from(data)
        computed = header_checksum(data[:length], salt)
        if header_crc != computed:
            raise CorruptionError(path, position, f"frame header checksum {header_crc:08x}, expected {computed:08x}")
        if flags & _FLAG_SPARSE:
            (sparse_end,) = _END_OFFSET.unpack_from(data, FRAME_HEADER_BYTES)
            if sparse_end < 0:
                raise CorruptionError(path, position, f"frame header: end offset {sparse_end} is out of range")
    elif flags & _FLAG_SPARSE:
        raise CorruptionError(path, position, f"frame flags {flags:#04x}: sparse offsets without extension")
    else:
        _, _, count, base_offset, raw, stored = _FIXED.unpack_from(data)
        (crc,) = _CRC.unpack_from(data, _FIXED.size)
        epoch = min_ms = max_ms = 0
        length = FRAME_FIXED_BYTES
    codec = flags & _CODEC_MASK
    header = FrameHeader(codec, count, base_offset, raw, stored, crc, epoch, min_ms, max_ms, length, sparse_end)
    reason = _implausible(header)
    if reason:
        raise CorruptionError(path, position, f"frame header: {reason}")
    return header


def _implausible(header: FrameHeader) -> str:
    """Return what no writer would have written into a header, or ""."""
    if header.uncompressed_length > MAX_FRAME_BYTES or header.compressed_length > header.uncompressed_length:
        return (
            f"{header.compressed_length} B stored for {header.uncompressed_length} B; a frame has at most "
            f"{MAX_FRAME_BYTES} and never grows by its codec"
        )
    if header.codec == CODEC_NONE and header.compressed_length != header.uncompressed_length:
        return f"{header.compressed_length} B stored for {header.uncompressed_length} B without a codec"
    fewest, size = (0, _MIN_RECORD_BYTES + SPARSE_DISTANCE_BYTES) if header.sparse else (1, _MIN_RECORD_BYTES)
    if header.record_count < fewest or header.record_count * size > header.uncompressed_length:
        return f"{header.record_count} records don't fit {header.uncompressed_length} B"
    if header.end_offset < header.base_offset + max(header.record_count, 1):
        return f"{header.record_count} records don't fit offsets {header.base_offset} to {header.end_offset}"
    if header.base_offset < 0 or header.end_offset > _MAX_OFFSET:
        return f"offset {header.base_offset} is out of range"
    if header.min_ms > header.max_ms:
        return f"min timestamp {header.min_ms} is after max timestamp {header.max_ms}"
    return ""


def unpack_payload(
    header: FrameHeader, head: bytes, payload: bytes, salt: int, *, path: str = "frame", position: int = 0
) -> bytes:
    """Return the records of a frame after checking its checksum; CorruptionError if anything is off.

    `head` is the header's own bytes (27, 51 or 59), `payload` the `compressed_length` bytes after it.
    """
    if len(payload) != header.compressed_length:
        raise CorruptionError(path, position, f"frame of {header.compressed_length} B, {len(payload)} B are there")
    crc = frame_checksum(head, payload, salt)
    if crc != header.crc:
        raise CorruptionError(path, position, f"frame checksum {crc:08x}, expected {header.crc:08x}")
    if header.codec == CODEC_NONE:
        return payload
    try:
        # The library allocates what the zstd header announces: it must be what the frame's header announces.
        announced = zstandard.get_frame_parameters(payload).content_size
        if announced != header.uncompressed_length:
            raise CorruptionError(
                path, position, f"zstd announces {announced} B, the frame's header {header.uncompressed_length}"
            )
        data = _codecs.decompressor.decompress(payload, max_output_size=announced, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptionError(path, position, f"zstd: {error}") from error
    if len(data) != header.uncompressed_length:
        raise CorruptionError(path, position, f"{len(data)} B decompressed, expected {header.uncompressed_length}")
    return data


def decode_frame(data: bytes, salt: int, *, path: str = "frame", position: int = 0) -> tuple[FrameHeader, bytes]:
    """Return the header and the records of the frame at the start of `data`; more bytes may follow it."""
    header = parse_frame_header(data, salt, path=path, position=position)
    payload = data[header.length : header.frame_length]
    return header, unpack_payload(header, data[: header.length], payload, salt, path=path, position=position)
