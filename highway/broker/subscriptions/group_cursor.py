"""Where a group of a shared subscription stands in one log.

Owner: the event loop.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import chain
from typing import TYPE_CHECKING

from highway.errors import OffsetNotFoundError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from highway.broker.delivery.feed import Feed
    from highway.storage import RecordBatch

    from .shared import Group

__all__ = ["GroupCursor"]


class GroupCursor:
    """Where a group stands in one log. Like `Cursor`, it is `live` at the visible end and reads the log elsewhere."""

    __slots__ = (
        "_loaded",
        "_next_offset",
        "_returned",
        "behind_until",
        "exact_until",
        "feed",
        "live",
        "loading",
        "reader",
        "stored",
    )

    def __init__(self, group: Group, feed: Feed, next_offset: int, returned: Sequence[int] = ()) -> None:
        self.reader = group
        self.feed = feed
        self.live = False
        self.loading = False
        self.stored: list[int] = []  # of `to_store`, the last time
        # Below it are messages that were journaled as given, which the stored position must not fall behind again.
        self.exact_until = next_offset
        # Below it is what waited for members: `limits.catchup_bytes` counts for that, and not for what comes behind.
        self.behind_until = feed.visible
        self._next_offset = next_offset
        self._returned = list(returned)  # offsets that a member left unacknowledged, in order
        self._loaded: RecordBatch | None = None

    @property
    def next_offset(self) -> int:
        """The first offset that was not given to any member yet."""
        return self.feed.visible if self.live else self._next_offset

    def mark_dirty(self) -> None:
        """The log moved on, and with it a position that is to be stored."""
        self.reader.dirty = True

    def fall_back(self, next_offset: int) -> None:
        """The log moved on: read it from `next_offset`."""
        self.live = False
        self._next_offset = next_offset
        self.reader.wake()

    def note_behind(self) -> None:
        """Members can't take what there is by now."""
        self.behind_until = self.feed.visible

    def suspend(self) -> None:
        """Nobody is there: stand still where the next member goes on."""
        self._next_offset = self.next_offset
        self.live = False

    def step_back(self) -> None:
        """Don't wait beyond the visible end: nothing would tell when it is reached."""
        if not self.live and not self.feed.is_delayed:
            self._next_offset = min(self._next_offset, self.feed.visible)

    def gate_opened(self, before: int) -> None:
        """A delayed log shows more than it did up to `before`: read it."""
        self.fall_back(before if self.live else self._next_offset)

    def take_back(self, offset: int) -> None:
        """A member's session ended with this message unacknowledged."""
        insort(self._returned, offset)
        self.reader.dirty = True
        self.reader.wake()

    def to_store(self) -> list[int]:
        """The offset at which the group goes on after a crash, and those below it that it gives again before that.

        Where nothing was journaled as given, that is the lowest which is neither acknowledged nor stored as in flight.
        """
        lowest = min(self._unsettled(lowest_only=True), default=self.next_offset)
        lowest = min(lowest, self.next_offset)
        if lowest >= self.exact_until:
            return [lowest]
        position = min(self.next_offset, self.exact_until)
        return [position, *sorted({offset for offset in self._unsettled() if offset < position})]

    def _unsettled(self, *, lowest_only: bool = False) -> Iterator[int]:
        """Offsets that came back, and that members hold without the journal's knowing it; or the lowest of each."""
        yield from self._returned[:1] if lowest_only else self._returned
        for session in self.reader.holders():
            lowest = session.inflight.lowest(self, session.stored_ids)
            if lowest is not None and lowest_only:
                yield lowest
            sent = () if lowest is None or lowest_only else session.inflight
            for packet_id, (cursor, where, _) in chain(sent, session.resend):
                if cursor is self and isinstance(where, int) and packet_id not in session.stored_ids:
                    yield where

    def advance(self, budget: int) -> int:
        """Hand out up to `budget` records, those that came back first; returns how many."""
        given = 0
        self._skip_deleted()
        while given < budget and not self.loading:
            returned = bool(self._returned)
            if not returned and self.next_offset >= self.feed.visible:
                self.live = self.next_offset == self.feed.visible
                break
            offset = self._returned[0] if returned else self._next_offset
            batch = self._batch(offset)
            if batch is None:
                break
            if batch.base_offset > offset:
                self._step_over(offset, min(batch.base_offset, self.feed.visible))
                continue
            if returned:
                if not self._give_back(batch, offset):
                    break
                given += 1
                continue
            count, goes_on = self._give(batch, budget - given)
            given += count
            if not goes_on:
                break
        self.reader.flush(self)
        return given

    def _skip_deleted(self) -> None:
        """Step over what retention took."""
        start = self.feed.log.log_start_offset
        while self._returned and self._returned[0] < start:
            first = self._returned.pop(0)
            end = first + 1
            while self._returned and self._returned[0] == end < start:
                del self._returned[0]
                end += 1
            self.reader.broker.gap(self, first, end)
        if not self.live and self._next_offset < start:
            self.reader.broker.gap(self, self._next_offset, start)
            self._next_offset = start

    def _step_over(self, offset: int, end: int) -> None:
        """There is nothing in [offset, end) any more, which is what comes next or came back."""
        if self._returned and self._returned[0] == offset:
            del self._returned[0]
            end = offset + 1
        else:
            self._next_offset = end
        self.reader.broker.gap(self, offset, end)

    def _batch(self, offset: int) -> RecordBatch | None:
        """The batch at or after `offset`; None while the disk is asked."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None and loaded.end_offset > offset:
            return loaded
        batch = self.feed.log.read(offset)
        if batch is None:
            self.loading = True
            self.feed.log.load(offset, lambda result: self._load_done(offset, result))
        return batch

    def _load_done(self, offset: int, result: RecordBatch | StorageError) -> None:
        self.loading = False
        if isinstance(result, OffsetNotFoundError):
            self._step_over(offset, max(offset, self.feed.visible))
        elif isinstance(result, StorageError):
            self.reader.broker.read_failed(self, result)
            return
        else:
            self._loaded = result
        self.reader.wake()

    def _give_back(self, batch: RecordBatch, offset: int) -> bool:
        """Give one returned message to another member; False where none can take it."""
        records = batch.records()
        index = bisect_left(records, (offset,))
        # Retention may have taken it: then there is nothing to give.
        if index < len(records) and records[index][0] == offset and not self.reader.give(self, records[index]):
            return False
        del self._returned[0]
        return True

    def _give(self, batch: RecordBatch, budget: int) -> tuple[int, bool]:
        """Give the records of a batch from `next_offset` on; returns (how many were looked at, whether to go on)."""
        records = batch.records()
        start = bisect_left(records, (self._next_offset,))
        visible = self.feed.visible
        count = 0
        for record in records[start : start + budget]:
            if record[0] >= visible:
                self._next_offset = visible
                break
            if self.reader.matches(record[3]) and not self.reader.give(self, record):
                return count, False
            self._next_offset = record[0] + 1
            count += 1
        else:
            if start + count >= len(records):
                self._next_offset = min(max(self._next_offset, batch.end_offset), visible)
        return count, True
