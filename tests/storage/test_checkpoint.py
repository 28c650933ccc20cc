from __future__ import annotations

import random
from pathlib import Path

import pytest

from highway.errors import CorruptionError, DataDirectoryError
from highway.storage import Durability, Gap, LogSettings
from highway.storage.checkpoint.checkpoint import (
    Checkpoint,
    CheckpointSlots,
    LogState,
    encode_checkpoint,
    encode_log_state,
    parse_checkpoint,
)
from highway.storage.gaps import add_gap, find_gap
from tests.storage.rig import DIRECTORY, Rig
from tests.storage.simulated_filesystem import Crash, Failure, SimulatedFileSystem

ROOT = Path("/data")
STATES = [
    LogState(1, "telemetry", bytes(16), 100, 4096, 250, 260, 3, 2, 65_786, 1_790_000_000_000, [Gap(4, 9, "x", 5)]),
    LogState(2, "größe/1", bytes(range(16))),
]


def encoded(**values):
    checkpoint = Checkpoint(5, True, 1 << 33, 17, 4, 99, 18, 1_790_000_000_000)
    for name, value in values.items():
        setattr(checkpoint, name, value)
    return encode_checkpoint(checkpoint, [encode_log_state(state) for state in STATES])


def test_a_checkpoint_comes_back_as_it_was():
    found = parse_checkpoint(encoded() + b"the rest of an older, longer one", "x")
    assert found == Checkpoint(5, True, 1 << 33, 17, 4, 99, 18, 1_790_000_000_000, STATES)


def test_a_flip_of_every_byte_and_every_cut_are_noticed():
    data = encoded()
    for position in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            changed = bytearray(data)
            changed[position] ^= flip
            with pytest.raises(CorruptionError):
                parse_checkpoint(bytes(changed), "x")
        with pytest.raises(CorruptionError):
            parse_checkpoint(data[:position], "x")


def test_a_newer_format_is_refused_and_not_called_damaged():
    from crc32c import crc32c

    data = bytearray(encoded())
    data[9] = 2
    data[-4:] = crc32c(bytes(data[:-4])).to_bytes(4, "big")
    with pytest.raises(DataDirectoryError, match="format 2"):
        parse_checkpoint(bytes(data), "x")


@pytest.mark.parametrize("mode", list(Crash))
def test_a_crash_while_writing_leaves_the_checkpoint_before_or_the_new_one(mode):
    filesystem = SimulatedFileSystem(ROOT)
    slots = CheckpointSlots(filesystem, ROOT)
    rng = random.Random(3)
    found = []

    def look(_):
        loaded = CheckpointSlots(filesystem.crash(mode, rng), ROOT).load()
        found.append(loaded[0].sequence if loaded else 0)

    for _ in range(2):
        slots.write(Checkpoint(), [])
    filesystem.on_operation = look
    for expected in range(3, 9):
        found.clear()
        slots.write(Checkpoint(journal_position=expected), [encode_log_state(state) for state in STATES])
        assert set(found) <= {expected - 1, expected}
        assert CheckpointSlots(filesystem.crash(Crash.NOTHING), ROOT).load()[0].sequence == expected


def test_the_damaged_slot_is_the_one_that_is_overwritten_next():
    filesystem = SimulatedFileSystem(ROOT)
    slots = CheckpointSlots(filesystem, ROOT)
    for _ in range(4):
        slots.write(Checkpoint(), [])
    filesystem.overwrite(ROOT / "CHECKPOINT.b", b"junk")
    slots = CheckpointSlots(filesystem, ROOT)
    assert [checkpoint.sequence for checkpoint in slots.load()] == [3]
    assert len(slots.damaged) == 1
    slots.write(Checkpoint(), [])
    assert [checkpoint.sequence for checkpoint in CheckpointSlots(filesystem, ROOT).load()] == [4, 3]


def test_gaps_stay_sorted_apart_and_known():
    gaps = add_gap([], Gap(10, 20, "a", 1))
    gaps = add_gap(gaps, Gap(30, 40, "a", 2))
    gaps = add_gap(gaps, Gap(5, 50, "b", 3))
    assert gaps == [
        Gap(5, 10, "b", 3),
        Gap(10, 20, "a", 1),
        Gap(20, 30, "b", 3),
        Gap(30, 40, "a", 2),
        Gap(40, 50, "b", 3),
    ]
    assert find_gap(gaps, 20).reason == "b"
    assert find_gap(gaps, 4) is None
    assert find_gap(gaps, 50) is None
    assert add_gap([Gap(1, 5, "a", 1)], Gap(5, 9, "a", 7)) == [Gap(1, 9, "a", 7)]
    assert add_gap(gaps, Gap(12, 18, "c", 9)) == gaps


# The checkpointer, through Storage.


def test_a_checkpoint_comes_after_its_interval_and_only_while_something_is_owed():
    rig = Rig()
    rig.open([LogSettings("a", Durability.BALANCED)])
    rig.advance(60)
    assert rig.storage._checkpointer.count == 0, "an idle broker writes nothing"
    assert rig.scheduler.pending == 2, "the timers of the reaper and the scrub"
    rig.append("a", b"x")
    rig.settle()
    rig.advance(4.9)
    assert rig.storage._checkpointer.count == 0
    rig.advance(0.2)
    assert rig.storage._checkpointer.count == 1
    rig.advance(60)
    assert rig.scheduler.pending == 2
    before = len(rig.filesystem.operations)
    rig.advance(60)
    assert len(rig.filesystem.operations) == before


def test_much_journal_does_not_wait_for_the_interval():
    rig = Rig()
    rig.open([LogSettings("a", Durability.BALANCED)])
    for _ in range(100):
        rig.append("a", bytes(400))
        rig.settle()
    assert rig.storage._checkpointer.count >= 2


def test_a_quiet_tail_sits_out_a_few_checkpoints_and_then_goes_to_its_segment():
    rig = Rig()
    rig.open([LogSettings("a", Durability.BALANCED), LogSettings("quiet", Durability.BALANCED)])
    rig.append("quiet", b"x")
    rig.settle()
    rig.checkpoint()
    assert rig.log("quiet").tail_bytes > 0
    rig.advance(30)
    assert rig.log("quiet").tail_bytes == 0
    assert rig.contents("quiet") == {0: b"x"}


def test_the_journal_files_are_recycled_and_their_number_stays():
    rig = Rig()
    rig.open([LogSettings("a", Durability.BALANCED)])
    most = 0
    for number in range(300):
        rig.append("a", b"%d" % number + bytes(300))
        rig.settle()
        if number % 40 == 0:
            rig.advance(5.1)
        most = max(most, len(rig.filesystem.listdir(DIRECTORY / "journal")))
    assert most <= 10, "90 kB through files of 8 kB, with checkpoints every 16 kB"


def test_the_clean_flag_is_gone_before_the_first_append():
    rig = Rig()
    rig.open(["a"])
    rig.close()
    assert CheckpointSlots(rig.filesystem, DIRECTORY).load()[0].clean
    rig.reopen()
    assert not CheckpointSlots(rig.filesystem.crash(Crash.NOTHING), DIRECTORY).load()[0].clean


def test_a_full_disk_delays_a_checkpoint_and_the_next_one_succeeds():
    rig = Rig()
    rig.open([LogSettings("a", Durability.SAFE)])
    rig.append("a", b"x")
    rig.settle()
    rig.filesystem.on_operation = lambda operation: (
        rig.filesystem.fail(1, Failure.ENOSPC) if operation.path.name.startswith("CHECKPOINT") else None
    )
    assert rig.checkpoint() is False
    assert not rig.storage.writable, "what can't be checkpointed can't be forgotten: better to stop early"
    rig.advance(2)
    assert not rig.storage.writable
    rig.filesystem.on_operation = None
    rig.advance(2)
    assert rig.storage.writable
    assert rig.checkpoint() is True
    rig.power_cut()
    rig.reopen()
    assert rig.contents("a") == {0: b"x"}


def test_a_checkpoint_that_cannot_be_synced_ends_the_accepting():
    rig = Rig()
    rig.open([LogSettings("a", Durability.SAFE)])
    rig.append("a", b"x")
    rig.settle()
    rig.filesystem.on_operation = lambda operation: (
        rig.filesystem.fail(1, Failure.EIO) if operation.path.name.startswith("CHECKPOINT") else None
    )
    assert rig.checkpoint() is False
    assert not rig.storage.writable
    assert len(rig.faults) == 1
