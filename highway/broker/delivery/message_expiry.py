"""Message expiry (MQTT 5): how long a message still lives when it leaves, found in its raw property block.

A block is looked at once and remembered, as publishers send the same one again and again.

Owner: the event loop.
"""

from __future__ import annotations

from highway.mqtt import PacketType, PropertyId, find_property

__all__ = ["EXPIRED", "remaining", "remaining_after_send"]

# What `remaining` returns for a message whose time is over.
EXPIRED = None

_MAX_REMEMBERED = 4096
_MAX_REMEMBERED_BYTES = 256
_positions: dict[bytes, int] = {}


def _position(block: bytes) -> int:
    """Where the four bytes of the interval stand in the block, -1 where there is none."""
    position = _positions.get(block)
    if position is None:
        position = find_property(block, PacketType.PUBLISH, PropertyId.MESSAGE_EXPIRY_INTERVAL)
        if len(block) <= _MAX_REMEMBERED_BYTES:
            if len(_positions) >= _MAX_REMEMBERED:
                _positions.clear()
            _positions[block] = position
    return position


def remaining(block: bytes, stored_ms: int, now_ms: int) -> bytes | None:
    """The block with the seconds that are left at `now_ms`, or EXPIRED. 5.0 [MQTT-3.3.2-5], 5.0 [MQTT-3.3.2-6]

    `stored_ms` is when the broker took the message. A wall clock that stepped back never shortens a life.
    """
    seconds, left = _count_down(block, stored_ms, now_ms)
    return EXPIRED if seconds <= 0 else left


def remaining_after_send(block: bytes, stored_ms: int, now_ms: int) -> bytes:
    """The same for a message that was sent before and does not expire any more: 0 s at the least. 5.0 [MQTT-4.3.3-7]"""
    return _count_down(block, stored_ms, now_ms)[1]


def _count_down(block: bytes, stored_ms: int, now_ms: int) -> tuple[int, bytes]:
    """(seconds that are left, block that says so), the block as it is and one second where nothing ends its life."""
    position = _position(block)
    if position < 0:
        return 1, block
    seconds = int.from_bytes(block[position : position + 4], "big") - max(0, now_ms - stored_ms) // 1000
    return seconds, block[:position] + max(0, seconds).to_bytes(4, "big") + block[position + 4 :]
