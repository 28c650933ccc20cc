"""Message expiry (MQTT 5): how long a message still lives when it leaves, found in its raw property block.

A block is looked at once and remembered, as publishers send the same one again and again.

Owner: the event loop.
"""

from __future__ import annotations

from highway.mqtt import PacketType, PropertyId, find_property

__all__ = ["EXPIRED", "remaining"]

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
    position = _position(block)
    if position < 0:
        return block
    seconds = int.from_bytes(block[position : position + 4], "big")
    waited = max(0, now_ms - stored_ms) // 1000
    if waited >= seconds:
        return EXPIRED
    return block[:position] + (seconds - waited).to_bytes(4, "big") + block[position + 4 :]
