"""Deleting what is old or too much: whole sealed segments, the oldest first.

A segment is as old as its newest record: by the frames' commit times, never by the file's. An older record can't be
younger than a newer one, so the age of a segment is the smallest of its own time and those after it; one bad clock
reading then neither pins old data nor deletes new. While the clock itself is in doubt nothing is deleted by age.

Order: the log start moves in memory, a checkpoint makes that durable, then the files go. The active segment is never
deleted; by age it is sealed and an empty one follows it, so the next offset stays known.

A message lives at most for the retention, the roll age and one interval of the reaper.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from highway.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from highway.storage.checkpoint.checkpointer import Checkpointer
    from highway.storage.disk.filesystem import FileSystem
    from highway.storage.disk.pool import Pool
    from highway.storage.segment.segment import Segment
    from highway.storage.settings import LogSettings

    from .commit_time import CommitTime
    from .log import Log

__all__ = ["AGE", "ORDER", "SIZE", "SOON_MS", "Deletion", "Reaper", "SegmentFacts", "Trimmed", "plan"]

AGE = "age"
SIZE = "size"
ORDER = "order"  # an operator's
# What a change of the retention lets fall due this soon, and one round of the reaper later, is deleted by the change:
# nobody who sees the mistake takes it back sooner.
SOON_MS = 60_000

_logger = logging.getLogger(__name__)


class SegmentFacts(NamedTuple):
    """What retention wants to know about a segment."""

    base_offset: int
    length: int
    records: int
    last_ms: int  # 0: empty, or not readable


class Deletion(NamedTuple):
    """What is, or would be, deleted of one log: whole segments, with all offsets of [from_offset, to_offset)."""

    log: str
    segments: int
    records: int
    bytes: int
    from_offset: int
    to_offset: int


class _Doomed(NamedTuple):
    """A segment to delete, and why."""

    log: Log
    segment: Segment
    facts: SegmentFacts
    reason: str


@dataclass(slots=True)
class Trimmed:
    """What has been deleted so far, by reason."""

    segments: dict[str, int] = field(default_factory=lambda: {AGE: 0, SIZE: 0, ORDER: 0})
    records: dict[str, int] = field(default_factory=lambda: {AGE: 0, SIZE: 0, ORDER: 0})
    bytes: dict[str, int] = field(default_factory=lambda: {AGE: 0, SIZE: 0, ORDER: 0})


def facts_of(segments: Sequence[Segment]) -> list[SegmentFacts]:
    """Return the facts of segments: in the pool, because it may have to read indexes."""
    facts = []
    for segment in segments:
        try:
            index = segment.index
            facts.append(SegmentFacts(segment.base_offset, segment.length, index.records, index.last_ms))
        except (CorruptionError, OSError):
            facts.append(SegmentFacts(segment.base_offset, 0, 0, 0))
    return facts


def plan(
    facts: Sequence[SegmentFacts], last_ms: int, now_ms: int, retention_ms: int | None, retention_bytes: int | None
) -> list[str]:
    """Return the reasons for deleting the oldest segments, one for each; the last segment always stays.

    `last_ms` is the commit time of the newest record of the log.
    """
    times = []
    youngest = last_ms or now_ms
    for fact in reversed(facts):
        youngest = min(youngest, fact.last_ms or youngest)
        times.append(youngest)
    times.reverse()
    total = sum(fact.length for fact in facts)
    reasons = []
    for fact, time_ms in zip(facts[:-1], times, strict=False):
        if retention_ms is not None and now_ms - time_ms > retention_ms:
            reasons.append(AGE)
        elif retention_bytes is not None and total > retention_bytes:
            reasons.append(SIZE)
        else:
            break
        total -= fact.length
    return reasons


def count_doomed(
    facts: Sequence[SegmentFacts],
    segments: int,
    last_ms: int,
    now_ms: int,
    retention_ms: int | None,
    retention_bytes: int | None,
) -> int:
    """Return how many of the oldest `facts` retention will delete of a log to which nothing is appended any more.

    The last of the segments, and what is in memory and will follow it, are among them when all of it is too old: it is
    sealed, and goes a round later. A bound on bytes spares them.
    """
    reasons = plan([*facts, SegmentFacts(0, 0, 0, 0)], last_ms, now_ms, retention_ms, retention_bytes)
    while reasons and len(reasons) >= segments and reasons[-1] != AGE:
        reasons.pop()
    return len(reasons)


def _is_shorter(retention_ms: int | None, before_ms: int | None) -> bool:
    return retention_ms is not None and (before_ms is None or retention_ms < before_ms)


def _deletion(log: Log, facts: Sequence[SegmentFacts], segments: int, first: int, until: int) -> Deletion | None:
    """What [first, until) of `facts` come to, of which the first `segments` are segments."""
    gone = facts[first:until]
    if not gone:
        return None
    end = facts[until].base_offset if until < len(facts) else log.log_end_offset
    start = max(log.log_start_offset, gone[0].base_offset)
    return Deletion(
        log.name,
        min(until, segments) - min(first, segments),
        sum(fact.records for fact in gone),
        sum(fact.length for fact in gone),
        start,
        end,
    )


class Reaper:
    """Applies retention to all logs, one round at a time. The loop thread owns it."""

    def __init__(
        self,
        filesystem: FileSystem,
        pool: Pool,
        checkpointer: Checkpointer,
        time: CommitTime,
        max_bytes: int | None,
    ) -> None:
        self.logs: Iterable[Log] = ()
        self.trimmed = Trimmed()
        self.running = False
        self._filesystem = filesystem
        self._pool = pool
        self._checkpointer = checkpointer
        self._time = time
        self._max_bytes = max_bytes
        self._open_jobs = 0
        self._facts: dict[int, tuple[Log, list[SegmentFacts], list[str]]] = {}
        self._doomed: list[_Doomed] = []  # below their log's start, which isn't durable yet
        self._warned = False

    def run(self) -> None:
        """Begin a round, unless one is under way."""
        if self.running:
            return
        now_ms = self._time.now_ms()
        if not self._time.settled and not self._warned:
            _logger.warning("the clock has jumped by more than a day: nothing is deleted by age until it is settled")
        self._warned = not self._time.settled
        self.running = True
        self._facts = {}
        self._open_jobs = 1
        for log in self.logs:
            self._look_at(log, now_ms)
        self._looked()

    def preview(
        self,
        changes: Sequence[tuple[Log, LogSettings]],
        done: Callable[[dict[str, Deletion]], None],
        *,
        only_new: bool,
        soon_ms: int = 0,
    ) -> None:
        """Tell what retention would delete if logs were kept by other settings; see `Storage.plan_retention`.

        What a shorter retention deletes within `soon_ms` is told too.
        """
        found: dict[str, Deletion] = {}
        left = 1 + len(changes)
        now_ms = self._time.now_ms()
        settled = self._time.settled

        def count(log: Log, facts: list[SegmentFacts], segments: int, settings: LogSettings) -> int:
            at_ms = now_ms + soon_ms if _is_shorter(settings.retention_ms, log.settings.retention_ms) else now_ms
            # A change that is asked about outlives a clock in doubt, and what it deletes then was not told otherwise.
            retention_ms = settings.retention_ms if settled or only_new else None
            return count_doomed(facts, segments, log.last_ms, at_ms, retention_ms, settings.retention_bytes)

        def looked(log: Log | None = None, settings: LogSettings | None = None, outcome: object = None) -> None:
            nonlocal left
            left -= 1
            if log is not None and settings is not None and isinstance(outcome, list):
                facts, segments = [*outcome, *log.tail_facts()], len(outcome)
                first = count(log, facts, segments, log.settings) if only_new else 0
                deletion = _deletion(log, facts, segments, first, count(log, facts, segments, settings))
                if deletion is not None:
                    found[log.name] = deletion
            if not left:
                done(found)

        for log, settings in changes:
            segments = list(log.writer.segments)
            self._pool.submit(partial(facts_of, segments), partial(looked, log, settings))
        looked()

    def preview_trim(self, log: Log, offset: int, done: Callable[[Deletion | None], None]) -> None:
        """Tell what `trim` would delete."""
        self._with_facts(log, offset, lambda facts, count: done(_deletion(log, facts, count, 0, count)))

    def trim(self, log: Log, offset: int, done: Callable[[Deletion | None], None]) -> None:
        """Delete the sealed segments that lie wholly below `offset`, as an operator wants it."""

        def go(facts: list[SegmentFacts], count: int) -> None:
            deletion = _deletion(log, facts, count, 0, count)
            if deletion is None:
                done(None)
                return
            # A round of retention may have taken some of them since.
            segments = log.trim(deletion.to_offset)
            orders = zip(segments, facts[count - len(segments) : count], strict=True)
            gone = [_Doomed(log, segment, fact, ORDER) for segment, fact in orders]
            self._delete_when_durable(gone, lambda deleted: done(deletion if deleted else None))

        self._with_facts(log, offset, go)

    def _with_facts(self, log: Log, offset: int, go: Callable[[list[SegmentFacts], int], None]) -> None:
        """Call `go` with the facts of a log and the number of its segments that lie below `offset`."""
        segments = list(log.writer.segments)

        def looked(outcome: list[SegmentFacts] | Exception) -> None:
            facts = [] if isinstance(outcome, Exception) else outcome
            below = sum(fact.base_offset <= offset for fact in facts[1:])
            go(facts, below)

        self._pool.submit(partial(facts_of, segments), looked)

    def _look_at(self, log: Log, now_ms: int) -> None:
        segments = list(log.writer.segments)
        if not segments:
            return
        self._open_jobs += 1
        settled = self._time.settled

        def work() -> tuple[bool, list[SegmentFacts]]:
            return settled and log.writer.is_old(segments[-1], now_ms), facts_of(segments)

        def done(outcome: tuple[bool, list[SegmentFacts]] | Exception) -> None:
            if isinstance(outcome, Exception):
                _logger.warning("log %s: retention can't look at it: %r", log.name, outcome)
            else:
                old, facts = outcome
                retention_ms = log.settings.retention_ms if settled else None
                reasons = plan(facts, log.last_ms, now_ms, retention_ms, log.settings.retention_bytes)
                self._facts[log.log_id] = (log, facts, reasons)
                if old and log.roll(self._looked):
                    return
            self._looked()

        self._pool.submit(work, done)

    def _looked(self) -> None:
        self._open_jobs -= 1
        if self._open_jobs:
            return
        self._plan_global()
        for log, facts, reasons in self._facts.values():
            if reasons:
                segments = log.trim(facts[len(reasons)].base_offset)
                self._doomed += map(_Doomed, [log] * len(segments), segments, facts, reasons)
        self._facts = {}
        if self._doomed:
            gone, self._doomed = self._doomed, []
            self._delete_when_durable(gone, self._round_over)
        else:
            self.running = False

    def _round_over(self, _: bool) -> None:  # noqa: FBT001 - a deletion's answer
        self.running = False

    def _plan_global(self) -> None:
        """Add to the plans what the bound over all logs demands: whatever is oldest, wherever it is."""
        if self._max_bytes is None:
            return
        total = 0
        candidates = []
        for log, facts, reasons in self._facts.values():
            total += sum(fact.length for fact in facts[len(reasons) :])
            if log.settings.cleanup == "compact":
                continue  # its oldest records may be the only ones of their topics
            candidates += [(fact.last_ms, log.log_id, index) for index, fact in enumerate(facts[:-1])]
        for _, log_id, index in sorted(candidates):
            if total <= self._max_bytes:
                break
            _, facts, reasons = self._facts[log_id]
            if index == len(reasons):  # its older ones are planned already
                reasons.append(SIZE)
                total -= facts[index].length

    def _delete_when_durable(self, gone: list[_Doomed], ended: Callable[[bool], None]) -> None:
        """Delete segments that lie below their log's start, once that start is durable; then call `ended`."""

        def checkpointed(durable: bool) -> None:  # noqa: FBT001 - a checkpoint's answer
            if durable:
                self._delete(gone, ended)
            else:
                self._doomed += gone  # the next round tries again; a crash before it shows them again
                ended(False)

        self._checkpointer.request(checkpointed)

    def _delete(self, gone: list[_Doomed], ended: Callable[[bool], None]) -> None:
        def work() -> None:
            for doomed in gone:
                try:
                    doomed.segment.delete()
                except OSError as error:  # it is below the log's start for good: the next open deletes it
                    _logger.warning("retention: a segment can't be deleted: %s", error)
            for directory in {doomed.segment.path.parent for doomed in gone}:
                self._filesystem.sync_dir(directory)

        def done(outcome: Exception | None) -> None:
            ended(True)
            if isinstance(outcome, Exception):
                _logger.warning("retention: a deletion isn't durable yet: %r", outcome)
            for log, segment, fact, reason in gone:
                self.trimmed.segments[reason] += 1
                self.trimmed.records[reason] += fact.records
                self.trimmed.bytes[reason] += fact.length
                _logger.info("log %s: segment %s deleted by %s", log.name, segment.path.name, reason)

        self._pool.submit(work, done)
