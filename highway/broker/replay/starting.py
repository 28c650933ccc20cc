"""Where a replay starts: `<from>` turned into one offset for each log that the filter can reach.

Some starts need a look at the disk (a time, the last n messages), so the answer comes by callback, in a later turn of
the loop at the earliest.

Owner: the event loop.
"""

from __future__ import annotations

import heapq
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from highway.broker.remembered import Remembered
from highway.errors import OffsetError, OffsetNotFoundError, ProtocolError, StorageError
from highway.mqtt.topics import concrete_names, matches
from highway.storage.gaps import RETENTION, Gap

from .grammar import TOPIC_FILTER_INVALID, From, FromKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from highway.broker.connections.link import Scheduler
    from highway.broker.delivery.feed import Feed
    from highway.storage import Log, RecordBatch

__all__ = ["Answer", "Starts", "find_starts", "gaps_between", "range_of"]

Starts: TypeAlias = "dict[Feed, int]"
Answer: TypeAlias = "Starts | ProtocolError | StorageError"


def find_starts(
    start: From,
    topic_filters: Sequence[bytes],
    feeds: Iterable[Feed],
    scheduler: Scheduler,
    done: Callable[[Answer], None],
) -> None:
    """Call `done` with the offset in each feed at which the replay starts, or with the reason why there is none.

    Several filters stand for one: what any of them selects.
    """
    reachable = list(feeds)
    if start.kind is FromKind.TIME:
        _TimeSearch(start.value, reachable, done).run()
    elif start.kind is FromKind.LAST:
        _LastSearch(start.value, topic_filters, reachable, scheduler, done).run()
    else:
        try:
            starts = _known_starts(start, topic_filters, reachable)
        except ProtocolError as error:
            done(error)
            return
        done(starts)


def _known_starts(start: From, topic_filters: Sequence[bytes], feeds: list[Feed]) -> Starts:
    if start.kind is FromKind.EARLIEST:
        return {feed: feed.log.log_start_offset for feed in feeds}
    if start.kind is FromKind.LATEST:
        return {feed: feed.visible for feed in feeds}
    if len(feeds) != 1:
        names = ", ".join(sorted(feed.log.name for feed in feeds)) or "none"
        filters = ", ".join(repr(topic_filter.decode()) for topic_filter in topic_filters)
        raise ProtocolError(
            f"an offset counts in one log, and {filters} spans {len(feeds)} ({names})",
            TOPIC_FILTER_INVALID,
        )
    feed = feeds[0]
    if start.value > feed.visible:
        raise ProtocolError(
            f"offset {start.value} is beyond the end of log {feed.log.name!r}: {range_of(feed)}", TOPIC_FILTER_INVALID
        )
    return {feed: start.value}


def range_of(feed: Feed) -> str:
    """The readable range of a log, as an error tells it."""
    return f"it holds offsets {feed.log.log_start_offset} to {feed.visible - 1}"


def gaps_between(log: Log, from_offset: int, to_offset: int) -> list[Gap]:
    """What is gone of [from_offset, to_offset): what retention took, and recorded gaps; other holes held nothing."""
    found = []
    if from_offset < log.log_start_offset:
        found.append(Gap(from_offset, min(to_offset, log.log_start_offset), RETENTION, 0))
    for gap in log.gaps:
        start, end = max(gap.from_offset, from_offset), min(gap.to_offset, to_offset)
        if start < end:
            found.append(gap._replace(from_offset=start, to_offset=end))
    return found


class _TimeSearch:
    """The first offset at or after a time, in several logs at once."""

    def __init__(self, time_ms: int, feeds: list[Feed], done: Callable[[Answer], None]) -> None:
        self._time_ms = time_ms
        self._feeds = feeds
        self._done = done
        self._starts: Starts = {}

    def run(self) -> None:
        if not self._feeds:
            self._done({})
        for feed in self._feeds:
            feed.log.offset_at(self._time_ms, partial(self._found, feed))

    def _found(self, feed: Feed, found: int | StorageError) -> None:
        # A log that can't tell starts where it begins: more than was asked for, and nothing is missing.
        offset = feed.log.log_start_offset if isinstance(found, StorageError) else found
        self._starts[feed] = min(offset, feed.visible)
        if len(self._starts) == len(self._feeds):
            self._done(self._starts)


class _LastSearch:
    """The last `count` matching messages over all logs, the newest by commit time.

    Reads every log backwards, batch by batch, until it has `count` matches there; then keeps the newest of them all.
    """

    def __init__(
        self,
        count: int,
        topic_filters: Sequence[bytes],
        feeds: list[Feed],
        scheduler: Scheduler,
        done: Callable[[Answer], None],
    ) -> None:
        self._count = count
        self._topic_filters = topic_filters
        self._feeds = feeds
        self._scheduler = scheduler
        self._done = done
        self._starts: Starts = {feed: feed.visible for feed in feeds}
        self._found: list[tuple[int, int, int]] = []  # commit time, which feed, offset
        self._left = len(feeds)
        self._verdicts: Remembered[bool] = Remembered(10_000)
        self._names = concrete_names(topic_filters)

    def run(self) -> None:
        if not self._feeds:
            self._done(self._starts)
        for feed in self._feeds:
            self._step(feed, feed.visible, [])

    def _step(self, feed: Feed, before: int, found: list[tuple[int, int]]) -> None:
        log = feed.log
        if before <= log.log_start_offset or len(found) >= self._count:
            self._finish(feed, found)
            return
        batch = log.read_before(before)
        if batch is None:
            log.load_before(before, lambda result: self._loaded(feed, before, found, result), self._names)
            return
        self._scan(feed, before, found, batch)

    def _loaded(
        self, feed: Feed, before: int, found: list[tuple[int, int]], result: RecordBatch | StorageError
    ) -> None:
        if isinstance(result, OffsetError) and not isinstance(result, OffsetNotFoundError):
            # A damaged range: go on below it.
            self._step(feed, before - 1, found)
        elif isinstance(result, StorageError):
            self._finish(feed, found)
        else:
            self._scan(feed, before, found, result)

    def _scan(self, feed: Feed, before: int, found: list[tuple[int, int]], batch: RecordBatch) -> None:
        for offset, _, timestamp_ms, topic_name, _, _ in reversed(batch.records()):
            if offset < before and self._matches(topic_name):
                found.append((timestamp_ms, offset))
                if len(found) == self._count:
                    break
        # One batch a turn: a scan of a long log must not hold up the live traffic.
        self._scheduler.call_soon(self._step, feed, min(before, batch.base_offset), found)

    def _matches(self, topic_name: bytes) -> bool:
        verdict = self._verdicts.get(topic_name)
        if verdict is None:
            verdict = self._verdicts.remember(topic_name, any(matches(one, topic_name) for one in self._topic_filters))
        return verdict

    def _finish(self, feed: Feed, found: list[tuple[int, int]]) -> None:
        which = self._feeds.index(feed)
        self._found.extend((timestamp_ms, which, offset) for timestamp_ms, offset in found)
        self._left -= 1
        if not self._left:
            for _, which, offset in heapq.nlargest(self._count, self._found):
                chosen = self._feeds[which]
                self._starts[chosen] = min(self._starts[chosen], offset)
            self._done(self._starts)
