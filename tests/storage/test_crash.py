"""T5 and T11: power cuts and kills at operation boundaries, of a workload and of the recovery after it.

The ledger stands outside the storage: it knows every record that was given to `append`, what was acknowledged, what a
reader may have seen and what had been promised to be durable. HIGHWAY_CRASH_STATES asks for a longer run.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest

from highway.storage import Durability, LogSettings
from highway.storage.maintenance import reframing
from tests.storage.rig import Rig
from tests.storage.simulated_filesystem import Crash

STATES = int(os.environ.get("HIGHWAY_CRASH_STATES", "240"))
LOGS = [
    LogSettings("fast", Durability.FAST, segment_bytes=1500, flush_bytes=700, retention_bytes=6000),
    LogSettings("balanced", Durability.BALANCED, segment_bytes=1500, flush_bytes=700),
    LogSettings("safe", Durability.SAFE, segment_bytes=1500, flush_bytes=700),
    LogSettings("quiet", Durability.SAFE),
    LogSettings("latest", Durability.SAFE, segment_bytes=700, flush_bytes=300, cleanup="compact", retention_ms=None),
]
MODES = list(Crash)
SEEDS = range(max(3, STATES // 250))  # one workload has about 290 boundaries


@pytest.fixture(autouse=True)
def small_segments_are_written_anew(monkeypatch):
    """The segments here have a few frames; others of one or two remain, so that both kinds meet."""
    monkeypatch.setattr(reframing, "_MIN_FRAMES", 3)


@dataclass
class LogLedger:
    """What the world outside knows of one log."""

    sent: dict[int, bytes] = field(default_factory=dict)
    visible: int = 0  # the highest bound that a reader was ever shown
    start: int = 0  # log start
    durable: int = 0  # below this nothing may go with the power
    written: int = 0  # below this nothing may go with the process


@dataclass
class Ledger:
    """What the world outside knows."""

    logs: dict[str, LogLedger] = field(default_factory=lambda: {log.name: LogLedger() for log in LOGS})
    keys: dict[bytes, bytes] = field(default_factory=dict)  # acknowledged SAFE
    with_key: dict[bytes, tuple[str, int]] = field(default_factory=dict)  # key -> record that shares its frame


class Workload:
    """Appends, puts, time and retention, and the ledger of it."""

    def __init__(self, rig, seed):
        self.rig = rig
        self.rng = random.Random(seed)
        self.ledger = Ledger()
        self.number = 0

    def append(self, name, count=None, durability=None, key=None):
        payloads = []
        topic = b"t/%d" % self.rng.randint(0, 3)
        for _ in range(count or self.rng.randint(1, 8)):
            self.number += 1
            payloads.append(b"%d:%s:%s" % (self.number, topic, self.rng.randbytes(self.rng.choice((0, 5, 60)))))
        puts = [] if key is None else [(key, b"%d" % self.number)]
        log = self.ledger.logs[name]
        # The ledger knows of records before storage does: a crash may come at any moment within append.
        base = self.rig.log(name).log_end_offset
        log.sent.update(enumerate(payloads, base))
        assert self.rig.append(name, *payloads, topic=topic, durability=durability, puts=puts) == base
        if key is not None:
            self.ledger.with_key[key] = (name, base)
        self.look()
        return base

    def look(self):
        """Note what a reader may have seen, and what had been promised by now."""
        for name, log in self.ledger.logs.items():
            real = self.rig.log(name)
            log.visible = max(log.visible, real.high_watermark)
            log.start = max(log.start, real.log_start_offset)
            log.durable = max(log.durable, real.recovery_point)
            if name != "fast":
                log.written = max(log.written, real.high_watermark)

    def step(self):
        rng = self.rng
        action = rng.random()
        if action < 0.66:
            name = rng.choices([log.name for log in LOGS], [5, 5, 5, 1, 5])[0]
            raised = Durability.SAFE if rng.random() < 0.1 else None
            key = b"q%d" % self.number if rng.random() < 0.2 else None
            self.append(name, durability=raised, key=key)
        elif action < 0.74:
            key, value = b"k%d" % rng.randint(0, 5), b"%d" % self.number
            self.ledger.keys.pop(key, None)  # until it is acknowledged either value is right
            self.rig.storage.put([(key, value)], Durability.SAFE)

            def acknowledged(error):
                assert error is None
                self.ledger.keys[key] = value

            self.rig.storage.after(Durability.SAFE, acknowledged)
        elif action < 0.9:
            self.rig.advance(rng.choice((0.05, 0.15, 1.1, 5.0)), step=0.5)
        elif action < 0.93:
            self.rig.storage.reap()
        else:
            self.rig.storage.maintainer.begin_round()
            self.rig.advance(0.5, step=0.1)
        if rng.random() < 0.7:
            self.rig.settle()
        self.look()


def compacted(known, found):
    """Offsets whose records may be gone, because a newer one of their topic is there."""
    newest = {payload.split(b":")[1]: offset for offset, payload in sorted(found.items())}
    return {offset for offset, payload in known.sent.items() if offset < newest.get(payload.split(b":")[1], -1)}


def check(rig, ledger, *, killed, label):
    """Hold what an open found against the ledger."""
    assert not rig.storage.report.damaged, f"{label}: a crash is no corruption: {rig.storage.report.damaged}"
    for name, known in ledger.logs.items():
        log = rig.log(name)
        found = rig.contents(name)
        for offset, payload in found.items():
            assert known.sent.get(offset) == payload, f"{label}: {name} {offset} was never sent like this"
        promised = known.written if killed else 0
        promised = max(promised, known.durable)
        if name in ("safe", "quiet", "latest"):
            promised = max(promised, known.visible)
        replaced = compacted(known, found) if name == "latest" else set()
        missing = [
            offset
            for offset in known.sent
            if log.log_start_offset <= offset < promised and offset not in found and offset not in replaced
        ]
        assert not missing, f"{label}: {name} lost {missing[:5]}; {promised} was promised"
        assert log.log_start_offset <= max(known.start, 0) or not found or min(found) >= log.log_start_offset
        holes = set(range(log.log_start_offset, log.high_watermark)) - set(found)
        unreported = holes - rig.in_gaps(name) - replaced
        assert not unreported, f"{label}: {name} has holes that no gap reports: {sorted(unreported)[:5]}"
        seen_and_gone = [offset for offset in known.sent if offset < known.visible and offset >= log.log_end_offset]
        assert not seen_and_gone, f"{label}: {name} would give offset {seen_and_gone[0]} to another message"
    for key, value in ledger.keys.items():
        assert rig.storage.meta.get(key) == value, f"{label}: the acknowledged {key!r} is gone"
    for key, (name, offset) in ledger.with_key.items():
        known = ledger.logs[name]
        if offset < known.durable:
            assert rig.storage.meta.get(key) is not None, f"{label}: {key!r} is gone, its record isn't"


def go_on(rig, ledger, *, killed, label):
    """After a crash everything works, and a second start tells the same."""
    check(rig, ledger, killed=killed, label=label)
    before = {name: rig.contents(name) for name in ledger.logs}
    added = {}
    for name in ledger.logs:
        base = rig.append(name, b"after", durability=Durability.SAFE)
        assert base >= max(before[name], default=-1) + 1
        added[name] = base
    rig.settle()
    rig.kill()
    rig.reopen()
    assert not rig.storage.report.damaged, f"{label}, second start: {rig.storage.report.damaged}"
    for name, contents in before.items():
        start = rig.log(name).log_start_offset
        expected = {offset: payload for offset, payload in contents.items() if offset >= start}
        assert rig.contents(name) == {**expected, added[name]: b"after"}, f"{label}: {name} differs at the second start"


def crashes(seed, steps, states):
    """Yield (label, file system, ledger, killed) of crashes at random boundaries of one workload."""
    import copy

    rig = Rig()
    rng = random.Random(seed)
    rig.open(LOGS)
    work = Workload(rig, seed)
    collected = []
    chance = [0.0]

    def hook(operation):
        if rng.random() >= chance[0]:
            return
        work.look()  # what readers were shown while the operation before this one was under way counts too
        label = f"seed {seed}, before operation {operation.index} ({operation.kind} {operation.path.name})"
        ledger = copy.deepcopy(work.ledger)
        if rng.random() < 0.2:
            collected.append((f"{label}, kill", rig.filesystem.kill(), ledger, True))
        else:
            mode = rng.choice(MODES)
            collected.append((f"{label}, {mode.name}", rig.filesystem.crash(mode, rng), ledger, False))

    rig.filesystem.on_operation = hook
    chance[0] = min(1.0, states / (steps * 2.2))
    for _ in range(steps):
        work.step()
        while collected:
            yield collected.pop()


def open_crashed(filesystem, clock_from):
    rig = Rig(filesystem)
    rig.clock.advance(clock_from)
    rig.configured = LOGS
    rig.reopen()
    return rig


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_at_any_operation_keeps_every_promise(seed):
    count = 0
    for label, filesystem, ledger, killed in crashes(seed, steps=150, states=STATES // len(SEEDS)):
        rig = open_crashed(filesystem, 1000.0)
        go_on(rig, ledger, killed=killed, label=label)
        count += 1
    assert count > STATES // len(SEEDS) // 2, "the sampling must reach enough states to mean something"


@pytest.mark.parametrize("seed", range(10, 12))
def test_a_crash_during_recovery_changes_nothing_for_the_next_one(seed):
    rng = random.Random(seed)
    count = 0
    for label, filesystem, ledger, _ in crashes(seed, steps=80, states=max(8, STATES // 20)):
        states = []
        probe = Rig(filesystem)
        probe.configured = LOGS

        def hook(operation, probe=probe, states=states):
            mode = rng.choice(MODES)
            states.append((f"recovery before {operation.kind} {operation.path.name}, {mode.name}", mode))
            states[-1] += (probe.filesystem.crash(mode, rng),)

        filesystem.on_operation = hook
        probe.clock.advance(1000.0)
        probe.reopen()
        filesystem.on_operation = None
        for inner, _, crashed in rng.sample(states, min(3, len(states))):
            rig = open_crashed(crashed, 1010.0)
            # What a killed process left in the page cache is only promised until the power goes.
            check(rig, ledger, killed=False, label=f"{label}; {inner}")
            count += 1
    assert count > 10


def test_a_disk_that_lies_about_syncs_is_caught_by_this_harness():
    """If syncs do nothing, promises must break somewhere: a harness that can't see that proves nothing."""
    rig = Rig()
    rig.open(LOGS)
    work = Workload(rig, 5)
    rig.filesystem.lying = True
    for _ in range(60):
        work.step()
    rig.settle()
    rig.filesystem.lying = False
    broken = open_crashed(rig.filesystem.crash(Crash.NOTHING), 1000.0)
    with pytest.raises(AssertionError):
        check(broken, work.ledger, killed=False, label="lying disk")
