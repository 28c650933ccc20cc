"""The messages that a session sent and that are not acknowledged yet, by packet id, in the order they were sent.

An entry says where its message is, not what it is: the log has it. Only what no log holds (retained and `$...`
messages) is kept as itself.

    state      waits for        then
    SENT_1     PUBACK           gone                            3.1.1 [MQTT-4.3.2-1], 5.0 [MQTT-4.3.2-3]
    SENT_2     PUBREC           RELEASED, we answer PUBREL      3.1.1 [MQTT-4.3.3-1], 5.0 [MQTT-4.3.3-3]
    RELEASED   PUBCOMP          gone                            3.1.1 [MQTT-4.3.3-1], 5.0 [MQTT-4.3.3-5]

Owner: the event loop.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from highway.mqtt import encode_publish

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from highway.broker.delivery.cursor import Cursor
    from highway.broker.subscriptions.shared import GroupCursor

__all__ = ["RELEASED", "SENT_1", "SENT_2", "Entry", "Inflight", "Message"]

SENT_1, SENT_2, RELEASED = 1, 2, 3

MAX_PACKET_ID = 65_535


class Message(NamedTuple):
    """An application message outside any log: a retained message being sent, or one on a `$...` topic."""

    topic_name: bytes
    payload: bytes
    qos: int
    retain: bool
    properties: bytes
    stored_ms: int = 0  # when the broker took it
    publisher: str = ""  # client id of who published a retained message, for No Local
    # Where a retained message is; not kept across a restart, as no subscription began before it then.
    log: str = ""
    offset: int = -1

    def encode(self, version: int, qos: int, packet_id: int = 0, *, dup: bool = False) -> bytes:
        """The PUBLISH at a granted QoS."""
        return encode_publish(
            version,
            self.topic_name,
            self.payload,
            qos=qos,
            retain=self.retain,
            dup=dup,
            packet_id=packet_id,
            properties=self.properties,
        )


# (cursor, offset, state) of a logged message; (None, message, state) of one that no log holds.
Entry = tuple["Cursor | GroupCursor | None", "int | Message", int]


class Inflight:
    """Packet ids in use, and the ids that come next. `len()` counts against the receive maximum."""

    __slots__ = ("_entries", "_next", "_reserved")

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self._reserved: set[int] = set()  # of messages that wait to be sent again
        self._next = 1

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, packet_id: int) -> bool:
        return packet_id in self._entries

    def __iter__(self) -> Iterator[tuple[int, Entry]]:
        return iter(self._entries.items())

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
        self, packet_ids: Sequence[int], cursor: Cursor | GroupCursor, offsets: Iterable[int], state: int | list[int]
    ) -> None:
        """Note logged messages as sent under `packet_ids`, which `free_ids` gave."""
        states = repeat(state) if isinstance(state, int) else state
        self._entries.update(zip(packet_ids, zip(repeat(cursor), offsets, states, strict=False), strict=True))
        self._next = packet_ids[-1] % MAX_PACKET_ID + 1

    def take_message(self, message: Message, state: int) -> int:
        """Note one message that no log holds; returns its packet id, 0 where none is free."""
        free = self.free_ids(1)
        if not free:
            return 0
        packet_id = free[0]
        self._entries[packet_id] = (None, message, state)
        self._next = packet_id % MAX_PACKET_ID + 1
        return packet_id

    def pass_over(self, packet_id: int) -> None:
        """Use a packet id for nothing."""
        self._next = packet_id % MAX_PACKET_ID + 1

    def restore(self, packet_id: int, entry: Entry) -> None:
        """Put back an entry of an earlier connection, as it is sent again."""
        self._reserved.discard(packet_id)
        self._entries[packet_id] = entry

    def reserve(self, packet_id: int) -> None:
        """Keep the id of a message that waits to be sent again."""
        self._reserved.add(packet_id)

    def release(self, packet_id: int) -> None:
        """The message that waited to be sent again never will be."""
        self._reserved.discard(packet_id)

    def acknowledged(self, packet_ids: Iterable[int]) -> bool:
        """Forget QoS 1 messages; ids that are not known are none of our business. False: one was a QoS 2 message's."""
        entries = self._entries
        for packet_id in packet_ids:
            entry = entries.pop(packet_id, None)
            if entry is not None and entry[2] != SENT_1:
                entries[packet_id] = entry
                return False
        return True

    def received(self, packet_id: int) -> bool:
        """Move a QoS 2 message on to RELEASED; False if the id is not that of one."""
        entry = self._entries.get(packet_id)
        if entry is None or entry[2] == SENT_1:
            return False
        self._entries[packet_id] = (entry[0], entry[1], RELEASED)
        return True

    def get(self, packet_id: int) -> Entry | None:
        """The entry under a packet id."""
        return self._entries.get(packet_id)

    def remove(self, packet_id: int) -> Entry | None:
        """Forget an entry whatever its state: PUBCOMP came, or its message can't be sent any more."""
        return self._entries.pop(packet_id, None)

    def drain(self) -> list[tuple[int, Entry]]:
        """Empty it, as the connection is gone; the entries in the order they were sent. Their ids stay reserved."""
        entries = list(self._entries.items())
        self._reserved.update(self._entries)
        self._entries.clear()
        return entries

    @property
    def next_id(self) -> int:
        """The id that `free_ids` tries first; stored, so that ids don't start over after a restart."""
        return self._next

    @next_id.setter
    def next_id(self, packet_id: int) -> None:
        self._next = packet_id
