from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, strategies as st

from highway.errors import CorruptionError
from highway.storage.segment.format import SEGMENT_HEADER_BYTES, FrameHeader, SegmentHeader
from highway.storage.segment.index import INDEX_INTERVAL_BYTES, INDEX_INTERVAL_RECORDS, IndexFile, SparseIndex

HEADER = SegmentHeader(bytes(16), 0, 0, 0, 1).encode()


def header(count, base_offset, length, min_ms, max_ms) -> FrameHeader:
    return FrameHeader(0, count, base_offset, length * 3, length - 51, 0, 1, min_ms, max_ms, 51)


frames = st.lists(
    st.tuples(
        st.integers(1, 600),  # records
        st.integers(0, 5),  # hole in front
        st.sampled_from([65, 300, 1000, 2500, 5000]),  # length
        st.integers(-3, 20),  # time since the frame before
    ),
    max_size=40,
)


def build(drawn) -> tuple[SparseIndex, list[tuple[FrameHeader, int]]]:
    index = SparseIndex()
    added = []
    offset, position, now = 0, SEGMENT_HEADER_BYTES, 1000
    for count, hole, length, since in drawn:
        offset += hole
        now += since
        added.append((header(count, offset, length, now, now + 2), position))
        index.add(*added[-1])
        offset += count
        position += length
    return index, added


@given(frames, st.integers(-1, 5000))
def test_an_offset_is_located_in_the_entry_that_holds_its_frame(drawn, offset):
    index, added = build(drawn)
    holding = [position for frame, position in added if frame.base_offset <= offset < frame.end_offset]
    entry = index.locate(offset)
    if holding:
        start, end = index.region(entry)
        assert start <= holding[0] < end
        assert index.locate_position(holding[0]) == entry


@given(frames, st.integers(900, 2000))
def test_a_time_is_located_in_the_entry_of_the_first_frame_that_reaches_it(drawn, timestamp_ms):
    index, added = build(drawn)
    reaching = [position for frame, position in added if frame.max_ms >= timestamp_ms]
    entry = index.locate_time(timestamp_ms)
    if reaching:
        start, end = index.region(entry)
        assert start <= reaching[0] < end
    else:
        assert entry == len(index)


@given(frames)
def test_entries_stand_for_one_frame_or_little_and_cover_everything(drawn):
    index, added = build(drawn)
    regions = [index.region(entry) for entry in range(len(index))]
    assert [start for start, _ in regions[1:]] == [end for _, end in regions[:-1]]
    for start, end in regions:
        inside = [frame for frame, position in added if start <= position < end]
        assert len(inside) == 1 or end - start <= INDEX_INTERVAL_BYTES
        assert len(inside) == 1 or sum(frame.record_count for frame in inside) <= INDEX_INTERVAL_RECORDS
    assert index.frames == len(added)
    assert index.records == sum(frame.record_count for frame, _ in added)
    assert index.raw_bytes == sum(frame.uncompressed_length for frame, _ in added)
    assert [entry[2] for entry in index.entries()] == sorted(entry[2] for entry in index.entries())


@given(frames)
def test_an_index_file_comes_back(drawn):
    index, _ = build(drawn)
    data = IndexFile(HEADER, index).encode()
    assert IndexFile.decode(data, "p") == IndexFile(HEADER, index)


def test_an_index_read_back_goes_on_where_it_was():
    index, _ = build([(5, 0, 65, 1)] * 3)
    restored = IndexFile.decode(IndexFile(HEADER, index).encode(), "p").index
    restored.add(header(1, 15, 65, 2000, 2000), index.end_position)
    assert restored.locate(15) == len(restored) - 1
    assert restored.records == 16


def test_every_damaged_byte_of_an_index_file_is_noticed():
    index, _ = build([(5, 0, 5000, 1)] * 3)
    good = IndexFile(HEADER, index).encode()
    for at in range(len(good)):
        for flip in (0x01, 0x10, 0x80, 0xFF):
            bad = bytearray(good)
            bad[at] ^= flip
            with pytest.raises(CorruptionError):
                IndexFile.decode(bytes(bad), "p")
    for length in range(len(good)):
        with pytest.raises(CorruptionError):
            IndexFile.decode(good[:length], "p")


def resealed(data: bytes) -> bytes:
    return data + struct.pack(">I", crc32c(data))


def test_sections_of_a_later_version_are_skipped():
    index, _ = build([(5, 0, 5000, 1)] * 3)
    body = bytearray(IndexFile(HEADER, index).encode()[:-4])
    body[10:12] = struct.pack(">H", 4)
    body += struct.pack(">HHI", 3, 1, 8) + b"postings"
    body += struct.pack(">HHI", 1, 2, 0)
    assert IndexFile.decode(resealed(bytes(body)), "p").index == index


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (8, struct.pack(">H", 2)),  # another version
        (10, struct.pack(">H", 1)),  # something behind the last section
        (10, struct.pack(">H", 3)),  # a section that isn't there
        (76, struct.pack(">H", 9)),  # no totals
        (80, struct.pack(">I", 0xFFFF_FFFF)),  # a length past the file
        (80, struct.pack(">I", 55)),
        (84, struct.pack(">Q", 100)),  # entries past the end of the segment
        (148, struct.pack(">q", 77)),  # offsets out of order
        (172, struct.pack(">q", 0)),  # a position inside the segment header
    ],
)
def test_an_index_that_contradicts_itself_is_refused_though_its_checksum_is_right(at, value):
    index, _ = build([(5, 0, 5000, 1)] * 3)
    body = bytearray(IndexFile(HEADER, index).encode()[:-4])
    body[at : at + len(value)] = value
    with pytest.raises(CorruptionError):
        IndexFile.decode(resealed(bytes(body)), "p")
