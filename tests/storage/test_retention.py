from __future__ import annotations

from dataclasses import replace

import pytest

from highway.errors import OffsetNotFoundError
from highway.storage import Durability, LogSettings
from highway.storage.log.retention import AGE, ORDER, SIZE, SOON_MS, SegmentFacts, plan
from tests.storage.rig import SMALL, Rig
from tests.storage.simulated_filesystem import Crash

SAFE = Durability.SAFE
MINUTE_MS = 60_000
HOUR_S = 3600
DAY_S = 24 * HOUR_S
SMALL_LOG = {"segment_bytes": 300, "flush_bytes": 200, "compression": "none"}


def opened(*logs, settings=SMALL):
    rig = Rig(settings=settings)
    rig.open(logs or [LogSettings("a", SAFE, retention_ms=MINUTE_MS, **SMALL_LOG)])
    return rig


def fill(rig, name="a", count=40, seconds=0.0):
    for _ in range(count):
        rig.append(name, b"%d" % rig.log(name).log_end_offset + bytes(40))
        rig.settle()
        rig.clock.advance(seconds)


def reap(rig):
    rig.storage.reap()
    rig.settle()


def segment_files(rig, name="a"):
    log = rig.log(name)
    if not log.writer.segments:
        return []
    return [file for file in rig.filesystem.listdir(log.writer.segments[0].path.parent) if file.endswith(".log")]


# The plan, as numbers.


def facts(*times, length=100):
    return [SegmentFacts(10 * index, length, 10, time_ms) for index, time_ms in enumerate(times)]


def test_the_plan_goes_by_age_then_by_size_and_spares_the_last():
    assert plan(facts(10, 20, 30), 30, 100, 75, None) == [AGE, AGE]
    assert plan(facts(10, 20, 30), 30, 10_000, 75, None) == [AGE, AGE]
    assert plan(facts(10, 20, 30), 30, 100, None, 150) == [SIZE, SIZE]
    assert plan(facts(10, 20, 30), 30, 100, 85, 250) == [AGE]
    assert plan(facts(10, 20, 30), 30, 100, None, None) == []
    assert plan(facts(10), 10, 10_000, 1, 1) == []
    assert plan([], 0, 100, 1, 1) == []


def test_an_older_segment_is_never_younger_than_a_newer_one():
    far = 10**12
    assert plan(facts(far, 20, 30), 30, 100, 75, None) == [AGE, AGE], "one bad reading doesn't pin old data"
    assert plan(facts(10, 20, far), far, 100, 75, None) == [AGE, AGE]
    assert plan(facts(95, 96, 97), 97, 100, 75, None) == [], "and doesn't delete new"
    assert plan(facts(0, 90, 97), 97, 100, 75, None) == [], "an unreadable one is as old as those after it"


# By age.


def test_old_segments_go_and_the_log_start_moves_with_them():
    rig = opened()
    fill(rig, seconds=3)
    before = rig.contents("a")
    reap(rig)
    log = rig.log("a")
    assert 0 < log.log_start_offset < log.log_end_offset == 40
    assert len(segment_files(rig)) == len(log.writer.segments)
    assert rig.contents("a") == {offset: data for offset, data in before.items() if offset >= log.log_start_offset}
    trimmed = rig.storage.trimmed
    assert trimmed["records"][AGE] == log.log_start_offset
    assert trimmed["segments"][AGE] > 0
    assert trimmed["bytes"][AGE] > 0
    assert trimmed["records"][SIZE] == 0
    error = rig.fetch("a", 0)
    assert isinstance(error, OffsetNotFoundError)
    assert error.log_start_offset == log.log_start_offset
    assert rig.load("a", 0).base_offset >= log.log_start_offset
    assert rig.before("a", log.log_start_offset) is None


def test_a_message_lives_no_longer_than_retention_roll_age_and_one_interval():
    rig = opened(LogSettings("a", SAFE, retention_ms=8 * MINUTE_MS))
    rig.append("a", b"x")
    rig.settle()
    limit_s = (8 + 1) * 60 + 30 + 40  # + the checkpoints that a quiet tail may sit out
    rig.advance(8 * 60 - 30, step=5)
    assert rig.contents("a") == {0: b"x"}
    rig.advance(limit_s - 8 * 60 + 30, step=5)
    assert rig.contents("a") == {}
    assert rig.log("a").log_start_offset == 1


def test_offsets_go_on_after_everything_was_deleted():
    rig = opened()
    fill(rig, seconds=0.1)
    rig.advance(400, step=5)
    assert rig.contents("a") == {}
    assert (rig.log("a").log_start_offset, rig.log("a").log_end_offset) == (40, 40)
    assert len(segment_files(rig)) == 1, "an empty active one"
    for stop in ("kill", "power_cut", "close", "kill"):
        getattr(rig, stop)()
        rig.reopen()
        assert rig.contents("a") == {}
        assert rig.log("a").log_end_offset == 40
    assert rig.append("a", b"next") == 40
    rig.settle()
    assert rig.contents("a") == {40: b"next"}


def test_the_new_start_is_durable_before_a_file_goes():
    rig = opened()
    fill(rig, seconds=3)
    starts = []

    def look(operation):
        if operation.kind != "unlink":
            return
        after = Rig(rig.filesystem.crash(Crash.EVERYTHING))
        after.open(rig.configured)
        starts.append(after.log("a").log_start_offset)
        assert not after.storage.report.damaged
        after.records("a")
        assert after.log("a").gaps == []

    rig.filesystem.on_operation = look
    reap(rig)
    assert len(starts) > 3
    assert set(starts) == {rig.log("a").log_start_offset}


def test_what_a_crash_left_of_a_deletion_is_finished_at_the_next_open():
    rig = opened()
    fill(rig, seconds=3)
    states = []
    rig.filesystem.on_operation = lambda operation: (
        states.append(rig.filesystem.crash(Crash.NOTHING)) if operation.kind == "unlink" else None
    )
    reap(rig)
    after = Rig(states[0])
    after.open(rig.configured)
    assert after.log("a").log_start_offset == rig.log("a").log_start_offset
    assert segment_files(after) == segment_files(rig)
    assert after.contents("a") == rig.contents("a")


# By size.


def test_a_log_keeps_to_its_size():
    rig = opened(LogSettings("a", SAFE, retention_bytes=1500, **SMALL_LOG))
    fill(rig, count=100)
    reap(rig)
    log = rig.log("a")
    assert sum(segment.length for segment in log.writer.segments) <= 1500
    assert log.log_start_offset > 50
    assert rig.storage.trimmed["records"][SIZE] == log.log_start_offset
    assert min(rig.contents("a")) == log.log_start_offset


def test_the_bound_over_all_logs_takes_the_oldest_wherever_it_is():
    rig = opened(
        LogSettings("old", SAFE, retention_ms=None, **SMALL_LOG),
        LogSettings("new", SAFE, retention_ms=None, **SMALL_LOG),
        settings=replace(SMALL, max_bytes=5000),
    )
    fill(rig, "old", 60)
    rig.clock.advance(100)
    fill(rig, "new", 60)
    reap(rig)
    total = sum(segment.length for name in ("old", "new") for segment in rig.log(name).writer.segments)
    assert total <= 5000
    assert rig.log("old").log_start_offset > 20
    assert rig.log("new").log_start_offset <= 10


def test_without_limits_nothing_goes():
    rig = opened(LogSettings("a", SAFE, retention_ms=None, **SMALL_LOG))
    fill(rig, seconds=DAY_S / 24)
    reap(rig)
    assert rig.log("a").log_start_offset == 0


def test_a_log_that_is_no_longer_configured_is_kept():
    rig = opened()
    fill(rig)
    rig.close()
    rig.open(["b"])
    rig.advance(DAY_S, step=600)
    assert set(rig.contents("a")) == set(range(40))


# The clock.


@pytest.mark.parametrize("years", [10, -10])
def test_a_clock_that_jumps_pauses_retention_by_age(years, caplog):
    rig = opened()
    fill(rig, seconds=0.1)
    rig.clock.step(years * 365 * DAY_S)
    reap(rig)
    reap(rig)
    assert rig.log("a").log_start_offset == 0
    assert sum("clock has jumped" in message for message in caplog.messages) == 1, "said once"
    rig.clock.step(-years * 365 * DAY_S)
    reap(rig)
    assert rig.log("a").log_start_offset == 0
    rig.advance(300, step=5)
    assert rig.log("a").log_start_offset > 0, "and goes on when the clock is right again"


def test_a_long_stop_gives_ten_minutes_before_anything_is_deleted():
    rig = opened()
    fill(rig)
    rig.close()
    rig.clock.advance(3 * DAY_S)
    rig.reopen()
    reap(rig)
    assert rig.log("a").log_start_offset == 0
    rig.advance(700, step=5)
    assert rig.log("a").log_start_offset > 0


def test_a_bad_reading_neither_pins_old_data_nor_deletes_new():
    rig = opened()
    rig.clock.step(10 * 365 * DAY_S)
    fill(rig, count=1)
    rig.clock.step(-10 * 365 * DAY_S)
    fill(rig, count=30)
    rig.clock.step(-3600)
    fill(rig, count=5)
    reap(rig)
    assert set(rig.contents("a")) == set(range(36))
    rig.advance(3600 + 400, step=10)
    assert rig.contents("a") == {}


# Trouble.


def test_a_reader_at_a_deleted_offset_is_told_where_it_begins():
    rig = opened()
    fill(rig, seconds=3)
    log = rig.log("a")
    log._cache.discard_below(log.log_id, 1 << 40)
    results = []
    log.load(0, results.append)  # on its way when retention comes
    rig.storage._reaper.run()
    rig.settle()
    (outcome,) = results
    assert outcome.end_offset > 0
    assert min(rig.contents("a")) == log.log_start_offset


def test_without_a_durable_checkpoint_nothing_is_deleted():
    from tests.storage.simulated_filesystem import Failure

    rig = opened()
    fill(rig, seconds=3)
    before = segment_files(rig)
    rig.filesystem.on_operation = lambda operation: (
        rig.filesystem.fail(1, Failure.ENOSPC) if operation.path.name.startswith("CHECKPOINT") else None
    )
    reap(rig)
    assert segment_files(rig)[: len(before)] == before
    rig.kill()
    rig.reopen()
    assert min(rig.contents("a")) == 0
    assert not rig.storage.report.damaged


def test_a_damaged_index_does_not_stop_retention():
    rig = opened()
    fill(rig, seconds=3)
    rig.close()
    segments = rig.log("a").writer.segments
    rig.filesystem.overwrite(segments[0].path, b"")
    rig.filesystem.overwrite(segments[0].path.with_suffix(".idx"), b"")
    rig.filesystem.overwrite(segments[1].path.with_suffix(".idx"), b"junk")
    rig.reopen()
    reap(rig)
    assert rig.log("a").log_start_offset > segments[1].base_offset
    assert segments[0].path.name not in segment_files(rig)


# Other settings, while it runs.


def asked(question, *arguments, rig, **options):
    answers = []
    question(*arguments, answers.append, **options)
    rig.settle()
    (answer,) = answers
    return answer


def test_a_shorter_retention_is_told_in_full_before_it_deletes_anything():
    rig = opened()
    fill(rig, seconds=0.5)
    log = rig.log("a")
    shorter = replace(log.settings, retention_ms=8000)
    found = asked(rig.storage.plan_retention, [shorter], rig=rig)["a"]
    assert log.log_start_offset == 0
    assert found.segments > 1
    rig.storage.change_logs([shorter])
    assert rig.log(log.name) is log
    reap(rig)
    assert (found.from_offset, found.to_offset) == (0, log.log_start_offset)
    assert rig.storage.trimmed["records"][AGE] == found.records == found.to_offset
    assert rig.storage.trimmed["segments"][AGE] == found.segments
    assert rig.storage.trimmed["bytes"][AGE] == found.bytes
    assert asked(rig.storage.plan_retention, [shorter], rig=rig) == {}


def test_a_log_of_which_all_is_too_old_is_told_of_with_its_active_segment():
    rig = opened(LogSettings("a", SAFE, retention_ms=None, **SMALL_LOG))
    fill(rig)
    rig.advance(DAY_S, step=600)
    end = rig.log("a").log_end_offset
    shorter = replace(rig.log("a").settings, retention_ms=MINUTE_MS)
    found = asked(rig.storage.plan_retention, [shorter], rig=rig)["a"]
    assert (found.from_offset, found.to_offset) == (0, end)
    rig.storage.change_logs([shorter])
    reap(rig)
    reap(rig)
    assert rig.log("a").log_start_offset == end
    assert rig.append("a", b"next") == end


@pytest.mark.parametrize("bound", [1, 300, 1000])
def test_a_smaller_bound_spares_the_active_segment_in_the_plan_as_well(bound):
    rig = opened(LogSettings("a", SAFE, retention_ms=None, **SMALL_LOG))
    fill(rig)
    smaller = replace(rig.log("a").settings, retention_bytes=bound)
    found = asked(rig.storage.plan_retention, [smaller], rig=rig)["a"]
    rig.storage.change_logs([smaller])
    reap(rig)
    assert found.to_offset == rig.log("a").log_start_offset < rig.log("a").log_end_offset


def test_only_what_the_change_deletes_can_be_asked_for():
    rig = opened()
    fill(rig, seconds=3)
    log = rig.log("a")
    now = asked(rig.storage.plan_retention, [log.settings], rig=rig)["a"]
    same = asked(rig.storage.plan_retention, [log.settings], rig=rig, only_new=True)
    shorter = replace(log.settings, retention_ms=30_000)
    more = asked(rig.storage.plan_retention, [shorter], rig=rig, only_new=True)["a"]
    assert same == {}
    assert more.from_offset == now.to_offset
    assert asked(rig.storage.plan_retention, [LogSettings("unknown")], rig=rig) == {}


def test_what_a_shorter_retention_lets_fall_due_within_seconds_is_deleted_by_it():
    """Nobody could take it back in time; what lives on for longer is not."""
    rig = opened(LogSettings("a", SAFE, retention_ms=None, **SMALL_LOG))
    fill(rig)
    rig.advance(HOUR_S, step=60)
    log = rig.log("a")
    age_ms = rig.storage.now_ms() - log.last_ms  # of all of it: the clock stood still meanwhile
    found = {
        spare_ms: asked(
            rig.storage.plan_retention, [replace(log.settings, retention_ms=age_ms + spare_ms)], rig=rig, only_new=True
        )
        for spare_ms in (SOON_MS, 10 * MINUTE_MS)
    }
    assert (found[SOON_MS]["a"].from_offset, found[SOON_MS]["a"].to_offset) == (0, log.log_end_offset)
    assert found[10 * MINUTE_MS] == {}
    assert asked(rig.storage.plan_retention, [replace(log.settings, retention_ms=age_ms + SOON_MS)], rig=rig) == {}


def test_a_longer_retention_deletes_nothing_soon():
    rig = opened(LogSettings("a", SAFE, retention_ms=2 * HOUR_S * 1000, **SMALL_LOG))
    fill(rig)
    rig.advance(2 * HOUR_S - 60, step=60)
    log = rig.log("a")
    longer = replace(log.settings, retention_ms=2 * HOUR_S * 1000 + 1000)
    assert log.log_start_offset == 0
    assert asked(rig.storage.plan_retention, [longer], rig=rig, only_new=True) == {}


@pytest.mark.parametrize("stop", ["close", "kill", "power_cut"])
def test_an_order_deletes_whole_segments_for_good(stop):
    rig = opened()
    fill(rig)
    log = rig.log("a")
    planned = asked(rig.storage.plan_trim, log, 20, rig=rig)
    assert log.log_start_offset == 0
    files = segment_files(rig)
    trimmed = asked(rig.storage.trim, log, 20, rig=rig)
    assert trimmed == planned
    assert 0 < log.log_start_offset == trimmed.to_offset <= 20
    assert len(segment_files(rig)) == len(files) - trimmed.segments
    assert rig.storage.trimmed["records"][ORDER] == trimmed.records
    getattr(rig, stop)()
    rig.reopen()
    assert rig.log("a").log_start_offset == trimmed.to_offset
    assert asked(rig.storage.trim, rig.log("a"), 20, rig=rig) is None, "there is nothing left below"


def test_an_order_for_everything_leaves_the_active_segment():
    rig = opened()
    fill(rig)
    log = rig.log("a")
    asked(rig.storage.trim, log, log.log_end_offset, rig=rig)
    assert len(log.writer.segments) == 1
    assert log.log_start_offset == log.writer.segments[0].base_offset < log.log_end_offset


def test_what_is_in_memory_and_too_old_is_told_of_as_well():
    rig = opened(LogSettings("a", SAFE, retention_ms=None, segment_bytes=300, flush_bytes=100_000))
    fill(rig, count=5)
    rig.clock.advance(10 * 60)
    assert rig.log("a").writer.segments == []
    shorter = replace(rig.log("a").settings, retention_ms=MINUTE_MS)
    found = asked(rig.storage.plan_retention, [shorter], rig=rig)["a"]
    assert (found.segments, found.records, found.from_offset, found.to_offset) == (0, 5, 0, 5)
    rig.storage.change_logs([shorter])
    rig.advance(60, step=5)
    reap(rig)
    assert rig.log("a").log_start_offset == 5


def test_what_a_change_deletes_is_told_also_while_the_clock_is_in_doubt():
    rig = opened(LogSettings("a", SAFE, retention_ms=None, **SMALL_LOG))
    fill(rig)
    rig.close()
    rig.clock.advance(3 * DAY_S)
    rig.reopen()
    shorter = replace(rig.log("a").settings, retention_ms=MINUTE_MS)
    assert not rig.storage.clock_settled
    found = asked(rig.storage.plan_retention, [shorter], rig=rig, only_new=True)["a"]
    rig.storage.change_logs([shorter])
    rig.advance(1500, step=5)
    assert found.to_offset == rig.log("a").log_start_offset
