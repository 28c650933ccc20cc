"""Publishers that keep a window of unacknowledged QoS 1 messages open and tell a ledger of every send and ack."""

from __future__ import annotations

import itertools
import socket
import threading
from collections import deque
from typing import TYPE_CHECKING

from tests.harness import packets
from tests.harness.raw_client import RawClient

if TYPE_CHECKING:
    from tests.harness.ledger import Ledger

__all__ = ["Publisher", "publish_all"]

_serial = itertools.count()


class Publisher(threading.Thread):
    """Publishes to one topic as fast as its window lets it, until stopped, the connection ends or `limit` is sent.

    It never sends a message twice: whatever is stored twice is the broker's doing.
    """

    def __init__(
        self, port: int, topic: str, ledger: Ledger, *, window: int = 64, limit: int | None = None, size: int = 40
    ) -> None:
        super().__init__(name=f"publisher {topic}", daemon=True)
        self.topic = topic
        self.acked = 0
        self.error: BaseException | None = None
        self._ledger = ledger
        self._window = window
        self._limit = limit
        self._stopping = False
        self._size = size
        # Connected here, so that an error is the test's and not the thread's.
        self._client = RawClient.connected(port, f"publisher-{next(_serial)}")

    def run(self) -> None:
        try:
            self._publish()
        except BaseException as error:  # noqa: BLE001 - the test's thread raises it, in finish()
            self.error = error
        finally:
            self._client.close()

    def _publish(self) -> None:
        """Send a window, read acks, fill it up again. A connection that breaks is what crash tests do, not an error."""
        inflight: deque[int] = deque()
        ids, splitter, sent = itertools.cycle(range(1, 65536)), packets.PacketSplitter(), 0
        order: deque[int] = deque()
        connection = self._client.socket
        connection.settimeout(10.0)
        while True:
            batch: list[bytes] = []
            while len(inflight) < self._window and not self._stopping and (self._limit is None or sent < self._limit):
                number = self._send_one(batch, next_id := next(ids))
                inflight.append(number)
                order.append(next_id)
                sent += 1
            if not inflight:
                return
            try:
                if batch:
                    connection.sendall(b"".join(batch))
                data = connection.recv(1 << 16)
            except ConnectionError:
                return
            if not data:
                return
            for first_byte, body in splitter.feed(data):
                assert first_byte == 0x40, f"packet {first_byte:#x} to a publisher"
                assert int.from_bytes(body, "big") == order.popleft(), "acks out of order"  # [MQTT-4.6.0-2]
                self._ledger.add_acked(self.topic, inflight.popleft())
                self.acked += 1

    def _send_one(self, batch: list[bytes], packet_id: int) -> int:
        payload = b"%d %s " % (next(_serial), self.topic.encode())
        payload = payload.ljust(self._size, b".")
        number = self._ledger.add_sent(self.topic, payload)
        batch.append(packets.publish(self.topic, payload, qos=1, packet_id=packet_id))
        return number

    def stop(self) -> None:
        """Send no more, take the acks that are still to come, and end."""
        self._stopping = True
        self.finish()

    def finish(self, timeout: float = 30.0) -> None:
        """Wait for the end; raises what went wrong."""
        self.join(timeout)
        assert not self.is_alive(), f"publisher of {self.topic} hangs with {self.acked} acked"
        if self.error is not None:
            raise self.error


def publish_all(port: int, topic: str, payloads: list[bytes], *, window: int = 100) -> None:
    """Publish at QoS 1 in order and wait for every ack."""
    with RawClient.connected(port, f"publish-all-{next(_serial)}") as client:
        client.socket.settimeout(30.0)
        splitter = packets.PacketSplitter()
        sent = acked = 0
        while acked < len(payloads):
            chunk = payloads[sent : acked + window]
            data = [
                packets.publish(topic, payload, qos=1, packet_id=number % 65535 + 1)
                for number, payload in enumerate(chunk, sent)
            ]
            sent += len(chunk)
            client.socket.sendall(b"".join(data))
            received = client.socket.recv(1 << 16)
            assert received, f"closed after {acked} of {len(payloads)} acks"
            for first_byte, _ in splitter.feed(received):
                assert first_byte == 0x40
                acked += 1
        client.socket.shutdown(socket.SHUT_WR)
