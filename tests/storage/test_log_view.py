from __future__ import annotations

import pytest

from highway.errors import OffsetCorruptError
from highway.storage import LogSettings
from highway.storage.log import reader
from tests.storage.rig import Rig


def test_what_was_fetched_from_the_tail_does_not_hide_the_frame_it_went_into():
    rig = Rig()
    rig.open([LogSettings("a")])
    for payload in (b"zero", b"one", b"two"):
        rig.append("a", payload)
        rig.settle()
    assert rig.fetch("a", 1)[5] == b"one"
    log = rig.log("a")
    log.drain()
    rig.settle()
    assert rig.load("a", 2).end_offset == 3
    assert log.read(2) is not None, "a reader that was told to come and fetch it asks for it again for ever"


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_segment_that_is_gone_becomes_a_gap_of_exactly_its_offsets(victim):
    rig = Rig()
    rig.open([LogSettings("a", segment_bytes=300, flush_bytes=260, compression="none")])
    for number in range(40):
        rig.append("a", b"%d" % number + bytes(30))
        rig.settle()
    bases = [segment.base_offset for segment in rig.log("a").writer.segments]
    path = rig.log("a").writer.segments[victim].path
    rig.close()
    rig.filesystem.unlink(path)
    rig.reopen()
    lost = set(range(bases[victim], bases[victim + 1]))
    assert isinstance(rig.fetch("a", max(lost)), OffsetCorruptError)
    assert rig.in_gaps("a") == lost
    assert set(rig.contents("a")) == set(range(40)) - lost


def test_a_hole_that_a_crash_left_between_segments_stays_what_it_was():
    rig = Rig()
    rig.open([LogSettings("a", segment_bytes=300, flush_bytes=260, compression="none")])
    for _ in range(3):
        for number in range(20):
            rig.append("a", b"%d" % number + bytes(30))
            rig.settle()
        rig.kill()
        rig.reopen()
    before = list(rig.log("a").gaps)
    assert len(rig.contents("a")) == 60
    assert rig.log("a").gaps == before
    assert {gap.reason for gap in before} == {"unclean-stop"}
    assert not rig.faults


def test_a_tail_of_small_batches_is_read_in_pieces_that_hold_the_same():
    rig = Rig()
    rig.open([LogSettings("a")])
    log = rig.log("a")
    for number in range(2500):
        if number == 1200:
            rig.clock.advance(3600)
        rig.append("a", b"%d" % number)
    assert log.read(0).count == 1
    found, pieces, offset = [], [], 0
    while (batch := log.read_joined(offset)) is not None:
        pieces.append(batch)
        found += batch.records()
        offset = batch.end_offset
    expected = [record for number in range(2500) for record in log.read(number).records()]
    assert found == expected
    assert len(pieces) == 3
    assert log.read_joined(1500) is pieces[1], "it is kept for the next reader"
    rig.append("a", b"more")
    assert log.read_joined(2500).count == 1, "one behind the pieces is not worth a piece"
    rig.settle()
    while log.drain():
        rig.settle()
    assert not log._joined, "pieces are let go of with the tail"
    assert log.read_joined(2500).records()[-1][5] == b"more"


def interleaved(**settings):
    """A log of 40 frames in which four topics take turns, out of the cache."""
    rig = Rig()
    rig.open([LogSettings("a", flush_bytes=1 << 20, **settings)])
    for frame in range(40):
        for number in range(100):
            rig.append("a", b"%d" % (frame * 100 + number), topic=b"t/%d" % (number % 40))
        rig.settle()
        rig.log("a").drain()
        rig.settle()
    log = rig.log("a")
    log._cache.discard_below(log.log_id, 1 << 60)
    return rig, log


def wide(rig, log, offset, topic=b"t/1"):
    found = []
    log.load(offset, found.append, frozenset([topic]), wide=True)
    rig.settle()
    return found[0]


def test_a_wide_read_joins_frames_up_to_a_place_where_all_readers_meet(monkeypatch):
    monkeypatch.setattr(reader, "WIDE_RECORDS", 1000)
    rig, log = interleaved()
    for start, base, end in ((0, 0, 1000), (250, 200, 1000), (999, 900, 1000), (1000, 1000, 2000), (3950, 3900, 4000)):
        log._cache.discard_below(log.log_id, 1 << 60)
        batch = wide(rig, log, start)
        assert (batch.base_offset, batch.end_offset) == (base, end)
        assert [record[0] for record in batch.records()] == list(range(base, end))
        assert [record[5] for record in batch.records()] == [b"%d" % number for number in range(base, end)]
        assert [batch.records()[index][3] for index in batch.on_topics([b"t/1"])] == [b"t/1"] * (
            (end - base) // 100 * 3
        )
        assert log.read(end - 1) is batch
    assert rig.contents("a") == {number: b"%d" % number for number in range(4000)}


def test_a_wide_read_is_none_where_the_topic_is_not_near():
    rig, log = interleaved(compression="none")
    rig.append("a", b"last", topic=b"rare")
    rig.settle()
    log.drain()
    rig.settle()
    log._cache.discard_below(log.log_id, 1 << 60)
    batch = wide(rig, log, 0, b"rare")
    assert (batch.base_offset, batch.end_offset) == (3900, 4001)


def test_a_wide_read_ends_before_what_is_damaged_and_the_next_one_reports_it():
    rig, log = interleaved(compression="none")
    path = log.writer.segments[0].path
    data = bytearray(rig.filesystem._names[path].cached)
    data[len(data) // 2] ^= 0xFF
    rig.filesystem.overwrite(path, bytes(data))
    batch = wide(rig, log, 0)
    assert 1000 < batch.end_offset < 3000
    assert not log.gaps
    behind = wide(rig, log, batch.end_offset)
    assert behind.base_offset == batch.end_offset + 100
    assert rig.in_gaps("a") == set(range(batch.end_offset, behind.base_offset))
