"""What the broker does with the packets of one network connection.

One call of `handle` for each chunk that was read: publishes are appended run by run, and all acknowledgements of the
chunk are sent as one write when the last of them is due.

Owner: the event loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from highway.errors import StorageError
from highway.mqtt import (
    PINGRESP,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    PingreqPacket,
    PubackRun,
    PubcompPacket,
    PublishRun,
    PubrecPacket,
    PubrelPacket,
    SubscribePacket,
    UnsubscribePacket,
    puback_bytes,
    pubrec_bytes,
)
from highway.storage import Durability

from .session_store import Puts, acknowledged_puts, received_put, released_put
from .subscribing import SubscribeOperation, unsubscribe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from highway.mqtt import Event, Will

    from .broker import Broker
    from .link import Link
    from .session import Session

__all__ = ["Client"]

logger = logging.getLogger("highway.broker")

PACKET_ID_NOT_FOUND = 0x92


class Client:
    """A connected client: the session that it is attached to, its will, and the acknowledgements that it waits for."""

    __slots__ = (
        "_acks",
        "_acks_mode",
        "_deferred",
        "_waiting",
        "broker",
        "client_id",
        "keep_alive",
        "link",
        "session",
        "will",
    )

    def __init__(self, broker: Broker, link: Link) -> None:
        self.broker = broker
        self.link = link
        self.session: Session | None = None
        self.client_id = ""
        self.keep_alive = 0  # seconds; 0: the client promised nothing
        self.will: Will | None = None
        self._acks: list[bytes] = []  # of the chunk at hand
        self._acks_mode = Durability.FAST  # the point at which the acknowledgements being gathered are due
        self._waiting = 0  # acknowledgements handed to the storage engine and not sent yet
        self._deferred: list[Event] | None = None  # what came after a CONNECT that waits for the journal

    def handle(self, events: Sequence[Event]) -> None:
        """Do what the packets of one chunk ask for."""
        if self._defer(events):
            return
        counters = self.broker.counters
        for index, event in enumerate(events):
            counters.messages_received += 1
            if self.session is None and type(event) is not ConnectPacket:
                return  # taken over or refused while the chunk was being worked off
            HANDLERS[type(event)](self, event)
            if self._defer(events[index + 1 :]):
                return
        if self._acks:
            self._send_acks()

    def _defer(self, events: Sequence[Event]) -> bool:
        """Keep events for later, if the CONNECT before them still waits for the journal."""
        if self._deferred is None:
            return False
        self._deferred.extend(events)
        return True

    def on_connect(self, packet: ConnectPacket) -> None:
        """Find or make the session; the answer may have to wait for the journal."""
        self.broker.connect(self, packet)

    def connected(self, connack: ConnackPacket, *, journaled: bool) -> None:
        """Answer CONNECT, after the journal has what it changed, and then let the session's messages flow."""
        if not journaled:
            self._answer_connect(connack)
            return
        self._deferred = []
        self.broker.storage.after(Durability.BALANCED, lambda error: self._connect_journaled(connack, error))

    def _connect_journaled(self, connack: ConnackPacket, error: StorageError | None) -> None:
        events, self._deferred = self._deferred or [], None
        if error is not None:
            # Readers and idle sensors are welcome while the disk takes nothing: they lose nothing by it.
            logger.warning("client %s: its session could not be stored: %s", self.client_id, error)
        self._answer_connect(connack)
        self.handle(events)

    def _answer_connect(self, connack: ConnackPacket) -> None:
        session = self.session
        if session is not None:
            self.link.established(self.keep_alive)
            self.link.write(connack.encode(session.version))
            self.broker.online(session)

    # Publishing.

    def on_publish(self, run: PublishRun) -> None:
        """Append a run, and gather its acknowledgements for the end of the chunk."""
        session, broker = self.session, self.broker
        assert session is not None
        count = len(run.payloads)
        broker.counters.publish_received += count
        broker.counters.messages_received += count - 1  # a run is many packets
        puts: Puts = []
        acks = b""
        if run.qos == 1:
            acks = puback_bytes(run.packet_ids)
        elif run.qos == 2:
            acks = pubrec_bytes(run.packet_ids)
            puts = self._receive_once(session, run)
        try:
            mode = broker.publish(run, puts) if run.payloads else broker.entry_durability(run.topic_name)
        except StorageError as error:
            # Not stored, not acknowledged: 3.1.1 has no other way to say so than to close.
            broker.refuse_publish(self, error)
            return
        if acks:
            self._acks.append(acks)
            self._acks_mode = max(self._acks_mode, mode)

    @staticmethod
    def _receive_once(session: Session, run: PublishRun) -> Puts:
        """Take out of `run` what came before; returns the packet ids to be stored with the rest. [MQTT-4.3.3-2]"""
        puts: Puts = []
        payloads = []
        for id_bytes, payload in zip(run.packet_ids, run.payloads, strict=True):
            packet_id = int.from_bytes(id_bytes, "big")
            if packet_id in session.received:
                continue
            session.received.add(packet_id)
            payloads.append(payload)
            if session.persistent:
                puts.append(received_put(session, packet_id, present=True))
        run.payloads = payloads
        return puts

    def _send_acks(self) -> None:
        data = b"".join(self._acks)
        self._acks.clear()
        if self._acks_mode is Durability.FAST:
            self.link.write(data)
        else:
            # [MQTT-4.6.0-2] Acknowledgements leave in the order of their messages: one that is due at once does not
            # pass those that wait for the disk, so the mode stays up until the last of them is out.
            self._waiting += 1
            self.broker.storage.after(self._acks_mode, lambda error: self._acks_due(data, error))
        self.broker.hold_back(self)

    def _acks_due(self, data: bytes, error: StorageError | None) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._acks_mode = Durability.FAST
        if error is None:
            self.link.write(data)
        elif self.session is not None:
            self.broker.refuse_publish(self, error)

    def on_pubrel(self, packet: PubrelPacket) -> None:
        """The client has our PUBREC: forget the id, then PUBCOMP."""
        session = self.session
        assert session is not None
        reason = 0 if packet.packet_id in session.received else PACKET_ID_NOT_FOUND
        session.received.discard(packet.packet_id)
        # An id that is unknown is answered too: a client that lost its memory could not finish otherwise.
        self._acks.append(PubcompPacket(packet.packet_id, reason).encode(session.version))
        if session.persistent and not reason:
            # Were PUBCOMP sent first and the removal lost, a new message under this id would be taken for a repetition.
            self.broker.store([received_put(session, packet.packet_id, present=False)])
            self._acks_mode = max(self._acks_mode, Durability.BALANCED)

    # Acknowledging.

    def on_pubacks(self, run: PubackRun) -> None:
        """The end of QoS 1 messages."""
        session = self.session
        assert session is not None
        self.broker.counters.messages_received += len(run.packet_ids) - 1
        session.inflight.acknowledged(run.packet_ids)
        self._acknowledged(session, run.packet_ids)

    def _acknowledged(self, session: Session, packet_ids: Sequence[int]) -> None:
        session.dirty = True
        if session.stored_ids:
            puts = acknowledged_puts(session, packet_ids)
            if puts:
                self.broker.store(puts, Durability.FAST)
        if session.behind or session.resend or session.retained:
            self.broker.pump(session)

    def on_pubrec(self, packet: PubrecPacket) -> None:
        """The client has a QoS 2 message: PUBREL."""
        session = self.session
        assert session is not None
        if packet.reason_code >= 0x80:
            session.inflight.remove(packet.packet_id)
            self._acknowledged(session, [packet.packet_id])
            return
        known = session.inflight.received(packet.packet_id)
        pubrel = PubrelPacket(packet.packet_id, 0 if known else PACKET_ID_NOT_FOUND).encode(session.version)
        entry = session.inflight.get(packet.packet_id)
        if known and session.persistent and entry is not None and entry[0] is not None and isinstance(entry[1], int):
            # Were PUBREL sent first and this lost, the message would be sent again and taken for a new one.
            self.broker.store([released_put(session, packet.packet_id, entry[0], entry[1], entry[2])])
            self._acks_mode = max(self._acks_mode, Durability.BALANCED)
        self._acks.append(pubrel)

    def on_pubcomp(self, packet: PubcompPacket) -> None:
        """The end of a QoS 2 message."""
        session = self.session
        assert session is not None
        session.inflight.remove(packet.packet_id)
        self._acknowledged(session, [packet.packet_id])

    # The rest.

    def on_subscribe(self, packet: SubscribePacket) -> None:
        """See `subscribing`."""
        assert self.session is not None
        SubscribeOperation(self, self.session, packet).run()

    def on_unsubscribe(self, packet: UnsubscribePacket) -> None:
        """See `subscribing`."""
        assert self.session is not None
        unsubscribe(self, self.session, packet)

    def on_pingreq(self, _: PingreqPacket) -> None:
        """[MQTT-3.12.4-1]; behind the acknowledgements of what came before it, as many clients take it for a barrier."""
        if self._acks or self._waiting:
            self._acks.append(PINGRESP)
        else:
            self.link.write(PINGRESP)

    def on_disconnect(self, packet: DisconnectPacket) -> None:
        """A clean end."""
        # [MQTT-3.1.2-10] The will goes with a DISCONNECT, unless MQTT 5 asks for it with reason 0x04.
        if packet.reason_code != 0x04:
            self.broker.take_back_will(self)
        self.link.close()
        self.lost()

    def lost(self) -> None:
        """The network connection is gone, or about to be: end or park the session. Idempotent."""
        self.broker.disconnected(self)

    def violated(self) -> None:
        """The client broke the protocol: what the rules say of its session, as if the connection had been lost."""
        self.broker.counters.malformed_packets += 1
        self.lost()


HANDLERS: dict[type, Callable[[Client, Any], None]] = {
    ConnectPacket: Client.on_connect,
    PublishRun: Client.on_publish,
    PubackRun: Client.on_pubacks,
    PubrecPacket: Client.on_pubrec,
    PubrelPacket: Client.on_pubrel,
    PubcompPacket: Client.on_pubcomp,
    SubscribePacket: Client.on_subscribe,
    UnsubscribePacket: Client.on_unsubscribe,
    PingreqPacket: Client.on_pingreq,
    DisconnectPacket: Client.on_disconnect,
}
