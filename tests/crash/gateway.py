"""A field gateway: one session that publishes at QoS 2 through all crashes. Exactly once, in order, none left out.

It does what the specification asks of a client: what was sent and not answered is sent again after a reconnect, PUBLISH
with DUP, PUBREL for what was answered by PUBREC. Packet ids are used again as soon as they are free.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tests.harness import packets
from tests.harness.raw_client import PUBCOMP, PUBREC, RawClient

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.crash.accounts import Account
    from tests.harness.ledger import Stored

__all__ = ["Gateway"]


class Gateway:
    """Messages 0, 1, 2, ... to one topic, up to `window` of them under way."""

    def __init__(self, topic: str, *, window: int) -> None:
        self.topic = topic
        self.received = 0  # PUBRECs: so many messages the broker has taken over
        self._window = window
        self._next_number = 0
        self._next_stored = 0  # the number that the log must hold next
        # Packet id -> (number, whether PUBREC has come), in the order of sending.
        self._under_way: dict[int, tuple[int, bool]] = {}
        self._client: RawClient | None = None
        self._thread: threading.Thread | None = None
        self._known = False

    def connect(self, port: int) -> None:
        """Come back."""
        client = self._client = RawClient.connected(port, "gateway", clean=False)
        assert client.session_present or not self._known, "the broker has forgotten a session that was durable"

    def start(self) -> None:
        """Finish what was under way, and go on until the connection ends."""
        assert self._client is not None
        self._thread = threading.Thread(target=self._run, args=(self._client,), daemon=True)
        self._thread.start()

    def _run(self, client: RawClient) -> None:
        try:
            client.send(b"".join(self._resent()))
            while (found := client.read_packets()) is not None:
                client.send(b"".join([*self._answers(found), *self._fresh()]))
        except OSError:
            return

    def _resent(self) -> Iterable[bytes]:
        for packet_id, (number, received) in self._under_way.items():
            if received:
                yield packets.ack(0x62, packet_id)
            else:
                yield packets.publish(self.topic, b"%d" % number, qos=2, packet_id=packet_id, dup=True)
        yield from self._fresh()

    def _fresh(self) -> Iterable[bytes]:
        while len(self._under_way) < self._window:
            packet_id = next(number for number in range(1, 65536) if number not in self._under_way)
            self._under_way[packet_id] = (self._next_number, False)
            yield packets.publish(self.topic, b"%d" % self._next_number, qos=2, packet_id=packet_id)
            self._next_number += 1

    def _answers(self, found: list[tuple[int, bytes]]) -> Iterable[bytes]:
        for first_byte, body in found:
            packet_id = int.from_bytes(body[:2], "big")
            if first_byte & 0xF0 == PUBREC:
                number, received = self._under_way[packet_id]
                self.received += not received
                self._under_way[packet_id] = (number, True)
                yield packets.ack(0x62, packet_id)
            elif first_byte & 0xF0 == PUBCOMP:
                del self._under_way[packet_id]

    def crashed(self) -> None:
        """The broker is gone: take what had been sent before, and let go."""
        if self._client is None or self._thread is None:
            return
        self._thread.join(10)
        assert not self._thread.is_alive(), "the gateway's connection outlives the broker"
        self._client.close()
        self._client = None

    def settle(self, records: list[Stored], account: Account) -> None:
        """Hold what the log has got since the last time against what was sent."""
        for record in records:
            if record.topic != self.topic:
                continue
            if record.payload != b"%d" % self._next_stored:
                account.wrong(f"{record}: number {self._next_stored} of the gateway had to come here")
            self._next_stored = int(record.payload) + 1
        unanswered = {number for number, received in self._under_way.values() if not received}
        taken_over = [number for number in range(self._next_stored, self._next_number) if number not in unanswered]
        if taken_over:
            account.wrong(f"PUBREC came for number {taken_over[0]} of the gateway, and the log doesn't have it")
        self._known = self._known or self._next_stored > 0
