from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, strategies as st

from highway.errors import CorruptionError
from highway.storage.segment.format import SEGMENT_HEADER_BYTES, FrameHeader, SegmentHeader
from highway.storage.segment.index import INDEX_INTERVAL_BYTES, INDEX_INTERVAL_RECORDS, IndexFile, SparseIndex
from highway.storage.segment.postings import TopicPostings, entries_with

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


@given(frames)
def test_topics_are_those_of_the_entry_that_a_frame_falls_into(drawn):
    index, added = build(drawn)
    with_topics = SparseIndex()
    with_topics.topics = TopicPostings()
    for number, (frame, position) in enumerate(added):
        with_topics.add(frame, position, {b"odd" if number % 2 else b"even"})
    for remainder, topic in enumerate((b"even", b"odd")):
        holding = {index.locate_position(position) for _, position in added[remainder::2]}
        assert set(entries_with(with_topics.topics, [topic], 0, len(index))) == holding
    data = IndexFile(HEADER, with_topics).encode()
    stored = IndexFile.load(lambda length, position: data[position : position + length], len(data), "p")
    assert stored.index == with_topics
    assert stored.segment_header == HEADER
    for topic in (b"even", b"odd", b"none"):
        assert stored.index.topics.look_up(topic)[1] == with_topics.topics.look_up(topic)[1] or topic == b"none"
    assert IndexFile.decode(data, "p").index == with_topics, "one who reads all of the file needs no postings"


def test_every_damaged_byte_of_an_index_file_is_noticed_by_who_reads_only_what_it_needs():
    index = SparseIndex()
    index.topics = TopicPostings()
    for number in range(40):
        index.add(header(5, number * 5, 5000, 1000, 1000), 64 + number * 5000, {b"t/%d" % (number % 7)})
    good = IndexFile(HEADER, index).encode()
    expected = [(n % 7, m) for n in range(7) for m in range(n, 40, 7)]
    refused = without = 0
    for at in range(len(good) - 4):  # the checksum of the whole file is for who reads all of it
        bad = bytearray(good)
        bad[at] ^= 0x11
        data = bytes(bad)
        try:
            found = IndexFile.load(
                lambda length, position, data=data: data[position : position + length], len(data), "p"
            )
            assert (found.index, found.segment_header) == (index, HEADER)
            if found.index.topics is None:
                without += 1
                continue
            got = [(n, m) for n in range(7) for m in entries_with(found.index.topics, [b"t/%d" % n], 0, 40)]
        except CorruptionError:
            refused += 1
        else:
            assert got == expected, at
    assert refused + without > len(good) - 20, "what goes unnoticed is what nobody looks at"


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
