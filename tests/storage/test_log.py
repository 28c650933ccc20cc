from __future__ import annotations

from dataclasses import replace

import pytest

from highway.clock import ManualClock
from highway.errors import OffsetCorruptError, OffsetGapError, OffsetNotFoundError
from highway.storage import Durability, LogSettings, RecordHeads
from highway.storage.log.cache import BatchCache
from highway.storage.log.ceiling import RESERVATION_BLOCK
from highway.storage.log.commit_time import CommitTime
from highway.storage.segment.records import RecordBatch
from highway.storage.segment.segment import segment_path
from tests.storage.rig import SMALL, Rig
from tests.storage.simulated_filesystem import Crash, Failure

DAY_S = 24 * 3600
SMALL_SEGMENTS = {"segment_bytes": 300, "flush_bytes": 260, "compression": "none"}


def one(durability=Durability.BALANCED, **settings):
    rig = Rig()
    rig.open([LogSettings("a", durability, **settings)])
    return rig


def bounds(log):
    return log.log_start_offset, log.high_watermark, log.log_end_offset


# Visibility.


def test_a_fast_record_is_visible_at_append_once_offsets_are_reserved():
    rig = one(Durability.FAST)
    log = rig.log("a")
    seen = []
    log.on_visible = lambda: seen.append(log.high_watermark)
    rig.append("a", b"1")
    assert bounds(log) == (0, 0, 1), "the first one waits for the reservation to be durable"
    rig.settle()
    assert seen == [1]
    rig.append("a", b"2", b"3")
    assert seen == [1, 3]


def test_a_balanced_record_is_visible_when_written_and_a_safe_one_when_synced():
    rig = Rig()
    rig.open([LogSettings("b", Durability.BALANCED), LogSettings("s", Durability.SAFE)])
    rig.append("b", b"0")
    rig.settle()
    events = []
    rig.filesystem.on_operation = lambda operation: events.append(operation.kind)
    for name in "bs":
        rig.log(name).on_visible = lambda name=name: events.append(f"{name} visible")
        rig.append(name, b"1")
    rig.settle()
    assert events == ["pwrite", "b visible", "fdatasync", "s visible"]


def test_nothing_overtakes_an_append_that_was_raised():
    rig = one(Durability.FAST)
    log = rig.log("a")
    rig.append("a", b"0")
    rig.settle()
    rig.append("a", b"safe", durability=Durability.SAFE)
    rig.append("a", b"fast")
    assert bounds(log) == (0, 1, 3), "order within a log is never broken"
    rig.settle()
    assert bounds(log) == (0, 3, 3)


def test_durability_can_only_be_raised():
    rig = one(Durability.SAFE)
    rig.append("a", b"0", durability=Durability.FAST)
    assert rig.log("a").high_watermark == 0
    rig.settle()
    assert rig.log("a").high_watermark == 1


@pytest.mark.parametrize("durability", [Durability.FAST, Durability.BALANCED])
def test_no_offset_is_shown_above_the_durable_reservation(durability):
    rig = one(durability)
    log = rig.log("a")
    rig.append("a", b"0")
    rig.settle()
    for _ in range(30):
        rig.append("a", *[b"x"] * 4000)
        # Whoever looks now may have seen everything below the watermark: a power cut must not give it away again.
        after = Rig(rig.filesystem.crash(Crash.NOTHING))
        after.configured = rig.configured
        after.reopen()
        assert after.log("a").log_end_offset >= log.high_watermark
        if durability == Durability.BALANCED:
            rig.settle()
        else:
            rig.advance(0.1)
    assert log.high_watermark == log.log_end_offset


def test_reservations_grow_while_they_are_used_up_quickly():
    rig = one(Durability.BALANCED)
    log = rig.log("a")
    data = RecordHeads(b"t", 0, 0).encode([b""] * 5000)
    ceilings = set()
    for _ in range(200):
        log.delta_ms()
        log.append(data, 5000)
        rig.settle()
        ceilings.add(log._ceiling.offset)
    blocks = sorted(ceilings)
    assert blocks[0] <= 2 * RESERVATION_BLOCK
    assert blocks[-1] - blocks[-2] > 8 * RESERVATION_BLOCK
    assert len(ceilings) < 12


def test_a_safe_log_reserves_nothing_and_leaves_no_hole():
    rig = one(Durability.SAFE)
    rig.append("a", b"0")
    rig.settle()
    rig.append("a", b"never acknowledged")
    rig.power_cut()
    rig.reopen()
    assert bounds(rig.log("a")) == (0, 1, 1)
    assert rig.log("a").gaps == []


def test_a_log_without_appends_leaves_no_hole():
    rig = one(Durability.FAST)
    for _ in range(3):
        rig.kill()
        rig.reopen()
    assert bounds(rig.log("a")) == (0, 0, 0)
    assert rig.log("a").gaps == []
    assert rig.log("a").epoch == 4


def test_an_unclean_stop_goes_on_at_the_ceiling_and_says_so():
    rig = one(Durability.BALANCED)
    rig.append("a", b"0")
    rig.settle()
    rig.power_cut()
    rig.reopen()
    (gap,) = rig.log("a").gaps
    base = rig.append("a", b"1")
    rig.settle()
    assert (gap.from_offset, gap.to_offset, gap.reason) == (1, base, "unclean-stop")
    assert rig.contents("a") == {0: b"0", base: b"1"}
    assert isinstance(rig.fetch("a", 5), OffsetGapError)
    assert rig.before("a", base) == 0


def test_the_recovery_point_follows_the_syncs():
    rig = one(Durability.BALANCED)
    log = rig.log("a")
    rig.append("a", b"0")
    rig.settle()
    rig.append("a", b"1")
    rig.settle()
    assert log.recovery_point == 1, "the first one was synced together with its reservation"
    rig.advance(1.1)
    assert log.recovery_point == 2


# Reading.


def filled(count=40, **settings):
    """A log of `count` single records over many segments, with all of it drained but the last few."""
    rig = one(Durability.SAFE, **{**SMALL_SEGMENTS, **settings})
    for number in range(count):
        rig.clock.advance(0.01)
        rig.append("a", b"%d" % number + b"." * 30, topic=b"t/%d" % (number % 3))
        rig.settle()
    return rig


def test_reads_come_from_segments_cache_and_tail_alike():
    rig = filled()
    log = rig.log("a")
    assert len(log.writer.segments) > 3
    assert log._tail
    expected = {number: b"%d" % number + b"." * 30 for number in range(40)}
    assert rig.contents("a") == expected
    log._cache._batches.clear()
    log._cache._bases.clear()
    assert rig.contents("a") == expected
    for offset in range(40):
        record = rig.fetch("a", offset)
        assert (record[0], record[3], record[5]) == (offset, b"t/%d" % (offset % 3), expected[offset])
        assert rig.before("a", offset) == (offset - 1 if offset else None)


def test_a_read_of_memory_is_no_call_of_the_disk():
    rig = filled()
    log = rig.log("a")
    rig.filesystem.pread = None
    assert log.read(39).end_offset == 40
    assert log.read(40) is None


def test_offsets_outside_are_not_found_with_the_range():
    rig = filled()
    for offset in (-1, 40, 99):
        error = rig.fetch("a", offset)
        assert isinstance(error, OffsetNotFoundError)
        assert (error.log_start_offset, error.high_watermark) == (0, 40)
    assert isinstance(rig.load("a", 40), OffsetNotFoundError)


def test_loads_of_the_same_offset_share_one_read():
    rig = filled()
    log = rig.log("a")
    log._cache.discard_below(log.log_id, 1 << 40)
    found = []
    log.load(3, found.append)
    log.load(3, found.append)
    assert found == [], "done is never called from within load"
    assert len(rig.storage._pool._pending) == 1
    rig.settle()
    assert found[0] is found[1]


def test_a_time_finds_the_first_record_at_or_after_it():
    rig = filled()
    times = [record[2] for record in rig.records("a")]
    assert times == sorted(times)
    for offset, time_ms in enumerate(times):
        assert rig.offset_at("a", time_ms) == times.index(time_ms)
        assert rig.offset_at("a", time_ms - 5) == times.index(time_ms)
        assert offset <= rig.offset_at("a", time_ms + 1)
    assert rig.offset_at("a", 0) == 0
    assert rig.offset_at("a", times[-1] + 1) == 40


def test_a_damaged_frame_becomes_a_gap_and_the_rest_is_read():
    rig = filled()
    rig.close()
    rig.reopen()
    log = rig.log("a")
    second = log.writer.segments[1]
    data = bytearray(rig.filesystem._names[second.path].cached)
    data[80] ^= 0xFF
    rig.filesystem.overwrite(second.path, bytes(data))
    found = rig.contents("a")
    missing = set(range(40)) - set(found)
    assert missing
    assert missing == rig.in_gaps("a")
    assert {gap.reason for gap in log.gaps} == {"corruption"}
    error = rig.fetch("a", min(missing))
    assert isinstance(error, OffsetCorruptError)
    assert error.next_offset == max(missing) + 1
    assert rig.storage.writable
    assert rig.faults, "it is said out loud"
    rig.close()
    rig.reopen()
    assert set(rig.contents("a")) == set(found), "and remembered"


@pytest.mark.parametrize("content", [b"", bytes(700)])
def test_a_sealed_segment_of_nothing_or_zeros_does_not_stop_the_readers(content):
    rig = filled()
    rig.close()
    rig.reopen()
    victim = rig.log("a").writer.segments[1]
    following = rig.log("a").writer.segments[2].base_offset
    index = victim.path.with_suffix(".idx")
    rig.filesystem.overwrite(victim.path, content)
    rig.filesystem.overwrite(index, content)
    found = rig.contents("a")
    assert set(range(40)) - set(found) == set(range(victim.base_offset, following)) == rig.in_gaps("a")
    assert rig.before("a", following) == victim.base_offset - 1


def test_a_missing_segment_is_a_loss_and_no_end():
    rig = filled()
    victim = rig.log("a").writer.segments[1]
    following = rig.log("a").writer.segments[2].base_offset
    rig.close()
    rig.filesystem.unlink(victim.path)
    rig.reopen()
    found = rig.contents("a")
    assert set(range(40)) - set(found) == set(range(victim.base_offset, following))


# Draining and rolling.


def test_only_what_the_journal_has_goes_to_a_segment():
    rig = one(Durability.FAST)
    rig.append("a", b"0")
    rig.settle()
    rig.append("a", bytes(500))
    rig.append("a", bytes(500))
    assert rig.log("a").high_watermark == 3
    rig.log("a").drain()
    rig.settle()
    segments = rig.log("a").writer.segments
    assert not segments or segments[-1].next_offset <= 1, "seen, but a kill would take it"
    rig.advance(0.2)
    rig.log("a").drain()
    rig.settle()
    assert rig.log("a").writer.segments[-1].next_offset == 3


def test_many_small_appends_become_one_frame():
    rig = one(Durability.SAFE, flush_bytes=10_000)
    for number in range(300):
        rig.append("a", b"%d" % number + bytes(40))
        rig.settle()
    (segment,) = rig.log("a").writer.segments
    assert segment.index.records > 100 * segment.index.frames


def test_a_segment_rolls_at_its_size_and_the_sealed_one_has_its_index():
    rig = filled()
    segments = rig.log("a").writer.segments
    assert all(segment.sealed for segment in segments[:-1])
    for segment in segments[:-1]:
        assert rig.filesystem.exists(segment.path.with_suffix(".idx"))
        assert rig.filesystem.is_durable(segment.path)
    assert rig.filesystem.exists(segment_path(segments[0].path.parent, 0))


def test_the_largest_tail_is_drained_when_memory_runs_out():
    rig = Rig(settings=replace(SMALL, memory_budget=3000, checkpoint_bytes=1 << 30))
    rig.open([LogSettings(name, Durability.SAFE) for name in "abc"])
    rig.append("a", bytes(500))
    rig.append("b", bytes(2000))
    rig.append("c", bytes(300))
    rig.settle()
    assert rig.log("b").tail_bytes > 0
    rig.append("c", bytes(600))
    rig.settle()
    assert rig.storage._committer.tail_bytes <= 3000
    assert rig.log("b").tail_bytes == 0


def test_a_segment_that_cannot_be_written_keeps_its_records_readable():
    rig = one(Durability.SAFE, flush_bytes=100)
    rig.filesystem.on_operation = lambda operation: (
        rig.filesystem.fail(1, Failure.ENOSPC)
        if operation.path.suffix == ".log" and operation.kind == "pwrite"
        else None
    )
    rig.append("a", bytes(200))
    rig.settle()
    assert list(rig.contents("a")) == [0]
    assert not rig.storage.writable, "the journal alone could take them only for a while"
    rig.advance(3)
    rig.filesystem.on_operation = None
    rig.advance(7)
    assert rig.storage.writable
    rig.append("a", bytes(200))
    rig.settle()
    rig.settle()
    assert rig.log("a").tail_bytes < 400
    assert list(rig.contents("a")) == [0, 1]


def test_a_failed_segment_sync_fails_that_log_alone_and_the_journal_keeps_it():
    rig = Rig()
    rig.open([LogSettings("a", Durability.SAFE, flush_bytes=100), LogSettings("b", Durability.SAFE, flush_bytes=100)])
    rig.append("a", bytes(200))
    rig.append("b", bytes(200))
    rig.settle()
    rig.filesystem.on_operation = lambda operation: (
        rig.filesystem.fail(1, Failure.EIO)
        if operation.kind == "fdatasync" and operation.path.parent.name.startswith("a-")
        else None
    )
    assert rig.checkpoint() is True
    assert rig.storage.writable
    assert [str(fault) for fault in rig.faults if "log a" not in str(fault)] == []
    for log in ("a", "b"):
        assert rig.log(log).undurable_entry == 0
        assert rig.filesystem.is_durable(rig.log(log).writer.segments[-1].path)
    rig.power_cut()
    rig.reopen()
    assert rig.contents("a") == rig.contents("b") == {0: bytes(200)}


# Times.


def test_commit_times_never_decrease_and_survive_a_start():
    rig = one(Durability.SAFE)
    rig.append("a", b"0")
    rig.clock.step(-3600)
    rig.append("a", b"1")
    rig.settle()
    rig.close()
    rig.reopen()
    rig.append("a", b"2")
    rig.settle()
    times = [record[2] for record in rig.records("a")]
    assert times[0] == times[1] == times[2]


def test_one_reading_of_ten_years_ahead_is_not_believed():
    rig = one(Durability.SAFE)
    start = rig.clock.now_ms()
    rig.append("a", b"0")
    rig.clock.step(10 * 365 * DAY_S)
    rig.append("a", b"1")
    rig.clock.step(-10 * 365 * DAY_S)
    rig.clock.advance(1)
    rig.append("a", b"2")
    rig.settle()
    times = [record[2] - start for record in rig.records("a")]
    assert times == [0, 0, 1000]


def test_a_clock_that_was_really_set_is_followed_after_ten_minutes_both_ways():
    rig = one(Durability.SAFE)
    start = rig.clock.now_ms()
    rig.append("a", b"0")
    for years in (10, -10):
        rig.clock.step(years * 365 * DAY_S)
        rig.append("a", b"unbelieved")
        rig.clock.advance(601)
        rig.append("a", b"believed")
    rig.settle()
    ten_years = 10 * 365 * DAY_S * 1000
    times = [record[2] - start for record in rig.records("a")]
    assert times == [0, 0, ten_years + 601_000, ten_years + 601_000, 1_202_000]
    assert rig.offset_at("a", start + 5) == 2


def test_the_clock_is_in_doubt_after_a_long_stop_but_used():
    clock = ManualClock()
    time = CommitTime(clock, clock.now_ms() - 2 * DAY_S * 1000)
    assert not time.settled
    assert time.now_ms() == clock.now_ms()
    clock.advance(601)
    time.now_ms()
    assert time.settled


def test_a_buffer_older_than_a_delta_can_say_begins_a_new_base():
    rig = one(Durability.SAFE)
    rig.append("a", b"0")
    rig.clock.advance(60 * DAY_S)
    rig.append("a", b"1")
    rig.settle()
    assert rig.checkpoint()
    rig.advance(30)
    times = [record[2] for record in rig.records("a")]
    assert times[1] - times[0] == 60 * DAY_S * 1000


# The cache.


def test_the_cache_finds_by_offset_and_forgets_the_least_recently_used():
    cache = BatchCache(4000)
    for base in (0, 10, 20):
        cache.add(1, RecordBatch(base, 3, 0, 0, bytes(100)))
    assert cache.find(1, 12).base_offset == 10
    assert cache.find(1, 5) is None, "in a hole"
    assert cache.find(2, 0) is None
    cache.find(1, 0)
    cache.add(1, RecordBatch(30, 3, 0, 0, bytes(100)))
    assert cache.find(1, 20) is None
    assert cache.find(1, 0) is not None
    cache.discard_below(1, 25)
    assert [cache.find(1, base) is not None for base in (0, 10, 30)] == [False, False, True]
    cache.discard_below(1, 1 << 40)
    assert cache.bytes == 0


def test_a_batch_in_the_cache_replaces_those_that_begin_inside_it():
    cache = BatchCache(1 << 20)
    for base in (0, 10, 20, 30):
        cache.add(1, RecordBatch(base, 10, 0, 0, bytes(100)))
    cache.add(2, RecordBatch(20, 5, 0, 0, bytes(100)))
    joined = RecordBatch(10, 20, 0, 0, bytes(200))
    cache.add(1, joined)
    assert [cache.find(1, offset).base_offset for offset in (9, 10, 25, 29, 30)] == [0, 10, 10, 10, 30]
    assert cache.find(2, 20).count == 5
    cache.discard_below(2, 1 << 40)
    cache.discard_below(1, 1 << 40)
    assert cache.bytes == 0
