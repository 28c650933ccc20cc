"""Sealed segments are written again behind everybody's back, and nobody notices."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from highway.storage import Durability, LogSettings, RecordBatch
from highway.storage.log import writer as log_writer
from highway.storage.maintenance import maintainer, reframing, rewriting
from highway.storage.segment.format import SEGMENT_HEADER_BYTES
from tests.storage.rig import SMALL, Rig
from tests.storage.simulated_filesystem import Crash, Failure

SAFE = Durability.SAFE
KEEP = {"retention_ms": None}


def one_by_one(rig, count, topic=b"t"):
    """Append records that become a frame each."""
    for number in range(count):
        rig.append("a", b"payload %d" % number, topic=topic)
        rig.settle()
        rig.log("a").drain()
        rig.settle()


def roll(rig):
    rig.log("a").roll(lambda: None)
    rig.settle()


def settle_segments(rig):
    """Write so many checkpoints that neither slot takes a sealed segment for the active one."""
    for _ in range(log_writer.SETTLING_CHECKPOINTS):
        assert rig.checkpoint()


def maintain(rig, seconds=10.0):
    rig.storage.maintainer.begin_round()
    rig.advance(seconds, step=0.1)


def ready(count=60, settings=SMALL, **values):
    """Return a rig with a sealed, settled segment of small frames."""
    rig = Rig(settings=settings)
    rig.open([LogSettings("a", SAFE, **KEEP | values)])
    one_by_one(rig, count)
    roll(rig)
    settle_segments(rig)
    rig.storage._cache.discard_below(rig.log("a").log_id, 1 << 62)
    return rig


def frames(rig, number=0):
    return rig.log("a").writer.segments[number].index.frames


def contents(count):
    return {number: b"payload %d" % number for number in range(count)}


def test_small_frames_of_a_sealed_segment_become_large_and_nobody_notices():
    rig = ready()
    assert frames(rig) == 60
    before = rig.log("a").writer.segments[0].length
    records = rig.records("a")
    rig.storage._cache.discard_below(rig.log("a").log_id, 1 << 62)
    maintain(rig)
    assert frames(rig) == 1
    assert rig.log("a").writer.segments[0].length < before / 4
    assert rig.records("a") == records
    assert not rig.faults
    rig.close()
    rig.power_cut()
    rig.reopen()
    assert rig.contents("a") == contents(60)
    assert frames(rig) == 1


def test_the_round_of_retention_sets_it_going():
    rig = ready()
    rig.advance(40.0, step=1.0)
    assert frames(rig) == 1


def test_a_segment_waits_until_no_checkpoint_takes_it_for_the_active_one():
    rig = Rig()
    rig.open([LogSettings("a", SAFE, **KEEP)])
    one_by_one(rig, 60)
    roll(rig)
    checkpoints = rig.storage._committer.checkpoints
    rig.storage.maintainer.begin_round()
    rig.settle()
    assert frames(rig) == 60
    assert rig.storage._committer.checkpoints == checkpoints + 1, "it asks for one, as nothing else may"
    for _ in range(4):
        rig.storage.maintainer.begin_round()
        rig.advance(1.0)
    assert frames(rig) == 1


@pytest.mark.parametrize("seed", range(2))
def test_a_crash_at_any_operation_from_the_roll_on_loses_nothing(seed):
    rng = random.Random(seed)
    rig = Rig()
    rig.open([LogSettings("a", SAFE, **KEEP)])
    one_by_one(rig, 40)
    rig.checkpoint()
    states = []

    def hook(operation):
        mode = rng.choice(list(Crash))
        states.append((f"before {operation.kind} {operation.path.name}: {mode.name}", rig.filesystem.crash(mode, rng)))
        if rng.random() < 0.3:
            states.append((f"before {operation.kind} {operation.path.name}: kill", rig.filesystem.kill()))

    rig.filesystem.on_operation = hook
    roll(rig)
    for _ in range(5):
        maintain(rig, 1.0)
    rig.filesystem.on_operation = None
    assert frames(rig) == 1
    states += [(f"at the end: {mode.name}", rig.filesystem.crash(mode, rng)) for mode in Crash]
    seen = set()
    for label, after in states:
        found = Rig(after)
        found.configured = rig.configured
        found.clock.advance(1000)
        found.reopen()
        assert not found.storage.report.damaged, label
        assert found.contents("a") == contents(40), label
        assert not found.log("a").gaps, label
        assert not [name for name in after.listdir(found.log("a").writer._directory) if name.endswith(".tmp")], label
        seen.add(frames(found))
        found.append("a", b"next")
        found.settle()
        assert found.contents("a")[found.log("a").high_watermark - 1] == b"next", label
    assert {1, 40} <= seen


def test_a_reader_that_comes_in_between_gets_everything(monkeypatch):
    monkeypatch.setattr(maintainer, "RATE", 20_000)
    rig = ready(300, settings=replace(SMALL, cache_bytes=1))
    rig.storage.maintainer.begin_round()
    log, got, seen = rig.log("a"), {}, set()
    offset = 0
    while offset < 300:
        batch = rig.load("a", offset)
        assert isinstance(batch, RecordBatch)
        got |= {record[0]: record[5] for record in batch.records()}
        offset = batch.end_offset
        seen.add(batch.count)
        rig.advance(0.05)
        rig.storage._cache.discard_below(log.log_id, 1 << 62)
    assert got == contents(300)
    assert len(seen) > 1, "the frames changed under the reader"
    assert not rig.faults


def test_it_takes_the_time_that_the_rate_asks_for(monkeypatch):
    monkeypatch.setattr(rewriting, "_STEP_BYTES", 500)
    monkeypatch.setattr(maintainer, "RATE", 1000)
    rig = ready(200)
    length = rig.log("a").writer.segments[0].length
    rig.storage.maintainer.begin_round()
    rig.settle()
    rig.advance(length / 1000 - 1)
    assert rig.storage.maintainer.running
    assert frames(rig) == 200
    rig.advance(1 + length / 1000 * 0.2)  # timers of the rig are up to 50 ms late
    assert not rig.storage.maintainer.running
    assert frames(rig) == 1


def test_a_stop_in_between_leaves_the_segment_as_it_was(monkeypatch):
    monkeypatch.setattr(rewriting, "_STEP_BYTES", 500)
    monkeypatch.setattr(maintainer, "RATE", 1000)
    rig = ready(200)
    directory = rig.log("a").writer._directory
    rig.storage.maintainer.begin_round()
    rig.settle()
    rig.advance(2)
    assert [name for name in rig.filesystem.listdir(directory) if name.endswith(".tmp")]
    rig.close()
    assert not [name for name in rig.filesystem.listdir(directory) if name.endswith(".tmp")]
    assert rig.filesystem.open_descriptors() == 0
    rig.reopen()
    assert rig.storage.report.clean
    assert rig.contents("a") == contents(200)


def test_a_full_disk_leaves_the_segment_as_it_was_and_it_is_tried_again():
    rig = ready()
    rig.filesystem.fail(2, Failure.ENOSPC, kinds={"pwrite"})
    maintain(rig, 1.0)
    assert frames(rig) == 60
    assert rig.contents("a") == contents(60)
    maintain(rig)
    assert frames(rig) == 1


def test_a_damaged_segment_stays_as_it_is_and_is_not_tried_for_ever():
    rig = ready()
    segment = rig.log("a").writer.segments[0]
    fd = rig.filesystem.open(segment.path, write=True)
    rig.filesystem.pwrite(fd, b"damage", SEGMENT_HEADER_BYTES + 2000)
    rig.filesystem.close(fd)
    maintain(rig)
    before = len(rig.filesystem.operations)
    assert frames(rig) == 60
    maintain(rig)
    assert len(rig.filesystem.operations) == before
    assert len(rig.contents("a")) == 59


def test_retention_takes_a_segment_that_is_being_written_anew(monkeypatch):
    monkeypatch.setattr(rewriting, "_STEP_BYTES", 500)
    monkeypatch.setattr(maintainer, "RATE", 1000)
    rig = ready(200, retention_bytes=1)
    directory = rig.log("a").writer._directory
    rig.storage.maintainer.begin_round()
    rig.settle()
    rig.advance(2)
    assert rig.storage.maintainer.running
    rig.storage.reap()
    rig.settle()
    assert rig.log("a").log_start_offset == 200
    rig.advance(60)
    assert not rig.storage.maintainer.running
    assert rig.filesystem.listdir(directory) == [f"{200:020d}.log"]
    rig.append("a", b"next")
    rig.settle()
    assert rig.contents("a") == {200: b"next"}


def test_large_frames_are_left_alone():
    rig = Rig()
    rig.open([LogSettings("a", SAFE, **KEEP)])
    for _ in range(20):
        rig.append("a", *[bytes(10)] * 300)
        rig.settle()
        rig.log("a").drain()
        rig.settle()
    roll(rig)
    settle_segments(rig)
    inode = rig.filesystem.content(rig.log("a").writer.segments[0].path)
    maintain(rig)
    assert rig.filesystem.content(rig.log("a").writer.segments[0].path) == inode
    assert rig.log("a").writer.segments[0].tidy


def test_an_active_segment_of_many_small_frames_is_sealed_early(monkeypatch):
    monkeypatch.setattr(log_writer, "_MAX_SMALL_FRAMES", 50)
    rig = Rig()
    rig.open([LogSettings("a", SAFE, **KEEP)])
    one_by_one(rig, 120)
    assert [segment.base_offset for segment in rig.log("a").writer.segments] == [0, 50, 100]
    settle_segments(rig)
    maintain(rig)
    assert [frames(rig, number) for number in range(3)] == [1, 1, 20]
    assert rig.contents("a") == contents(120)


def test_postings_follow_the_frames():
    rig = Rig()
    rig.open([LogSettings("a", SAFE, **KEEP)])
    for number in range(60):
        rig.append("a", b"%d" % number, topic=b"t/%d" % (number % 2))
        rig.settle()
        rig.log("a").drain()
        rig.settle()
    roll(rig)
    settle_segments(rig)
    maintain(rig)
    assert frames(rig) == 1
    for topic in (b"t/0", b"t/1", b"t/none"):
        rig.storage._cache.discard_below(rig.log("a").log_id, 1 << 62)
        found = [record[5] for record in rig.records("a", frozenset([topic])) if record[3] == topic]
        assert len(found) == (0 if topic == b"t/none" else 30)


def test_which_segments_have_small_frames():
    rig = ready()
    index = rig.log("a").writer.segments[0].index
    assert reframing.has_small_frames(index)
    index.records = index.frames * 256
    assert not reframing.has_small_frames(index)
    index.records = 60
    index.frames = 15
    assert not reframing.has_small_frames(index)
