"""A sync that failed: nothing is acknowledged on its strength, and the next open believes the medium alone."""

from __future__ import annotations

import random

import pytest

from highway.errors import DataDirectoryError, DiskFailedError
from highway.storage import Durability, LogSettings
from highway.storage.checkpoint.checkpoint import CheckpointSlots
from highway.storage.journal.format import split_position
from tests.storage.rig import DIRECTORY, Rig
from tests.storage.simulated_filesystem import Crash, Failure

FAST, BALANCED, SAFE = Durability
LOGS = [
    LogSettings("fast", FAST, flush_bytes=400),
    LogSettings("balanced", BALANCED, flush_bytes=400),
    LogSettings("safe", SAFE, flush_bytes=400),
]
POISON = DIRECTORY / "POISON"
JOURNAL = DIRECTORY / "journal"


class Broken:
    """A rig whose journal couldn't be synced, with what was acknowledged before."""

    def __init__(self, failure=Failure.EIO, rounds=12):
        self.rig = rig = Rig()
        rig.open(LOGS)
        self.acked = {}
        self.answers = []
        for number in range(rounds):
            self.publish(b"%d" % number + bytes(60))
            rig.settle()
        before = len(rig.filesystem.operations)
        rig.filesystem.fail(1, failure, kinds={"fdatasync"})
        self.publish(b"never")
        rig.settle()
        self.failed = next(op.path for op in rig.filesystem.operations[before:] if op.kind == "fdatasync")
        self.operations = len(rig.filesystem.operations)

    def publish(self, payload):
        for log in LOGS:
            offset = self.rig.append(log.name, payload)
            if log.durability == SAFE:
                self.rig.storage.after(SAFE, lambda error, at=offset: self.answer(at, payload, error))

    def answer(self, offset, payload, error):
        self.answers.append(error)
        if error is None:
            self.acked[offset] = payload


@pytest.mark.parametrize("failure", [Failure.EIO, Failure.ENOSPC])
def test_nothing_is_acknowledged_and_nothing_synced_after_it(failure):
    broken = Broken(failure)
    rig = broken.rig
    assert rig.filesystem.exists(POISON)
    assert isinstance(broken.answers[-1], DiskFailedError)
    assert [type(fault) for fault in rig.faults] == [DiskFailedError]
    assert not rig.storage.writable
    with pytest.raises(DiskFailedError):
        rig.append("fast", b"x")
    with pytest.raises(DiskFailedError):
        rig.storage.put([(b"k", b"v")])
    assert isinstance(rig.reached(SAFE)[0], DiskFailedError)
    rig.advance(30)
    rig.close()
    later = rig.filesystem.operations[broken.operations :]
    assert [op for op in later if op.kind in ("fdatasync", "fsync")] == []
    assert not [op for op in later if op.path == broken.failed]


def test_the_mark_is_there_before_anybody_is_told():
    rig = Rig()
    rig.open(LOGS)
    seen = []
    rig.append("safe", b"x")
    rig.storage.after(SAFE, lambda error: seen.append((type(error), rig.filesystem.exists(POISON))))
    rig.filesystem.fail(1, Failure.EIO, kinds={"fdatasync"})
    rig.settle()
    assert seen == [(DiskFailedError, True)]


@pytest.mark.parametrize("kinds", [{"fdatasync"}, {"fsync"}, {"sync_dir"}])
def test_any_failed_sync_leaves_the_mark(kinds):
    for nth in range(1, 12):
        rig = Rig()
        rig.filesystem.fail(nth, Failure.EIO, kinds)
        try:
            rig.open(LOGS)
            for number in range(6):
                rig.append("safe", bytes(150))
                rig.settle()
                rig.advance(5)
                if number == 3:
                    rig.checkpoint()
        except (DataDirectoryError, DiskFailedError):
            pass
        has_failed = not rig.filesystem._failures
        assert rig.filesystem.exists(POISON) == has_failed
        assert has_failed or nth > 1, "the workload has some of each kind"


def test_what_only_the_page_cache_has_is_not_shown_and_what_was_acknowledged_is():
    broken = Broken()
    rig = broken.rig
    rig.kill()
    journal = [rig.filesystem.content(JOURNAL / name) for name in rig.filesystem.listdir(JOURNAL)]
    assert any(b"never" in content for content in journal), "the page cache shows it"
    rig.reopen()
    assert rig.contents("safe") == broken.acked
    assert not rig.filesystem.exists(POISON)
    assert rig.storage.writable
    shown = {log.name: rig.contents(log.name) for log in LOGS}
    rig.power_cut()
    rig.reopen()
    assert {log.name: rig.contents(log.name) for log in LOGS} == shown, "all that was shown was on the medium"
    for log in LOGS:
        rig.append(log.name, b"after")
    assert rig.reached(SAFE) == [None]


def test_the_journal_is_copied_and_its_old_files_are_never_synced_or_used_again():
    broken = Broken()
    rig = broken.rig
    old = set(rig.filesystem.listdir(JOURNAL))
    rig.kill()
    rig.reopen()
    (newest, _) = CheckpointSlots(rig.filesystem, DIRECTORY).load()
    position = split_position(newest.journal_position)[0]
    assert f"{position:020}.wal" not in old, "the checkpoint refers to the copy"
    for _ in range(120):  # many journal files, and checkpoints that recycle them
        rig.append("safe", bytes(600))
        rig.settle()
        rig.advance(0.3)
    touched = [op for op in rig.filesystem.operations if op.path.parent == JOURNAL and op.path.name in old]
    assert {op.kind for op in touched} <= {"unlink"}, "they are deleted, and nothing else"
    assert not old & set(rig.filesystem.listdir(JOURNAL))


def test_a_torn_tail_is_cut_and_an_intact_one_copied_whatever_the_power_cut_left():
    rng = random.Random(3)
    for mode in Crash:
        broken = Broken()
        rig = broken.rig
        rig.kill()
        for name, node in rig.filesystem._names.items():
            if name.parent == JOURNAL and node is not None and rng.random() < 0.5:
                node.cached[:] = node.on_disk()
        rig.power_cut(mode, 5)
        rig.filesystem.overwrite(POISON, b"")
        rig.reopen()
        assert rig.contents("safe") == broken.acked
        assert not rig.storage.report.damaged


def test_a_distrustful_open_may_be_interrupted_anywhere():
    broken = Broken(rounds=8)
    broken.rig.kill()
    states = []
    rng = random.Random(8)

    def hook(operation):
        label = f"before {operation.kind} {operation.path.name}"
        states.append((f"{label}, kill", probe.filesystem.kill()))
        states.append((label, probe.filesystem.crash(rng.choice(list(Crash)), rng)))

    probe = Rig(broken.rig.filesystem)
    probe.filesystem.on_operation = hook
    probe.open(LOGS)
    assert len(states) > 20
    for label, state in states:
        rig = Rig(state)
        rig.open(LOGS)
        assert rig.contents("safe") == broken.acked, label
        assert not rig.storage.report.damaged, label
        shown = {log.name: rig.contents(log.name) for log in LOGS}
        rig.power_cut()
        rig.reopen()
        assert {log.name: rig.contents(log.name) for log in LOGS} == shown, label


def test_a_distrustful_open_that_fails_itself_can_be_repeated():
    for nth in range(1, 20):
        for failure in (Failure.EIO, Failure.ENOSPC):
            broken = Broken(rounds=5)
            rig = broken.rig
            rig.kill()
            rig.filesystem.fail(nth, failure)
            try:
                rig.reopen()
            except (DataDirectoryError, DiskFailedError):
                assert rig.filesystem.exists(POISON)
                assert rig.filesystem.open_descriptors() == 0
                rig.reopen()
            assert rig.contents("safe") == broken.acked


def test_a_checkpoint_that_cannot_be_synced_poisons_and_the_open_takes_the_other_slot():
    rig = Rig()
    rig.open(LOGS)
    for number in range(10):
        rig.append("safe", b"%d" % number + bytes(60))
        rig.settle()
    rig.filesystem.on_operation = lambda op: (
        rig.filesystem.fail(1, Failure.EIO) if op.kind == "fdatasync" and op.path.name.startswith("CHECK") else None
    )
    assert rig.checkpoint() is False
    assert isinstance(rig.storage.fault, DiskFailedError)
    rig.kill()
    rig.reopen()
    assert len(rig.contents("safe")) == 10
    assert not rig.storage.report.damaged


def test_a_clean_stop_after_a_failure_that_mended_itself_stays_a_clean_one():
    rig = Rig()
    rig.open(LOGS)
    rig.append("safe", bytes(500))
    rig.settle()
    rig.filesystem.on_operation = lambda op: (
        rig.filesystem.fail(1, Failure.EIO) if op.kind == "fdatasync" and op.path.suffix == ".log" else None
    )
    assert rig.checkpoint() is True
    rig.filesystem.on_operation = None
    assert rig.storage.writable
    assert rig.filesystem.exists(POISON)
    rig.close()
    rig.reopen()
    assert rig.storage.report.clean
    assert rig.contents("safe") == {0: bytes(500)}
    assert not rig.filesystem.exists(POISON)
