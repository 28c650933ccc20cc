"""Wills: published when a connection ends without DISCONNECT, with their delay, and after a crash of the broker.

A will is stored when its CONNECT is answered, and forgotten when it is published or its client says DISCONNECT. So a
broker that finds one at its start knows of a connection that nobody ended, and publishes it.

Owner: the event loop.
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING

from highway.broker.authorisation import Right
from highway.errors import ProtocolError, StorageError
from highway.log_lines import about
from highway.mqtt import PublishRun, Will, publish_first_byte

if TYPE_CHECKING:
    from highway.broker.authorisation import Rights
    from highway.broker.broker import Broker
    from highway.broker.sessions.session_store import Puts

    from .client import Client
    from .link import TimerHandle

__all__ = ["Wills", "decode_will", "encode_will"]

logger = logging.getLogger("highway.broker")

_STORED = struct.Struct(">BIHH")  # first byte of the PUBLISH, delay in seconds, length of topic name and of properties


class Wills:
    """The stored wills, and those that wait for their delay."""

    __slots__ = ("_broker", "_waiting")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[str, tuple[Will, TimerHandle]] = {}  # by client id

    def start(self) -> None:
        """Deal with the wills of connections that the last run of the broker didn't see the end of."""
        for key, value in list(self._broker.storage.meta.items(b"w/")):
            self.connection_lost(key[2:].decode(), decode_will(value))

    @staticmethod
    def set_puts(client_id: str, will: Will | None) -> Puts:
        """The change that stores the will of a new connection. 3.1.1 [MQTT-3.1.2-8], 5.0 [MQTT-3.1.2-7]"""
        return [] if will is None else [(b"w/" + client_id.encode(), encode_will(will))]

    def forget(self, client_id: str, will: Will | None) -> None:
        """The client said DISCONNECT: there is no will any more. [MQTT-3.1.2-10]"""
        if will is not None:
            self._broker.store([(b"w/" + client_id.encode(), None)])

    def look_at_rights(self, client: Client, will: Will, rights: Rights) -> None:
        """Take the will from a client that lost the right to it; one that a judge has to decide about stays."""
        if rights.verdict(Right.PUBLISH, will.topic_name) is False:
            logger.warning("no right to its will any more", extra=about(client=client.client_id, topic=will.topic_name))
            self.forget(client.client_id, will)
            client.will = None

    def connection_lost(self, client_id: str, will: Will) -> None:
        """Publish the will, now or after its delay, but not after the end of a session that outlived the connection.

        Where the client asked for a delay and said nothing of the session, the delay stands all the same: until it is
        over a new connection takes the will away, whatever became of the session. [MQTT-3.1.2-8]
        """
        session = self._broker.sessions.get(client_id)
        delay_s: float = will.delay_interval
        if session is not None and session.expiry_ms is not None:
            delay_s = min(delay_s, session.expiry_ms / 1000)
        if delay_s <= 0:
            self._publish(client_id, will)
            return
        self._waiting[client_id] = (will, self._broker.scheduler.call_later(delay_s, self._due, client_id))

    def resumed(self, client_id: str) -> Puts:
        """The client is back within the delay: its will is not published; returns what has to be stored for that.

        5.0 [MQTT-3.1.3-9]
        """
        waiting = self._waiting.pop(client_id, None)
        if waiting is None:
            return []
        waiting[1].cancel()
        return [(b"w/" + client_id.encode(), None)]

    def session_ended(self, client_id: str) -> None:
        """A will that waits goes with the end of its session."""
        waiting = self._waiting.pop(client_id, None)
        if waiting is not None:
            waiting[1].cancel()
            self._publish(client_id, waiting[0])

    def close(self) -> None:
        """Stop the timers; what waits is stored."""
        for _, timer in self._waiting.values():
            timer.cancel()

    def _due(self, client_id: str) -> None:
        will, _ = self._waiting.pop(client_id)
        self._publish(client_id, will)

    def _publish(self, client_id: str, will: Will) -> None:
        """Publish a will as its CONNECT asked for, and forget it.

        [MQTT-3.1.2-10]; 3.1.1 [MQTT-3.1.2-16], [MQTT-3.1.2-17]; 5.0 [MQTT-3.1.2-14], [MQTT-3.1.2-15]
        """
        run = PublishRun(
            will.topic_name, publish_first_byte(will.qos, retain=will.retain), [will.payload], [], will.properties
        )
        key = b"w/" + client_id.encode()
        # In the same journal frame as the message: it is published once, also when the broker dies right here.
        puts: Puts = [] if client_id in self._broker.clients else [(key, None)]
        try:
            if self._broker.publish(run, puts) is None:
                self._broker.store(puts)  # nothing took the message, and the change with it
        except StorageError as error:
            logger.error("its will could not be stored: %s", error, extra=about(client=client_id))
        except ProtocolError as error:  # it was within the limits that counted when it came
            logger.warning("its will is dropped: %s", error, extra=about(client=client_id, topic=will.topic_name))
            self._broker.store(puts)


def encode_will(will: Will) -> bytes:
    """A will as it is stored."""
    first_byte = publish_first_byte(will.qos, retain=will.retain)
    head = _STORED.pack(first_byte, will.delay_interval, len(will.topic_name), len(will.properties))
    return head + will.topic_name + will.properties + will.payload


def decode_will(stored: bytes) -> Will:
    """The will that `encode_will` made bytes of."""
    first_byte, delay, topic_length, properties_length = _STORED.unpack_from(stored)
    topic_end = _STORED.size + topic_length
    payload_at = topic_end + properties_length
    return Will(
        stored[_STORED.size : topic_end],
        stored[payload_at:],
        first_byte >> 1 & 3,
        bool(first_byte & 1),
        stored[topic_end:payload_at],
        delay,
    )
