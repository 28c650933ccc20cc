"""Who published a stored message, where that decides who gets it: No Local.

A subscription with No Local must not get what its own client published (5.0 [MQTT-3.8.3-3]), also when it reads the
message from the log days later. Only messages whose publisher has such a subscription at that time carry the mark, so
that everybody else pays nothing: flag bit 4 of the record, and client id length u16 and client id in front of the
property block.

Owner: the event loop.
"""

from __future__ import annotations

__all__ = ["FLAG_PUBLISHER", "mark_publisher", "split_publisher"]

FLAG_PUBLISHER = 0b0001_0000


def mark_publisher(client_id: str, properties: bytes) -> bytes:
    """The stored properties of a message that `client_id` published."""
    name = client_id.encode()
    return len(name).to_bytes(2, "big") + name + properties


def split_publisher(stored: bytes) -> tuple[str, bytes]:
    """(client id, property block) of stored properties with the flag."""
    end = 2 + int.from_bytes(stored[:2], "big")
    return stored[2:end].decode(), stored[end:]
