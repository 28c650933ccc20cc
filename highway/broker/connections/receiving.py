"""What of a run of messages depends on packet ids: which of them are new, and what its acknowledgements look like.

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from highway.broker.sessions.session_store import received_put
from highway.mqtt import V5, PubackPacket, PubrecPacket, ReasonCode, puback_bytes, pubrec_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from highway.broker.broker import Broker
    from highway.broker.sessions.session import Session
    from highway.broker.sessions.session_store import Puts
    from highway.mqtt import PublishRun
    from highway.storage import Durability

__all__ = ["give_back", "mqtt_5_acks", "plain_acks", "reasoned_acks", "receive_once", "refused_acks"]


def receive_once(session: Session, run: PublishRun, puts: Puts) -> list[bytes]:
    """Take out of `run` what came before, put the other packet ids to what has to be stored, and return them.

    3.1.1 [MQTT-4.3.3-2], 5.0 [MQTT-4.3.3-10]
    """
    new = []
    payloads = []
    for id_bytes, payload in zip(run.packet_ids, run.payloads, strict=True):
        packet_id = int.from_bytes(id_bytes, "big")
        if packet_id in session.received:
            continue
        session.received.add(packet_id)
        new.append(id_bytes)
        payloads.append(payload)
        if session.persistent:
            puts.append(received_put(session, packet_id, present=True))
    run.payloads = payloads
    return new


def give_back(session: Session, packet_ids: Iterable[bytes]) -> None:
    """Forget QoS 2 ids of messages that were not taken: under them comes a new one. 5.0 [MQTT-4.3.3-9]"""
    session.received.difference_update(int.from_bytes(id_bytes, "big") for id_bytes in packet_ids)


def plain_acks(run: PublishRun) -> bytes:
    """What each message of a run of QoS 1 or 2 is answered with where nothing is to be said but that it was taken."""
    return puback_bytes(run.packet_ids) if run.qos == 1 else pubrec_bytes(run.packet_ids)


def reasoned_acks(run: PublishRun, reason_code: int) -> bytes:
    """PUBACK or PUBREC with a reason, for each message of a run; MQTT 5 only."""
    head = b"\x40\x03" if run.qos == 1 else b"\x50\x03"
    between = bytes((reason_code,)) + head
    return head + between.join(run.packet_ids) + between[:1]


def refused_acks(run: PublishRun, new: Collection[bytes], reason_code: int) -> bytes:
    """What a run is answered with that was not stored, of which the QoS 2 ids in `new` were not known; MQTT 5 only."""
    if run.qos == 1:
        return reasoned_acks(run, reason_code)
    reason = bytes((reason_code,))
    # Repetitions of what is stored are among them.
    return b"".join(
        b"\x50\x03" + id_bytes + reason if id_bytes in new else b"\x50\x02" + id_bytes for id_bytes in run.packet_ids
    )


def mqtt_5_acks(broker: Broker, session: Session, run: PublishRun, acks: bytes, mode: Durability | None) -> bytes:
    """The acknowledgements of a run, with what MQTT 5 can say more than that it was taken.

    `mode` is the point at which they are due, None for what nothing takes; `acks` those that say nothing more.
    """
    if mode is None:
        give_back(session, run.packet_ids)
        return reasoned_acks(run, ReasonCode.NOT_AUTHORIZED)
    if session.ack_offsets:
        return _acks_with_offsets(broker, run, mode) or acks
    if run.qos == 1 and not broker.router.route(run.topic_name).has_subscribers:
        return reasoned_acks(run, ReasonCode.NO_MATCHING_SUBSCRIBERS)
    return acks


def _acks_with_offsets(broker: Broker, run: PublishRun, mode: Durability) -> bytes:
    """Acknowledgements that say where each message is; b"" where not every one of the run was stored just now."""
    broker.gathering.flush()  # the log ends with this run then
    feed = broker.router.route(run.topic_name).feed
    if feed is None or len(run.payloads) != len(run.packet_ids):
        return b""
    kind = PubackPacket if run.qos == 1 else PubrecPacket
    base_offset = feed.log.log_end_offset - len(run.payloads)
    data = []
    for offset, id_bytes in enumerate(run.packet_ids, base_offset):
        packet = kind(int.from_bytes(id_bytes, "big"))
        packet.properties.add_user_property("offset", str(offset))
        packet.properties.add_user_property("durability", mode.name)
        data.append(packet.encode(V5))
    return b"".join(data)
