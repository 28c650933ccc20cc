"""T6: a storage of two logs against a dict, with everything that may come in between."""

from __future__ import annotations

import random
from unittest.mock import patch

from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from highway.errors import OffsetCorruptError, OffsetGapError, OffsetNotFoundError
from highway.storage import Durability, LogSettings
from highway.storage.log.writer import SETTLING_CHECKPOINTS
from highway.storage.maintenance import compaction, reframing
from tests.storage.rig import Rig
from tests.storage.simulated_filesystem import Crash

LOGS = [
    LogSettings("fast", Durability.FAST, segment_bytes=800, flush_bytes=300, retention_bytes=3000),
    LogSettings("safe", Durability.SAFE, segment_bytes=800, flush_bytes=300, retention_ms=60_000),
    LogSettings("latest", Durability.SAFE, segment_bytes=800, flush_bytes=300, retention_ms=None, cleanup="compact"),
]
names = st.sampled_from(["fast", "safe", "latest"])


class Model:
    """What a log must hold: offset -> (time, topic, payload)."""

    def __init__(self):
        self.records = {}
        self.compacted = {}  # records that a newer one of their topic replaced; a crash may bring them back
        self.durable = 0  # offsets below can't go any more, except by retention
        self.written = 0  # nor, below this, by a kill
        self.shown = 0


class StorageMachine(RuleBasedStateMachine):
    """The rules are what a broker, an operator and bad luck do."""

    @initialize()
    def start(self):
        self.rig = Rig()
        self.rig.open(LOGS)
        self.models = {log.name: Model() for log in LOGS}
        self.keys = {}
        self.number = 0

    def log(self, name):
        return self.rig.log(name)

    @rule(name=names, count=st.integers(1, 12), size=st.integers(0, 80), safe=st.booleans())
    def append(self, name, count, size, safe):
        payloads = []
        for _ in range(count):
            self.number += 1
            payloads.append(b"%d|" % self.number + bytes(size))
        topic = b"t/%d" % (self.number % 3)
        base = self.rig.append(name, *payloads, topic=topic, durability=Durability.SAFE if safe else None)
        model = self.models[name]
        assert base >= max(model.records, default=-1) + 1
        time_ms = self.log(name).last_ms
        for offset, payload in enumerate(payloads, base):
            model.records[offset] = (time_ms, topic, payload)

    @rule(key=st.integers(0, 4), delete=st.booleans())
    def put(self, key, delete):
        self.number += 1
        value = None if delete else b"%d" % self.number
        self.rig.storage.put([(b"k%d" % key, value)], Durability.SAFE)
        self.rig.settle()
        self.keys[b"k%d" % key] = value

    @rule()
    def settle(self):
        self.rig.settle()

    @rule()
    def sync(self):
        assert self.rig.reached(Durability.SAFE) == [None]

    @rule()
    def checkpoint(self):
        assert self.rig.checkpoint()

    @rule(name=names)
    def drain(self, name):
        self.log(name).drain()

    @rule(name=names)
    def roll(self, name):
        self.log(name).roll(lambda: None)
        self.rig.settle()

    @rule(seconds=st.sampled_from([0.01, 0.2, 1.1, 6.0, 40.0]))
    def wait(self, seconds):
        self.rig.advance(seconds, step=max(0.05, seconds / 10))

    @rule(hours=st.sampled_from([-1, 1, -100_000, 100_000]))
    def step_clock(self, hours):
        self.rig.clock.step(hours * 3600)

    @rule()
    def reap(self):
        self.rig.storage.reap()
        self.rig.settle()

    @rule(name=names)
    def maintain(self, name):
        self.rig.settle()
        self.log(name).drain()
        self.rig.settle()
        self.log(name).roll(lambda: None)
        self.rig.settle()
        for _ in range(SETTLING_CHECKPOINTS):
            assert self.rig.checkpoint()
        with patch.multiple(reframing, _MIN_FRAMES=2, _WORTH_IT=2), patch.object(compaction, "_DIRTY", 0.0):
            self.rig.storage.maintainer.begin_round()
            self.rig.settle()
            while self.rig.storage.maintainer.running:
                self.rig.advance(0.2, step=0.1)

    def absorb(self, name):
        """See what compaction, which goes on by itself, has taken: only what a newer record of the topic replaced."""
        if name != "latest":
            return
        model, log = self.models[name], self.log(name)
        found = {record[0] for record in self.rig.records(name)}
        newest = {model.records[offset][1]: offset for offset in sorted(found)}
        gone = {o for o in model.records if log.log_start_offset <= o < log.high_watermark} - found
        assert all(o < newest.get(model.records[o][1], -1) for o in gone), f"{sorted(gone)} of {newest}"
        for offset in gone:
            model.compacted[offset] = model.records.pop(offset)

    @rule(name=names, offset=st.integers(-2, 400))
    def fetch(self, name, offset):
        self.rig.settle()
        self.absorb(name)
        log = self.log(name)
        found = self.rig.fetch(name, offset)
        if not log.log_start_offset <= offset < log.high_watermark:
            assert isinstance(found, OffsetNotFoundError)
        elif offset in self.models[name].records:
            _, topic, payload = self.models[name].records[offset]
            assert (found[0], found[3], found[5]) == (offset, topic, payload)
        else:
            assert isinstance(found, OffsetGapError)
            assert not isinstance(found, OffsetCorruptError)

    @rule(name=names, offset=st.integers(0, 400))
    def step_back(self, name, offset):
        self.rig.settle()
        self.absorb(name)
        log = self.log(name)
        offset = min(offset, log.high_watermark)
        known = [known for known in self.models[name].records if log.log_start_offset <= known < offset]
        assert self.rig.before(name, offset) == max(known, default=None)

    @rule(name=names, pick=st.randoms(use_true_random=False))
    def seek_time(self, name, pick):
        self.rig.settle()
        self.absorb(name)
        log = self.log(name)
        records = {o: r for o, r in self.models[name].records.items() if o >= log.log_start_offset}
        times = [record[0] for record in records.values()]
        if not times or times != sorted(times):
            return  # after a clock was really set back, "first" has no order to look for
        time_ms = pick.choice(times) + pick.choice([-1, 0, 1])
        first = min((o for o, record in records.items() if record[0] >= time_ms), default=None)
        found = self.rig.offset_at(name, time_ms)
        assert found == (log.log_end_offset if first is None else first)

    @rule()
    def close(self):
        self.rig.close()
        self.rig.power_cut()
        self.rig.reopen()
        assert self.rig.storage.report.clean
        self.accept({name: max(model.records, default=-1) + 1 for name, model in self.models.items()})

    @rule()
    def kill(self):
        self.look()
        self.rig.kill()
        self.rig.reopen()
        self.accept({name: model.written for name, model in self.models.items()})

    @rule(mode=st.sampled_from(list(Crash)), seed=st.integers(0, 1000))
    def power_cut(self, mode, seed):
        self.look()
        self.rig.filesystem = self.rig.filesystem.crash(mode, random.Random(seed))
        self.rig.reopen()
        self.accept({name: model.durable for name, model in self.models.items()})

    def accept(self, promised):
        """After a start: what was promised is there; what else came through is now promised."""
        assert not self.rig.storage.report.damaged
        for name, model in self.models.items():
            log = self.log(name)
            found = self.rig.contents(name)
            back = {o: model.compacted.pop(o) for o in list(model.compacted) if o in found}
            model.records |= back
            newest = {model.records[o][1]: o for o in sorted(found)} if name == "latest" else {}
            lost = [
                o
                for o, (_, topic, _) in model.records.items()
                if log.log_start_offset <= o < promised[name] and o not in found and o >= newest.get(topic, o)
            ]
            assert not lost, f"{name} lost {lost}"
            assert log.log_end_offset >= model.shown, f"{name} would reuse an offset that was shown"
            model.compacted |= {o: r for o, r in model.records.items() if o not in found and o < max(found, default=0)}
            model.records = {o: record for o, record in model.records.items() if o in found}
        for key, value in self.keys.items():
            assert self.rig.storage.meta.get(key) == value

    def look(self):
        for name, model in self.models.items():
            log = self.log(name)
            model.shown = max(model.shown, log.high_watermark)
            model.durable = max(model.durable, log.recovery_point)
            model.written = max(model.durable, log.high_watermark if name != "fast" else 0)

    @invariant()
    def everything_shown_is_what_was_sent(self):
        if not hasattr(self, "rig"):
            return
        self.look()
        for name in self.models:
            log = self.log(name)
            assert log.log_start_offset <= log.high_watermark <= log.log_end_offset
            assert log.recovery_point <= log.log_end_offset

    @rule()
    def read_everything(self):
        self.rig.settle()
        for name, model in self.models.items():
            self.absorb(name)
            log = self.log(name)
            found = {record[0]: (record[2], record[3], record[5]) for record in self.rig.records(name)}
            start, end = log.log_start_offset, log.high_watermark
            assert found == {o: record for o, record in model.records.items() if start <= o < end}

    @rule(name=names, topics=st.sets(st.sampled_from([b"t/0", b"t/1", b"t/2", b"t/none"]), min_size=1, max_size=2))
    def read_topics(self, name, topics):
        self.rig.settle()
        self.absorb(name)
        log = self.log(name)
        self.rig.storage._cache.discard_below(log.log_id, 1 << 62)
        found = {record[0]: record[5] for record in self.rig.records(name, frozenset(topics)) if record[3] in topics}
        start, end = log.log_start_offset, log.high_watermark
        known = self.models[name].records.items()
        assert found == {o: payload for o, (_, topic, payload) in known if start <= o < end and topic in topics}

    @rule(name=names, topic=st.sampled_from([b"t/0", b"t/1"]))
    def last_of_topic(self, name, topic):
        self.rig.settle()
        self.absorb(name)
        log = self.log(name)
        offset, found = log.high_watermark, None
        while offset > log.log_start_offset and found is None:
            batch = self.rig.batch_before(name, offset, frozenset([topic]))
            if batch is None:
                break
            of_topic = [record[0] for record in batch.records() if record[3] == topic and record[0] < offset]
            found = max(of_topic, default=None)
            offset = batch.base_offset
        start, end = log.log_start_offset, log.high_watermark
        known = [o for o, record in self.models[name].records.items() if start <= o < end and record[1] == topic]
        assert found is None or found >= start or not known
        assert max(known, default=None) == (found if found is None or found >= start else None)

    def teardown(self):
        if hasattr(self, "rig"):
            self.read_everything()
            self.rig.close()
            assert self.rig.filesystem.open_descriptors() == 0


StorageMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStorageMachine = StorageMachine.TestCase
