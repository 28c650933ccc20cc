"""Segments written again: what goes in comes out, and a crash at any moment leaves the old one or the new one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from highway.errors import CorruptionError
from highway.storage import LogSettings
from highway.storage.disk.descriptors import Descriptors
from highway.storage.maintenance.rewriting import SegmentRewriter
from highway.storage.segment.format import CODEC_NONE, SEGMENT_HEADER_BYTES
from highway.storage.segment.frame_builder import FrameBuilder, pieces_of
from highway.storage.segment.postings import StoredPostings
from highway.storage.segment.records import RecordBatch, SparseBatch, encode_records
from highway.storage.segment.segment import INDEX_SUFFIX, Segment
from tests.storage.simulated_filesystem import Crash, Failure, SimulatedFileSystem

ROOT = Path("/data")
SETTINGS = LogSettings("a")
TOPICS = [b"a", b"bb", b"ccc"]

# Frames: records with their topics, a hole in front, how much later, and whether a start came in between.
frames = st.lists(
    st.tuples(
        st.lists(st.sampled_from(TOPICS), min_size=1, max_size=12),
        st.sampled_from([0, 0, 0, 3]),
        st.sampled_from([0, 1, 40, 5_000_000_000, -90_000_000]),
        st.sampled_from([0, 0, 0, 0, 1]),
    ),
    min_size=1,
    max_size=25,
)


def create(files, base_offset=0, root=ROOT):
    return Segment.create(root, files, log_uuid=bytes(range(16)), base_offset=base_offset, epoch=1, created_ms=5)


def fill(segment, drawn, **values):
    """Append the drawn frames."""
    now, epoch = 1_000_000_000_000, 1
    for number, (topics, hole, later, restart) in enumerate(drawn):
        now += later
        epoch += restart
        data = encode_records([(topic, 1, i, b"", b"%d.%d" % (number, i)) for i, topic in enumerate(topics)])
        base = segment.next_offset + hole
        times = {"min_ms": now, "max_ms": now + len(topics) - 1, "epoch": epoch}
        segment.append_frame(data, count=len(topics), base_offset=base, topics=set(topics), **times | values)
    return segment


def records_of(segment):
    return [record for _, _, batch in segment.frames() for record in batch.records()]


def coverage(segment):
    """Return the offsets that are no hole between frames."""
    covered_offsets = set()
    for header, _, _ in segment.frames():
        covered_offsets |= set(range(header.base_offset, header.end_offset))
    return covered_offsets


def epochs(segment):
    return {
        offset: header.epoch
        for header, _, _ in segment.frames()
        for offset in range(header.base_offset, header.end_offset)
    }


def rewrite(segment, files, keep=None, settings=SETTINGS):
    """Return the segment that has taken the place of the given one, and the rewriter."""
    rewriter = SegmentRewriter(segment, files, settings, keep)
    read_all(rewriter)
    new = rewriter.commit()
    rewriter.finish(new)
    return new, rewriter


def read_all(rewriter):
    while rewriter.step():
        pass


@settings(max_examples=150, deadline=None)
@given(frames, st.none() | st.randoms(use_true_random=False))
def test_what_is_kept_comes_out_as_it_went_in(drawn, chance):
    files = Descriptors(SimulatedFileSystem())
    segment = fill(create(files), drawn)
    segment.seal()
    before, offsets, end = records_of(segment), coverage(segment), segment.index.end_offset
    epochs_before, salt = epochs(segment), segment.header.salt
    kept = {record[0] for record in before if chance is None or chance.random() < 0.4}
    segment, rewriter = rewrite(segment, files, None if chance is None else lambda record: record[0] in kept)
    again = Segment.open_sealed(segment.path, files)
    expected = [record for record in before if record[0] in kept]
    for found in (segment, again):
        assert records_of(found) == expected
        assert coverage(found) == offsets
        assert found.index.end_offset == end
        assert found.verify().intact
        assert {offset: epoch for offset, epoch in epochs(found).items() if offset in kept} == {
            offset: epoch for offset, epoch in epochs_before.items() if offset in kept
        }
    assert segment.header.salt != salt, "an index of the old file must be seen to be one"
    assert (rewriter.records, rewriter.kept) == (len(before), len(expected))
    assert segment.index.frames <= max(1, len(drawn) + len(drawn) // 2)
    files.filesystem.unlink(segment.path.with_suffix(INDEX_SUFFIX))
    assert Segment.open_sealed(segment.path, files).index == segment.index, "the frames alone say the same"


@settings(max_examples=60, deadline=None)
@given(frames, st.randoms(use_true_random=False), st.integers(0, 400))
def test_every_way_to_read_agrees_on_a_segment_with_holes(drawn, chance, offset):
    files = Descriptors(SimulatedFileSystem())
    segment = fill(create(files), drawn)
    segment.seal()
    kept = {record[0] for record in records_of(segment) if chance.random() < 0.3}
    segment = rewrite(segment, files, lambda record: record[0] in kept)[0]
    records = records_of(segment)
    batch = segment.read_at(offset)
    following = [record for record in records if record[0] >= offset]
    if batch is not None:
        assert batch.end_offset > offset
        inside = [record for record in batch.records() if record[0] >= offset]
        assert inside == following[: len(inside)]
        assert all(record[0] >= batch.end_offset for record in following[len(inside) :])
        assert [batch.record_at(record[0]) for record in inside] == inside
    else:
        assert not following
    before = segment.read_before(offset)
    below = [record for record in records if record[0] < offset]
    assert (before is None) == (not below)
    if before is not None:
        assert [record for record in before.records() if record[0] < offset][-1] == below[-1]
    for topic in TOPICS:
        found, at = [], 0
        while (batch := segment.read_at(at, [topic])) is not None:
            found += [record for record in batch.records() if record[3] == topic and record[0] >= at]
            at = batch.end_offset
        assert found == [record for record in records if record[3] == topic]
    times = [record[2] for record in records]
    if times and times == sorted(times):
        time_ms = chance.choice(times) + chance.choice([-1, 0, 1])
        first = next((record[0] for record in records if record[2] >= time_ms), None)
        assert segment.offset_at(time_ms) == first


def test_small_frames_become_large_ones(files):
    segment = fill(create(files), [([b"a"], 0, 1000, 0)] * 5000)
    segment.seal()
    size = segment.length
    segment, rewriter = rewrite(segment, files)
    assert segment.index.frames == 1
    assert segment.length == rewriter.length < size / 10
    assert isinstance(segment.index.topics, StoredPostings)


def test_one_by_one_or_at_once_makes_no_difference_on_the_disk(files):
    """The small form of: 1 million readings of about 110 bytes cost 30 bytes each, also when they came one by one."""
    rng = random.Random(7)
    segment = create(files)
    for number in range(3000):
        reading = (
            b'{"ts":%d,"sensor":"A1-%03d","speed_kmh":%.1f,"temp_c":%.2f,"lane":%d,"vehicle":"%s","batt":%.3f}'
            % (
                1790000000000 + number * 1000,
                number % 17,
                rng.uniform(40, 130),
                rng.gauss(21, 4),
                rng.randrange(4),
                rng.choice([b"car", b"truck", b"bus", b"moto"]),
                rng.uniform(3.1, 4.2),
            )
        )
        data = encode_records([(b"highway/A1/telemetry", 1, 0, b"", reading)])
        time_ms = 1790000000000 + number * 1000
        segment.append_frame(
            data, count=1, base_offset=number, min_ms=time_ms, max_ms=time_ms, epoch=1, topics={b"highway/A1/telemetry"}
        )
    segment.seal()
    assert segment.length > 150 * 3000
    segment = rewrite(segment, files)[0]
    index = len(files.filesystem.content(segment.path.with_suffix(INDEX_SUFFIX)))
    assert segment.length + index < 27 * 3000


def test_frames_of_many_topics_stay_apart(files):
    topics = [b"t/%d" % (number * 7919 % 4001) for number in range(4000)]
    segment = fill(create(files), [([topic], 0, 1, 0) for topic in topics])
    segment.seal()
    segment = rewrite(segment, files)[0]
    assert segment.index.frames == 8


def test_large_frames_are_taken_over_as_they_are(files):
    segment = fill(
        create(files), [([b"a"] * 600, 0, 1, 0), ([b"a"], 0, 1, 0), ([b"a"], 0, 1, 0), ([b"a"] * 600, 0, 1, 0)]
    )
    segment.seal()
    payloads = [payload for header, payload, _ in segment.frames() if header.record_count == 600]
    segment = rewrite(segment, files)[0]
    assert [header.record_count for header, _, _ in segment.frames()] == [600, 2, 600]
    assert [payload for header, payload, _ in segment.frames() if header.record_count == 600] == payloads


def test_a_segment_of_which_nothing_is_kept_covers_its_offsets_all_the_same(files):
    segment = fill(create(files), [([b"a"] * 5, 0, 1, 0)] * 3 + [([b"a"] * 5, 2, 1, 0)])
    segment.seal()
    segment = rewrite(segment, files, lambda _: False)[0]
    assert [(header.base_offset, header.end_offset) for header, _, _ in segment.frames()] == [(0, 15), (17, 22)]
    assert records_of(segment) == []
    assert segment.read_at(3).records() == []
    assert segment.read_before(22) is None
    assert segment.offset_at(0) is None


def test_records_of_version_2_keep_their_time(files):
    segment = create(files)
    for number in range(3):
        key, payload = b"a/b", b"payload %d" % number
        body = bytes((2, len(key))) + key + (7000 + number).to_bytes(8, "big") + payload
        data = len(body).to_bytes(4, "big") + body
        times = {"min_ms": 7000 + number, "max_ms": 7000 + number, "epoch": 1}
        segment.append_frame(data, count=1, base_offset=number, topics={key}, **times)
    segment.seal()
    before = records_of(segment)
    segment = rewrite(segment, files)[0]
    assert segment.index.frames == 1
    assert records_of(segment) == before
    assert [record[2] for record in before] == [7000, 7001, 7002]


def test_damage_stays_where_it_is(fs, files):
    segment = fill(create(files), [([b"a"] * 5, 0, 1, 0)] * 30, codec=CODEC_NONE)
    segment.seal()
    fd = fs.open(segment.path, write=True)
    fs.pwrite(fd, b"damage", SEGMENT_HEADER_BYTES + 200)
    fs.close(fd)
    before = fs.content(segment.path)
    rewriter = SegmentRewriter(segment, files, SETTINGS)
    with pytest.raises(CorruptionError):
        read_all(rewriter)
    rewriter.abandon()
    assert fs.content(segment.path) == before
    assert fs.listdir(ROOT) == [segment.path.with_suffix(INDEX_SUFFIX).name, segment.path.name]


def test_who_reads_while_files_change_places_learns_that_it_means_nothing(fs, files):
    segment = fill(create(files), [([b"a"] * 5, 0, 1, 0)] * 30)
    segment.seal()
    stale_at = []
    fs.on_operation = lambda operation: stale_at.append((operation.kind, segment.stale))
    new, _ = rewrite(segment, files)
    assert stale_at.index(("rename", True)) == stale_at.index(next(item for item in stale_at if item[1])), stale_at
    assert not new.stale


def test_a_segment_that_was_deleted_meanwhile_does_not_come_back(fs, files):
    segment = fill(create(files), [([b"a"] * 5, 0, 1, 0)] * 30)
    segment.seal()
    rewriter = SegmentRewriter(segment, files, SETTINGS)
    read_all(rewriter)
    segment.delete()
    with pytest.raises(FileNotFoundError):
        rewriter.commit()
    rewriter.abandon()
    assert fs.listdir(ROOT) == []


def test_a_deletion_after_the_change_takes_the_new_file(fs, files):
    segment = fill(create(files), [([b"a"] * 5, 0, 1, 0)] * 30)
    segment.seal()
    rewrite(segment, files)
    segment.delete()
    assert fs.listdir(ROOT) == []


def crash_states(drawn, keep, seed):
    """Yield (label, file system) of crashes before every operation of a rewriting, and after the last."""
    fs = SimulatedFileSystem()
    files = Descriptors(fs)
    segment = fill(create(files), drawn)
    segment.seal()
    fs.sync_dir(ROOT)
    rng = random.Random(seed)
    states = []

    def hook(operation):
        label = f"before {operation.kind} {operation.path.name}"
        states.extend((f"{label}: {mode.name}", fs.crash(mode, rng)) for mode in Crash)
        states.append((f"{label}: kill", fs.kill()))

    fs.on_operation = hook
    segment = rewrite(segment, files, keep)[0]
    fs.on_operation = None
    return segment.path, [*states, *((f"after: {mode.name}", fs.crash(mode, rng)) for mode in Crash)]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("compacting", [False, True])
def test_a_crash_at_any_operation_leaves_the_old_segment_or_the_new_one(seed, compacting):
    rng = random.Random(seed)
    drawn = [([rng.choice(TOPICS) for _ in range(rng.randrange(1, 6))], 0, rng.randrange(9), 0) for _ in range(40)]
    wanted = {number for number in range(200) if rng.random() < 0.5}
    keep = (lambda record: record[0] in wanted) if compacting else None
    plain = fill(create(Descriptors(SimulatedFileSystem())), drawn)
    old = records_of(plain)
    new = [record for record in old if keep is None or keep(record)]
    path, states = crash_states(drawn, keep, seed)
    assert len(states) > 40
    seen = set()
    for label, after in states:
        files = Descriptors(after)
        found = Segment.open_sealed(path, files)
        records = records_of(found)
        assert records in (old, new), label
        assert found.verify().intact, label
        for topic in TOPICS:
            batch = found.read_at(0, [topic])
            assert batch is not None, label
        seen.add((len(records), found.index.frames > 20))
    assert len(seen) == 2


def test_a_failure_at_any_operation_changes_nothing_that_a_reader_sees():
    for number in range(1, 14):
        fs = SimulatedFileSystem()
        files = Descriptors(fs)
        segment = fill(create(files), [([b"a"] * 3, 0, 1, 0)] * 40)
        segment.seal()
        before = records_of(segment)
        current = segment
        rewriter = SegmentRewriter(segment, files, SETTINGS)
        fs.fail(number, Failure.ENOSPC)
        try:
            while rewriter.step():
                pass
            current = rewriter.commit()
            rewriter.finish(current)
        except OSError:
            rewriter.abandon()
        fs.heal()
        assert records_of(current) == before
        assert records_of(Segment.open_sealed(segment.path, Descriptors(fs.kill()))) == before
        assert not [name for name in fs.listdir(ROOT) if name.endswith(".log.tmp")]


def test_a_header_that_is_damaged_beside_an_index_of_the_file_before_is_found_in_the_frames(fs, files):
    segment = fill(create(files), [([b"a"] * 3, 0, 1, 0)] * 40)
    segment.seal()
    stale = fs.content(segment.path.with_suffix(INDEX_SUFFIX))
    segment = rewrite(segment, files)[0]
    before = records_of(segment)
    for path, position, data in ((segment.path.with_suffix(INDEX_SUFFIX), 0, stale), (segment.path, 30, b"\xff\xff")):
        fd = fs.open(path, write=True)
        fs.truncate(fd, max(len(data), fs.size(fd)) if position else len(data))
        fs.pwrite(fd, data, position)
        fs.close(fd)
    assert records_of(Segment.open_sealed(segment.path, Descriptors(fs.kill()))) == before


# Sparse batches and pieces.


def test_a_sparse_batch_whose_offsets_make_no_sense_is_refused():
    data = encode_records([(b"a", 0, 0, b"", b"1"), (b"a", 0, 0, b"", b"2")])
    good = SparseBatch(10, 20, 2, 0, 0, bytes.fromhex("0000000300000006") + data)
    assert [record[0] for record in good.records()] == [13, 19]
    assert good.record_at(14) is None
    assert good.record_at(19) == good.records()[1]
    assert not good.begins_before(13)
    assert good.begins_before(14)
    for distances in ("0000000300000000", "0000000300000007", "ffffffff00000001"):
        with pytest.raises(CorruptionError, match="don't ascend"):
            SparseBatch(10, 20, 2, 0, 0, bytes.fromhex(distances) + data).records()


def test_pieces_are_as_few_as_they_can_be():
    data = encode_records([(b"%d" % number, 0, number, b"", b"x" * number) for number in range(6)])
    batch = RecordBatch(100, 6, 1000, 1005, data)
    pieces = pieces_of(batch, lambda record: record[0] != 103)
    assert [(piece.base_offset, piece.record_count, piece.last_ms) for piece in pieces] == [
        (100, 3, 1002),
        (104, 2, 1005),
    ]
    assert b"".join(piece.data for piece in pieces) == data.replace(encode_records([(b"3", 0, 3, b"", b"xxx")]), b"")
    assert pieces[1].topics == {b"4", b"5"}
    assert FrameBuilder().flush() == []
