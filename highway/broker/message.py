"""A message that no log holds, on its way through the broker.

Owner: the event loop.
"""

from __future__ import annotations

from typing import NamedTuple

from highway.mqtt import encode_publish

__all__ = ["Message"]


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
