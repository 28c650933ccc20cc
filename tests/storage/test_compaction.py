"""Compaction: the newest record of each topic stays, at its offset, whatever comes in between."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from highway.errors import OffsetGapError
from highway.storage import Durability, LogSettings
from highway.storage.log import writer as log_writer
from highway.storage.maintenance import compaction
from highway.storage.segment.format import SEGMENT_HEADER_BYTES
from tests.storage.rig import SMALL, Rig
from tests.storage.simulated_filesystem import Crash, Failure

HOUR_MS = 3_600_000
SETTINGS = {
    "retention_ms": None,
    "cleanup": "compact",
    "tombstone_ms": HOUR_MS,
    "segment_bytes": 900,
    "flush_bytes": 200,
}


def opened(storage=SMALL, **values):
    rig = Rig(settings=storage)
    rig.open([LogSettings("a", Durability.SAFE, **SETTINGS | values)])
    return rig


def append(rig, topic, payload):
    offset = rig.append("a", payload, topic=topic)
    rig.settle()
    rig.log("a").drain()
    rig.settle()
    return offset


def fill(rig, count, topics=4, size=40):
    """Append `count` records over `topics` topics in turn; return {offset: (topic, payload)}."""
    sent = {}
    for number in range(count):
        topic = b"t/%d" % (number % topics)
        payload = b"%d:" % number + bytes(size)
        sent[append(rig, topic, payload)] = (topic, payload)
    return sent


def compact(rig, rounds=3):
    """Seal, settle and compact, as time does."""
    rig.log("a").roll(lambda: None)
    rig.settle()
    for _ in range(log_writer.SETTLING_CHECKPOINTS):
        assert rig.checkpoint()
    for _ in range(rounds):
        maintain(rig)


def maintain(rig):
    """Do all that a round finds to do."""
    rig.storage.maintainer.begin_round()
    rig.settle()
    while rig.storage.maintainer.running:
        rig.advance(0.5, step=0.1)


def found(rig):
    return {record[0]: (record[3], record[5]) for record in rig.records("a")}


def newest(sent):
    """What has to be left of `sent` in any case."""
    latest = {topic: offset for offset, (topic, _) in sorted(sent.items())}
    return {offset: sent[offset] for offset in sorted(latest.values())}


def test_the_newest_record_of_each_topic_stays_at_its_offset():
    rig = opened()
    sent = fill(rig, 60)
    before = sum(segment.length for segment in rig.log("a").writer.segments)
    compact(rig)
    log = rig.log("a")
    assert found(rig) == newest(sent) == {offset: sent[offset] for offset in range(56, 60)}
    assert (log.log_start_offset, log.high_watermark) == (0, 60)
    assert sum(segment.length for segment in log.writer.segments) < before / 3
    assert not log.gaps, "nothing was lost"
    assert not rig.faults
    rig.close()
    rig.power_cut()
    rig.reopen()
    assert found(rig) == newest(sent)
    assert not rig.storage.report.damaged
    assert append(rig, b"t/0", b"next") == 60


def test_every_reader_takes_the_holes_as_normal():
    rig = opened()
    sent = fill(rig, 60)
    compact(rig)
    left = sorted(newest(sent))
    assert [rig.before("a", offset) for offset in (60, 58, 57, 56)] == [59, 57, 56, None]
    assert isinstance(rig.fetch("a", 10), OffsetGapError)
    assert rig.fetch("a", 57)[5] == sent[57][1]
    assert rig.load("a", 0).end_offset > left[0]
    assert [record[0] for record in rig.records("a", frozenset([b"t/1"])) if record[3] == b"t/1"] == [57]
    time_ms = rig.fetch("a", 56)[2]
    assert rig.offset_at("a", 0) == 56
    assert rig.offset_at("a", time_ms) <= 56


def test_the_active_segment_counts_but_is_not_written_anew():
    rig = opened()
    fill(rig, 40)
    compact(rig)
    active = {append(rig, b"t/0", b"newer"): b"newer", append(rig, b"t/0", b"newest"): b"newest"}
    rig.checkpoint()
    for segment in rig.log("a").writer.segments[:-1]:
        segment.tidy = False
    maintain(rig)
    contents = found(rig)
    assert {offset: payload for offset, (_, payload) in contents.items() if offset in active} == active
    assert sorted(topic for offset, (topic, _) in contents.items() if offset not in active) == [b"t/1", b"t/2", b"t/3"]


def test_a_tombstone_goes_after_its_time_and_with_it_all_that_it_stood_for():
    rig = opened()
    fill(rig, 20)
    tombstone = append(rig, b"t/1", b"")
    fill(rig, 8, topics=1)
    compact(rig)
    assert found(rig)[tombstone] == (b"t/1", b"")
    assert [topic for topic, _ in found(rig).values()].count(b"t/1") == 1
    rig.advance(2 * HOUR_MS / 1000, step=600)
    for segment in rig.log("a").writer.segments[:-1]:
        segment.tidy = False  # as at the next start
    compact(rig)
    assert b"t/1" not in [topic for topic, _ in found(rig).values()]
    assert isinstance(rig.fetch("a", tombstone), OffsetGapError)


def test_a_tombstone_stays_while_damage_hides_what_it_stands_for():
    rig = opened(compression="none")
    fill(rig, 20)
    tombstone = append(rig, b"t/1", b"")
    fill(rig, 8, topics=1)
    rig.log("a").roll(lambda: None)
    rig.settle()
    first = rig.log("a").writer.segments[0]
    fd = rig.filesystem.open(first.path, write=True)
    rig.filesystem.pwrite(fd, b"damage", SEGMENT_HEADER_BYTES + 100)
    rig.filesystem.close(fd)
    before = rig.filesystem.content(first.path)
    rig.advance(2 * HOUR_MS / 1000, step=600)
    compact(rig)
    assert rig.filesystem.content(first.path) == before, "evidence stays"
    assert found(rig)[tombstone] == (b"t/1", b"")


def test_what_subscribers_can_not_see_yet_makes_nothing_superfluous():
    rig = opened(delay_ms=10 * HOUR_MS)
    sent = fill(rig, 20)
    rig.advance(11 * HOUR_MS / 1000, step=600)
    hidden = fill(rig, 20)
    compact(rig)
    contents = found(rig)
    assert set(newest(sent)) <= set(contents)
    assert set(hidden) <= set(contents)
    assert len(contents) < 40


def test_more_topics_than_one_round_takes_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(compaction, "MAX_TOPICS", 2)
    rig = opened()
    sent = fill(rig, 40)
    compact(rig)
    contents = found(rig)
    assert set(newest(sent)) <= set(contents)
    assert [topic for topic, _ in contents.values()].count(b"t/0") == 1
    assert [topic for topic, _ in contents.values()].count(b"t/3") == 10


def test_a_round_is_due_when_half_as_much_is_new():
    rig = opened(segment_bytes=10_000)
    fill(rig, 40, topics=40)
    compact(rig)
    segments = rig.log("a").writer.segments
    length = segments[0].length
    assert segments[0].tidy
    fill(rig, 10, topics=10)
    compact(rig)
    assert not segments[1].tidy, f"{segments[1].length} B are not worth reading {length} B"
    fill(rig, 20, topics=20)
    compact(rig)
    assert all(segment.tidy for segment in segments[:-1])


def test_a_log_that_is_compacted_from_now_on_is_compacted_whole():
    rig = opened(cleanup="delete")
    sent = fill(rig, 60)
    compact(rig)
    assert all(segment.tidy for segment in rig.log("a").writer.segments[:-1])
    assert found(rig) == sent
    rig.storage.change_logs([replace(rig.log("a").settings, cleanup="compact")])
    maintain(rig)
    assert found(rig) == newest(sent)


@pytest.mark.parametrize("failure", [Failure.ENOSPC, Failure.EIO])
def test_a_disk_that_fails_at_any_operation_loses_nothing(failure):
    for number in range(1, 40, 3):
        rig = opened()
        sent = fill(rig, 30)
        rig.log("a").roll(lambda: None)
        rig.settle()
        for _ in range(log_writer.SETTLING_CHECKPOINTS):
            assert rig.checkpoint()
        rig.storage.maintainer.begin_round()
        rig.filesystem.fail(number, failure)
        rig.advance(1.0, step=0.1)
        rig.filesystem.heal()
        contents = found(rig)
        assert newest(sent).items() <= contents.items() <= sent.items(), number
        rig.kill()
        rig.reopen()
        assert newest(sent).items() <= found(rig).items() <= sent.items(), number


def resurrected(sent, contents):
    """Topics of which something older came back although their last record, a tombstone, is gone."""
    last = {topic: offset for offset, (topic, _) in sorted(sent.items())}
    there = {topic for topic, _ in contents.values()}
    return [
        topic for topic, offset in last.items() if not sent[offset][1] and offset not in contents and topic in there
    ]


@pytest.mark.parametrize("seed", range(3))
def test_a_crash_at_any_operation_keeps_the_newest_and_brings_nothing_back(seed):
    rng = random.Random(seed)
    rig = opened(replace(SMALL, reaper_interval_ms=10**9))  # nothing is written anew before the tombstones are old
    sent = fill(rig, 24)
    for topic in (b"t/1", b"t/3"):
        sent[append(rig, topic, b"")] = (topic, b"")
    for number in range(10):
        payload = b"later %d" % number
        sent[append(rig, b"t/0", payload)] = (b"t/0", payload)
    rig.advance(2 * HOUR_MS / 1000, step=600)
    rig.log("a").roll(lambda: None)
    rig.settle()
    for _ in range(log_writer.SETTLING_CHECKPOINTS):
        assert rig.checkpoint()
    states = []

    def hook(operation):
        label = f"before operation {operation.index} ({operation.kind} {operation.path.name})"
        mode = rng.choice(list(Crash))
        states.append((f"{label}: {mode.name}", rig.filesystem.crash(mode, rng)))
        if rng.random() < 0.3:
            states.append((f"{label}: kill", rig.filesystem.kill()))

    rig.filesystem.on_operation = hook
    for _ in range(3):
        maintain(rig)
    rig.filesystem.on_operation = None
    states += [(f"at the end: {mode.name}", rig.filesystem.crash(mode, rng)) for mode in Crash]
    assert len(states) > 40
    live = {offset: record for offset, record in newest(sent).items() if record[1]}
    sizes = set()
    for label, filesystem in states:
        after = Rig(filesystem)
        after.configured = rig.configured
        after.clock.advance(10_000)
        after.reopen()
        assert not after.storage.report.damaged, label
        contents = found(after)
        assert live.items() <= contents.items() <= sent.items(), label
        assert not resurrected(sent, contents), label
        assert not after.log("a").gaps, label
        assert append(after, b"t/0", b"next") == 36, label
        sizes.add(len(contents))
    assert min(sizes) == len(live)
    assert max(sizes) == len(sent)


@pytest.mark.parametrize("suffix", [".log", ".idx"])
def test_a_flipped_byte_of_a_compacted_segment_is_never_a_wrong_record(suffix):
    rig = opened()
    fill(rig, 60)
    compact(rig)
    rig.close()
    sent = None
    damaged = 0
    names = [name for name in rig.filesystem.listdir(rig.log("a").writer._directory) if name.endswith(suffix)]
    path = rig.log("a").writer._directory / sorted(names)[-2 if suffix == ".log" else -1]
    for position in range(len(rig.filesystem.content(path))):
        filesystem = rig.filesystem.kill()
        fd = filesystem.open(path, write=True)
        before = filesystem.pread(fd, 1, position)
        if sent is not None:
            filesystem.pwrite(fd, bytes([before[0] ^ 0xFF]), position)
        filesystem.close(fd)
        after = Rig(filesystem)
        after.configured = rig.configured
        after.clock.advance(100)
        after.reopen()
        contents = found(after)
        sent = contents if sent is None else sent
        assert contents.items() <= sent.items(), position
        if contents != sent:
            damaged += 1
            assert after.log("a").gaps, position
        after.close()
    assert bool(damaged) == (suffix == ".log"), "an index says nothing that the frames don't"
