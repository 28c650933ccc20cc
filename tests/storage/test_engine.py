from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace

import pytest

from highway.clock import SystemClock
from highway.errors import (
    CorruptionError,
    DataDirectoryError,
    DiskFailedError,
    DiskFullError,
    RecordTooLargeError,
    StorageError,
)
from highway.storage import Durability, LogSettings, OsFileSystem, RecordHeads, Storage, engine
from highway.storage.disk import layout
from highway.storage.log import log as log_module
from tests.storage.rig import DIRECTORY, SMALL, Rig
from tests.storage.simulated_filesystem import Crash, Failure

FAST, BALANCED, SAFE = Durability
FOUR = [
    LogSettings("fast", FAST),
    LogSettings("balanced", BALANCED),
    LogSettings("safe", SAFE),
    LogSettings("other", SAFE),
]


def opened(logs=FOUR, **options):
    rig = Rig(**options)
    rig.open(logs)
    return rig


# The acknowledgement points, seen through the seam.


def test_four_logs_at_once_are_acknowledged_and_visible_each_at_its_own_point():
    rig = opened()
    for log in FOUR:  # so that offsets are reserved and nothing else happens below
        rig.append(log.name, b"0")
    rig.settle()
    events = []
    rig.filesystem.on_operation = lambda operation: events.append(operation.kind)
    for log in FOUR:
        rig.log(log.name).on_visible = lambda name=log.name: events.append(f"{name} visible")
        rig.append(log.name, b"1")
        rig.storage.after(log.durability, lambda error, name=log.name: events.append(f"{name} acked {error or ''}"))
    rig.settle()
    # on_operation runs before each operation, so what stands behind "fdatasync" came after the write returned and
    # what stands behind nothing but it came after the sync: the next operation would be in between.
    assert events == [
        "fast visible",
        "fast acked ",
        "pwrite",
        "balanced visible",
        "balanced acked ",
        "fdatasync",
        "safe visible",
        "other visible",
        "safe acked ",
        "other acked ",
    ]


@pytest.mark.parametrize(("failing", "survivors"), [("pwrite", {"fast"}), ("fdatasync", {"fast", "balanced"})])
def test_nobody_is_acknowledged_past_the_point_that_failed(failing, survivors):
    rig = opened()
    for log in FOUR:
        rig.append(log.name, b"0")
    rig.settle()
    acked = {}
    for log in FOUR:
        rig.append(log.name, b"1")
        rig.storage.after(log.durability, lambda error, name=log.name: acked.__setitem__(name, error))
    rig.filesystem.fail(1, Failure.EIO, kinds={failing})
    rig.settle()
    assert {name for name, error in acked.items() if error is None} == survivors
    assert {log.name for log in FOUR if rig.log(log.name).high_watermark == 2} == survivors
    assert all(isinstance(error, DiskFailedError) for error in acked.values() if error is not None)
    assert rig.faults == [acked["safe"]]
    assert not rig.storage.writable


def test_every_ack_of_a_long_run_is_behind_its_operation():
    """What was acknowledged SAFE is on the medium at that moment; BALANCED is in the page cache."""
    rig = opened()
    checked = 0

    def acknowledged(name, offset, payload, *, safe):
        nonlocal checked
        after = Rig(rig.filesystem.crash(Crash.NOTHING) if safe else rig.filesystem.kill())
        after.open(FOUR)
        assert after.contents(name)[offset] == payload
        checked += 1

    for number in range(40):
        log = FOUR[number % 4]
        payload = b"%d" % number
        offset = rig.append(log.name, payload)
        if log.durability != FAST:
            rig.storage.after(
                log.durability,
                lambda error, n=log.name, o=offset, p=payload, s=log.durability == SAFE: acknowledged(n, o, p, safe=s),
            )
        if number % 5 == 0:
            rig.settle()
    rig.settle()
    assert checked == 30


def test_what_waits_for_safe_covers_what_was_appended_fast_and_put():
    rig = opened()
    rig.append("fast", b"1")
    rig.storage.put([(b"k", b"v")], FAST)
    assert rig.reached(SAFE) == [None]
    rig.power_cut()
    rig.reopen()
    assert rig.contents("fast") == {0: b"1"}
    assert rig.storage.meta.get(b"k") == b"v"


def test_after_with_nothing_owed_calls_at_once():
    rig = opened()
    results = []
    for durability in Durability:
        rig.storage.after(durability, results.append)
    assert results == [None, None, None]


def test_a_record_and_its_puts_share_their_fate():
    rig = opened()
    states = []
    rig.filesystem.on_operation = lambda _: states.append(rig.filesystem.crash(Crash.TORN))
    for number in range(20):
        rig.append("safe", b"%d" % number, puts=[(b"id%d" % number, b"")])
        rig.settle()
    assert len(states) >= 40
    for state in states:
        after = Rig(state)
        after.open(FOUR)
        records = {b"id%d" % offset for offset in after.contents("safe")}
        assert records == {key for key, _ in after.storage.meta.items()}


# The loss windows.


def test_fast_records_are_written_within_the_flush_interval_and_synced_within_the_sync_interval():
    rig = opened([LogSettings("fast", FAST, flush_interval_ms=100, sync_interval_ms=1000)])
    rig.append("fast", b"0")
    rig.settle()
    rig.append("fast", b"1")
    rig.advance(0.09, step=0.01)
    assert Rig(rig.filesystem.kill()).open(rig.configured).logs["fast"].high_watermark != 2
    rig.advance(0.02, step=0.01)
    after = Rig(rig.filesystem.kill())
    after.open(rig.configured)
    assert after.contents("fast") == {0: b"0", 1: b"1"}
    after = Rig(rig.filesystem.crash(Crash.NOTHING))
    after.open(rig.configured)
    assert after.contents("fast") == {0: b"0"}
    rig.advance(0.95, step=0.01)
    after = Rig(rig.filesystem.crash(Crash.NOTHING))
    after.open(rig.configured)
    assert after.contents("fast") == {0: b"0", 1: b"1"}


def test_unsynced_bytes_are_bounded_by_sync_bytes():
    rig = opened([LogSettings("a", BALANCED, sync_bytes=2000, sync_interval_ms=60_000)])
    rig.append("a", b"0")
    rig.settle()
    for _ in range(30):
        rig.append("a", bytes(300))
        rig.settle()
        assert rig.storage.unsynced_bytes < 2000 + 400


def test_the_age_of_the_oldest_unsynced_record_is_known():
    rig = opened([LogSettings("fast", FAST, sync_interval_ms=5000), LogSettings("safe", SAFE)])
    assert rig.storage.oldest_unsynced_age_seconds == 0
    rig.append("fast", b"0")
    rig.settle()  # offsets are reserved, with a sync
    assert rig.storage.oldest_unsynced_age_seconds == 0
    rig.append("fast", b"1")
    rig.clock.advance(0.04)
    assert rig.storage.oldest_unsynced_age_seconds == pytest.approx(0.04), "in memory only"
    rig.advance(2)
    assert rig.storage.unsynced_bytes > 0
    assert rig.storage.oldest_unsynced_age_seconds == pytest.approx(2.04, abs=0.11), "written, and not synced"
    rig.append("fast", b"2")
    rig.advance(1)
    assert rig.storage.oldest_unsynced_age_seconds == pytest.approx(3.04, abs=0.11), "the oldest counts"
    rig.append("safe", b"x")
    rig.settle()
    assert rig.storage.oldest_unsynced_age_seconds == 0


def test_a_record_above_the_limit_is_refused_before_it_has_an_offset():
    rig = opened(settings=replace(SMALL, max_record_bytes=100))
    head = len(RecordHeads(b"t", 1, 0).encode([b""]))
    with pytest.raises(RecordTooLargeError, match="log safe: a record of 101 B; the limit is 100"):
        rig.append("safe", b"small", bytes(101 - head))
    assert isinstance(RecordTooLargeError("x"), ValueError)
    assert rig.log("safe").log_end_offset == 0
    assert rig.storage.backlog_bytes == 0
    assert rig.append("safe", *[bytes(100 - head)] * 5) == 0, "many that are not are fine"
    rig.settle()
    assert len(rig.contents("safe")) == 5


def test_an_append_that_no_frame_can_take_is_refused(monkeypatch):
    monkeypatch.setattr(engine, "MAX_FRAME_BYTES", 150)
    monkeypatch.setattr(log_module, "MAX_FRAME_BYTES", 150)
    rig = opened()
    with pytest.raises(RecordTooLargeError, match="in one append; a frame holds 150"):
        rig.append("safe", *[bytes(50)] * 5)
    assert rig.log("safe").log_end_offset == 0
    assert rig.append("safe", bytes(60)) == 0


def test_the_backlog_counts_what_the_journal_has_not_got():
    rig = opened()
    rig.append("fast", bytes(1000))
    assert rig.storage.backlog_bytes > 1000
    assert rig.reached(BALANCED) == [None]
    assert rig.storage.backlog_bytes == 0


def test_an_idle_broker_has_only_the_timers_of_the_reaper_and_the_scrub():
    rig = opened([LogSettings(f"log{number}", FAST) for number in range(300)])
    rig.advance(10)
    assert rig.scheduler.pending == 2


# A full disk.


def test_a_full_disk_refuses_keeps_reading_and_goes_on_by_itself():
    rig = opened()
    rig.append("safe", b"0")
    rig.settle()
    rig.append("safe", b"1")
    waiting = []
    rig.storage.after(SAFE, waiting.append)
    rig.filesystem.fail(1, Failure.ENOSPC, kinds={"pwrite"})
    rig.settle()
    assert isinstance(waiting[0], DiskFullError)
    assert not rig.storage.writable
    with pytest.raises(DiskFullError):
        rig.append("safe", b"2")
    rig.storage.put([(b"k", b"v"), (b"gone", None)])  # a put waits: its sender holds it for true already
    rig.storage.put([(b"k", b"w")])
    assert rig.storage.meta.get(b"k") is None
    assert rig.reached(FAST)[0] is not None
    assert rig.contents("safe") == {0: b"0", 1: b"1"}, "what was refused is stored with the reserve"
    rig.advance(3)
    assert rig.storage.writable
    assert rig.append("safe", b"3") == 2
    rig.settle()
    assert rig.contents("safe") == {0: b"0", 1: b"1", 2: b"3"}
    rig.power_cut()
    rig.reopen()
    assert rig.contents("safe") == {0: b"0", 1: b"1", 2: b"3"}
    assert rig.storage.meta.get(b"k") == b"w"
    assert len(rig.faults) == 1


def test_a_put_on_a_full_disk_is_tried_once_more_at_the_close():
    rig = opened()
    rig.storage._committer.refuse(DiskFullError("full"))
    rig.storage.put([(b"k", b"v")])
    rig.close()
    assert rig.reopen().meta.get(b"k") == b"v"


def test_a_close_on_a_failed_disk_lets_go_and_the_next_open_recovers():
    rig = opened()
    rig.append("safe", b"0")
    rig.settle()
    rig.filesystem.fail(1, Failure.EIO, kinds={"fdatasync"})
    rig.append("safe", b"1")
    rig.settle()
    rig.close()
    assert rig.filesystem.open_descriptors() == 0
    rig.power_cut()
    assert not rig.reopen().report.clean
    assert rig.contents("safe") == {0: b"0"}


# Opening and closing.


def test_a_clean_close_is_trusted_and_exact():
    rig = opened()
    for log in FOUR:
        rig.append(log.name, b"x")
    rig.settle()
    rig.append("fast", b"y")  # not yet written
    rig.storage.put([(b"k", b"v")], FAST)
    rig.close()
    assert rig.filesystem.open_descriptors() == 0
    rig.power_cut()
    storage = rig.reopen()
    assert storage.report.clean
    assert storage.report.frames_replayed == 0
    assert rig.contents("fast") == {0: b"x", 1: b"y"}
    assert storage.meta.get(b"k") == b"v"
    for log in FOUR:
        assert rig.log(log.name).gaps == []
        assert rig.log(log.name).epoch == 1
    assert rig.append("fast", b"z") == 2


def test_closing_twice_is_closing_once_and_nothing_is_accepted_afterwards():
    rig = opened()
    rig.close()
    rig.close()
    assert not rig.storage.writable
    with pytest.raises(StorageError):
        rig.append("safe", b"x")


@pytest.mark.parametrize("stop", ["kill", "close"])
def test_a_crash_loop_makes_no_files(stop):
    rig = opened()
    for log in FOUR:
        rig.append(log.name, b"x")
    rig.settle()
    rig.close()
    rig.reopen()
    sizes = []
    for _ in range(25):
        getattr(rig, stop)()
        rig.reopen()
        files = {path: len(node.cached) for path, node in rig.filesystem._names.items() if node is not None}
        sizes.append((len(files), sum(files.values())))
    assert max(sizes[3:]) == min(sizes[3:]), "number of files and bytes stay"


def test_a_directory_in_use_is_refused_with_the_pid():
    rig = opened()
    other = Rig(rig.filesystem)
    with pytest.raises(DataDirectoryError, match=f"in use by pid {os.getpid()}"):
        other.open(FOUR)
    rig.append("safe", b"still works")
    assert rig.reached(SAFE) == [None]
    rig.kill()
    rig.reopen()


def test_a_newer_format_is_refused_and_nothing_is_touched(monkeypatch):
    rig = opened()
    rig.close()
    with monkeypatch.context() as patch:
        patch.setattr(layout, "DATA_FORMAT", 9)
        rig.filesystem.overwrite(DIRECTORY / "FORMAT", layout.encode_format())
    before = len(rig.filesystem.operations)
    with pytest.raises(DataDirectoryError, match="format 9"):
        rig.reopen()
    changed = {operation.path.name for operation in rig.filesystem.operations[before:]}
    assert changed <= {"LOCK", "highway"}


@pytest.mark.parametrize("content", [b"", bytes(75), b"{}", b"[1]", b'{"format": 9, "min_reader": 9}'])
def test_a_damaged_format_file_is_written_again_if_a_checkpoint_can_be_read(content):
    rig = opened()
    rig.append("safe", b"x")
    rig.close()
    rig.filesystem.overwrite(DIRECTORY / "FORMAT", content)
    rig.reopen()
    assert rig.contents("safe") == {0: b"x"}
    rig.close()
    rig.filesystem.overwrite(DIRECTORY / "FORMAT", content)
    for slot in "ab":
        rig.filesystem.overwrite(DIRECTORY / f"CHECKPOINT.{slot}", b"")
    with pytest.raises(DataDirectoryError, match="FORMAT"):
        rig.reopen()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_directory_that_cannot_be_written_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(DataDirectoryError, match="can't be written"):
        Storage.open(tmp_path, [], scheduler=None, clock=SystemClock())
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("nth", range(1, 25))
def test_an_open_that_fails_anywhere_says_so_lets_go_and_can_be_repeated(nth):
    rig = Rig()
    rig.filesystem.fail(nth, Failure.EIO)
    try:
        rig.open(FOUR)
    except (DataDirectoryError, DiskFailedError):
        assert rig.filesystem.open_descriptors() == 0
        rig.reopen()
    rig.append("safe", b"x")
    assert rig.reached(SAFE) in ([None], [rig.storage.fault])


def test_logs_keep_id_and_uuid_whatever_is_configured():
    rig = opened()
    ids = {log.name: (rig.log(log.name).log_id, rig.log(log.name).uuid) for log in FOUR}
    rig.append("other", b"kept")
    rig.settle()
    rig.close()
    rig.open([LogSettings("new"), FOUR[2]])
    assert rig.contents("other") == {0: b"kept"}, "a log that is no longer configured stays readable"
    assert rig.log("new").log_id not in {log_id for log_id, _ in ids.values()}
    rig.close()
    rig.open(FOUR)
    assert {log.name: (rig.log(log.name).log_id, rig.log(log.name).uuid) for log in FOUR} == ids


@pytest.mark.parametrize("stop", ["close", "kill", "power_cut"])
def test_a_log_added_at_run_time_is_there_after_any_stop(stop):
    rig = opened()
    rig.storage.change_logs([LogSettings("added", SAFE)])
    log = rig.log("added")
    rig.storage.change_logs([LogSettings("added", SAFE)])
    assert rig.log("added") is log
    rig.append("added", b"x")
    rig.settle()
    uuid = log.uuid
    getattr(rig, stop)()
    rig.reopen()
    assert rig.contents("added") == {0: b"x"}
    assert rig.log("added").uuid == uuid


def test_names_of_logs_are_no_paths():
    rig = opened([LogSettings("../../a/b%#", SAFE, flush_bytes=10), LogSettings("ü" * 200, SAFE, flush_bytes=10)])
    for name in list(rig.storage.logs):
        rig.append(name, bytes(20))
    rig.settle()
    names = rig.filesystem.listdir(DIRECTORY / "logs")
    assert len(names) == 2
    assert all("/" not in name and len(name.encode()) < 255 for name in names)
    rig.close()
    rig.reopen()
    for name in list(rig.storage.logs):
        assert rig.contents(name) == {0: bytes(20)}


def test_refuse_does_not_open_a_damaged_log_and_gap_does():
    rig = opened([LogSettings("a", SAFE, on_corruption="refuse", flush_bytes=10)])
    rig.append("a", bytes(20))
    rig.settle()
    assert rig.checkpoint()
    (segment,) = rig.log("a").writer.segments
    rig.kill()
    rig.filesystem.overwrite(segment.path, b"")
    with pytest.raises(CorruptionError, match="on_corruption is refuse"):
        rig.reopen()
    assert rig.filesystem.open_descriptors() == 0


# On the real disk, with threads.


def test_storage_with_threads_on_the_real_disk(tmp_path):
    settings = replace(SMALL, journal_file_bytes=64 * 1024, checkpoint_interval_ms=20, reaper_interval_ms=30)
    logs = [replace(log, segment_bytes=20_000, flush_bytes=2000, sync_interval_ms=20) for log in FOUR]

    async def run():
        loop = asyncio.get_running_loop()

        def open_storage():
            return Storage.open(tmp_path / "data", logs, scheduler=loop, clock=SystemClock(), settings=settings)

        storage = open_storage()
        acked = []
        for number in range(300):
            for log in storage.logs.values():
                heads = RecordHeads(b"t", 1, log.delta_ms())
                log.append(heads.encode([b"%s %d" % (log.name.encode(), number)] * 3), 3)
            storage.put([(b"k", b"%d" % number)])
            if number % 7 == 0:
                future = loop.create_future()
                storage.after(SAFE, future.set_result)
                acked.append(await future)
        assert set(acked) == {None}
        for _ in range(2):  # besides those that came by themselves
            durable = loop.create_future()
            storage.checkpoint(durable.set_result)
            assert await durable
        storage.close()
        storage = open_storage()
        assert storage.report.clean
        assert storage.meta.get(b"k") == b"299"
        for log in storage.logs.values():
            offset = 0
            while offset < log.high_watermark:
                batch = log.read(offset)
                if batch is None:
                    future = loop.create_future()
                    log.load(offset, future.set_result)
                    batch = await future
                for record in batch.records():
                    assert record[5] == b"%s %d" % (log.name.encode(), record[0] // 3)
                offset = batch.end_offset
            assert offset == 900
        storage.close()
        await asyncio.sleep(0)  # a turn of the loop, for what threads have posted to it

    before = threading.active_count()
    asyncio.run(run())
    assert threading.active_count() == before, "no thread is left"


def test_the_real_lock_keeps_a_second_storage_out(tmp_path):
    async def run():
        loop = asyncio.get_running_loop()
        first = Storage.open(tmp_path, [], scheduler=loop, clock=SystemClock(), settings=SMALL)
        with pytest.raises(DataDirectoryError, match="in use"):
            Storage.open(tmp_path, [], scheduler=loop, clock=SystemClock(), settings=SMALL)
        first.close()
        Storage.open(
            tmp_path, [], scheduler=loop, clock=SystemClock(), settings=SMALL, filesystem=OsFileSystem()
        ).close()

    asyncio.run(run())


# Other settings, while it runs.


@pytest.mark.parametrize("stop", ["kill", "power_cut"])
def test_a_log_that_becomes_safe_loses_nothing_acknowledged_since_and_gives_no_offset_twice(stop):
    rig = opened([LogSettings("a", FAST)])
    rig.append("a", b"first")  # waits for the ceiling
    rig.settle()
    rig.append("a", b"shown at once")
    assert rig.log("a").high_watermark == 2
    rig.storage.change_logs([LogSettings("a", SAFE)])
    done = []
    rig.append("a", b"kept")
    rig.storage.after(rig.log("a").acknowledge_at, done.append)
    assert rig.log("a").high_watermark == 2, "not shown before it is safe"
    rig.settle()
    assert done == [None]
    getattr(rig, stop)()
    rig.open([LogSettings("a", SAFE)])
    assert rig.contents("a") == {0: b"first", 1: b"shown at once", 2: b"kept"}
    assert rig.append("a", b"new") >= 3


def test_a_log_that_becomes_fast_reserves_offsets_before_it_shows_them():
    rig = opened([LogSettings("a", SAFE)])
    rig.append("a", b"safe")
    rig.settle()
    rig.storage.change_logs([LogSettings("a", FAST)])
    rig.append("a", b"first")
    assert rig.log("a").high_watermark == 1, "above the ceiling, which is on its way"
    assert rig.log("a").acknowledge_at == SAFE
    rig.settle()
    assert rig.append("a", b"second") == 2
    assert rig.log("a").high_watermark == 3
    rig.power_cut()
    rig.open([LogSettings("a", FAST)])
    assert rig.append("a", b"new") >= 3, "what was shown and lost keeps its offset"


def test_the_strictest_log_decides_for_the_journal_when_settings_change():
    rig = opened([LogSettings("a", FAST, flush_bytes=1000, sync_bytes=5000)])
    rig.storage.change_logs([LogSettings("b", SAFE, flush_bytes=500, sync_bytes=9000, verify="direct")])
    journal, committer = rig.storage._journal, rig.storage._committer
    strict = (journal.verify, journal.sync_bytes, committer.flush_bytes)
    assert strict[1:] == (5000, 500)
    rig.storage.change_logs([LogSettings("b", SAFE, flush_bytes=700, sync_bytes=3000, verify="off")])
    assert (journal.sync_bytes, committer.flush_bytes) == (3000, 700)
    assert journal.verify < strict[0]


def test_a_log_that_is_configured_no_longer_is_kept_whole():
    rig = opened([LogSettings("a", SAFE, retention_ms=1000, segment_bytes=300, flush_bytes=100)])
    for _ in range(20):
        rig.append("a", bytes(60))
        rig.settle()
    rig.storage.change_logs([], ["a"])
    rig.advance(3600, step=60)
    assert len(rig.contents("a")) == 20
