"""UNSUBSCRIBE: subscriptions end, and with them the cursors that only they needed.

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from highway.broker.sessions.reader import ORDINARY
from highway.broker.sessions.session_store import Puts, cursor_drop, inflight_puts, session_put, subscription_puts
from highway.mqtt import MAX_PACKET_BYTES, ReasonCode, UnsubackPacket
from highway.mqtt.packets import encode_within
from highway.storage import Durability

if TYPE_CHECKING:
    from highway.broker.connections.client import Client
    from highway.broker.sessions.reader import Reader
    from highway.broker.sessions.session import Session
    from highway.errors import StorageError
    from highway.mqtt import UnsubscribePacket

__all__ = ["unsubscribe"]


def unsubscribe(client: Client, session: Session, packet: UnsubscribePacket) -> None:
    """End the subscriptions that are named, then send UNSUBACK; for a persistent session once the journal knows."""
    broker = client.broker
    puts: Puts = inflight_puts(session) if session.persistent else []
    codes = _end(session, packet, puts)
    companion = client.identity.companion
    if companion is not None:
        for name, code in zip(packet.topic_filters, codes, strict=True):
            if code == ReasonCode.SUCCESS:
                companion.unsubscribed(name)

    def answer(error: StorageError | None) -> None:
        # Whatever became of it, it is answered, in its order and under its packet id: [MQTT-3.10.4-4], [MQTT-3.10.4-5],
        # 3.1.1 [MQTT-2.3.1-7], 5.0 [MQTT-2.2.1-6], [MQTT-3.11.3-1], [MQTT-3.11.3-2].
        answers: list[int] = codes if error is None else [ReasonCode.UNSPECIFIED_ERROR] * len(codes)
        unsuback = UnsubackPacket(packet.packet_id, answers)
        broker.counters.control_sent += 1
        client.link.write(encode_within(unsuback, session.version, session.max_packet_bytes or MAX_PACKET_BYTES))

    if not session.persistent:
        if puts:
            broker.store(puts)
        answer(None)
        return
    broker.store([session_put(session), *subscription_puts(session, packet.topic_filters), *puts])
    broker.storage.after(Durability.BALANCED, answer)


def _end(session: Session, packet: UnsubscribePacket, puts: Puts) -> list[int]:
    """End subscriptions; returns a reason code for each, and adds what has to be stored of it to `puts`.

    Filters are compared byte by byte, and one after the other: [MQTT-3.10.4-1], [MQTT-3.10.4-6]. No new message goes to
    one that is gone, and what was sent is completed: [MQTT-3.10.4-2], [MQTT-3.10.4-3].
    """
    broker = session.broker
    codes: list[int] = []
    changed: dict[Reader, None] = {}
    for name in packet.topic_filters:
        withdrawn = session.subscribing.pop(name, ())
        for operation, index in withdrawn:
            operation.withdraw(index)
        if name in session.groups:
            puts += broker.leave_group(session, name)
            codes.append(ReasonCode.SUCCESS)
            continue
        reader = session.reader_of(name)
        subscription = reader.remove(name) if reader is not None else None
        if reader is None or subscription is None:
            codes.append(ReasonCode.SUCCESS if withdrawn else ReasonCode.NO_SUBSCRIPTION_EXISTED)
            continue
        codes.append(ReasonCode.SUCCESS)
        broker.router.remove(subscription)
        session.drop_snapshot(name)
        changed[reader] = None
    for reader in changed:
        needed = broker.router.feeds_of(s.topic_filter for s in reader.subscriptions.values())
        puts += [cursor_drop(reader.drop(feed)) for feed in list(reader.cursors) if feed not in needed]
        if not reader.subscriptions and reader.source != ORDINARY:
            del session.readers[reader.source]
    return codes
