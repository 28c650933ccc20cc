"""Persistent subscribers that live through all crashes and must have missed nothing.

They follow the SAFE log. At QoS 1, whatever a crash does to the position, messages may come again and none may be left
out: taken without repetitions, what came in all connections is what the log holds, in that order. At QoS 2, which is
what a gateway publishes at, none comes again: the follower keeps the packet ids that it has answered by PUBREC and not
yet by PUBCOMP, as the receiver must.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from tests.harness import packets
from tests.harness.raw_client import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, RawClient

if TYPE_CHECKING:
    from tests.crash.accounts import Account
    from tests.harness.ledger import Stored

__all__ = ["Follower"]

_CATCH_UP_SECONDS = 30.0
_REMEMBERED_LIVES = 50  # how far back a position may fall without the follower calling it an invention


class Follower:
    """One session over many connections, each with a thread that acknowledges everything at once."""

    def __init__(self, topic_filter: str, qos: int) -> None:
        self.repeated_at_qos_2 = 0
        self._topic_filter = topic_filter
        self._qos = qos
        self._ids: set[int] = set()  # QoS 2: between PUBREC and PUBCOMP
        self._new: dict[bytes, None] = {}  # got and not settled, in the order of the first arrival
        self._old: deque[set[bytes]] = deque(maxlen=_REMEMBERED_LIVES)
        self._changed = threading.Condition()
        self._client: RawClient | None = None
        self._thread: threading.Thread | None = None
        self._mark = b""  # the last mark, which was settled with the records before it
        self._known = False  # the session is durable for sure

    def connect(self, port: int) -> None:
        """Come back, or for the first time; and read from now on."""
        assert self._client is None
        client = self._client = RawClient.connected(port, f"follower-{self._qos}", clean=False)
        if not self._known:
            assert client.subscribe((self._topic_filter, self._qos)) == [self._qos]
        else:
            assert client.session_present, "the broker has forgotten a session that was durable"
        self._thread = threading.Thread(target=self._read, args=(client,), daemon=True)
        self._thread.start()

    def _read(self, client: RawClient) -> None:
        try:
            while (found := client.read_packets()) is not None:
                acks = self._take(found)
                if acks:
                    client.socket.sendall(acks)
        except OSError:
            return

    def _take(self, found: list[tuple[int, bytes]]) -> bytes:
        acks = []
        with self._changed:
            for first_byte, body in found:
                if first_byte & 0xF0 == PUBLISH:
                    message = packets.parse_publish(first_byte, body)
                    acks.append(packets.ack(PUBACK if message.qos == 1 else PUBREC, message.packet_id))
                    if message.packet_id not in self._ids:
                        self._deliver(message.payload, message.qos)
                    if message.qos == 2:
                        self._ids.add(message.packet_id)
                elif first_byte & 0xF0 == PUBREL:
                    packet_id = int.from_bytes(body[:2], "big")
                    self._ids.discard(packet_id)
                    acks.append(packets.ack(PUBCOMP, packet_id))
            self._changed.notify_all()
        return b"".join(acks)

    def _deliver(self, payload: bytes, qos: int) -> None:
        if payload in self._new or any(payload in life for life in self._old):
            self.repeated_at_qos_2 += qos == 2
        else:
            self._new[payload] = None

    def crashed(self) -> None:
        """The broker is gone: take what had been sent before, and let go."""
        assert self._client is not None
        assert self._thread is not None
        self._thread.join(10)
        assert not self._thread.is_alive(), "the follower's connection outlives the broker"
        self._client.close()
        self._client = None

    def settle(self, records: list[Stored], mark: Stored, account: Account) -> None:
        """Wait for `mark`, leave with DISCONNECT, and compare what was got since then with the log's records."""
        deadline = time.monotonic() + _CATCH_UP_SECONDS
        with self._changed:
            while mark.payload not in self._new and time.monotonic() < deadline:
                self._changed.wait(0.1)
        assert self._client is not None
        self._client.socket.sendall(packets.DISCONNECT)
        self.crashed()
        got = list(self._new)
        expected = [record.payload for record in records if record.payload != self._mark] + [mark.payload]
        if got != expected:
            missing, extra = set(expected) - set(got), set(got) - set(expected)
            account.wrong(
                f"the QoS {self._qos} follower got {len(got)} messages where the log has {len(expected)}: "
                f"missing {sorted(missing)[:3]}, never stored {sorted(extra)[:3]}"
            )
        if self.repeated_at_qos_2:
            account.wrong(f"the follower got {self.repeated_at_qos_2} messages twice at QoS 2")
            self.repeated_at_qos_2 = 0
        self._old.append(set(expected))
        self._new = {}
        self._mark = mark.payload
        self._known = True  # the mark is SAFE and was published after the SUBSCRIBE
