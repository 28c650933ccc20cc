"""A full disk: no acknowledgement without bytes, readers as ever, and back to work when there is space."""

from __future__ import annotations

import errno
import random
from dataclasses import replace

import pytest

from highway.errors import DiskFullError
from highway.storage import Durability, LogSettings
from tests.storage.rig import DIRECTORY, SMALL, Rig
from tests.storage.simulated_filesystem import Failure

SAFE = Durability.SAFE
FULL_LOGS = [
    LogSettings("fast", Durability.FAST, segment_bytes=4000, flush_bytes=1500),
    LogSettings("balanced", Durability.BALANCED, segment_bytes=4000, flush_bytes=1500),
    LogSettings("safe", SAFE, segment_bytes=4000, flush_bytes=1500),
]
RESERVE = DIRECTORY / "RESERVE"
ROOM = 100_000


class Disk:
    """A rig on a disk of a size, publishers that note what they were told, and one that reads along."""

    def __init__(self, logs=FULL_LOGS, room=ROOM, **settings):
        self.rig = Rig(settings=replace(SMALL, **settings))
        self.rig.filesystem.capacity = room
        self.rig.open(logs)
        self.random = random.Random(1)
        self.accepted = {log.name: {} for log in logs}
        self.acked = {log.name: [] for log in logs}
        self.told = []

    def publish(self, name):
        """Publish 300 B that don't compress; return whether they were accepted."""
        payload = self.random.randbytes(300)
        log = self.rig.log(name)
        try:
            offset = self.rig.append(name, payload)
        except DiskFullError:
            assert not self.rig.storage.writable
            return False
        assert offset not in self.accepted[name]
        self.accepted[name][offset] = payload

        def answered(error):
            self.told.append(error)
            if error is None:
                self.acked[name].append(offset)

        self.rig.storage.after(log.acknowledge_at, answered)
        return True

    def fill(self):
        """Publish to every log in turn until the disk is full."""
        names = list(self.accepted)
        for number in range(2000):
            if not self.publish(names[number % len(names)]):
                self.rig.settle()
                return
            if number % 5 == 0:
                self.rig.settle()
        raise AssertionError("the disk doesn't fill")

    def check(self, name=None):
        """Readers get everything acknowledged and nothing that wasn't accepted there."""
        for log in [name] if name else self.accepted:
            found = self.rig.contents(log)
            start = self.rig.log(log).log_start_offset
            assert all(self.accepted[log].get(offset) == payload for offset, payload in found.items())
            assert [offset for offset in self.acked[log] if offset >= start and offset not in found] == []


def test_a_full_disk_refuses_publishers_alone_and_goes_on_when_there_is_space():
    disk = Disk()
    assert len(disk.rig.filesystem.content(RESERVE)) == ROOM // 16
    disk.fill()
    assert not disk.rig.filesystem.exists(RESERVE), "it is given up"
    assert [type(fault) for fault in disk.rig.faults] == [DiskFullError]
    disk.rig.filesystem.capacity -= 50_000  # somebody else takes what a checkpoint sets free
    disk.rig.advance(7)
    assert not disk.rig.storage.writable
    assert not disk.publish("fast")
    disk.check()
    assert disk.rig.fetch("safe", disk.acked["safe"][0])[5] == disk.accepted["safe"][disk.acked["safe"][0]]
    assert disk.rig.checkpoint() is True
    disk.rig.filesystem.capacity += 110_000
    disk.rig.advance(2.5)
    assert disk.rig.storage.writable, "nobody has to start anything"
    assert disk.rig.filesystem.exists(RESERVE), "and it is kept back again"
    for name in disk.accepted:
        assert disk.publish(name)
    disk.rig.settle()
    assert disk.told[-3:] == [None] * 3
    disk.check()
    for name, accepted in disk.accepted.items():
        assert disk.rig.contents(name) == accepted, "what was accepted is stored once, acknowledged or not"
    disk.rig.close()
    disk.rig.power_cut()
    disk.rig.reopen()
    assert disk.rig.storage.report.clean
    disk.check()


def test_too_little_space_for_the_reserve_and_a_journal_file_is_none():
    disk = Disk()
    disk.fill()
    filesystem = disk.rig.filesystem
    filesystem.capacity -= 50_000
    disk.rig.advance(3)
    filesystem.capacity += 50_000
    filesystem.capacity += ROOM // 16 - filesystem.free_bytes(DIRECTORY) - 1
    disk.rig.advance(3)
    assert not disk.rig.storage.writable, "it would be full again at once"
    filesystem.capacity += 30_000
    disk.rig.advance(2.5)
    assert disk.rig.storage.writable


def test_what_the_journal_could_not_write_is_answered_with_an_error_and_stored_out_of_the_reserve():
    rig = Rig()
    rig.open(FULL_LOGS)
    for log in FULL_LOGS:
        rig.append(log.name, b"before")
    rig.settle()
    told = []
    for log in FULL_LOGS:
        rig.append(log.name, b"stuck", puts=[(log.name.encode(), b"stuck")])
        rig.storage.after(log.durability, told.append)
    assert rig.contents("fast") == {0: b"before", 1: b"stuck"}, "FAST is seen at append"
    rig.filesystem.fail(1, Failure.SHORT_WRITE, kinds={"pwrite"})
    rig.settle()
    assert [type(error) for error in told] == [type(None), DiskFullError, DiskFullError]
    rig.advance(5)
    assert len(told) == 3, "nobody is told twice"
    # Their senders were told that it failed, and send it again.
    for log in FULL_LOGS[1:]:
        rig.append(log.name, b"stuck")
    rig.settle()
    rig.power_cut()
    rig.reopen()
    assert rig.contents("fast") == {0: b"before", 1: b"stuck"}
    assert rig.contents("safe") == {0: b"before", 1: b"stuck", 2: b"stuck"}
    assert {key for key, _ in rig.storage.meta.items()} == {b"fast", b"balanced", b"safe"}


@pytest.mark.parametrize("end", ["kill", "power_cut", "close"])
def test_a_batch_that_never_got_room_gives_no_offset_away_that_was_seen(end):
    disk = Disk(reserve_bytes=0)
    disk.publish("fast")
    disk.rig.advance(0.2)
    disk.rig.filesystem.capacity = 0  # from now on nothing grows
    disk.fill()
    seen = {name: dict(disk.rig.contents(name)) for name in disk.accepted}
    getattr(disk.rig, end)()
    disk.rig.filesystem.capacity = 10 * ROOM
    disk.rig.reopen()
    disk.check("safe")
    disk.check("balanced")
    for name, contents in seen.items():
        found = disk.rig.contents(name)
        assert found.items() <= contents.items()
        gone = contents.keys() - found.keys()
        assert not gone or (name == "fast" and gone <= disk.rig.in_gaps(name)), "lost, and reported"
        assert disk.rig.append(name, b"next") > max(contents, default=-1)


def test_retention_makes_room_at_once_and_by_itself():
    bounded = [replace(log, retention_bytes=9000) for log in FULL_LOGS]
    disk = Disk(bounded, reaper_interval_ms=3_600_000)
    disk.fill()
    assert disk.rig.storage.trimmed["segments"]["size"] >= 3
    disk.rig.advance(3)
    assert disk.rig.storage.writable
    disk.check()
    for _ in range(5):
        disk.fill()
        disk.rig.advance(3)
        assert disk.rig.storage.writable
        disk.check()


def test_retention_whose_checkpoint_had_no_room_is_not_forgotten():
    rig = Rig()
    rig.open([LogSettings("a", SAFE, segment_bytes=1000, flush_bytes=300, retention_bytes=2000)])
    for number in range(20):
        rig.append("a", random.Random(number).randbytes(200))
        rig.settle()
    names = rig.filesystem.listdir(rig.log("a").writer.segments[0].path.parent)
    rig.filesystem.on_operation = lambda operation: (
        rig.filesystem.fail(1, Failure.ENOSPC) if operation.path.name.startswith("CHECKPOINT") else None
    )
    rig.storage.reap()
    rig.settle()
    directory = rig.log("a").writer.segments[0].path.parent
    assert rig.log("a").log_start_offset > 0
    assert set(names) <= set(rig.filesystem.listdir(directory)), "no file goes before the new start is durable"
    rig.filesystem.on_operation = None
    rig.advance(8)
    kept = {segment.path.name for segment in rig.log("a").writer.segments}
    assert {name for name in rig.filesystem.listdir(directory) if name.endswith(".log")} == kept


@pytest.mark.parametrize("end", ["kill", "power_cut", "close"])
@pytest.mark.parametrize("reserve", [0, 16 * 1024])
def test_an_open_on_a_full_disk_serves_readers_and_accepts_later(end, reserve):
    disk = Disk(reserve_bytes=reserve)
    disk.fill()
    getattr(disk.rig, end)()
    filesystem = disk.rig.filesystem
    # Somebody else has filled it meanwhile, and would also take what an open sets free.
    filesystem.capacity -= filesystem.free_bytes(DIRECTORY) + 60_000
    disk.rig.reopen()
    disk.check("safe")
    disk.check("balanced")
    if reserve:
        assert not disk.publish("safe"), "without RESERVE the disk is full, now as before"
    disk.fill()
    disk.rig.advance(7)
    assert not disk.publish("safe")
    filesystem.capacity += 120_000
    disk.rig.advance(3)
    assert disk.publish("safe")
    disk.rig.settle()
    assert disk.told[-1] is None
    disk.rig.power_cut()
    disk.rig.reopen()
    disk.check("safe")


def test_a_reserve_of_another_size_or_half_of_one_is_made_again():
    rig = Rig()
    rig.open(["a"])
    for content in (b"", bytes(100), bytes(99_999)):
        rig.close()
        rig.filesystem.overwrite(RESERVE, content)
        rig.reopen()
        assert len(rig.filesystem.content(RESERVE)) == SMALL.reserve_bytes


def test_running_out_of_descriptors_is_waited_for_and_no_failed_disk():
    rig = Rig()
    rig.open([LogSettings("a", SAFE, flush_bytes=100)])
    rig.append("a", b"0")
    rig.settle()
    real = rig.filesystem.open

    def none_left(path, *, write=False, create=False):
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    rig.filesystem.open = none_left
    rig.append("a", bytes(200))
    rig.settle()
    assert rig.contents("a") == {0: b"0", 1: bytes(200)}
    rig.advance(4)
    assert not rig.storage.writable
    rig.filesystem.open = real
    rig.advance(4)
    assert rig.storage.writable
    rig.append("a", b"2")
    assert rig.reached(SAFE) == [None]
