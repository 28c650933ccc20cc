"""The salt of a segment whose header is damaged, computed back from its first frame.

Without the salt no frame of a segment can be checked, so that one damaged byte of its header would cost all of it. A
sealed segment has a copy of the header in its index. An active one has its first frame: a CRC can be run backwards, so
the frame's header checksum says what it must have started from, and the frame's other checksum, over the payload, says
whether that is true. Only the frame right behind the header counts. A frame elsewhere could be a client's payload,
made with a salt that the client chose; what stands first, no client decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from highway.errors import CorruptionError

from .format import (
    FRAME_FIXED_BYTES,
    FRAME_HEADER_BYTES,
    MAX_FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    parse_frame_header,
    unpack_payload,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["rescue_header", "start_of_crc"]

_POLYNOMIAL = 0x82F63B78  # Castagnoli, reflected
_CRC_AT = 23  # the payload's checksum, which the header's leaves out
_UUID_AT = 16
_FLAG_SPARSE = 0b0100_0000  # then the header goes on behind its checksum, which covers that too


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _table()
_BACKWARDS = {crc >> 24: byte for byte, crc in enumerate(_TABLE)}


def start_of_crc(data: bytes, crc: int) -> int:
    """Return the value from which the CRC32C over `data` comes out as `crc`."""
    state = crc ^ 0xFFFF_FFFF
    for byte in reversed(data):
        index = _BACKWARDS[state >> 24]
        state = (state ^ _TABLE[index]) << 8 & 0xFFFF_FFFF | index ^ byte
    return state ^ 0xFFFF_FFFF


def rescue_header(read: Callable[[int, int], bytes], base_offset: int, path: str) -> SegmentHeader:
    """Return the header that the first frame proves; CorruptionError if there is none or it is damaged too.

    `read(length, position)` is pread. The log's uuid is the one that stands in the damaged header, right or wrong.
    """
    damaged = read(SEGMENT_HEADER_BYTES, 0)
    head = read(MAX_FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES)
    if len(head) < FRAME_HEADER_BYTES:
        raise CorruptionError(path, 0, "segment header: damaged, and no frame follows it")
    crc_at = FRAME_HEADER_BYTES - 4
    sparse = head[FRAME_HEADER_BYTES:] if head[2] & _FLAG_SPARSE else b""
    summed = head[:_CRC_AT] + head[FRAME_FIXED_BYTES:crc_at] + sparse
    salt = start_of_crc(summed, int.from_bytes(head[crc_at:FRAME_HEADER_BYTES], "big"))
    frame = parse_frame_header(head, salt, path=path, position=SEGMENT_HEADER_BYTES)
    if not frame.extended or frame.base_offset < base_offset:
        raise CorruptionError(path, 0, "segment header: damaged, and so is the first frame")
    payload = read(frame.compressed_length, SEGMENT_HEADER_BYTES + frame.length)
    unpack_payload(frame, head[: frame.length], payload, salt, path=path, position=SEGMENT_HEADER_BYTES)
    log_uuid = damaged[_UUID_AT : _UUID_AT + 16].ljust(16, b"\0")
    return SegmentHeader(log_uuid, base_offset, frame.min_ms, frame.epoch, salt)
