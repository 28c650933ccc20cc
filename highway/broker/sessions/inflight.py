"""The messages that a session sent and that are not acknowledged yet, by packet id, in the order they were sent.

An entry says where its message is, not what it is: the log has it. Only what no log holds (retained and `$...`
messages) is kept as itself. In here an entry is one integer, as a thousand sessions with a full window have a million
of them: tuples take four times the memory, and 30 ms of the loop whenever the garbage collector looks at them.

    entry = offset << 20 | slot << 2 | state        slot 0: a message that no log holds; else a cursor, see `_slot`

    state      waits for        then
    SENT_1     PUBACK           gone                            3.1.1 [MQTT-4.3.2-1], 5.0 [MQTT-4.3.2-3]
    SENT_2     PUBREC           RELEASED, we answer PUBREL      3.1.1 [MQTT-4.3.3-1], 5.0 [MQTT-4.3.3-3]
    RELEASED   PUBCOMP          gone                            3.1.1 [MQTT-4.3.3-1], 5.0 [MQTT-4.3.3-5]

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence, Set as AbstractSet

    from highway.broker.delivery.cursor import Cursor
    from highway.broker.message import Message
    from highway.broker.subscriptions.group_cursor import GroupCursor

__all__ = ["RELEASED", "SENT_1", "SENT_2", "Entry", "Inflight"]

SENT_1, SENT_2, RELEASED = 1, 2, 3

_STATE_MASK, _SLOT_SHIFT, _SLOT_MASK, _OFFSET_SHIFT = 3, 2, (1 << 18) - 1, 20
# Cursors that a session may have been sent from before those without entries are forgotten: with two for each packet id
# that are half of what 18 bits can tell apart.
_MANY_SLOTS = 16

MAX_PACKET_ID = 65_535


# What they are to others: (cursor, offset, state) of a logged message; (None, message, state) of one that no log holds.
Entry = tuple["Cursor | GroupCursor | None", "int | Message", int]


class Inflight:
    """Packet ids in use, and the ids that come next. `len()` counts against the receive maximum."""

    __slots__ = ("_cursors", "_entries", "_messages", "_next", "_reserved", "_slots")

    def __init__(self) -> None:
        self._entries: dict[int, int] = {}
        self._messages: dict[int, Message] = {}  # those that no log holds
        self._cursors: list[Cursor | GroupCursor | None] = [None]  # by slot
        self._slots: dict[Cursor | GroupCursor, int] = {}
        self._reserved: set[int] = set()  # of messages that wait to be sent again
        self._next = 1

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, packet_id: int) -> bool:
        return packet_id in self._entries

    def __iter__(self) -> Iterator[tuple[int, Entry]]:
        for packet_id, entry in self._entries.items():
            yield packet_id, self._unpack(packet_id, entry)

    def _unpack(self, packet_id: int, entry: int) -> Entry:
        slot, state = entry >> _SLOT_SHIFT & _SLOT_MASK, entry & _STATE_MASK
        if not slot:
            return None, self._messages[packet_id], state
        return self._cursors[slot], entry >> _OFFSET_SHIFT, state

    def _slot(self, cursor: Cursor | GroupCursor) -> int:
        """The number that stands for a cursor in entries; those of cursors without entries are given again."""
        slot = self._slots.get(cursor)
        if slot is None:
            if len(self._cursors) > _MANY_SLOTS + 2 * len(self._entries):
                self._forget_cursors()
            slot = self._slots[cursor] = len(self._cursors)
            self._cursors.append(cursor)
        return slot

    def _forget_cursors(self) -> None:
        kept = [(packet_id, self._unpack(packet_id, entry)) for packet_id, entry in self._entries.items()]
        self._cursors = [None]
        self._slots.clear()
        for packet_id, entry in kept:
            self._put(packet_id, entry)

    def _put(self, packet_id: int, entry: Entry) -> None:
        cursor, where, state = entry
        if isinstance(where, int):
            slot = self._slot(cursor)  # type: ignore[arg-type]  # a logged message has one
            self._entries[packet_id] = where << _OFFSET_SHIFT | slot << _SLOT_SHIFT | state
        else:
            self._entries[packet_id] = state
            self._messages[packet_id] = where

    def free_ids(self, count: int) -> Sequence[int]:
        """The next `count` packet ids that are not in use; fewer where fewer are free. None is taken yet."""
        first = self._next
        last = first + count
        entries, reserved = self._entries, self._reserved
        if (
            last <= MAX_PACKET_ID + 1
            and not reserved
            and (not entries or entries.keys().isdisjoint(range(first, last)))
        ):
            return range(first, last)
        # An id is new only while it isn't in use, and never 0: those around the wrap are looked at one by one. 3.1.1
        # [MQTT-2.3.1-4], [MQTT-4.3.2-1], [MQTT-4.3.3-1]; 5.0 [MQTT-2.2.1-4], [MQTT-4.3.2-1], [MQTT-4.3.3-1].
        found: list[int] = []
        candidate = first
        for _ in range(MAX_PACKET_ID):
            if len(found) == count:
                break
            if candidate > MAX_PACKET_ID:
                candidate = 1
            if candidate not in entries and candidate not in reserved:
                found.append(candidate)
            candidate += 1
        return found

    def take(
        self, packet_ids: Sequence[int], cursor: Cursor | GroupCursor, offsets: Sequence[int], state: int | list[int]
    ) -> None:
        """Note logged messages as sent under `packet_ids`, which `free_ids` gave."""
        tag = self._slot(cursor) << _SLOT_SHIFT
        first, count = offsets[0], len(offsets)
        entries: Iterable[int]
        if not isinstance(state, int):
            entries = [offset << _OFFSET_SHIFT | tag | qos for offset, qos in zip(offsets, state, strict=True)]
        elif offsets[-1] - first == count - 1:
            step = 1 << _OFFSET_SHIFT
            start = first * step + tag + state
            entries = range(start, start + count * step, step)
        else:
            tag |= state
            entries = [offset << _OFFSET_SHIFT | tag for offset in offsets]
        self._entries.update(zip(packet_ids, entries, strict=True))
        self._next = packet_ids[-1] % MAX_PACKET_ID + 1

    def take_message(self, message: Message, state: int) -> int:
        """Note one message that no log holds; returns its packet id, 0 where none is free."""
        free = self.free_ids(1)
        if not free:
            return 0
        packet_id = free[0]
        self._put(packet_id, (None, message, state))
        self._next = packet_id % MAX_PACKET_ID + 1
        return packet_id

    def pass_over(self, packet_id: int) -> None:
        """Use a packet id for nothing."""
        self._next = packet_id % MAX_PACKET_ID + 1

    def restore(self, packet_id: int, entry: Entry) -> None:
        """Put back an entry of an earlier connection, as it is sent again."""
        self._reserved.discard(packet_id)
        self._put(packet_id, entry)

    def reserve(self, packet_id: int) -> None:
        """Keep the id of a message that waits to be sent again."""
        self._reserved.add(packet_id)

    def release(self, packet_id: int) -> None:
        """The message that waited to be sent again never will be."""
        self._reserved.discard(packet_id)

    def acknowledged(self, packet_ids: Iterable[int]) -> bool:
        """Forget QoS 1 messages; ids that are not known are none of our business. False: one was a QoS 2 message's."""
        entries, messages, sent, mask = self._entries, self._messages, SENT_1, _STATE_MASK
        for packet_id in packet_ids:
            entry = entries.pop(packet_id, sent)
            if entry & mask != sent:
                entries[packet_id] = entry
                return False
            if messages:
                messages.pop(packet_id, None)
        return True

    def received(self, packet_id: int) -> bool:
        """Move a QoS 2 message on to RELEASED; False if the id is not that of one."""
        entry = self._entries.get(packet_id)
        if entry is None or entry & _STATE_MASK == SENT_1:
            return False
        self._entries[packet_id] = entry | RELEASED
        return True

    def get(self, packet_id: int) -> Entry | None:
        """The entry under a packet id."""
        entry = self._entries.get(packet_id)
        return None if entry is None else self._unpack(packet_id, entry)

    def lowest(self, cursor: Cursor | GroupCursor, but: AbstractSet[int] = frozenset()) -> int | None:
        """The lowest offset that is in flight for a cursor, packet ids in `but` aside; None for none."""
        slot = self._slots.get(cursor)
        if slot is None or not self._entries or (but and self._entries.keys() <= but):
            return None
        if not but and len(self._slots) == 1 and not self._messages:
            return min(self._entries.values()) >> _OFFSET_SHIFT
        return min(
            (
                entry >> _OFFSET_SHIFT
                for packet_id, entry in self._entries.items()
                if entry >> _SLOT_SHIFT & _SLOT_MASK == slot and packet_id not in but
            ),
            default=None,
        )

    def remove(self, packet_id: int) -> bool:
        """Forget an entry whatever its state: PUBCOMP came, or its message can't be sent. False: there is none."""
        self._messages.pop(packet_id, None)
        return self._entries.pop(packet_id, None) is not None

    def drain(self) -> list[tuple[int, Entry]]:
        """Empty it, as the connection is gone; the entries in the order they were sent. Their ids stay reserved."""
        entries = list(self)
        self._reserved.update(self._entries)
        self._entries.clear()
        self._messages.clear()
        self._forget_cursors()
        return entries

    @property
    def next_id(self) -> int:
        """The id that `free_ids` tries first; stored, so that ids don't start over after a restart."""
        return self._next

    @next_id.setter
    def next_id(self, packet_id: int) -> None:
        self._next = packet_id
