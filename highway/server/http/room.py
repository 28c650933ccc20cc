"""What the rooms of the API share: the broker, the loop, and the way from a request to a log and its records.

Owner: the event loop. The broker's callbacks become futures here, one for a request and none for a message.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from highway.broker import administration
from highway.broker.replay.grammar import FromKind, parse_from
from highway.broker.replay.starting import find_starts
from highway.errors import HighwayError, OffsetNotFoundError, StorageError

from .problems import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp import web

    from highway.broker import Broker
    from highway.broker.delivery.feed import Feed
    from highway.server.condition import Condition
    from highway.storage import RecordBatch

    from .sampler import Sampler

__all__ = ["Room"]

_AT_ONCE = 100


class Room:
    """One group of paths; `routes` are what it serves."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop, condition: Condition, sampler: Sampler) -> None:
        self.broker = broker
        self.loop = loop
        self.condition = condition
        self.sampler = sampler

    def routes(self) -> list[web.RouteDef]:
        """What it serves."""
        return []

    def feed(self, request: web.Request) -> Feed:
        """The log that the path names."""
        return self.feed_named(request.match_info["log"])

    def feed_named(self, name: str) -> Feed:
        """The log of a name; Problem where there is none."""
        feed = self.broker.feeds.get(name)
        if feed is None:
            raise Problem(404, "no such log", f"there is no log {name!r}", logs=sorted(self.broker.feeds))
        return feed

    async def log_fields(self, feed: Feed) -> dict[str, Any]:
        """What the API says of a log. The indexes may have to be read, so a thread adds them up."""
        (fields,) = await self.fields_of([feed])
        return fields

    async def fields_of(self, feeds: Sequence[Feed]) -> list[dict[str, Any]]:
        """The same of several logs: a hundred at a time, so that neither the loop nor the pool is busy for long."""
        found = []
        for start in range(0, len(feeds), _AT_ONCE):
            some = feeds[start : start + _AT_ONCE]
            segments = [list(feed.log.writer.segments) for feed in some]
            totals = await asyncio.to_thread(lambda lists: [*map(administration.segment_totals, lists)], segments)
            found += [
                administration.log_of(self.broker, feed.log.name, one) for feed, one in zip(some, totals, strict=True)
            ]
        return found

    async def offset(self, feed: Feed, text: str, topic_filter: bytes) -> int:
        """The offset that a `<from>` stands for; OffsetNotFoundError for one that is beyond the end of the log."""
        start = parse_from(text.encode(), self.broker.clock.now_ms())
        if start.kind is FromKind.OFFSET and start.value > feed.visible:
            self.broker.counters.offset_not_found += 1
            raise OffsetNotFoundError(feed.log.name, start.value, feed.log.log_start_offset, feed.visible)
        done = self.loop.create_future()
        find_starts(start, [topic_filter], [feed], self.broker.scheduler, done.set_result)
        answer = await done
        if isinstance(answer, HighwayError):
            raise answer
        offset: int = answer[feed]
        return offset

    async def batch(self, feed: Feed, offset: int, topics: frozenset[bytes] = frozenset()) -> RecordBatch | None:
        """The batch at or after an offset; None where nothing can be read. With `topics` others may be left out."""
        batch = feed.log.read(offset)
        if batch is not None:
            return batch
        done = self.loop.create_future()
        feed.log.load(offset, done.set_result, topics)
        result = await done
        return None if isinstance(result, StorageError) else result
