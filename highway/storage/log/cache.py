"""Decoded frames in memory, bounded by bytes and shared by all logs."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from highway.storage.segment.records import RecordBatch

__all__ = ["BatchCache"]

# What a record costs once it is decoded, beyond its bytes and those of its payload, which is a copy: a tuple, two
# numbers, the payload's header, its share of the lists, and of four kinds of packets that the broker keeps ready.
_DECODED_RECORD_BYTES = 340


class BatchCache:
    """Batches by log and offset; the least recently used go first. The loop thread owns it."""

    __slots__ = ("_bases", "_batches", "_bytes", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._batches: OrderedDict[tuple[int, int], RecordBatch] = OrderedDict()
        self._bases: dict[int, list[int]] = {}  # log id -> base offsets, ascending

    @property
    def bytes(self) -> int:
        """Return what the batches are estimated to take."""
        return self._bytes

    def find(self, log_id: int, offset: int) -> RecordBatch | None:
        """Return the batch that holds `offset`, or None."""
        bases = self._bases.get(log_id)
        if not bases:
            return None
        index = bisect_right(bases, offset) - 1
        if index < 0:
            return None
        key = (log_id, bases[index])
        batch = self._batches[key]
        if batch.end_offset <= offset:
            return None
        self._batches.move_to_end(key)
        return batch

    def add(self, log_id: int, batch: RecordBatch) -> None:
        """Keep a batch, whatever its size: who asked for it comes for it. Those that begin inside it are replaced."""
        bases = self._bases.setdefault(log_id, [])
        first = bisect_left(bases, batch.base_offset)
        for base in bases[first : bisect_left(bases, batch.end_offset, first)]:
            self._remove((log_id, base))
        insort(bases, batch.base_offset)
        key = (log_id, batch.base_offset)
        self._batches[key] = batch
        self._bytes += _cost(batch)
        while self._bytes > self._limit and len(self._batches) > 1:
            self._remove(next(iter(self._batches)))

    def discard_below(self, log_id: int, offset: int) -> None:
        """Forget the batches of a log that begin below `offset`."""
        bases = self._bases.get(log_id, [])
        for base in bases[: bisect_left(bases, offset)]:
            self._remove((log_id, base))

    def _remove(self, key: tuple[int, int]) -> None:
        self._bytes -= _cost(self._batches.pop(key))
        bases = self._bases[key[0]]
        del bases[bisect_left(bases, key[1])]


def _cost(batch: RecordBatch) -> int:
    return batch.held_bytes + batch.count * _DECODED_RECORD_BYTES
