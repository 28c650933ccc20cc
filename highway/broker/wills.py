"""Wills in the log's key-value store, so that a broker that was killed still owes them.

    key                  value
    w/<client id>        QoS and retain u8, topic length u16, properties length u16, topic, properties, payload

A will is stored with its CONNECT and dropped in the journal frame of its own publication, or with the DISCONNECT
that takes it back: it is published once, however often the broker is killed.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from highway.mqtt import Will

if TYPE_CHECKING:
    from collections.abc import Iterator

    from highway.storage import Meta

__all__ = ["load_wills", "will_drop", "will_put"]

_WILL = struct.Struct(">BHH")
_RETAIN = 4


def will_put(client_id: str, will: Will) -> tuple[bytes, bytes]:
    """The will of a connected client."""
    head = _WILL.pack(will.qos | (_RETAIN if will.retain else 0), len(will.topic_name), len(will.properties))
    return b"w/" + client_id.encode(), head + will.topic_name + will.properties + will.payload


def will_drop(client_id: str) -> tuple[bytes, None]:
    """The end of a will: published, or taken back."""
    return b"w/" + client_id.encode(), None


def load_wills(meta: Meta) -> Iterator[tuple[str, Will]]:
    """Client id and will of every client that was connected when the broker stopped."""
    for key, value in meta.items(b"w/"):
        flags, topic_length, properties_length = _WILL.unpack_from(value)
        topic_end = _WILL.size + topic_length
        payload_at = topic_end + properties_length
        yield (
            key[2:].decode(),
            Will(
                value[_WILL.size : topic_end],
                value[payload_at:],
                qos=flags & 3,
                retain=bool(flags & _RETAIN),
                properties=value[topic_end:payload_at],
            ),
        )
