"""Compaction of logs that no broker has open, and what it would do, also beside a running broker.

`plan` looks at the directory as the next start would find it and changes nothing. `compact` opens it as a start does,
seals what is active, and does what the broker does where `cleanup: compact` is set, without waiting for anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from highway.clock import SystemClock
from highway.errors import StorageError
from highway.storage.disk.filesystem import FileSystem, OsFileSystem
from highway.storage.disk.layout import Layout
from highway.storage.log.writer import SETTLING_CHECKPOINTS
from highway.storage.settings import LogSettings

from .directory_view import look_at
from .dumping import iterate_records
from .repairing import open_quietly

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from highway.storage.engine import Storage
    from highway.storage.log.log import Log
    from highway.storage.recovery.log_recovery import RecoveredLog

__all__ = ["Compaction", "compact", "plan"]


class Compaction(NamedTuple):
    """What a compaction makes, or would make, of a log."""

    log: str
    topics: int
    records: int
    records_left: int
    bytes: int  # of its segments now
    bytes_left: int | None  # None: nothing was done


def plan(directory: Path, names: Sequence[str]) -> list[Compaction]:
    """Return what `compact` would do. Only reads, also beside a running broker."""
    with look_at(directory) as view:
        return [_plan_log(name, view.logs[name]) for name in names]


def _plan_log(name: str, log: RecoveredLog) -> Compaction:
    expired_ms = SystemClock().now_ms() - LogSettings("").tombstone_ms
    newest: dict[bytes, bool] = {}  # by topic: whether its newest record stays
    records = 0
    for _, _, time_ms, topic, _, payload in iterate_records(log, 0, None, lambda _: None):
        records += 1
        newest[topic] = bool(payload) or time_ms >= expired_ms
    length = sum(segment.file_size() for segment in log.segments)
    return Compaction(name, len(newest), records, sum(newest.values()), length, None)


def compact(
    directory: Path, names: Sequence[str], *, filesystem: FileSystem | None = None, on_log: Callable[[int], None]
) -> list[Compaction]:
    """Compact logs; `on_log` is told of each one. DirectoryInUseError, and nothing done, while a broker has it open."""
    planned = plan(directory, names)
    storage = open_quietly(Layout(directory), filesystem or OsFileSystem(), rebuild=False)
    try:
        _seal(storage, [storage.logs[name] for name in names])
        done = []
        for before in planned:
            log = storage.logs[before.log]
            storage.maintainer.compact_now(log)
            on_log(1)
            segments = log.writer.segments
            records = sum(segment.index.records for segment in segments)
            done.append(before._replace(records_left=records, bytes_left=sum(segment.length for segment in segments)))
        return done
    finally:
        storage.close()


def _seal(storage: Storage, logs: Sequence[Log]) -> None:
    """Bring everything into sealed segments that no checkpoint takes for active ones."""
    for log in logs:
        log.flush(lambda: None, everything=True)
        storage.settle()
        log.roll(lambda: None)
        storage.settle()
    for _ in range(SETTLING_CHECKPOINTS):
        durable: list[bool] = []
        storage.checkpoint(durable.append)
        storage.settle()
        if durable != [True]:
            raise StorageError("a checkpoint can't be written", "look for what is wrong with the disk; nothing is lost")
