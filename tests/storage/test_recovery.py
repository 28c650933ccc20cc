from __future__ import annotations

import random
from dataclasses import replace

import pytest

from highway.errors import CorruptionError, DataDirectoryError, StorageError
from highway.storage import Durability, LogSettings
from highway.storage.checkpoint.checkpoint import CheckpointSlots
from highway.storage.checkpoint.meta import list_snapshots
from highway.storage.gaps import find_gap
from highway.storage.journal.files import list_journal
from tests.storage.rig import DIRECTORY, SMALL, Rig
from tests.storage.simulated_filesystem import Crash

SAFE = Durability.SAFE
LOGS = [
    LogSettings("a", SAFE, segment_bytes=500, flush_bytes=200, compression="none"),
    LogSettings("b", Durability.BALANCED, segment_bytes=500, flush_bytes=200, compression="none"),
]


def payload(name, number):
    return b"%s%d:" % (name.encode(), number) + b"p" * 20


def filled(rounds=24, settings=SMALL):
    """Two logs with sealed and active segments, a checkpoint in the middle, and a tail that only the journal has."""
    rig = Rig(settings=settings)
    rig.open(LOGS)
    for number in range(rounds):
        for log in LOGS:
            rig.append(log.name, payload(log.name, number))
        rig.storage.put([(b"k%d" % (number % 5), b"%d" % number)], SAFE)
        rig.settle()
        if number == rounds // 2:
            assert rig.checkpoint()
    return rig


def expected(rounds=24):
    return {log.name: {number: payload(log.name, number) for number in range(rounds)} for log in LOGS}


def intact(rig, rounds=24):
    """Everything is there, and in its place."""
    for name, contents in expected(rounds).items():
        assert rig.contents(name) == contents
    assert len(rig.storage.meta) == 5


def files_of(rig, *suffixes):
    paths = [path for path, node in rig.filesystem._names.items() if node is not None]
    return sorted(path for path in paths if path.name.endswith(suffixes))


def content(rig, path):
    return bytes(rig.filesystem._names[path].cached)


# Stops.


@pytest.mark.parametrize("mode", list(Crash))
def test_a_power_cut_takes_nothing_that_was_synced(mode):
    rig = filled()
    rig.reached(SAFE)
    rig.power_cut(mode)
    report = rig.reopen().report
    assert not report.clean
    assert not report.damaged
    intact(rig)


def test_recovery_twice_in_a_row_finds_the_same():
    rig = filled()
    rig.kill()
    first = rig.reopen()
    states = {name: (log.high_watermark, log.gaps) for name, log in first.logs.items()}
    intact(rig)
    rig.kill()
    rig.reopen()
    intact(rig)
    assert rig.log("a").high_watermark == states["a"][0]
    assert rig.log("a").epoch == 3


def test_the_report_tells_the_story_in_one_line():
    rig = filled()
    rig.kill()
    report = rig.reopen().report
    line = str(report)
    assert "\n" not in line
    assert "unclean stop; 2 logs" in line
    assert f"{report.records_recovered} records recovered" in line
    assert report.records_recovered > 0
    assert report.epoch_bumps == 2
    rig.close()
    assert str(rig.reopen().report).startswith("clean stop")
    assert str(Rig().open(LOGS).report) == "new data directory"


def test_what_a_killed_process_left_in_the_page_cache_is_durable_before_it_is_shown():
    rig = Rig()
    rig.open([LogSettings("b", Durability.BALANCED)])
    rig.append("b", b"0")
    rig.settle()
    rig.append("b", b"1")
    rig.settle()
    rig.kill()
    rig.reopen()
    assert set(rig.contents("b")) == {0, 1}
    rig.power_cut()
    rig.reopen()
    assert {0, 1} <= set(rig.contents("b"))


def test_sealed_segments_are_not_read_at_open():
    rig = filled(rounds=100)
    rig.kill()
    read = []
    pread = rig.filesystem.pread
    rig.filesystem.pread = lambda fd, length, position: (
        read.append(rig.filesystem._open[fd].path) or pread(fd, length, position)
    )
    rig.reopen()
    segments = rig.log("a").writer.segments
    assert len(segments) > 4
    assert not {segment.path for segment in segments[:-3]} & set(read)


# Torn and damaged files (field report 39).


def test_a_torn_tail_of_a_segment_is_cut_kept_and_comes_back_from_the_journal():
    rig = filled()
    segment = rig.log("a").writer.segments[-1]
    while segment.length == segment.durable_length:
        rig.append("a", payload("a", rig.log("a").log_end_offset))
        rig.settle()
        segment = rig.log("a").writer.segments[-1]
    rounds = rig.log("a").log_end_offset
    data = content(rig, segment.path)
    rig.kill()
    for cut in (1, 10, len(data) - segment.durable_length - 1):
        attempt = Rig(rig.filesystem.kill())
        attempt.filesystem.overwrite(segment.path, data[:-cut])
        attempt.configured = LOGS
        report = attempt.reopen().report
        assert 0 < report.torn_bytes_cut <= len(data) - cut - segment.durable_length
        assert not report.damaged
        assert attempt.contents("a") == expected(rounds)["a"]
        (kept,) = [path for path in files_of(attempt, "") if path.parent.name == "quarantine"]
        assert content(attempt, kept) == data[len(data) - cut - report.torn_bytes_cut : -cut]
        attempt.append("a", b"next")
        attempt.settle()
        assert attempt.checkpoint()
        attempt.kill()
        attempt.reopen()
        assert attempt.contents("a") == {**expected(rounds)["a"], rounds: b"next"}


def test_a_file_shorter_than_its_durable_length_is_a_loud_loss_of_exactly_that():
    rig = filled()
    assert rig.checkpoint()
    rig.advance(30)
    rig.close()
    segment = rig.log("a").writer.segments[-1]
    data = content(rig, segment.path)
    rig.filesystem.overwrite(segment.path, data[: len(data) - 3])
    storage = rig.reopen()
    assert not storage.report.clean
    assert str(segment.path) in str(storage.report.damaged[0])
    found = rig.contents("a")
    missing = set(range(24)) - set(found)
    assert missing == rig.in_gaps("a") & set(range(24))
    assert 0 < len(missing) <= 10
    assert rig.contents("b") == expected()["b"], "the other log goes on"
    base = rig.append("a", b"next")
    rig.settle()
    assert base >= 24


@pytest.mark.parametrize("damage", ["empty", "zeros", "zero tail", "gone"])
@pytest.mark.parametrize("which", ["last segment", "index", "snapshot", "journal", "one checkpoint"])
@pytest.mark.parametrize("stop", ["kill", "close"])
def test_a_damaged_file_of_any_kind_never_keeps_the_broker_from_starting(which, damage, stop):
    rig = filled()
    getattr(rig, stop)()
    journal = list_journal(rig.filesystem, DIRECTORY / "journal")
    used = [path for _, path in journal if content(rig, path)[200:].strip(b"\0")]
    candidates = {
        "last segment": [path for path in files_of(rig, ".log") if path.parent.name.startswith("a-")][-1:],
        "index": files_of(rig, ".idx"),
        "snapshot": [path for _, path in list_snapshots(rig.filesystem, DIRECTORY / "meta")][-1:],
        "journal": used[-1:],
        "one checkpoint": [DIRECTORY / "CHECKPOINT.a"],
    }[which]
    for path in candidates:
        data = content(rig, path)
        new = {"empty": b"", "zeros": bytes(len(data)), "zero tail": data[: len(data) // 2].ljust(len(data), b"\0")}
        if damage == "gone":
            rig.filesystem.unlink(path)
            rig.filesystem.sync_dir(path.parent)
        else:
            rig.filesystem.overwrite(path, new[damage])
    storage = rig.reopen()
    for name, contents in expected().items():
        found = rig.contents(name)
        assert all(contents[offset] == value for offset, value in found.items())
        missing = {offset for offset in contents if offset < rig.log(name).high_watermark} - set(found)
        assert all(find_gap(rig.log(name).gaps, offset) for offset in missing), "what is missing is recorded"
        base = rig.append(name, b"next")
        rig.settle()
        assert rig.contents(name)[base] == b"next"
    if which in ("index", "one checkpoint"):
        intact_offsets = {name: {o: p for o, p in rig.contents(name).items() if p != b"next"} for name in expected()}
        assert intact_offsets == expected()
        assert not storage.report.damaged
    rig.close()
    rig.reopen()


def test_stray_files_are_left_or_removed_and_never_taken_for_data():
    rig = filled()
    rig.close()
    log_directory = rig.log("a").writer.segments[0].path.parent
    for path in (
        log_directory / "00000000000000000003.idx.tmp",
        log_directory / "00000000000000099999.idx",
        DIRECTORY / "meta" / "00000000000000000001.snap.tmp",
        DIRECTORY / "journal" / "00000000000000000099.tmp",
        DIRECTORY / "journal" / "notes.wal",
        DIRECTORY / "FORMAT.tmp",
        log_directory / "notes.txt",
    ):
        rig.filesystem.overwrite(path, b"junk")
    assert rig.reopen().report.clean
    intact(rig)
    assert not rig.filesystem.exists(log_directory / "00000000000000000003.idx.tmp")
    assert rig.filesystem.exists(log_directory / "notes.txt")


def test_both_checkpoints_damaged_is_refused_and_rebuild_scans_everything():
    rig = filled()
    rig.kill()
    for slot in "ab":
        rig.filesystem.overwrite(DIRECTORY / f"CHECKPOINT.{slot}", b"junk")
    with pytest.raises(DataDirectoryError, match="rebuild"):
        rig.reopen()
    storage = rig.reopen(rebuild=True)
    assert storage.report.rebuilt
    for name, contents in expected().items():
        found = rig.contents(name)
        assert all(contents[offset] == value for offset, value in found.items())
        assert set(found) == set(contents)
        assert rig.append(name, b"next") > 1 << 20, "nobody knows what had been reserved"
    rig.settle()
    rig.close()
    assert rig.reopen().report.clean


def test_one_damaged_checkpoint_loses_nothing():
    rig = filled(rounds=60)
    rig.kill()
    newest = CheckpointSlots(rig.filesystem, DIRECTORY).load()[0].sequence
    for slot in "ab":
        attempt = Rig(rig.filesystem.kill())
        attempt.filesystem.overwrite(DIRECTORY / f"CHECKPOINT.{slot}", b"")
        attempt.configured = LOGS
        attempt.reopen()
        intact(attempt, 60)
        assert not attempt.storage.report.damaged
        assert CheckpointSlots(attempt.filesystem, DIRECTORY).load()[0].sequence >= newest


def test_a_damaged_durable_journal_frame_is_loud_exact_and_read_past():
    rig = Rig(settings=replace(SMALL, journal_file_bytes=1 << 16, checkpoint_bytes=1 << 30))
    rig.open([LogSettings("a", SAFE), LogSettings("b", SAFE)])
    for number in range(10):
        rig.append("a", payload("a", number))
        rig.append("b", payload("b", number))
        rig.settle()
    rig.kill()
    (path,) = [path for _, path in list_journal(rig.filesystem, DIRECTORY / "journal") if b"a4:" in content(rig, path)]
    data = content(rig, path)
    rig.filesystem.overwrite(path, data.replace(b"a4:", b"a?:"))
    storage = rig.reopen()
    assert len(storage.report.damaged) == 1
    for name in "ab":
        assert rig.contents(name) == {number: payload(name, number) for number in range(10) if number != 4}
        assert [(gap.from_offset, gap.to_offset, gap.reason) for gap in rig.log(name).gaps] == [(4, 5, "corruption")]
    assert "1 damaged ranges, 2 offsets lost" in str(storage.report)


def test_an_unclean_stop_and_a_changed_durability_go_together():
    rig = Rig()
    rig.open([LogSettings("a", Durability.FAST)])
    rig.append("a", b"0")
    rig.reached(SAFE)
    rig.kill()
    rig.open([LogSettings("a", SAFE)])
    base = rig.append("a", b"1")
    rig.settle()
    assert base > 1
    rig.power_cut()
    rig.open([LogSettings("a", Durability.FAST)])
    assert rig.contents("a") == {0: b"0", base: b"1"}
    assert rig.append("a", b"2") == base + 1, "the SAFE run left no hole"


# T3: a flip anywhere.


def test_a_flip_anywhere_never_gives_a_wrong_record_and_never_stops_the_start():
    rig = filled(rounds=12)
    rig.kill()
    rng = random.Random(7)
    sizes = [(path, len(content(rig, path))) for path in files_of(rig, ".log", ".idx", ".wal", ".a", ".b", ".snap")]
    tried = 0
    for path, size in sizes:
        data = content(rig, path)
        used = len(data.rstrip(b"\0")) + 8
        for position in sorted(rng.sample(range(min(size, used)), min(12, size, used))):
            attempt = Rig(rig.filesystem.kill())
            changed = bytearray(data)
            changed[position] ^= rng.choice((0x01, 0x80, 0xFF))
            attempt.filesystem.overwrite(path, bytes(changed))
            attempt.configured = LOGS
            attempt.reopen()
            where = f"{path.name} at {position}"
            for name, contents in expected(12).items():
                found = attempt.contents(name)
                assert found.items() <= contents.items(), where
                missing = {offset for offset in contents if offset < attempt.log(name).high_watermark} - set(found)
                assert all(find_gap(attempt.log(name).gaps, offset) for offset in missing), where
                cut = [offset for offset in contents if offset >= attempt.log(name).log_end_offset]
                assert len(cut) <= 1, f"{where}: only the last frame's sync is known to nobody"
            tried += 1
    assert tried > 60


def test_a_flip_that_is_refused_lets_go_of_everything():
    rig = filled()
    rig.close()
    (path,) = [path for path in files_of(rig, ".log") if path == rig.log("a").writer.segments[-1].path]
    rig.filesystem.overwrite(path, content(rig, path)[:70])
    rig.configured = [replace(log, on_corruption="refuse") for log in LOGS]
    with pytest.raises(CorruptionError):
        rig.reopen()
    assert rig.filesystem.open_descriptors() == 0
    rig.configured = LOGS
    rig.reopen()
    assert rig.contents("b") == expected()["b"]
    assert isinstance(rig.storage.report.damaged[0], StorageError)
