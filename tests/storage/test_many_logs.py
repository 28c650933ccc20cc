"""Hundreds of logs: what is done once for each of them must not be what takes long."""

from __future__ import annotations

import random

import pytest

from highway.errors import DiskFailedError
from highway.storage import Durability, LogSettings, StorageSettings
from highway.storage.checkpoint import checkpointer
from highway.storage.checkpoint.checkpoint import NO_SEGMENT
from highway.storage.settings import KIB, MIB
from tests.storage import test_crash, test_disk_faults
from tests.storage.rig import DIRECTORY, Rig
from tests.storage.simulated_filesystem import Failure

NAMES = [f"log-{number}" for number in range(100)]
SETTINGS = StorageSettings(journal_file_bytes=64 * KIB, checkpoint_bytes=64 * MIB)


@pytest.fixture
def rig():
    """A hundred logs that were killed with frames in their segments that nobody had synced."""
    rig = Rig(settings=SETTINGS)
    rig.open([LogSettings(name, Durability.BALANCED, flush_bytes=200) for name in NAMES])
    for payload in (b"1", bytes(300), b"3"):
        for name in NAMES:
            rig.append(name, payload)
        rig.settle()
    rig.kill()
    return rig


def test_recovery_syncs_many_segments_at_once(rig):
    done = []
    rig.filesystem.on_operation = done.append
    rig.reopen()
    rig.filesystem.on_operation = None
    syncs = [operation for operation in done if "sync" in operation.kind and "logs" in operation.path.parts]
    assert [operation.kind for operation in syncs] == ["syncfs"]


def test_what_recovery_shows_survives_the_power_cut_that_follows(rig):
    rig.reopen()
    shown = {name: rig.contents(name) for name in NAMES}
    assert all(set(contents.values()) == {b"1", bytes(300), b"3"} for contents in shown.values())
    rig.power_cut()
    rig.reopen()
    assert {name: rig.contents(name) for name in NAMES} == shown
    assert not rig.storage.report.damaged


def fresh(payload=bytes(300)):
    """A hundred logs with one record each, in memory and in the journal."""
    rig = Rig(settings=SETTINGS)
    rig.open([LogSettings(name, Durability.BALANCED) for name in NAMES])
    for name in NAMES:
        rig.append(name, payload)
    rig.settle()
    return rig


def syncs_of(rig, action):
    """The kinds of the syncs below logs/, and the shared one, while `action` runs."""
    done = []
    rig.filesystem.on_operation = done.append
    action()
    rig.filesystem.on_operation = None
    return [op.kind for op in done if op.kind == "syncfs" or ("sync" in op.kind and "logs" in op.path.parts)]


def test_a_close_syncs_many_new_segments_at_once():
    rig = fresh()
    assert syncs_of(rig, rig.close) == ["syncfs"]
    rig.power_cut()
    rig.reopen()
    assert rig.storage.report.clean
    assert [rig.contents(name) for name in NAMES] == [{0: bytes(300)}] * len(NAMES)


def test_a_close_leaves_the_tails_of_too_many_quiet_logs_to_the_journal(monkeypatch):
    monkeypatch.setattr(checkpointer, "_EMPTIED_AT_CLOSE", 50)
    rig = fresh()
    rig.storage.put([(b"k", b"v")])
    assert syncs_of(rig, rig.close) == []
    for again in range(1, 4):
        rig.power_cut()
        storage = rig.reopen()
        assert (storage.report.clean, storage.report.damaged, storage.report.gaps) == (True, [], [])
        assert storage.report.records_recovered == 100 * again
        assert storage.meta.get(b"k") == b"v"
        assert {(log.epoch, log.log_end_offset) for log in storage.logs.values()} == {(1, again)}
        for name in NAMES:
            rig.append(name, b"more")
        rig.settle()
        rig.close()


def test_a_checkpoint_syncs_many_segments_in_groups(monkeypatch):
    monkeypatch.setattr(checkpointer, "_SYNCED_TOGETHER", 30)
    rig = fresh(bytes(checkpointer._QUIET_BYTES))
    assert syncs_of(rig, rig.checkpoint) == ["syncfs"] * 4
    assert not any(log.undurable_entry for log in rig.storage.logs.values())
    rig.power_cut()
    rig.reopen()
    assert [list(rig.contents(name)) for name in NAMES] == [[0]] * len(NAMES)


def test_a_file_system_whose_sync_tells_nothing_is_synced_file_by_file(monkeypatch):
    monkeypatch.setattr(type(Rig().filesystem), "syncfs_tells", property(lambda _: False))
    rig = fresh()
    assert "syncfs" not in syncs_of(rig, rig.close)
    rig.power_cut()
    rig.reopen()
    assert [rig.contents(name) for name in NAMES] == [{0: bytes(300)}] * len(NAMES)


def test_a_shared_sync_that_fails_has_every_segment_written_anew():
    rig = fresh(bytes(checkpointer._QUIET_BYTES))
    rig.filesystem.fail(1, Failure.EIO, kinds={"syncfs"})
    assert rig.checkpoint()
    assert rig.filesystem.exists(DIRECTORY / "POISON")
    assert rig.storage.writable
    assert len(rig.faults) == len(NAMES)
    assert all(isinstance(fault, DiskFailedError) for fault in rig.faults)
    rig.power_cut()
    rig.reopen()
    assert [list(rig.contents(name)) for name in NAMES] == [[0]] * len(NAMES)
    assert not rig.storage.report.damaged


def test_no_checkpoint_mentions_a_segment_before_it_is_durable():
    rig = Rig(settings=SETTINGS)
    rig.open([LogSettings("a", Durability.BALANCED, flush_bytes=200)])
    rig.append("a", bytes(300))
    rig.settle()
    log = rig.log("a")
    assert log.writer.segments
    assert log.state(clean=False).active_base == NO_SEGMENT
    rig.checkpoint()
    assert log.state(clean=False).active_base == 0


@pytest.fixture
def always_shared(monkeypatch):
    """Every checkpoint syncs its segments together, two at a time."""
    monkeypatch.setattr(checkpointer, "_MANY", 0)
    monkeypatch.setattr(checkpointer, "_SYNCED_TOGETHER", 2)


def test_a_crash_while_syncs_are_shared_keeps_every_promise(always_shared):
    count = 0
    for label, filesystem, ledger, killed in test_crash.crashes(40, steps=100, states=test_crash.STATES // 4):
        rig = test_crash.open_crashed(filesystem, 1000.0)
        test_crash.go_on(rig, ledger, killed=killed, label=label)
        count += 1
    assert count > test_crash.STATES // 8


def test_any_one_operation_fails_while_syncs_are_shared(always_shared):
    rng = random.Random(9)
    for seed, nth, failure in rng.sample(test_disk_faults.faults(), 25):
        label = f"seed {seed}, operation {nth}, {failure.name}"
        rig = test_disk_faults.opened_with_a_fault(nth, failure)
        work = test_disk_faults.Faulty(rig, seed)
        work.run()
        test_disk_faults.goes_on(rig, work)
        test_disk_faults.crash_and_check(rig, work, random.Random(nth), label)


def test_each_shared_sync_fails(always_shared):
    for nth in range(1, 5):
        rig = test_disk_faults.opened_with_a_fault(nth, Failure.EIO, {"syncfs"})
        work = test_disk_faults.Faulty(rig, 300 + nth)
        work.run()
        test_disk_faults.goes_on(rig, work)
        test_disk_faults.crash_and_check(rig, work, random.Random(nth), f"syncfs {nth}")
