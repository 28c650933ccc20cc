"""The bytes of the journal: file header, frame, entries. FORMAT.md has the same in words.

A file begins with its 64 B header, stored twice, because without the salt in it no frame of the file can be read:

      0       8      10     12      16         24     28         36            60      64
     +-------+------+------+-------+----------+------+----------+-------------+-------+
     | magic | form.| len. | flags | sequence | salt | created  | reserved, 0 | crc32c|
     |  8 B  | u16  | u16  | u32   | u64      | u32  | ms i64   | 24 B        | u32   |
     +-------+------+------+-------+----------+------+----------+-------------+-------+

Frames follow without a space between them:

      0       4        8          16            24                 32           36         40
     +-------+--------+----------+-------------+------------------+------------+----------+------ - - -
     | magic | length | sequence | first entry | durable frame    | header crc | body crc | entries
     |  4 B  | u32    | u64      | u64         | u64              | u32        | u32      |
     +-------+--------+----------+-------------+------------------+------------+----------+------ - - -

The header CRC32C covers [0:32] and starts from the file's salt; the body's starts from the header's, so it covers both.
A client doesn't know the salt, so no payload can pass for a frame; nor can a frame of the file's former life.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from crc32c import crc32c

from highway.errors import CorruptionError
from highway.storage.segment.records import RecordBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "FILE_HEADER_BYTES",
    "FRAME_HEADER_BYTES",
    "FRAME_MAGIC",
    "RECORDS",
    "RECORDS_HEAD",
    "DeleteEntry",
    "Entry",
    "FileHeader",
    "FrameHeader",
    "LogEntry",
    "PutEntry",
    "RecordsEntry",
    "ReserveEntry",
    "damaged_header_copy",
    "decode_entries",
    "decode_entry",
    "encode_file_header",
    "encode_frame_header",
    "encode_log",
    "encode_put",
    "encode_records_head",
    "encode_reserve",
    "frame_crcs",
    "make_position",
    "parse_file_header",
    "parse_frame_header",
    "split_position",
]

_FILE_MAGIC = b"HWJRNL\r\n"  # a transfer that rewrites line ends breaks it visibly
_FILE_FORMAT = 1
_FILE_HEADER = struct.Struct(
    ">"
    "8s"  # magic
    "H"  # format
    "H"  # header length, one copy
    "I"  # flags, none yet
    "Q"  # sequence, the same as in the file's name
    "I"  # salt, random
    "q"  # created, ms
    "24x"  # reserved
    "I"  # crc32c of the 60 bytes before
)
_COPY_BYTES = _FILE_HEADER.size
FILE_HEADER_BYTES = 2 * _COPY_BYTES

FRAME_MAGIC = b"\xca\xfeJF"
_FRAME_HEADER = struct.Struct(
    ">"
    "4s"  # magic
    "I"  # length of the body
    "Q"  # frame sequence: grows by one from frame to frame, across files and restarts
    "Q"  # number of the first entry; entries are counted across frames, files and restarts
    "Q"  # durable frame: frames below this number were synced when this one was composed
    "I"  # header crc32c
    "I"  # body crc32c
)
FRAME_HEADER_BYTES = _FRAME_HEADER.size
_SUMMED = _FRAME_HEADER.size - 8
_FRAME_SUMMED = struct.Struct(">4sIQQQ")
_TWO_CRCS = struct.Struct(">II")

RECORDS, _PUT, _DELETE, _RESERVE, _LOG = 1, 2, 3, 4, 5
RECORDS_HEAD = struct.Struct(
    ">"
    "B"  # kind
    "I"  # log id
    "Q"  # base offset
    "q"  # base ms, what the records' deltas are relative to
    "q"  # commit time of the last record
    "I"  # record count
    "I"  # length of the records, which follow
)
_PUT_HEAD = struct.Struct(">BII")  # kind, key length, value length
_DELETE_HEAD = struct.Struct(">BI")  # kind, key length
_RESERVE_ENTRY = struct.Struct(">BIQ")  # kind, log id, ceiling
_LOG_HEAD = struct.Struct(">BI16sH")  # kind, log id, uuid, name length


class FileHeader(NamedTuple):
    """What a journal file says about itself."""

    sequence: int
    salt: int
    created_ms: int


class FrameHeader(NamedTuple):
    """A frame's header whose CRC was right."""

    length: int  # of the body
    sequence: int
    first_entry: int
    durable_frame: int
    header_crc: int
    body_crc: int


class RecordsEntry(NamedTuple):
    """One append."""

    log_id: int
    batch: RecordBatch


class PutEntry(NamedTuple):
    """A key of the broker's state got a value."""

    key: bytes
    value: bytes


class DeleteEntry(NamedTuple):
    """A key of the broker's state went away."""

    key: bytes


class ReserveEntry(NamedTuple):
    """Offsets of a log below `ceiling` may be shown before they are durable."""

    log_id: int
    ceiling: int


class LogEntry(NamedTuple):
    """A log was created."""

    log_id: int
    uuid: bytes
    name: str


Entry: TypeAlias = RecordsEntry | PutEntry | DeleteEntry | ReserveEntry | LogEntry


def make_position(sequence: int, offset: int) -> int:
    """Return a place in the journal as one number that only grows: file sequence above, byte in the file below."""
    return sequence << 32 | offset


def split_position(position: int) -> tuple[int, int]:
    """Return (file sequence, byte in the file)."""
    return position >> 32, position & 0xFFFF_FFFF


def encode_file_header(header: FileHeader) -> bytes:
    """Return the 128 B that a journal file begins with."""
    summed = _FILE_HEADER.pack(_FILE_MAGIC, _FILE_FORMAT, _COPY_BYTES, 0, header.sequence, header.salt, header[2], 0)
    copy = summed[:-4] + crc32c(summed[:-4]).to_bytes(4, "big")
    return copy + copy


def parse_file_header(data: bytes, path: str) -> FileHeader:
    """Return the header in the first 128 B of a file; CorruptionError when neither copy is whole."""
    for position in (0, _COPY_BYTES):
        copy = data[position : position + _COPY_BYTES]
        if len(copy) < _COPY_BYTES or crc32c(copy[:-4]) != int.from_bytes(copy[-4:], "big"):
            continue
        magic, file_format, length, flags, sequence, salt, created_ms, _ = _FILE_HEADER.unpack(copy)
        if magic != _FILE_MAGIC or length != _COPY_BYTES:
            raise CorruptionError(path, position, f"expected magic {_FILE_MAGIC!r}, got {magic!r}, length {length}")
        if file_format != _FILE_FORMAT or flags:
            raise CorruptionError(path, position, f"expected format {_FILE_FORMAT}, got {file_format}, flags {flags}")
        return FileHeader(sequence, salt, created_ms)
    raise CorruptionError(path, 0, "both copies of the journal file's header are damaged")


def damaged_header_copy(data: bytes) -> int:
    """Return the position of a copy of the file header that is damaged, -1 if neither is: one is enough to read on."""
    for position in (0, _COPY_BYTES):
        copy = data[position : position + _COPY_BYTES]
        if crc32c(copy[:-4]) != int.from_bytes(copy[-4:], "big"):
            return position
    return -1


def encode_frame_header(body: bytes, sequence: int, first_entry: int, durable_frame: int, salt: int) -> bytes:
    """Return the 40 B in front of `body`."""
    summed = _FRAME_SUMMED.pack(FRAME_MAGIC, len(body), sequence, first_entry, durable_frame)
    header_crc = crc32c(summed, salt)
    return summed + _TWO_CRCS.pack(header_crc, crc32c(body, header_crc))


def frame_crcs(header: bytes) -> tuple[int, int]:
    """Return (header CRC, body CRC) of an encoded frame header."""
    header_crc, body_crc = _TWO_CRCS.unpack_from(header, _SUMMED)
    return header_crc, body_crc


def parse_frame_header(data: bytes, position: int, salt: int) -> FrameHeader | None:
    """Return the header at `position`, or None if there is none: the body is not looked at."""
    if len(data) - position < FRAME_HEADER_BYTES:
        return None
    magic, length, sequence, first_entry, durable, header_crc, body_crc = _FRAME_HEADER.unpack_from(data, position)
    if magic != FRAME_MAGIC or crc32c(data[position : position + _SUMMED], salt) != header_crc:
        return None
    return FrameHeader(length, sequence, first_entry, durable, header_crc, body_crc)


def encode_records_head(log_id: int, batch: RecordBatch) -> bytes:
    """Return what stands in front of a batch's data."""
    return RECORDS_HEAD.pack(
        RECORDS, log_id, batch.base_offset, batch.base_ms, batch.last_ms, batch.count, len(batch.data)
    )


def encode_put(key: bytes, value: bytes | None) -> bytes:
    """Return the entry that sets `key`, or deletes it when `value` is None."""
    if value is None:
        return _DELETE_HEAD.pack(_DELETE, len(key)) + key
    return b"".join((_PUT_HEAD.pack(_PUT, len(key), len(value)), key, value))


def encode_reserve(log_id: int, ceiling: int) -> bytes:
    """Return the entry that reserves a log's offsets below `ceiling`."""
    return _RESERVE_ENTRY.pack(_RESERVE, log_id, ceiling)


def encode_log(log_id: int, uuid: bytes, name: str) -> bytes:
    """Return the entry that creates a log."""
    encoded = name.encode()
    return _LOG_HEAD.pack(_LOG, log_id, uuid, len(encoded)) + encoded


def decode_entries(body: bytes, path: str) -> Iterator[Entry]:
    """Yield the entries of a frame whose CRC was right; CorruptionError if they don't fill `body` exactly."""
    position = 0
    end = len(body)
    try:
        while position < end:
            entry, position = decode_entry(body, position, path)
            if position > end:
                break
            yield entry
    except (struct.error, UnicodeDecodeError):
        raise CorruptionError(path, position, "a journal entry can't be read") from None
    if position != end:
        raise CorruptionError(path, position, f"a journal entry is longer than its frame of {end} B")


def decode_entry(body: bytes, position: int, path: str) -> tuple[Entry, int]:
    """Return the entry at `position` and the position after it, which may be beyond the end of a damaged body."""
    kind = body[position]
    if kind == RECORDS:
        _, log_id, base_offset, base_ms, last_ms, count, length = RECORDS_HEAD.unpack_from(body, position)
        start = position + RECORDS_HEAD.size
        batch = RecordBatch(base_offset, count, base_ms, last_ms, body[start : start + length])
        return RecordsEntry(log_id, batch), start + length
    if kind == _PUT:
        _, key_length, value_length = _PUT_HEAD.unpack_from(body, position)
        start = position + _PUT_HEAD.size
        middle = start + key_length
        return PutEntry(body[start:middle], body[middle : middle + value_length]), middle + value_length
    if kind == _DELETE:
        _, key_length = _DELETE_HEAD.unpack_from(body, position)
        start = position + _DELETE_HEAD.size
        return DeleteEntry(body[start : start + key_length]), start + key_length
    if kind == _RESERVE:
        _, log_id, ceiling = _RESERVE_ENTRY.unpack_from(body, position)
        return ReserveEntry(log_id, ceiling), position + _RESERVE_ENTRY.size
    if kind == _LOG:
        _, log_id, uuid, length = _LOG_HEAD.unpack_from(body, position)
        start = position + _LOG_HEAD.size
        return LogEntry(log_id, uuid, body[start : start + length].decode()), start + length
    raise CorruptionError(path, position, f"unknown kind {kind} of journal entry")
