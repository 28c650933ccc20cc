"""A storage on the simulated disk that does nothing by itself: time, timers and work move only when a test says so.

rig = Rig()
storage = rig.open([LogSettings("a", Durability.SAFE)])
rig.append("a", b"one", b"two")         # appends records of topic `t`
rig.settle()                            # the journal and the pool do what is wanted
rig.advance(1.5)                        # time passes, timers fire, work is done
rig.contents("a")                       # {offset: payload} of what a reader gets
rig.power_cut() / rig.kill()            # the next open() sees what that leaves
"""

from __future__ import annotations

import heapq
import itertools
import random
from pathlib import Path

from highway.clock import ManualClock
from highway.errors import OffsetNotFoundError, StorageError
from highway.storage import LogSettings, RecordBatch, RecordHeads, Storage, StorageSettings
from highway.storage.settings import MIB
from tests.storage.simulated_filesystem import Crash, SimulatedFileSystem

ROOT = Path("/data")
DIRECTORY = ROOT / "highway"

# Small enough that a short workload rolls journal files, segments and checkpoints.
SMALL = StorageSettings(
    journal_file_bytes=8 * 1024,
    checkpoint_bytes=16 * 1024,
    memory_budget=MIB,
    cache_bytes=64 * 1024,
    reserve_bytes=16 * 1024,
)


class ManualScheduler:
    """Timers that fire when the test advances the clock."""

    def __init__(self, clock):
        self.clock = clock
        self._timers = []
        self._numbers = itertools.count()

    def call_soon_threadsafe(self, callback, *args):
        raise AssertionError("without threads nothing is posted from another one")

    def call_later(self, delay, callback, *args):
        timer = [self.clock.monotonic() + delay, next(self._numbers), callback, args]
        heapq.heappush(self._timers, timer)
        return _Timer(timer)

    def run_due(self):
        """Fire what is due; return whether anything was."""
        fired = False
        while self._timers and self._timers[0][0] <= self.clock.monotonic() + 1e-9:
            _, _, callback, args = heapq.heappop(self._timers)
            if callback is not None:
                callback(*args)
                fired = True
        return fired

    @property
    def pending(self):
        """Timers that are armed."""
        return len([timer for timer in self._timers if timer[2] is not None])


class _Timer:
    def __init__(self, timer):
        self._timer = timer

    def cancel(self):
        self._timer[2] = None


class Rig:
    """See the module's text."""

    def __init__(self, filesystem=None, settings=SMALL, clock=None):
        self.filesystem = filesystem or SimulatedFileSystem(ROOT)
        self.settings = settings
        self.clock = clock or ManualClock()
        self.scheduler = ManualScheduler(self.clock)
        self.storage = None
        self.faults = []
        self.configured = []

    def open(self, logs=None, **options):
        """Open the data directory; without `logs` those of the last time."""
        if logs is not None:
            self.configured = [LogSettings(log) if isinstance(log, str) else log for log in logs]
        self.scheduler = ManualScheduler(self.clock)
        self.storage = Storage.open(
            DIRECTORY,
            self.configured,
            scheduler=self.scheduler,
            clock=self.clock,
            filesystem=self.filesystem,
            settings=self.settings,
            threads=False,
            **options,
        )
        self.storage.on_fault = self.faults.append
        self.settle()
        return self.storage

    def log(self, name):
        return self.storage.logs[name]

    def append(self, name, *payloads, topic=b"t", durability=None, puts=()):
        """Append one batch; return its base offset."""
        log = self.log(name)
        data = RecordHeads(topic, 1, log.delta_ms()).encode(list(payloads))
        return log.append(data, len(payloads), durability, puts)

    def settle(self):
        self.storage.settle()

    def advance(self, seconds, step=0.05):
        """Let time pass in small steps, with everything that it sets going."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end - 1e-9:
            self.clock.advance(min(step, end - self.clock.monotonic()))
            while self.scheduler.run_due():
                self.settle()
        self.settle()

    def checkpoint(self):
        """Write a checkpoint; return whether it is durable."""
        results = []
        self.storage.checkpoint(results.append)
        self.settle()
        return results[-1]

    def reached(self, durability):
        """Return what `after` says once everything wanted is done: [None] or [error]."""
        results = []
        self.storage.after(durability, results.append)
        self.settle()
        return results

    def load(self, name, offset, topics=frozenset()):
        """Return the batch at `offset`, from wherever it is, or the error."""
        log = self.log(name)
        batch = log.read(offset)
        if batch is not None:
            return batch
        results = []
        log.load(offset, results.append, topics)
        self.settle()
        return results[0]

    def fetch(self, name, offset):
        results = []
        self.log(name).fetch(offset, results.append)
        self.settle()
        return results[0]

    def offset_at(self, name, timestamp_ms):
        results = []
        self.log(name).offset_at(timestamp_ms, results.append)
        self.settle()
        return results[0]

    def before(self, name, offset):
        """Return the greatest record offset below `offset`, or None."""
        batch = self.batch_before(name, offset)
        return None if batch is None else min(offset, batch.end_offset) - 1

    def batch_before(self, name, offset, topics=frozenset()):
        """Return the batch with the greatest record offset below `offset`, or None."""
        log = self.log(name)
        batch = log.read_before(offset)
        if batch is None:
            results = []
            log.load_before(offset, results.append, topics)
            self.settle()
            batch = results[0]
        return None if isinstance(batch, OffsetNotFoundError) else batch

    def records(self, name, topics=frozenset()):
        """Return the records that a reader gets from the log start to the high watermark, in order."""
        log = self.log(name)
        records = []
        offset = log.log_start_offset
        while offset < log.high_watermark:
            batch = self.load(name, offset, topics)
            if isinstance(batch, OffsetNotFoundError):
                break
            assert isinstance(batch, RecordBatch), batch
            assert batch.end_offset > offset
            records += [record for record in batch.records() if offset <= record[0] < log.high_watermark]
            offset = max(batch.end_offset, offset)
        offsets = [record[0] for record in records]
        assert offsets == sorted(set(offsets)), "a reader must get rising offsets"
        return records

    def contents(self, name):
        """Return {offset: payload} of what a reader gets."""
        return {record[0]: record[5] for record in self.records(name)}

    def in_gaps(self, name):
        """Return all offsets that the log's gaps name, without those below its start."""
        log = self.log(name)
        start = log.log_start_offset
        return {offset for gap in log.gaps for offset in range(max(gap.from_offset, start), gap.to_offset)}

    def close(self):
        self.storage.close()

    def kill(self):
        """kill -9: the page cache survives."""
        self.filesystem = self.filesystem.kill()

    def power_cut(self, mode=Crash.NOTHING, seed=0):
        self.filesystem = self.filesystem.crash(mode, random.Random(seed))

    def reopen(self, **options):
        """Open what a kill or a power cut left."""
        return self.open(**options)


def ledger_error(outcome):
    """Return whether an outcome of a load is a storage error."""
    return isinstance(outcome, StorageError)
