"""How much an MQTT 5 client has under way towards us: Receive Maximum, the way in. 5.0 [MQTT-3.3.4-7]

A QoS 1 message is under way until its PUBACK is written, a QoS 2 message until PUBREL came. What a session had under
way when it was resumed counts when the client sends it again, as its quota started afresh with the connection (4.9).

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from highway.mqtt import PublishRun

__all__ = ["ReceiveWindow"]


class ReceiveWindow:
    """The window of one connection. `received` is the session's own set of QoS 2 packet ids that are not released."""

    __slots__ = ("_before", "_gathered", "_limit", "_unacknowledged")

    def __init__(self, limit: int, received: Collection[int]) -> None:
        self._limit = limit
        self._before = set(received)  # packet ids of an earlier connection
        self._unacknowledged = 0  # QoS 1 messages whose PUBACK is not written
        self._gathered = 0  # those of them whose PUBACK is gathered for the next write

    def take(self, run: PublishRun, new: int, received: Collection[int]) -> bool:
        """Count a run of QoS 1 or 2, of which `new` QoS 2 ids were unknown; False where the client sent too much."""
        count = len(run.packet_ids)
        if run.qos == 1:
            self._unacknowledged += count
            self._gathered += count
        elif self._before:
            self._before.difference_update(int.from_bytes(id_bytes, "big") for id_bytes in run.packet_ids)
        under_way = self._unacknowledged + len(received) - len(self._before)
        # With 65,535 for a limit there is no room above it: there it is ids in use that tell.
        is_reused = run.qos == 2 and new < count and not run.dup
        return under_way < self._limit or (under_way == self._limit and not is_reused)

    def has_room(self, received: Collection[int]) -> bool:
        """Whether one more message would not be too much."""
        return self._unacknowledged + len(received) - len(self._before) < self._limit

    def take_one(self) -> None:
        """Count a QoS 1 message for which there is room, and whose PUBACK is written by itself."""
        self._unacknowledged += 1

    def released(self, packet_id: int) -> None:
        """PUBREL came."""
        self._before.discard(packet_id)

    def gathered(self) -> int:
        """QoS 1 messages taken since the last call: their PUBACKs are in one write, which `written` follows."""
        count, self._gathered = self._gathered, 0
        return count

    def written(self, count: int) -> None:
        """So many PUBACKs are out."""
        self._unacknowledged -= count
