"""Where a reader stands in one log, and how it moves.

    CATCHUP   reads from the log (memory or disk), as fast as the receive window and the socket allow
    LIVE      stands at the end of what is visible and is handed each run as it becomes visible

    CATCHUP -> LIVE   in the turn of the loop in which `next_offset` meets the visible end: no gap, no duplicate
    LIVE -> CATCHUP   when the window is full or the socket does not keep up: nothing is queued, the log is the queue

So the position of a session is its queue, whether it is online or not (3.1.1 [MQTT-3.1.2-5], [MQTT-4.5.0-1]; 5.0
[MQTT-4.5.0-1]), and the order of the log is the order of each of its topics ([MQTT-4.6.0-5], [MQTT-4.6.0-6]).

A stored position is the lowest offset that is neither acknowledged nor stored as in flight, never "last sent".

Owner: the event loop.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from highway.errors import OffsetNotFoundError, StorageError

from . import encoding
from .shared_slices import find_slice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from highway.broker.replay.pace import Pace
    from highway.broker.sessions.reader import Reader
    from highway.storage import RecordBatch

    from .feed import Feed
    from .shared_slices import Slice

__all__ = ["Cursor"]

# Records looked at in one step: a batch may have 65,536, and a window that opens by one must not cost a copy of them.
SLICE_RECORDS = 2048
# In a batch that is larger, a reader of some topics has an index tell which records they are.
MANY_RECORDS = 64


class Cursor:
    """The position of one reader in one log."""

    __slots__ = ("_loaded_batch", "_next_offset", "feed", "live", "loading", "reader", "stored")

    def __init__(self, reader: Reader, feed: Feed, next_offset: int) -> None:
        self.reader = reader
        self.feed = feed
        self._next_offset = next_offset
        self.live = False
        # A read from disk, or a journal write that must precede a send, is under way.
        self.loading = False
        self._loaded_batch: tuple[int, RecordBatch] | None = None  # what was read from disk, and for which offset
        self.stored = -1

    def __repr__(self) -> str:
        return f"<Cursor {self.reader.session.client_id!r} {self.feed.log.name} {self.next_offset} live={self.live}>"

    @property
    def next_offset(self) -> int:
        """The first offset that was not handed to the connection yet."""
        return self.feed.visible if self.live else self._next_offset

    def mark_dirty(self) -> None:
        """The log moved on, and with it a position that is to be stored."""
        self.reader.session.dirty = True

    def fall_back(self, next_offset: int) -> None:
        """LIVE -> CATCHUP: go on from the log at `next_offset`."""
        self.live = False
        self._next_offset = next_offset
        session = self.reader.session
        session.behind[self] = None
        session.broker.counters.catchup_fallbacks += 1
        session.broker.pump_later(session)

    def gate_opened(self, before: int) -> None:
        """A delayed log shows more than it did up to `before`: read it."""
        if self.live:
            self.fall_back(before)
        else:
            self.reader.session.broker.pump_later(self.reader.session)

    def move_to(self, next_offset: int) -> None:
        """Stand at `next_offset`, in CATCHUP: at (re)connection, and where a client asks for another start."""
        if next_offset < self.next_offset:
            self.reader.session.rewound = True
        self.live = False
        self._next_offset = next_offset
        self.reader.session.behind[self] = None

    def step_back(self, next_offset: int) -> None:
        """Meet what is gone from `next_offset` on, in CATCHUP below the start of the log."""
        self._next_offset = next_offset

    def suspend(self) -> None:
        """The session goes offline: stand still where the next connection goes on."""
        self.suspend_at(self.next_offset)

    def suspend_at(self, next_offset: int) -> None:
        """Stand still at `next_offset`, offline."""
        self._next_offset = next_offset
        self.live = False
        self.forget_loaded()

    def _go_live(self) -> None:
        self.live = True
        self.forget_loaded()
        session = self.reader.session
        del session.behind[self]
        session.broker.counters.live_switches += 1
        if self.reader.since:
            self.reader.caught_up(self.feed.log.name)

    def advance(self, budget: int) -> int:
        """Send up to about `budget` bytes of what comes next; returns the bytes sent.

        0 means that it can't go on by itself: it is LIVE now, waits for the disk, or the window is full. It stops
        behind the batch in which the turn ends: of a thousand batches there may be nothing to send.
        """
        if self.loading:
            return 0
        log, broker = self.feed.log, self.reader.session.broker
        if self._next_offset < log.log_start_offset:
            broker.gap(self, self._next_offset, log.log_start_offset)
            self._next_offset = log.log_start_offset
        sent = 0
        until = self.reader.until.get(log.name)
        while sent < budget:
            visible = self.feed.visible
            if until is not None:
                if self._next_offset >= until:
                    broker.replay_ended(self)
                    return sent
                visible = min(visible, until)
            if self._next_offset >= visible:
                # Beyond it only while a delayed log has not said yet, after a restart, how far its gate is open.
                if self._next_offset == visible:
                    self._go_live()
                return sent
            batch = log.read_joined(self._next_offset) or self._take_loaded()
            if batch is None:
                self._load(self._next_offset)
                return sent
            if batch.base_offset > self._next_offset:
                end = min(batch.base_offset, visible)
                broker.gap(self, self._next_offset, end)
                self._next_offset = end
                continue
            size, goes_on = self._send(batch, visible, budget - sent)
            sent += size
            if not goes_on:
                return sent
            if broker.clock.monotonic() >= broker.turn_ends:
                return max(sent, 1)
        return sent

    def _send(self, batch: RecordBatch, visible: int, budget: int) -> tuple[int, bool]:
        """Send the records of `batch` from `next_offset` on; returns the bytes, and whether what follows may go too."""
        records = batch.records()
        dense = len(records) == batch.end_offset - batch.base_offset
        start = self._next_offset - batch.base_offset if dense else bisect_left(records, (self._next_offset,))
        stop = len(records)
        if batch.end_offset > visible:
            stop = visible - batch.base_offset if dense else bisect_left(records, (visible,))
        session, reader = self.reader.session, self.reader
        chosen: Sequence[int] = range(len(records))
        if reader.names and len(records) > MANY_RECORDS:
            chosen = batch.on_topics(reader.names)
        if len(chosen) < len(records):  # others are on topics that the reader has not asked for
            start, stop = bisect_left(chosen, start), bisect_left(chosen, stop)
        elif reader.kind is not None:
            shared = find_slice(batch, reader, reader.kind, start)
            if shared is not None:
                return self._send_shared(shared, batch, stop, visible, budget)
        end = min(stop, start + SLICE_RECORDS)
        if reader.pace is not None:
            end = min(end, start + reader.pace.allowance())
            if end == start < stop:
                self._wait_for_pace(reader.pace)
                return 0, False
        rows = records[start:end] if chosen == range(len(records)) else [records[index] for index in chosen[start:end]]
        chunk = encoding.encode_records(reader, rows, session.quota, budget)
        if reader.pace is not None:
            reader.pace.take(chunk.count)
        if chunk.scanned < end - start and len(chunk.offsets) == session.quota:
            session.note_full_window()
        # Past the last record of a batch come the holes that a compaction left: step over them too.
        whole = chunk.scanned == end - start
        at_end = whole and end == stop
        next_offset = min(batch.end_offset, visible) if at_end else records[chosen[start + chunk.scanned]][0]
        if not chunk.offsets:
            self._next_offset = next_offset
            self.feed.replayed += chunk.count
            session.send(chunk.data, chunk.count, chunk.payload_bytes)
            return len(chunk.data), whole
        if session.persistent and 2 in chunk.qos:
            self._send_after_journal(chunk, next_offset)
            return len(chunk.data), False
        session.inflight.take(chunk.packet_ids, self, chunk.offsets, chunk.qos)
        self._next_offset = next_offset
        session.dirty = True
        self.feed.replayed += chunk.count
        session.send(chunk.data, chunk.count, chunk.payload_bytes)
        return len(chunk.data), whole

    def _send_shared(self, shared: Slice, batch: RecordBatch, stop: int, visible: int, budget: int) -> tuple[int, bool]:
        """As `_send`, of packets that lack only their ids; `stop` is the index of the first invisible record."""
        session, offsets = self.reader.session, shared.offsets
        first = bisect_left(offsets, self._next_offset)
        last = bisect_left(offsets, visible) if shared.end > stop else len(offsets)
        count = min(last - first, budget // shared.bytes_each + 1)
        packet_ids: Sequence[int] = ()
        if shared.qos and count:
            packet_ids = session.inflight.free_ids(max(0, min(count, session.quota)))
            if len(packet_ids) < count:
                session.note_full_window()
            count = len(packet_ids)
        whole = first + count == last
        if whole:
            end = min(shared.end, stop)
            next_offset = min(batch.end_offset, visible) if end == stop else batch.records()[end][0]
        else:
            next_offset = offsets[first + count]
        data = shared.encode(first, first + count, packet_ids)
        payload_bytes = shared.payload_bytes(first, first + count)
        if packet_ids:
            if session.persistent and shared.qos == 2:
                chunk = encoding.Chunk()
                chunk.data, chunk.count, chunk.packet_ids = data, count, packet_ids
                chunk.payload_bytes = payload_bytes
                chunk.offsets, chunk.qos = offsets[first : first + count], [2] * count
                self._send_after_journal(chunk, next_offset)
                return len(data), False
            session.inflight.take(packet_ids, self, offsets[first : first + count], shared.qos)
            session.dirty = True
        self._next_offset = next_offset
        self.feed.replayed += count
        session.send(data, count, payload_bytes)
        return len(data), whole

    def _wait_for_pace(self, pace: Pace) -> None:
        """Go on when the rate that the reader asked for allows the next message."""
        broker, session = self.reader.session.broker, self.reader.session

        def go_on() -> None:
            pace.waiting = False
            broker.pump_later(session)

        if not pace.waiting:
            pace.waiting = True
            broker.scheduler.call_later(pace.wait_s, go_on)

    def _send_after_journal(self, chunk: encoding.Chunk, next_offset: int) -> None:
        """Send QoS 2 messages once the journal knows their packet ids, durably.

        After a crash the same messages must carry the same ids, or the receiver takes a repetition for a new message.
        """
        session = self.reader.session
        session.inflight.take(chunk.packet_ids, self, chunk.offsets, chunk.qos)
        self._next_offset = next_offset
        self.loading = True
        link = session.link

        def written() -> None:
            self.loading = False
            if session.link is link:
                self.feed.replayed += chunk.count
                # On another one they are among what is sent again.
                session.send(chunk.data, chunk.count, chunk.payload_bytes)
            session.broker.pump_later(session)

        session.broker.store_inflight(session)
        session.broker.when_stored(session, written)

    def _load(self, offset: int) -> None:
        """Ask the disk for what comes at `offset`, and go on from there when it has answered."""
        names = self.reader.names

        def loaded(result: RecordBatch | StorageError) -> None:
            self.loading = False
            session, reads = self.reader.session, self.reader.session.broker.reads
            wanted = self in session.behind and names == self.reader.names
            if isinstance(result, StorageError) or not wanted:
                reads.release()
            if names != self.reader.names:
                pass  # the subscriptions have changed, and what was passed over may concern the reader now
            elif isinstance(result, OffsetNotFoundError) and self._next_offset == offset:
                # Nothing is left of the log's end: a crash took it, and nothing has been appended since.
                end = max(offset, self.feed.visible)
                session.broker.gap(self, offset, end)
                self._next_offset = end
            elif isinstance(result, StorageError):
                session.broker.read_failed(self, result)
                return
            elif wanted:
                self._loaded_batch = (offset, result)
            session.broker.pump_later(session)

        self.loading = True
        self.reader.session.broker.reads.load(self.feed.log, offset, names, loaded)

    def _take_loaded(self) -> RecordBatch | None:
        """Return what was read for `next_offset`, once. The cache may have dropped it, and doesn't know holes."""
        loaded = self._loaded_batch
        if loaded is None:
            return None
        self.forget_loaded()
        return loaded[1] if loaded[0] == self._next_offset else None

    def forget_loaded(self) -> None:
        """Let go of what was read, whether it was sent from or not: others wait to read."""
        if self._loaded_batch is not None:
            self._loaded_batch = None
            self.reader.session.broker.reads.release()
