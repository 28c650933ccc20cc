"""Real data directories for the tests of the commands that work on them."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time

from highway.clock import SystemClock
from highway.storage import Durability, LogSettings, RecordHeads, Storage, StorageSettings

SETTINGS = StorageSettings(
    journal_file_bytes=64 * 1024, checkpoint_bytes=128 * 1024, checkpoint_interval_ms=200, reaper_interval_ms=300
)
LOGS = [
    LogSettings("telemetry", Durability.SAFE, segment_bytes=2000, flush_bytes=500, compression="none"),
    LogSettings("control", Durability.BALANCED),
]
PER_APPEND = 5


class NoTimers:
    """Without threads a storage does only what it is told."""

    def call_later(self, delay, callback, *args):
        return self

    def cancel(self):
        pass


def payload(log, offset):
    return b"%s %d" % (log.encode(), offset)


def append(log, count=PER_APPEND):
    """Append records whose payload says where they are."""
    base = log.log_end_offset
    heads = RecordHeads(b"highway/A%d/%s" % (base % 3, log.name.encode()), 1, log.delta_ms())
    log.append(heads.encode([payload(log.name, base + number) for number in range(count)]), count)
    return base + count


def open_storage(directory, logs=LOGS, settings=SETTINGS):
    return Storage.open(directory, logs, scheduler=NoTimers(), clock=SystemClock(), settings=settings, threads=False)


def fill(directory, appends=20):
    """A directory in which 100 records stand in each log, 85 of them checkpointed; the storage stays open."""
    storage = open_storage(directory)
    for number in range(appends):
        for log in storage.logs.values():
            append(log)
        storage.settle()
        if number == appends - 4:
            storage.put([(b"key", b"value")])
            storage.checkpoint()
            storage.settle()
    return storage


def stopped(directory):
    """After a clean stop."""
    fill(directory).close()
    return directory


def killed(directory):
    """As a kill would leave it: a copy of the files of a storage that is open."""
    storage = fill(directory.with_name("original"))
    shutil.copytree(directory.with_name("original"), directory)
    storage.close()
    return directory


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


class RunningStorage:
    """A storage under load in a thread of its own; `acknowledged` is how many records of each log have been."""

    def __init__(self, directory, logs=LOGS, settings=SETTINGS):
        self.acknowledged = {log.name: 0 for log in logs}
        self.starts = {log.name: 0 for log in logs}
        self._arguments = directory, logs, settings
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self):
        directory, logs, settings = self._arguments
        loop = asyncio.get_running_loop()
        storage = Storage.open(directory, logs, scheduler=loop, clock=SystemClock(), settings=settings)
        self._ready.set()
        while not self._stop.is_set():
            done = loop.create_future()
            ends = {name: append(log, 50) for name, log in storage.logs.items()}
            storage.after(Durability.SAFE, done.set_result)
            assert await done is None
            self.acknowledged.update(ends)
            self.starts.update({name: log.log_start_offset for name, log in storage.logs.items()})
        self.checkpoints = storage._checkpointer.count
        storage.close()

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def wait_for(self, count):
        """Return when that many records of each log have been acknowledged."""
        deadline = time.monotonic() + 30
        while min(self.acknowledged.values()) < count:
            assert time.monotonic() < deadline
            assert self._thread.is_alive()
            time.sleep(0.01)  # the other thread has nothing to wake this one with

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
