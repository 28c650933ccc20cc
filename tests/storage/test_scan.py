from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from highway.errors import CorruptionError
from highway.storage.segment.format import FRAME_HEADER_BYTES, encode_frame
from highway.storage.segment.records import RecordHeads
from highway.storage.segment.scan import FrameWalk, Window

SALT = 99


def frame(base_offset, *, count=1, epoch=1, payload=b"x", now=5) -> bytes:
    data = RecordHeads(b"t", 0, 0).encode([payload] * count)
    values = {"count": count, "base_offset": base_offset, "min_ms": now, "max_ms": now, "epoch": epoch}
    return b"".join(encode_frame(data, salt=SALT, codec=0, **values))


def old_frame(base_offset, times) -> bytes:
    """A frame without extension, of version 2 records."""
    bodies = [b"\x02\x01t" + struct.pack(">q", at) + b"old" for at in times]
    data = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    fixed = struct.pack(">2sBiqII", b"\xca\xfe", 0, len(times), base_offset, len(data), len(data))
    return fixed + struct.pack(">I", crc32c(data, crc32c(fixed[2:], SALT))) + data


def walk(content: bytes, *, next_offset=0, epoch=0, verify=True, reads=None) -> FrameWalk:
    def read(length, position):
        if reads is not None:
            reads.append((position, length))
        return content[position : position + length]

    return FrameWalk(
        Window(read, len(content)), SALT, position=0, next_offset=next_offset, epoch=epoch, path="p", verify=verify
    )


def damage(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def test_holes_and_higher_epochs_continue_a_log():
    result = walk(frame(0, count=3) + frame(3) + frame(65_536, epoch=2)).scan()
    assert result.intact
    assert (result.frames, result.records, result.next_offset, result.epoch) == (3, 5, 65_537, 2)


def test_lower_offsets_do_not():
    content = frame(0, count=3) + frame(2)
    result = walk(content).scan(resync=True)
    assert result.tail.reason == "frame of offset 2, expected 3 or later"
    assert result.valid_length == len(frame(0, count=3))


def test_lower_epochs_do_not():
    result = walk(frame(0, epoch=2) + frame(1, epoch=1)).scan(resync=True)
    assert result.tail.reason == "frame of epoch 1, expected 2 or later"
    assert walk(frame(0), epoch=2).scan().frames == 0


def test_a_frame_longer_than_the_file_is_no_frame():
    result = walk(frame(0) + frame(1, payload=b"y" * 100)[:-1]).scan()
    assert "left" in result.tail.reason
    assert result.tail.to_offset == 2  # the header is intact and says what is lost


def test_small_frames_are_read_many_at_once():
    reads = []
    assert walk(b"".join(frame(offset) for offset in range(1000)), reads=reads).scan().frames == 1000
    assert len(reads) == 1


def test_a_walk_without_verification_skips_payloads():
    reads = []
    content = b"".join(frame(offset, payload=b"y" * 300_000) for offset in range(3))
    positions = []
    result = walk(content, verify=False, reads=reads).scan(on_frame=lambda header, position: positions.append(position))
    assert result.intact
    length = len(frame(0, payload=b"y" * 300_000))
    assert positions == [0, length, 2 * length]
    assert [position for position, _ in reads] == positions


def test_without_resync_nothing_behind_damage_is_looked_at():
    first, content = frame(0), frame(0) + frame(1) + frame(2)
    result = walk(damage(content, len(first) + 1)).scan()
    assert (result.valid_length, result.end_position, result.next_offset) == (len(first), len(first), 1)
    assert (result.tail.position, result.tail.end_position, result.tail.from_offset) == (len(first), len(content), 1)
    assert result.damaged == []


def test_with_resync_the_range_between_good_frames_is_reported():
    first = frame(0)
    content = first + frame(1, count=2) + frame(3)
    for at in range(len(first), len(first) + len(frame(1, count=2))):
        result = walk(damage(content, at)).scan(resync=True)
        (lost,) = result.damaged
        assert (lost.position, lost.end_position) == (len(first), len(content) - len(frame(3)))
        assert (lost.from_offset, lost.to_offset) == (1, 3)
        assert result.valid_length == len(first)
        assert (result.end_position, result.next_offset, result.tail) == (len(content), 4, None)


def test_a_damaged_payload_in_front_of_a_hole_does_not_claim_the_hole():
    content = damage(frame(0) + frame(65_536), FRAME_HEADER_BYTES)
    (lost,) = walk(content).scan(resync=True).damaged
    assert (lost.from_offset, lost.to_offset) == (0, 1)


def test_two_damaged_frames_side_by_side():
    one = frame(0, count=2)
    content = damage(damage(one + frame(2) + frame(3), len(one) - 1), len(one))
    (lost,) = walk(content).scan(resync=True).damaged
    assert (lost.from_offset, lost.to_offset) == (0, 3)


def test_magic_across_two_reads_is_found():
    content = b"\0" * (1024 * 1024) + frame(0)  # the hunt starts at 1 and reads 1 MiB at once
    result = walk(content).scan(resync=True)
    assert (result.frames, result.end_position) == (1, len(content))


def test_frames_without_extension_are_walked_and_have_the_times_of_their_records():
    headers = []
    content = frame(0) + old_frame(1, [70, 90]) + frame(3, now=95)
    result = walk(content, verify=False).scan(on_frame=lambda header, position: headers.append(header))
    assert result.intact
    assert [(header.min_ms, header.max_ms) for header in headers] == [(5, 5), (70, 90), (95, 95)]
    assert result.epoch == 1


def test_a_damaged_frame_without_extension_is_noticed_and_one_behind_damage_is_not_believed():
    content = old_frame(0, [1]) + old_frame(1, [2]) + frame(2)
    result = walk(damage(content, 40), verify=False).scan(resync=True)
    (lost,) = result.damaged
    assert (lost.from_offset, lost.to_offset) == (0, 2)


def test_step_does_not_move_on_damage():
    steps = walk(damage(frame(0), 0) + frame(1))
    for _ in range(2):
        with pytest.raises(CorruptionError, match="p: at byte 0: frame magic 35fe, expected cafe"):
            steps.step()
    lost, header = steps.skip_damage("why")
    assert (lost.reason, lost.to_offset, header.base_offset) == ("why", 1, 1)
    assert steps.step() is None


def test_an_empty_file_is_intact():
    result = walk(b"").scan()
    assert result.intact
    assert (result.frames, result.valid_length) == (0, 0)
