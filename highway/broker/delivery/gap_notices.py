"""How a client is told which messages it will never get: MQTT 5 with the next delivery, 3.1.1 on `$gap/<log>`.

Owner: the event loop.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from highway.broker.message import Message
from highway.broker.replay.options import user_property
from highway.log_lines import about
from highway.mqtt import V5

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from highway.broker.sessions.reader import Reader
    from highway.broker.sessions.session import Session
    from highway.storage import Gap

__all__ = ["GapNotices", "send_gap_notice", "tell_otherwise"]

logger = logging.getLogger("highway.broker")

# Deliveries without room for a notice that it waits for: a client's small messages are told with, its large ones not.
MAX_DELIVERIES = 100


class GapNotices:
    """Gaps, with their logs, that a client is still to be told of; an MQTT 5 client with a delivery that has room."""

    __slots__ = ("_gaps", "_without_room")

    def __init__(self) -> None:
        self._gaps: list[tuple[str, Gap]] = []
        self._without_room = 0  # deliveries since something was told

    def __len__(self) -> int:
        return len(self._gaps)

    def add(self, log: str, gap: Gap) -> None:
        """Tell of a gap too."""
        self._gaps.append((log, gap))

    def forget_first(self) -> None:
        """Don't tell of the oldest."""
        del self._gaps[0]

    def take(self, session: Session, fits: Callable[[int], bool]) -> bytes:
        """The user properties that go with a delivery; `fits` says whether that has room for so many bytes of them.

        The reasons are left out where there is no room for them, and gaps that don't fit wait for the next delivery.
        When there has been room for none for long, they are given up, counted and logged.
        """
        for count, properties in self._forms():
            if fits(len(properties)):
                del self._gaps[:count]
                self._without_room = 0
                return properties
        self._without_room += 1
        if self._without_room >= MAX_DELIVERIES:
            self._give_up(session)
        return b""

    def _forms(self) -> Iterator[tuple[int, bytes]]:
        """(how many gaps, the properties that tell of them), the most telling form first."""
        ranges = [user_property("gap", f"{gap.from_offset}-{gap.to_offset - 1}") for _, gap in self._gaps]
        reasons = [user_property("gap-reason", gap.reason) for _, gap in self._gaps]
        count = len(ranges)
        yield count, b"".join(map(b"".join, zip(ranges, reasons, strict=True)))
        while count:
            yield count, b"".join(ranges[:count])
            count //= 2

    def _give_up(self, session: Session) -> None:
        session.broker.counters.gap_notices_dropped += len(self._gaps)
        logger.warning(
            "%d gaps can't be told, from %s of log %s on: no message has room for them in a Maximum Packet Size of %d",
            *(len(self._gaps), self._gaps[0][1].from_offset, self._gaps[0][0], session.max_packet_bytes),
            extra=about(client=session.client_id),
        )
        self._gaps.clear()
        self._without_room = 0

    def send_packets(self, session: Session) -> None:
        """Tell a 3.1.1 client that asked for a replay."""
        for log, gap in self._gaps:
            _send_packet(session, log, gap)
        self._gaps.clear()


def _send_packet(session: Session, log: str, gap: Gap) -> None:
    value = {"from": gap.from_offset, "to": gap.to_offset - 1, "reason": gap.reason}
    message = Message(b"$gap/" + log.encode(), json.dumps(value).encode(), 0, False, b"")
    session.send(message.encode(session.version, 0), 1, len(message.payload))


def send_gap_notice(reader: Reader, log: str, gap: Gap) -> None:
    """Tell a reader which offsets are gone. An ordinary subscription of 3.1.1 asked for no `$gap`, and gets none."""
    if reader.session.version == V5:
        if reader.notice is None:
            reader.notice = GapNotices()
        reader.notice.add(log, gap)
    elif reader.source:
        _send_packet(reader.session, log, gap)


def tell_otherwise(reader: Reader) -> None:
    """Tell what waits for a delivery of MQTT 5, where the client is back without it: as `send_gap_notice` does."""
    notice, session = reader.notice, reader.session
    if notice and session.version != V5:
        if reader.source:
            notice.send_packets(session)
        reader.notice = None
