"""How a client is told which messages it will never get: MQTT 5 with the next delivery, 3.1.1 on `$gap/<log>`.

Owner: the event loop.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from highway.broker.replay.options import user_property
from highway.broker.sessions.inflight import Message
from highway.mqtt import V5

if TYPE_CHECKING:
    from highway.broker.sessions.reader import Reader
    from highway.broker.sessions.session import Session
    from highway.storage import Gap

__all__ = ["gap_properties", "send_gap_notice", "send_gap_packet"]


def gap_properties(gap: Gap) -> bytes:
    """The user properties that tell of a gap, for the next delivery."""
    return user_property("gap", f"{gap.from_offset}-{gap.to_offset - 1}") + user_property("gap-reason", gap.reason)


def send_gap_packet(session: Session, log: str, gap: Gap) -> None:
    """Tell a 3.1.1 client that asked for a replay."""
    value = {"from": gap.from_offset, "to": gap.to_offset - 1, "reason": gap.reason}
    message = Message(b"$gap/" + log.encode(), json.dumps(value).encode(), 0, False, b"")
    session.send(message.encode(session.version, 0), 1)


def send_gap_notice(reader: Reader, log: str, gap: Gap) -> None:
    """Tell a reader which offsets are gone. An ordinary subscription of 3.1.1 asked for no `$gap`, and gets none."""
    if reader.session.version == V5:
        reader.notice += gap_properties(gap)
    elif reader.source:
        send_gap_packet(reader.session, log, gap)
