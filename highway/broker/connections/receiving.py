"""What of a run of messages depends on packet ids: which of them are new, and what its acknowledgements look like.

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from highway.broker.sessions.session_store import received_put

if TYPE_CHECKING:
    from collections.abc import Iterable

    from highway.broker.sessions.session import Session
    from highway.broker.sessions.session_store import Puts
    from highway.mqtt import PublishRun

__all__ = ["give_back", "reasoned_acks", "receive_once"]


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


def reasoned_acks(run: PublishRun, reason_code: int) -> bytes:
    """PUBACK or PUBREC with a reason, for each message of a run; MQTT 5 only."""
    head = b"\x40\x03" if run.qos == 1 else b"\x50\x03"
    between = bytes((reason_code,)) + head
    return head + between.join(run.packet_ids) + between[:1]
