"""T5, the other half: the n-th operation on the disk fails, for every n, in a workload with a ledger outside it.

Whatever fails, and however it goes on: nothing acknowledged is missing, nothing refused is shown, no offset shows two
messages, a kill and a power cut afterwards keep every promise, and once the disk works everything works again.
HIGHWAY_FAULT_STATES asks for a longer run.
"""

from __future__ import annotations

import os
import random

import pytest

from highway.errors import DataDirectoryError, DiskFailedError, StorageError
from highway.storage import Durability
from tests.storage.rig import DIRECTORY, Rig
from tests.storage.simulated_filesystem import Crash, Failure
from tests.storage.test_crash import LOGS, Ledger, check, compacted, go_on

STATES = int(os.environ.get("HIGHWAY_FAULT_STATES", "120"))
STEPS = 90
ONE_SHOT = (Failure.EIO, Failure.ENOSPC, Failure.SHORT_WRITE)
SAFE = Durability.SAFE


class Faulty:
    """A workload that takes no for an answer, and the ledger of it."""

    def __init__(self, rig, seed):
        self.rig = rig
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.number = 0
        self.told = []  # (log, offset, error or None) of every answer, in order
        self.refused = set()  # payloads

    def append(self, name, *, durability=None):
        self.number += 1
        payload = b"%d:t:%s" % (self.number, self.rng.randbytes(self.rng.choice((0, 9, 120))))
        log = self.rig.log(name)
        offset = log.log_end_offset
        self.ledger.logs[name].sent[offset] = payload
        was_writable = self.rig.storage.writable
        try:
            assert self.rig.append(name, payload, durability=durability) == offset
        except StorageError:
            assert not was_writable, "only what says so beforehand may refuse"
            del self.ledger.logs[name].sent[offset]
            self.refused.add(payload)
            return
        level = max(durability or log.settings.durability, log.acknowledge_at)
        self.rig.storage.after(level, lambda error: self.answer(name, offset, level, error))

    def answer(self, name, offset, level, error):
        self.told.append((name, offset, error))
        if error is None:
            assert not isinstance(self.rig.storage.fault, DiskFailedError), "an ack after the disk has failed"
            known = self.ledger.logs[name]
            known.written = max(known.written, offset + 1)
            if level == SAFE:
                known.durable = max(known.durable, offset + 1)

    def put(self):
        key, value = b"k%d" % self.rng.randint(0, 3), b"%d" % self.number
        if isinstance(self.rig.storage.fault, DiskFailedError):
            return
        self.ledger.keys.pop(key, None)
        self.rig.storage.put([(key, value)], SAFE)

        def answered(error):
            if error is None:
                self.ledger.keys[key] = value

        self.rig.storage.after(SAFE, answered)

    def look(self):
        """Read everything, and note what a reader has seen."""
        for name, known in self.ledger.logs.items():
            log = self.rig.log(name)
            found = self.rig.contents(name)
            for offset, payload in found.items():
                assert known.sent.get(offset) == payload, f"{name} {offset} shows what was never accepted there"
            known.visible = max(known.visible, log.high_watermark)
            known.start = max(known.start, log.log_start_offset)
            known.durable = max(known.durable, log.recovery_point)

    def step(self):
        rng = self.rng
        action = rng.random()
        if action < 0.7:
            for _ in range(rng.randint(1, 4)):
                name = rng.choices([log.name for log in LOGS], [4, 4, 4, 1, 2])[0]
                self.append(name, durability=SAFE if rng.random() < 0.1 else None)
        elif action < 0.8:
            self.put()
        elif action < 0.95:
            self.rig.advance(rng.choice((0.05, 0.15, 1.1, 5.0)), step=0.5)
        else:
            self.rig.storage.reap()
        if rng.random() < 0.7:
            self.rig.settle()

    def run(self, steps=STEPS):
        for number in range(steps):
            self.step()
            if number % 6 == 0:
                self.rig.settle()
                self.look()
        self.rig.settle()
        self.look()


def operations_of(seed):
    """The kinds of the operations that the workload has from before its open on."""
    rig = Rig()
    rig.open(LOGS)
    Faulty(rig, seed).run()
    return [operation.kind for operation in rig.filesystem.operations]


def opened_with_a_fault(nth, failure, kinds=None):
    """A rig whose disk fails once, and what of it could be opened: with a fault in the open the second attempt."""
    rig = Rig()
    rig.filesystem.fail(nth, failure, kinds)
    try:
        rig.open(LOGS)
    except (DataDirectoryError, DiskFailedError):
        assert rig.filesystem.open_descriptors() == 0
        rig.reopen()
    return rig


def goes_on(rig, work):
    """The disk works again: if it is not known to have failed, all is accepted and nothing accepted is missing."""
    rig.filesystem.heal()
    if isinstance(rig.storage.fault, DiskFailedError):
        assert rig.filesystem.exists(DIRECTORY / "POISON")
        with pytest.raises(DiskFailedError):
            rig.append("safe", b"no")
        return
    rig.advance(8, step=0.5)
    assert rig.storage.writable
    for log in LOGS:
        work.append(log.name, durability=SAFE)
    rig.settle()
    assert [error for _, _, error in work.told[-len(LOGS) :]] == [None] * len(LOGS)
    work.look()
    for name, known in work.ledger.logs.items():
        start = rig.log(name).log_start_offset
        found = rig.contents(name)
        gone = compacted(known, found) - set(found) if name == "latest" else set()
        expected = {offset: payload for offset, payload in known.sent.items() if offset >= start and offset not in gone}
        assert found == expected, f"{name}: what was accepted is stored, once, also if it was refused an ack"


def crash_and_check(rig, work, rng, label):
    """Kill or cut the power, look, and lose the power right afterwards: what an open shows it has."""
    failed = rig.filesystem.exists(DIRECTORY / "POISON")
    killed = rng.random() < 0.5
    rig.filesystem.on_operation = None
    if killed:
        rig.kill()
    else:
        rig.power_cut(rng.choice(list(Crash)), rng.randint(0, 99))
    rig.clock.advance(1000.0)
    rig.reopen()
    assert not rig.filesystem.exists(DIRECTORY / "POISON"), label
    # After a failed sync a kill may cost what a power cut may.
    check(rig, work.ledger, killed=killed and not failed, label=label)
    shown = {name: rig.contents(name) for name in work.ledger.logs}
    rig.power_cut()
    rig.reopen()
    for name, before in shown.items():
        found = rig.contents(name)
        start = rig.log(name).log_start_offset
        gone = {offset for offset in before if offset >= start and found.get(offset) != before[offset]}
        assert not gone, f"{label}: {name} showed {sorted(gone)[:5]} after a start and lost it with the power"
    go_on(rig, work.ledger, killed=False, label=label)


def faults():
    """(seed, n, failure): every n of one workload with every failure, then random ones of others, up to STATES."""
    first = 100
    every = [
        (first, nth, failure)
        for failure in ONE_SHOT
        for nth, kind in enumerate(operations_of(first), 1)
        if failure is not Failure.SHORT_WRITE or kind in ("pwrite", "allocate")
    ]
    rng = random.Random(STATES)
    if len(every) > STATES:
        return rng.sample(every, STATES)
    others = [(seed, rng.randint(1, 220), rng.choice(ONE_SHOT)) for seed in range(101, 101 + STATES - len(every))]
    return every + others


def test_any_one_operation_fails():
    for seed, nth, failure in faults():
        label = f"seed {seed}, operation {nth}, {failure.name}"
        rig = opened_with_a_fault(nth, failure)
        work = Faulty(rig, seed)
        try:
            work.run()
            goes_on(rig, work)
            crash_and_check(rig, work, random.Random(nth), label)
        except AssertionError as error:
            raise AssertionError(f"{label}: {error}") from error


def test_every_name_that_an_acknowledgement_depends_on_is_durable():
    """At each SAFE ack all journal files, after each checkpoint all segments, are on the medium with their names."""
    rig = Rig()
    rig.open(LOGS)
    work = Faulty(rig, 7)
    looked_at = set()

    def names_are_durable():
        filesystem = rig.filesystem
        for name in filesystem.listdir(DIRECTORY / "journal"):
            path = DIRECTORY / "journal" / name
            node, durable = filesystem._names[path], filesystem._durable_names.get(path)
            if name.endswith(".wal") and path not in unsynced_spares():
                assert node is durable, f"{name} has no durable name"
                looked_at.add(path)
        for path in (DIRECTORY, DIRECTORY / "journal", DIRECTORY / "logs", DIRECTORY / "FORMAT"):
            assert filesystem.is_durable(path)

    def unsynced_spares():
        # A file that is made ready is renamed and then its directory is synced, before anything is written to it.
        return {op.target for op in rig.filesystem.operations[-1:] if op.kind == "rename"}

    answer = work.answer
    work.answer = lambda name, offset, level, error: (
        names_are_durable() if level == SAFE else None,
        answer(name, offset, level, error),
    )
    for number in range(60):
        work.step()
        if number % 10 == 0:
            assert rig.checkpoint()
            for log in LOGS:
                for segment in rig.log(log.name).writer.segments:
                    assert rig.filesystem.is_durable(segment.path)
    rig.settle()
    assert len(looked_at) > 2
