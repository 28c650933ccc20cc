"""Work on sealed segments that nobody waits for: one task at a time, in small steps, at a set rate.

A task is a series of steps in the pool. Between two of them the loop thread waits for as long as the rate asks, and for
three times as long as the step took, so that live traffic keeps at least three quarters of a processor.

The loop thread owns this.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from highway.storage.settings import MIB

from .compaction import CompactionTask, is_due
from .reframing import ReframeTask

if TYPE_CHECKING:
    from collections.abc import Iterable

    from highway.storage.checkpoint.checkpointer import Checkpointer
    from highway.storage.disk.descriptors import Descriptors
    from highway.storage.disk.pool import Pool, Scheduler
    from highway.storage.journal.commit import Committer
    from highway.storage.log.cache import BatchCache
    from highway.storage.log.commit_time import CommitTime
    from highway.storage.log.log import Log
    from highway.storage.segment.segment import Segment

    from .rewriting import RewriteTask

__all__ = ["Maintainer"]

RATE = 16 * MIB  # bytes a second that are read
_REST = 3  # times as long as a step took
_PAUSE_S = 1.0  # after one that failed

_logger = logging.getLogger(__name__)


class Maintainer:
    """See the module's text."""

    def __init__(
        self,
        logs: Iterable[Log],
        files: Descriptors,
        cache: BatchCache,
        pool: Pool,
        scheduler: Scheduler,
        time: CommitTime,
        committer: Committer,
        checkpointer: Checkpointer,
    ) -> None:
        self.stepping = False  # a step is in the pool
        self.closed = False
        self._logs = logs
        self._files = files
        self._cache = cache
        self._pool = pool
        self._scheduler = scheduler
        self._time = time
        self._committer = committer
        self._checkpointer = checkpointer
        self._queue: deque[Log] = deque()
        self._task: RewriteTask | None = None

    @property
    def running(self) -> bool:
        """Return whether a task is under way."""
        return self._task is not None

    def begin_round(self) -> None:
        """Look for work in all logs; what a checkpoint still takes for an active segment asks for checkpoints."""
        if self.closed or self._committer.fault is not None:
            return
        self._queue = deque(log for log in self._logs if not all(s.tidy for s in log.writer.segments[:-1]))
        if any(segment.settled_at > self._committer.checkpoints for log in self._queue for segment in _sealed(log)):
            self._checkpointer.request()
        if self._task is None:
            self._next()

    def compact_now(self, log: Log) -> None:
        """Compact the sealed segments of a log in this thread, due or not: in a directory that no broker has open."""
        task = CompactionTask(log, _sealed(log), self._files, self._cache, self._time.now_ms())
        try:
            while task.step():
                task.note()
        finally:
            task.abandon()

    def close(self) -> None:
        """Give up what is under way; no step may be running."""
        self.closed = True
        task, self._task = self._task, None
        if task is not None:
            task.abandon()

    def _next(self) -> None:
        """Begin the next task, if there is one."""
        while self._queue and not self.closed:
            task = self._task_for(self._queue.popleft())
            if task is not None:
                self._task = task
                self._step()
                return

    def _task_for(self, log: Log) -> RewriteTask | None:
        settled: list[Segment] = []
        for segment in _sealed(log):
            if segment.settled_at > self._committer.checkpoints:
                break
            settled.append(segment)
        if log.settings.cleanup == "compact":
            now_ms = self._time.now_ms()
            return CompactionTask(log, settled, self._files, self._cache, now_ms) if is_due(settled) else None
        untidy = [segment for segment in settled if not segment.tidy]
        return ReframeTask(log, untidy, self._files, self._cache) if untidy else None

    def _step(self) -> None:
        task = self._task
        if task is None or self.closed:
            return
        self.stepping = True

        def work() -> tuple[int, float]:
            started_ms = self._time.monotonic_ms()
            size = task.step()
            return size, (self._time.monotonic_ms() - started_ms) / 1000

        self._pool.submit(work, self._stepped)

    def _stepped(self, outcome: tuple[int, float] | Exception) -> None:
        self.stepping = False
        task = self._task
        if task is None or self.closed:
            return
        if isinstance(outcome, Exception):
            _logger.warning("log %s: its segments are left as they are: %r", task.log.name, outcome)
            self._task = None
            task.note()
            task.abandon()
            self._scheduler.call_later(_PAUSE_S, self._next)
            return
        size, seconds = outcome
        task.note()
        if size:
            self._scheduler.call_later(max(size / RATE, _REST * seconds), self._step)
        else:
            self._task = None
            self._scheduler.call_later(_REST * seconds, self._next)


def _sealed(log: Log) -> list[Segment]:
    return log.writer.segments[:-1]
