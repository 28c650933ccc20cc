"""What a client says of the messages that it was sent: PUBACK, PUBREC and PUBCOMP.

Owner: the event loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from highway.broker.sessions.inflight import RELEASED
from highway.broker.sessions.session_store import acknowledged_puts, released_put
from highway.log_lines import about
from highway.mqtt import PubrelPacket, ReasonCode
from highway.storage import Durability

if TYPE_CHECKING:
    from collections.abc import Sequence

    from highway.broker.sessions.session import Session
    from highway.mqtt import PubackRun, PubcompPacket, PubrecPacket

    from .client import Client

__all__ = ["on_pubacks", "on_pubcomp", "on_pubrec"]

logger = logging.getLogger("highway.broker")


def on_pubacks(client: Client, run: PubackRun) -> None:
    """The end of QoS 1 messages, whatever the reason code says: 5.0 [MQTT-4.4.0-2], [MQTT-4.8.2-6]."""
    session = client.session
    assert session is not None
    client.broker.counters.messages_received += len(run.packet_ids) - 1
    if not session.inflight.acknowledged(run.packet_ids):
        before = [packet_id for packet_id in run.packet_ids if packet_id not in session.inflight]
        _go_on(client, session, before)
        _end_for_wrong_kind(client, "PUBACK for a QoS 2 message")
        return
    _go_on(client, session, run.packet_ids)


def on_pubrec(client: Client, packet: PubrecPacket) -> None:
    """The client has a QoS 2 message: PUBREL. 3.1.1 [MQTT-4.3.3-1], 5.0 [MQTT-4.3.3-4]"""
    session = client.session
    assert session is not None
    if packet.reason_code >= 0x80:  # 5.0 [MQTT-4.4.0-2], [MQTT-4.8.2-6]
        session.inflight.remove(packet.packet_id)
        _go_on(client, session, [packet.packet_id])
        return
    known = session.inflight.received(packet.packet_id)
    entry = session.inflight.get(packet.packet_id)
    if entry is not None and not known:
        _end_for_wrong_kind(client, "PUBREC for a QoS 1 message")
        return
    # An id that is unknown is answered all the same: a client that lost our PUBCOMP could not finish otherwise.
    pubrel = PubrelPacket(packet.packet_id).encode(session.version)
    mode = Durability.FAST
    if known and session.persistent and entry is not None:
        # Were PUBREL sent first and this lost, the message would be sent again and taken for a new one.
        client.broker.store_first(session, [released_put(session, packet.packet_id, entry)])
        mode = Durability.SAFE
    client.answer(pubrel, mode)


def on_pubcomp(client: Client, packet: PubcompPacket) -> None:
    """The end of a QoS 2 message."""
    session = client.session
    assert session is not None
    entry = session.inflight.get(packet.packet_id)
    if entry is not None and entry[2] != RELEASED:
        _end_for_wrong_kind(client, "PUBCOMP for a message that was not released")
        return
    session.inflight.remove(packet.packet_id)
    _go_on(client, session, [packet.packet_id])


def _go_on(client: Client, session: Session, packet_ids: Sequence[int]) -> None:
    """Forget what is stored of messages that are acknowledged, and let those follow that waited for room."""
    session.dirty = True
    session.window_full_since_ms = None
    if session.stored_ids:
        puts = acknowledged_puts(session, packet_ids)
        if puts:
            client.broker.store(puts, Durability.FAST)
    if session.behind or session.resend or session.retained:
        client.broker.pump_later(session)
    for group, _ in session.groups.values():
        group.dirty = True
        group.wake()


def _end_for_wrong_kind(client: Client, what: str) -> None:
    """Close for an acknowledgement that its message does not ask for: the client's state and ours differ.

    3.1.1 [MQTT-4.8.0-1], 5.0 [MQTT-4.13.1-1]
    """
    logger.warning("closed: %s", what, extra=about(client=client.client_id, peer=client.link.peer))
    client.broker.counters.malformed_packets += 1
    client.end(ReasonCode.PROTOCOL_ERROR)
