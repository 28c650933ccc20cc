"""Compaction: of each topic only the newest record is kept, and offsets keep their values.

What makes a record superfluous is a later one that is durable in a segment, and visible; the active segment counts for
that but isn't written anew itself. An empty record is a tombstone: it stands for "nothing" and goes after a while, when
all that it replaced has gone, durably. So segments are worked through oldest first, and where one can't be written
anew, because of damage, the tombstones behind it stay.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from typing import TYPE_CHECKING

from highway.errors import CorruptionError

from .rewriting import RewriteTask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from highway.storage.disk.descriptors import Descriptors
    from highway.storage.log.cache import BatchCache
    from highway.storage.log.log import Log
    from highway.storage.segment.records import Record
    from highway.storage.segment.segment import Segment

__all__ = ["MAX_TOPICS", "CompactionTask", "is_due"]

# Topics of one round: a dict of so many takes about 100 MB. Records of further ones stay.
MAX_TOPICS = 500_000
_DIRTY = 0.5  # of what is compacted already: from so much new data on a round is worth reading all of it
_STEP_RECORDS = 4096

_logger = logging.getLogger(__name__)


def is_due(segments: Sequence[Segment]) -> bool:
    """Return whether so much is new in these sealed segments that all of them are worth reading."""
    fresh = sum(segment.length for segment in segments if not segment.tidy)
    return fresh > 0 and fresh >= _DIRTY * sum(segment.length for segment in segments if segment.tidy)


class CompactionTask(RewriteTask):
    """One round over one log."""

    def __init__(
        self, log: Log, segments: Sequence[Segment], files: Descriptors, cache: BatchCache, now_ms: int
    ) -> None:
        """`segments`, the oldest ones, may be written anew."""
        super().__init__(log, files, cache)
        self._segments = list(segments)
        self._all = list(log.writer.segments)
        self._bases = [segment.base_offset for segment in self._all]
        self._limit = min(log.recovery_point, log.high_watermark)
        self._visible_ms = now_ms - log.settings.delay_ms
        self._expired_ms = now_ms - log.settings.tombstone_ms
        self._newest: dict[bytes, int] = {}
        self._changed: set[int] = set()  # base offsets of segments that hold something superfluous
        self._intact = True

    def _run(self) -> Iterator[int]:
        for segment in self._all:
            yield from self._learn(segment)
        if self._segments:
            # What an earlier round has renamed: a tombstone may only go when nothing older can come back.
            self._files.filesystem.sync_dir(self._segments[0].path.parent)
        for segment in self._segments:
            if segment.base_offset in self._changed:
                try:
                    yield from self._rewrite(segment, lambda done: done.kept < done.records, self._keep)
                except (CorruptionError, FileNotFoundError) as error:
                    self._give_up(segment, error)
                    self.abandon()
            segment.tidy = True
            yield 1

    def _learn(self, segment: Segment) -> Iterator[int]:
        """Learn the newest offset of each topic, and which segments hold anything else."""
        size = records = 0
        try:
            for header, _, batch in segment.frames():
                if header.base_offset >= self._limit:
                    break
                self._look_at(batch.records(), segment)
                size += header.frame_length
                records += batch.count
                if records >= _STEP_RECORDS:
                    yield size
                    size = records = 0
        except (CorruptionError, FileNotFoundError) as error:
            self._give_up(segment, error)
        yield max(size, 1)

    def _give_up(self, segment: Segment, error: Exception) -> None:
        self._intact = False
        _logger.info("log %s: %s isn't compacted: %s", self.log.name, segment.path.name, error)

    def _look_at(self, records: Sequence[Record], segment: Segment) -> None:
        newest = self._newest
        for offset, _, time_ms, topic, _, payload in records:
            if offset >= self._limit or time_ms > self._visible_ms:
                continue
            before = newest.get(topic)
            if before is not None:
                self._changed.add(self._segment_of(before))
            elif len(newest) >= MAX_TOPICS:
                continue
            newest[topic] = offset
            if not payload and time_ms < self._expired_ms:
                self._changed.add(segment.base_offset)

    def _segment_of(self, offset: int) -> int:
        """Return the base offset of the segment that holds `offset`."""
        return self._bases[bisect_right(self._bases, offset) - 1]

    def _keep(self, record: Record) -> bool:
        offset, _, time_ms, topic, _, payload = record
        latest = self._newest.get(topic)
        if latest is None or offset > latest:
            return True
        return offset == latest and bool(payload or time_ms >= self._expired_ms or not self._intact)
