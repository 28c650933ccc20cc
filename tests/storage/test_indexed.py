"""Topic postings of a segment: where they come from, and that no reader is ever kept from a frame that it wants."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from highway.errors import CorruptionError, OffsetNotFoundError
from highway.storage import LogSettings, RecordHeads, StorageSettings
from highway.storage.disk.descriptors import Descriptors
from highway.storage.segment.format import CODEC_NONE, SEGMENT_HEADER_BYTES
from highway.storage.segment.index import IndexFile
from highway.storage.segment.postings import ANYWHERE, StoredPostings, TopicPostings
from highway.storage.segment.records import RecordBatch, encode_records
from highway.storage.segment.segment import INDEX_SUFFIX, Segment
from tests.storage.rig import Rig
from tests.storage.simulated_filesystem import Crash, Failure

ROOT = Path("/data")
FRAME_RECORDS = 40
TOPICS = 10  # one for each frame, in turn


def append(segment, number):
    """Append the frame of topic t/<number % 10>, too large to share its index entry."""
    topic = b"t/%d" % (number % TOPICS)
    data = encode_records([(topic, 0, i, b"", bytes(100)) for i in range(FRAME_RECORDS)])
    times = {"min_ms": number, "max_ms": number + FRAME_RECORDS, "epoch": 1}
    segment.append_frame(
        data, count=FRAME_RECORDS, base_offset=segment.next_offset, codec=CODEC_NONE, topics={topic}, **times
    )


def filled(files, frames=30):
    segment = Segment.create(ROOT, files, log_uuid=bytes(16), base_offset=0, epoch=1, created_ms=0)
    for number in range(frames):
        append(segment, number)
    return segment


def reopened(segment, files):
    """Return the segment as the next start has it, still active."""
    segment.sync()
    segment.close()
    return Segment.open_active(segment.path, files)[0]


def frames_of(segment, topic):
    """Return the numbers of the frames that a reader of `topic` gets, from the front and from the back."""
    forward, backward = [], []
    offset = 0
    while (batch := segment.read_at(offset, [topic])) is not None:
        forward.append(batch.base_offset // FRAME_RECORDS)
        offset = batch.end_offset
    offset = segment.index.end_offset
    while (batch := segment.read_before(offset, [topic])) is not None:
        backward.append(batch.base_offset // FRAME_RECORDS)
        offset = batch.base_offset
    assert backward == forward[::-1]
    return forward


def index_path(segment):
    return segment.path.with_suffix(INDEX_SUFFIX)


def change(fs, path, position, data):
    fd = fs.open(path, write=True)
    fs.pwrite(fd, data, position)
    fs.close(fd)


def read(fs, path):
    fd = fs.open(path)
    try:
        return fs.pread(fd, fs.size(fd), 0)
    finally:
        fs.close(fd)


def test_a_reader_of_one_topic_gets_its_frames_only(files):
    segment = filled(files)
    assert frames_of(segment, b"t/3") == [3, 13, 23]
    assert frames_of(segment, b"t/none") == []
    segment.seal()
    assert isinstance(segment.index.topics, StoredPostings)
    assert frames_of(segment, b"t/3") == [3, 13, 23]
    assert frames_of(Segment.open_sealed(segment.path, files), b"t/9") == [9, 19, 29]


def test_who_asks_for_no_topic_reads_no_postings(fs, files):
    segment = filled(files, 300)
    segment.seal()
    read_bytes = []
    pread = fs.pread
    fs.pread = lambda fd, length, position: read_bytes.append(length) or pread(fd, length, position)
    sealed = Segment.open_sealed(segment.path, files)
    assert sealed.index.records == 300 * FRAME_RECORDS
    assert max(read_bytes) <= 64 * 1024


@pytest.mark.parametrize("loss", ["index", "postings", "section"])
def test_postings_of_a_sealed_segment_that_are_missing_are_made_again_once(fs, files, loss):
    segment = filled(files)
    segment.seal()
    good = read(fs, index_path(segment))
    if loss == "index":
        fs.unlink(index_path(segment))
    elif loss == "postings":
        change(fs, index_path(segment), len(good) - 10, b"\0\0")
    else:  # as the version before them wrote it
        index = IndexFile.decode(good, "x").index
        fs.unlink(index_path(segment))
        old = Segment.open_sealed(segment.path, files)
        data = IndexFile(old.header.encode(), index).encode()
        fs.close(fs.open(index_path(segment), create=True))
        change(fs, index_path(segment), 0, data)
    found = Segment.open_sealed(segment.path, files)
    assert frames_of(found, b"t/3") == [3, 13, 23]
    assert read(fs, index_path(segment)) == good
    fs.pread, pread = None, fs.pread  # from here on nothing but the index and the frames asked for
    fs.pread = lambda fd, length, position: pread(fd, length, position) if length < 70_000 else pytest.fail("all of it")
    assert frames_of(Segment.open_sealed(segment.path, files), b"t/4") == [4, 14, 24]


def test_a_disk_that_takes_no_index_does_not_keep_readers_from_their_topics(fs, files):
    segment = filled(files)
    segment.seal()
    fs.unlink(index_path(segment))
    fs.fail(1, Failure.ENOSPC, kinds={"pwrite"})
    assert frames_of(Segment.open_sealed(segment.path, files), b"t/3") == [3, 13, 23]


def test_an_active_segment_finds_its_topics_again_after_a_start_and_goes_on_with_them(files):
    segment = reopened(filled(files), files)
    for number in range(30, 35):
        append(segment, number)
    assert frames_of(segment, b"t/3") == [3, 13, 23, 33]
    for number in range(35, 50):
        append(segment, number)
    assert isinstance(segment.index.topics, TopicPostings)
    assert frames_of(segment, b"t/3") == [3, 13, 23, 33, 43]
    segment.seal()
    assert frames_of(Segment.open_sealed(segment.path, files), b"t/3") == [3, 13, 23, 33, 43]


def test_a_segment_that_is_sealed_right_after_a_start_has_all_of_its_topics(files):
    segment = reopened(filled(files), files)
    append(segment, 30)
    segment.seal()
    assert isinstance(Segment.open_sealed(segment.path, files).index.topics, StoredPostings)
    assert frames_of(segment, b"t/0") == [0, 10, 20, 30]


def test_frames_that_come_in_while_postings_are_made_are_among_them(files):
    segment = reopened(filled(files), files)
    topics_of = segment._topics_of
    late = [30, 31, 32]

    def slow(index, entry):
        found = topics_of(index, entry)
        if late:
            append(segment, late.pop(0))
        return found

    type(segment)._topics_of, original = (lambda _, index, entry: slow(index, entry)), type(segment)._topics_of
    try:
        assert frames_of(segment, b"t/2") == [2, 12, 22, 32]
    finally:
        type(segment)._topics_of = original


def test_with_a_damaged_frame_readers_of_every_topic_come_across_it(fs, files):
    segment = filled(files)
    position = segment.index.region(5)[0]
    segment.seal()
    fs.unlink(index_path(segment))
    change(fs, segment.path, position + 100, b"damage")
    found = Segment.open_sealed(segment.path, files)
    with pytest.raises(CorruptionError):
        frames_of(found, b"t/3")
    assert found.index.topics is ANYWHERE


def test_behind_the_last_good_frame_readers_of_every_topic_come_across_the_damage(fs, files):
    segment = filled(files)
    position = segment.index.region(29)[0]
    segment.seal()
    fs.unlink(index_path(segment))
    change(fs, segment.path, position + 4, b"damage")
    found = Segment.open_sealed(segment.path, files)
    assert found.read_at(0, [b"t/3"]).base_offset == 0
    with pytest.raises(CorruptionError):
        found.read_at(29 * FRAME_RECORDS, [b"t/3"])


def test_a_clean_stop_keeps_the_postings_of_a_large_active_segment(fs, files):
    segment = filled(files, 40)
    segment.park()
    assert fs.exists(index_path(segment))
    segment = reopened(segment, files)
    fs.pread, pread = None, fs.pread
    fs.pread = lambda fd, length, position: pread(fd, length, position) if length < 70_000 else pytest.fail("all of it")
    assert frames_of(segment, b"t/3") == [3, 13, 23, 33]
    append(segment, 40)
    assert not fs.exists(index_path(segment)), "it would be wrong from now on"
    assert frames_of(segment, b"t/0") == [0, 10, 20, 30, 40]
    fs.pread = pread
    segment.seal()
    assert frames_of(Segment.open_sealed(segment.path, files), b"t/0") == [0, 10, 20, 30, 40]


def test_an_index_that_a_crash_kept_beside_a_grown_segment_is_not_believed(fs, files):
    segment = filled(files, 40)
    segment.park()
    segment = reopened(segment, files)
    for number in range(40, 45):
        append(segment, number)
    segment.sync()
    after = fs.crash(Crash.NOTHING)  # the removal of the file wasn't durable
    assert after.exists(index_path(segment))
    segment = Segment.open_active(segment.path, Descriptors(after))[0]
    assert frames_of(segment, b"t/3") == [3, 13, 23, 33, 43]


def test_a_small_active_segment_is_not_worth_a_file(fs, files):
    segment = filled(files, 5)
    segment.park()
    assert not fs.exists(index_path(segment))


# Logs.


def log_of(rig, frames=12, **settings):
    """Open a log whose frames hold one topic each, in turn t/0, t/1, t/2; the tail is empty and nothing is cached."""
    rig.open([LogSettings("a", flush_bytes=1, compression="none", **settings)])
    log = rig.log("a")
    for number in range(frames):
        data = RecordHeads(b"t/%d" % (number % 3), 0, log.delta_ms()).encode([bytes(1500)] * 3)
        log.append(data, 3)
        rig.settle()
    assert rig.checkpoint()
    rig.storage._cache.discard_below(log.log_id, 1 << 62)
    return log


def damage(rig, log, frame):
    segment = log.writer.segments[0]
    change(rig.filesystem, segment.path, SEGMENT_HEADER_BYTES + frame * (segment.length - 64) // 12 + 300, b"damage")


def test_a_reader_of_other_topics_loses_nothing_to_a_damaged_frame_and_reports_nothing():
    rig = Rig()
    log = log_of(rig)
    damage(rig, log, 4)
    assert [r[0] for r in rig.records("a", frozenset([b"t/0"])) if r[3] == b"t/0"] == [
        0,
        1,
        2,
        9,
        10,
        11,
        18,
        19,
        20,
        27,
        28,
        29,
    ]
    assert not log.gaps


def test_damage_that_a_reader_of_one_topic_meets_is_reported_with_exactly_its_offsets():
    rig = Rig()
    log = log_of(rig)
    damage(rig, log, 7)
    assert [r[0] for r in rig.records("a", frozenset([b"t/1"])) if r[3] == b"t/1"] == [3, 4, 5, 12, 13, 14, 30, 31, 32]
    assert [(gap.from_offset, gap.to_offset) for gap in log.gaps] == [(21, 24)]


def test_damage_that_a_reader_of_one_topic_meets_backwards_is_reported_with_exactly_its_offsets():
    rig = Rig()
    log = log_of(rig)
    damage(rig, log, 7)
    batch = rig.batch_before("a", 30, frozenset([b"t/1"]))
    assert batch.base_offset == 12
    assert [(gap.from_offset, gap.to_offset) for gap in log.gaps] == [(21, 24)]


def test_readers_of_different_topics_at_one_offset_do_not_share_their_answer():
    rig = Rig()
    log = log_of(rig)
    answers = {}
    for topic in (b"t/0", b"t/1", b"t/2"):
        log.load(1, lambda batch, topic=topic: answers.setdefault(topic, batch.base_offset), frozenset([topic]))
    log.load(1, lambda batch: answers.setdefault(None, batch.base_offset))
    rig.settle()
    assert answers == {b"t/0": 0, b"t/1": 3, b"t/2": 6, None: 0}


def test_what_is_behind_the_last_frame_with_the_topic_is_answered_from_memory_or_with_not_found():
    rig = Rig()
    log = log_of(rig)
    results = []
    log.load(31, results.append, frozenset([b"t/0"]))
    rig.settle()
    assert isinstance(results[0], OffsetNotFoundError)
    rig.storage._checkpointer.closed = True  # keep what comes now in memory
    log.settings = LogSettings("a")
    rig.append("a", b"in the tail", topic=b"t/none")
    log.load(31, results.append, frozenset([b"t/0"]))
    rig.settle()
    assert isinstance(results[1], RecordBatch)
    assert results[1].base_offset == 36, "the tail is short: nobody looks for topics in it"


def test_drains_of_many_topics_become_frames_that_can_be_told_apart():
    rng = random.Random(1)
    rig = Rig(settings=StorageSettings())
    rig.open([LogSettings("a", flush_records=8192, flush_bytes=1 << 20)])
    log = rig.log("a")
    for number in range(8192):
        log.append(RecordHeads(b"sensor/%d" % (number % 2048), 0, log.delta_ms()).encode([rng.randbytes(20)]), 1)
    rig.settle()
    assert rig.checkpoint()
    (segment,) = log.writer.segments
    assert segment.index.frames == 16
    entries = list(segment._entries(segment.index, 0, 16, [b"sensor/700"]))
    assert entries == [1, 5, 9, 13]
    assert [len(segment.read_at(entry * 512).records()) for entry in entries] == [512] * 4


def test_drains_of_a_few_topics_stay_one_frame():
    rig = Rig(settings=StorageSettings())
    rig.open([LogSettings("a", flush_records=8192, flush_bytes=1 << 20)])
    log = rig.log("a")
    for number in range(8192):
        log.append(RecordHeads(b"sensor/%d" % (number // 512), 0, log.delta_ms()).encode([b"%d" % number]), 1)
    rig.settle()
    assert rig.checkpoint()
    assert log.writer.segments[0].index.frames == 1


def test_a_disk_that_fills_up_between_two_frames_keeps_the_first_and_writes_the_rest_later():
    rig = Rig(settings=StorageSettings())
    rig.open([LogSettings("a", flush_records=1 << 20, flush_bytes=1 << 20)])
    log = rig.log("a")
    for number in range(2048):
        log.append(RecordHeads(b"sensor/%d" % number, 0, log.delta_ms()).encode([b"%d" % number]), 1)
    rig.settle()
    rig.filesystem.fail(4, Failure.ENOSPC, kinds={"pwrite"})  # behind the segment header and two frames
    assert log.drain()
    rig.settle()
    assert log.writer.segments[0].index.frames == 2
    assert log.drain()
    rig.settle()
    assert log.writer.segments[0].index.records == 2048
    rig.storage._cache.discard_below(log.log_id, 1 << 62)
    assert rig.contents("a") == {number: b"%d" % number for number in range(2048)}


def test_one_topic_among_ten_thousand_is_read_without_the_rest():
    """The small form of: one topic among 20,000 in a 2-million-record log, in less than a tenth of the bytes."""
    rig = Rig(settings=StorageSettings())
    rig.open([LogSettings("a")])
    log = rig.log("a")
    topics = [number * 7919 % 60_013 % 10_000 for number in range(60_000)]
    rng = random.Random(3)
    for number, topic in enumerate(topics):
        heads = RecordHeads(b"highway/A%d/telemetry" % topic, 0, log.delta_ms())
        log.append(heads.encode([rng.randbytes(40)]), 1)
        if not number % 4096:
            rig.settle()
    rig.settle()
    assert rig.checkpoint()
    log.roll(lambda: None)
    rig.settle()
    rig.storage._cache.discard_below(log.log_id, 1 << 62)
    whole = sum(len(read(rig.filesystem, segment.path)) for segment in log.writer.segments)
    got = []
    pread = rig.filesystem.pread

    def counting(fd, length, position):
        data = pread(fd, length, position)
        got.append(len(data))
        return data

    rig.filesystem.pread = counting
    found = [
        record
        for record in rig.records("a", frozenset([b"highway/A77/telemetry"]))
        if record[3].endswith(b"A77/telemetry")
    ]
    assert [record[0] for record in found] == [number for number in range(60_000) if topics[number] == 77]
    assert len(found) in range(3, 12)
    assert sum(got) < whole / 10
