"""The scrub: sealed segments are read again, at a set rate, so that damage is found before a reader needs them.

Every frame is checked as a read does it, from the medium: what the page cache holds of a segment is dropped first. What
is damaged becomes a gap and is told, as if a reader had found it; the scrub goes on behind it. Rounds begin
`scrub_interval_ms` apart, or one after the other where a round takes longer.

The loop thread owns this.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from highway.errors import CorruptionError
from highway.storage.log.reader import Lost
from highway.storage.settings import KIB

if TYPE_CHECKING:
    from collections.abc import Iterable

    from highway.storage.disk.filesystem import FileSystem
    from highway.storage.disk.pool import Pool, Scheduler
    from highway.storage.log.log import Log
    from highway.storage.segment.scan import FrameWalk
    from highway.storage.segment.segment import Segment
    from highway.storage.settings import StorageSettings

__all__ = ["Scrubber"]

_STEP_BYTES = 256 * KIB
_FIRST_MS = 600_000  # after the open, when a start has better things to do

_logger = logging.getLogger(__name__)


class _Pass:
    """One segment on its way through; `step` runs in the pool."""

    __slots__ = ("_following", "_walk", "log", "lost", "segment")

    def __init__(self, log: Log, segment: Segment, following: int) -> None:
        self.log = log
        self.segment = segment
        self.lost: list[Lost] = []  # since the last step
        self._following = following  # the offset at which the next segment begins
        self._walk: FrameWalk | None = None

    def step(self, filesystem: FileSystem) -> int:
        """Check about `_STEP_BYTES`; return how many bytes it were, 0 at the end. FileNotFoundError: it is gone."""
        if self._walk is None:
            filesystem.drop_cache(self.segment.path)
            try:
                self._walk = self.segment.walk()
            except CorruptionError as error:  # no header, no frame: the whole segment is lost
                self.lost.append(Lost(self.segment.base_offset, self._following, error))
                return 0
        walk = self._walk
        start = walk.position
        while walk.position - start < _STEP_BYTES:
            try:
                if walk.step() is None:
                    break
            except CorruptionError as error:
                damage, frame = walk.skip_damage(error.reason)
                to_offset = self._following if damage.to_offset is None else min(damage.to_offset, self._following)
                self.lost.append(Lost(damage.from_offset, to_offset, error))
                if frame is None:
                    return 0
        return walk.position - start


class Scrubber:
    """See the module's text."""

    def __init__(
        self,
        logs: Iterable[Log],
        filesystem: FileSystem,
        pool: Pool,
        scheduler: Scheduler,
        settings: StorageSettings,
    ) -> None:
        self.stepping = False  # a step is in the pool
        self.closed = False
        self.rounds = 0  # that came to their end
        self.checked_bytes = 0
        self._logs = logs
        self._filesystem = filesystem
        self._pool = pool
        self._scheduler = scheduler
        self._rate = settings.scrub_rate
        self._interval_ms = settings.scrub_interval_ms
        self._queue: deque[_Pass] = deque()
        self._slept_s = 0.0  # of the round at hand, which the interval counts from its beginning

    def start(self) -> None:
        """Begin the first round some time after the open; never with a rate of 0."""
        if self._rate:
            self._scheduler.call_later(min(self._interval_ms, _FIRST_MS) / 1000, self._begin_round)

    def _begin_round(self) -> None:
        self._slept_s = 0.0
        for log in self._logs:
            segments = log.writer.segments
            self._queue += [
                _Pass(log, segment, segments[index + 1].base_offset) for index, segment in enumerate(segments[:-1])
            ]
        self._step()

    def _step(self) -> None:
        if self.closed:
            return
        if not self._queue:
            self.rounds += 1
            self._scheduler.call_later(max(1.0, self._interval_ms / 1000 - self._slept_s), self._begin_round)
            return
        current = self._queue[0]
        self.stepping = True
        self._pool.submit(lambda: current.step(self._filesystem), self._stepped)

    def _stepped(self, outcome: int | Exception) -> None:
        self.stepping = False
        if self.closed:
            return
        current = self._queue[0]
        lost, current.lost = current.lost, []
        gone = current.segment.stale or current.segment.deleted  # rewritten or deleted: what was found means nothing
        if isinstance(outcome, Exception) and not gone and not isinstance(outcome, FileNotFoundError):
            _logger.warning("scrub of %s: %r", current.segment.path, outcome)
        if lost and not gone:
            current.log.lose(lost)
        size = outcome if isinstance(outcome, int) else 0
        self.checked_bytes += size
        if not size or gone:
            self._queue.popleft()
        pause_s = size / self._rate
        self._slept_s += pause_s
        self._scheduler.call_later(pause_s, self._step)
