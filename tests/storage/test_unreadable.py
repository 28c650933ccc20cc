"""Sectors that the disk can't read: one more try, then exactly what stood on them is lost, and nothing else stops."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from highway.errors import CorruptionError, OffsetCorruptError
from highway.storage import Durability, LogSettings, RecordBatch
from tests.storage.rig import DIRECTORY, SMALL, Rig

SAFE = Durability.SAFE
LOGS = [
    LogSettings("a", SAFE, flush_bytes=5000, segment_bytes=40_000),
    LogSettings("b", SAFE, flush_bytes=5000, segment_bytes=40_000),
]


def stored():
    """A rig, stopped and opened again, whose logs have segments of several frames each, and what they hold."""
    rig = Rig()
    rig.open(LOGS)
    work = random.Random(7)
    sent = {log.name: {} for log in LOGS}
    for _ in range(120):
        for log in LOGS:
            payload = work.randbytes(700)
            sent[log.name][rig.append(log.name, payload)] = payload
        rig.settle()
    rig.close()
    rig.reopen()
    assert len(rig.log("a").writer.segments) >= 2
    return rig, sent


@pytest.mark.parametrize("which", [0, -2])
def test_a_bad_sector_costs_the_frames_on_it_and_no_others(which):
    rig, sent = stored()
    segment = rig.log("a").writer.segments[which]
    middle = segment.file_size() // 2
    rig.filesystem.make_unreadable(segment.path, middle, middle + 1)
    found = rig.contents("a")
    missing = sent["a"].keys() - found.keys()
    assert 1 <= len(missing) <= 10
    assert missing == rig.in_gaps("a")
    assert found.items() <= sent["a"].items()
    assert rig.contents("b") == sent["b"]
    error = rig.fetch("a", min(missing))
    assert isinstance(error, OffsetCorruptError)
    assert error.next_offset == max(missing) + 1
    assert [type(fault) for fault in rig.faults] == [CorruptionError]
    assert rig.before("a", max(missing) + 1) == min(missing) - 1
    rig.append("a", b"goes on")
    assert rig.reached(SAFE) == [None]


def test_an_error_that_passes_costs_nothing():
    rig, sent = stored()
    for segment in rig.log("a").writer.segments:
        rig.filesystem.make_unreadable(segment.path, 0, 1 << 30, times=1)
    assert rig.contents("a") == sent["a"]
    assert rig.log("a").gaps == []
    assert rig.faults == []


def test_a_segment_of_which_nothing_can_be_read_is_a_gap_and_the_loop_goes_on():
    rig, sent = stored()
    first, second = rig.log("a").writer.segments[:2]
    rig.filesystem.make_unreadable(first.path, 0, 1 << 30)
    found = rig.contents("a")
    assert sent["a"].keys() - found.keys() == set(range(second.base_offset)) == rig.in_gaps("a")
    assert rig.offset_at("a", 0) == second.base_offset
    assert rig.before("a", second.base_offset) is None


def test_an_open_passes_over_what_it_cannot_read_of_checkpoint_snapshot_and_format():
    rig, sent = stored()
    rig.storage.put([(b"k", b"v")], SAFE)
    rig.settle()
    rig.close()
    (snapshot,) = [name for name in rig.filesystem.listdir(DIRECTORY / "meta") if name.endswith(".snap")][-1:]
    for path in (DIRECTORY / "CHECKPOINT.a", DIRECTORY / "meta" / snapshot, DIRECTORY / "FORMAT"):
        rig.filesystem.bad_sectors.clear()
        rig.filesystem.make_unreadable(path, 0, 10)
        again = Rig(rig.filesystem.kill())
        again.open(LOGS)
        assert {log.name: again.contents(log.name) for log in LOGS} == sent
        assert again.storage.meta.get(b"k") == b"v"


def test_bad_sectors_of_the_journal_are_damage_in_it_and_no_failed_start():
    rig = Rig()
    rig.open([LogSettings("a", SAFE)])
    sent = {}
    for number in range(30):
        payload = b"%d" % number + bytes(200)
        sent[rig.append("a", payload)] = payload
        rig.settle()
    (path,) = [
        DIRECTORY / "journal" / name
        for name in rig.filesystem.listdir(DIRECTORY / "journal")
        if b"29" + bytes(200) in rig.filesystem.content(DIRECTORY / "journal" / name)
    ]
    journal = rig.filesystem.kill()
    size = len(journal.content(path))
    assert size >= 8192
    for bad in (0, 200, 4096 - 1, 4096):
        rig = Rig(journal.kill())
        rig.filesystem.bad_sectors = {}
        rig.filesystem.make_unreadable(path, bad, bad + 1)
        rig.open([LogSettings("a", SAFE)])
        found = rig.contents("a")
        missing = sent.keys() - found.keys()
        assert missing <= rig.in_gaps("a"), "lost, and said so"
        assert bool(missing) == bool(rig.storage.report.damaged)
        assert rig.append("a", b"next") > 29, "no offset that a reader has seen is given again"
        assert rig.reached(SAFE) == [None]
        rig.kill()
        rig.reopen()
        assert rig.contents("a").items() >= found.items()


@pytest.mark.parametrize("how", ["unreadable", "overwritten"])
def test_a_journal_file_without_any_header_costs_its_frames_and_gives_no_offset_away(how):
    rig = Rig(settings=replace(SMALL, journal_file_bytes=64 * 1024, checkpoint_bytes=1 << 30))
    rig.open([LogSettings("a", SAFE)])
    for number in range(60):
        rig.append("a", b"%d" % number + bytes(200))
        rig.settle()
        if number == 30:
            rig.checkpoint()
    seen = rig.log("a").high_watermark
    path = DIRECTORY / "journal" / rig.filesystem.listdir(DIRECTORY / "journal")[0]
    rig.kill()
    if how == "unreadable":
        rig.filesystem.make_unreadable(path, 0, 1)
    else:
        rig.filesystem.overwrite(path, bytes(128) + rig.filesystem.content(path)[128:])
    rig.reopen()
    assert rig.storage.report.damaged
    assert set(range(seen)) == set(rig.contents("a")) | rig.in_gaps("a") & set(range(seen))
    assert rig.append("a", b"next") >= seen


def test_a_bad_sector_in_the_unused_part_of_the_journal_costs_nothing():
    rig = Rig()
    rig.open([LogSettings("a", SAFE)])
    rig.append("a", b"x")
    rig.settle()
    rig.kill()
    for name in rig.filesystem.listdir(DIRECTORY / "journal"):
        rig.filesystem.make_unreadable(DIRECTORY / "journal" / name, 6000, 6001)
    rig.reopen()
    assert not rig.storage.report.damaged
    assert rig.contents("a") == {0: b"x"}


def test_a_bad_sector_above_the_durable_length_is_a_torn_tail():
    rig = Rig()
    rig.open([LogSettings("a", SAFE, flush_bytes=300)])
    sent = {}
    for number in range(20):
        payload = random.Random(number).randbytes(200)
        sent[rig.append("a", payload)] = payload
        rig.settle()
    segment = rig.log("a").writer.segments[-1]
    rig.kill()
    rig.filesystem.make_unreadable(segment.path, 700, 701)
    rig.reopen()
    assert rig.contents("a") == sent, "the journal has it"
    assert isinstance(rig.load("a", 0), RecordBatch)
