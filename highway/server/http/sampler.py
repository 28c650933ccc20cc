"""What is looked at once a second: the history of the charts, how long syncs take, and how fast the disk fills.

Owner: the event loop. A sample reads a dozen integers; what needs the disk is read in a thread, every ten seconds, and
the indexes of segments only while somebody asks.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from highway.broker import administration
from highway.metrics.histogram import quantile

from .attention import attention

if TYPE_CHECKING:
    from highway.broker import Broker
    from highway.broker.administration import SegmentTotals
    from highway.broker.delivery.feed import Feed
    from highway.server.condition import Condition

__all__ = ["Sampler"]

INTERVAL_S = 1.0
HISTORY = 600  # samples: ten minutes
RATES = 60  # samples of the rate of each log
SYNC_WINDOW = 60  # samples that the 99th percentile of syncs is taken over
DISK_INTERVAL = 10  # samples between two looks at the disk
DISK_HISTORY = 360  # looks: an hour
MIN_TREND_S = 60.0  # a shorter time says nothing about days
_DAY_S = 86_400.0
MAX_LOGS = 100  # that are shown: with `per_topic` there may be ten thousand, and those that take most come first
MAX_READERS = 40  # that are shown with a bar of their own
_NO_TOTALS = administration.SegmentTotals(0, 0, 0, None, 0)


class Sample(NamedTuple):
    """One second."""

    time_ms: int
    received: int  # all since the start
    sent: int
    dropped: int


class Sampler:
    """Looks at the broker as long as it runs."""

    def __init__(self, broker: Broker, condition: Condition, loop: asyncio.AbstractEventLoop) -> None:
        self._broker = broker
        self._condition = condition
        self._loop = loop
        self.samples: deque[Sample] = deque(maxlen=HISTORY)
        self._ends: deque[tuple[float, dict[str, int]]] = deque(maxlen=RATES + 1)  # (monotonic time, end of each log)
        self._syncs: deque[list[int]] = deque(maxlen=SYNC_WINDOW + 1)
        self._disk: deque[tuple[float, int]] = deque(maxlen=DISK_HISTORY)  # (monotonic time, bytes of all logs)
        self._looks = 0
        self.free_bytes = 0
        self._totals: dict[str, SegmentTotals] = {}
        self._totals_at = float("-inf")
        self._state: dict[str, Any] = {}
        self._state_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin, and go on once a second."""
        self._look()

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        broker, counters = self._broker, self._broker.counters
        now_ms = broker.clock.now_ms()
        self.samples.append(Sample(now_ms, counters.publish_received, counters.publish_sent, counters.publish_dropped))
        if len(broker.feeds) <= MAX_LOGS:  # what is not shown needs no history
            ends = {name: feed.log.log_end_offset for name, feed in broker.feeds.items()}
            self._ends.append((broker.clock.monotonic(), ends))
        self._syncs.append(list(broker.storage.sync_seconds.counts))
        if self._looks % DISK_INTERVAL == 0:
            # In a thread: a disk that hangs must not take the loop with it.
            self._loop.run_in_executor(None, self._measure, list(broker.feeds.values()))
        self._looks += 1
        self._timer = self._loop.call_later(INTERVAL_S, self._look)

    def _measure(self, feeds: list[Feed]) -> None:
        stored = sum(feed.log.stored_bytes for feed in feeds)
        self.free_bytes = self._broker.storage.free_bytes
        self._disk.append((self._broker.clock.monotonic(), stored))

    def rates(self) -> dict[str, list[float]]:
        """Messages a second that came to each log, over the last minute, oldest first."""
        found: dict[str, list[float]] = {}
        for (begin, before), (end, after) in pairwise(self._ends):
            for name, offset in after.items():
                if name in before and end > begin:
                    found.setdefault(name, []).append(round((offset - before[name]) / (end - begin), 1))
        return found

    @property
    def growth(self) -> float | None:
        """Bytes a second by which the logs grow, retention taken off; None while too little has been seen."""
        if not self._disk:
            return None
        (begin, before), (end, after) = self._disk[0], self._disk[-1]
        return (after - before) / (end - begin) if end - begin >= MIN_TREND_S else None

    @property
    def days_left(self) -> float | None:
        """Days until the disk is full at this growth; None where it isn't growing, or nobody knows yet."""
        growth = self.growth
        return self.free_bytes / growth / _DAY_S if growth is not None and growth > 0 else None

    @property
    def sync_p99_s(self) -> float | None:
        """What 99 of 100 syncs of the last minute took at most, as a bucket's bound; None without any."""
        histogram = self._broker.storage.sync_seconds
        return quantile(self._syncs[0], histogram.counts, histogram.bounds, 0.99)

    async def totals(self) -> dict[str, SegmentTotals]:
        """What the segments of each log hold, at most ten seconds old."""
        now = self._broker.clock.monotonic()
        if now - self._totals_at > DISK_INTERVAL * INTERVAL_S or self._totals.keys() != self._broker.feeds.keys():
            segments = {name: list(feed.log.writer.segments) for name, feed in self._broker.feeds.items()}
            self._totals = await asyncio.to_thread(
                lambda: {name: administration.segment_totals(found) for name, found in segments.items()}
            )
            self._totals_at = now
        return self._totals

    def attention(self) -> list[dict[str, Any]]:
        """What an operator should look at."""
        return attention(self._broker, self._condition, self.days_left)

    async def state(self) -> dict[str, Any]:
        """All that the dashboard shows, worked out once a second however many look."""
        now = self._broker.clock.monotonic()
        if now - self._state_at > INTERVAL_S / 2:
            self._state = await self._work_out()
            self._state_at = now
        return self._state

    async def _work_out(self) -> dict[str, Any]:
        broker, storage = self._broker, self._broker.storage
        totals = await self.totals()
        feeds = list(broker.feeds.items())
        if len(feeds) > MAX_LOGS:
            feeds = heapq.nlargest(MAX_LOGS, feeds, key=lambda item: (item[1].rate, item[1].visible))
        logs = [self._log(feed, totals.get(name, _NO_TOTALS)) for name, feed in feeds]
        p99 = self.sync_p99_s
        return {
            **administration.status(broker),
            "time_ms": broker.clock.now_ms(),
            "connections": broker.counters.connections_open,
            "sync_p99_ms": None if p99 is None else p99 * 1000,
            "at_risk_bytes": storage.unsynced_bytes + storage.backlog_bytes,
            "at_risk_seconds": round(storage.oldest_unsynced_age_seconds, 3),
            "disk_free_bytes": self.free_bytes,
            "growth_bytes_per_second": self.growth,
            "days_left": self.days_left,
            "logs": logs,
            "logs_hidden": len(broker.feeds) - len(logs),
            "readers": administration.positions(broker, MAX_READERS),
            "attention": self.attention(),
        }

    def _log(self, feed: Feed, totals: SegmentTotals) -> dict[str, Any]:
        fields = administration.log_of(self._broker, feed.log.name, totals)
        fields["live"] = sum(cursor.live for cursor in feed.cursors)
        fields["catchup"] = len(feed.cursors) - fields["live"]
        del fields["gaps"]
        return fields
