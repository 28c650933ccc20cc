"""What a client meets that comes back again and again, late, or with all that it has: real processes and sockets."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness import packets, packets5
from tests.harness.broker_process import BrokerProcess, wait_until
from tests.harness.log_reader import log_range, read_log
from tests.harness.publisher import publish_all
from tests.harness.raw_client import PUBACK, RawClient
from tests.harness.raw_client5 import RawClient5

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS = 50
RATE = 2000
EXPIRY = {"session_expiry_interval": 3600}


class Counter(threading.Thread):
    """Publishes 0, 1, 2, ... at RATE a second until stopped; a chunk is sent when the one before is acknowledged."""

    CHUNK = 20

    def __init__(self, port: int, topic: str) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self._topic = topic
        self._client = RawClient.connected(port, "counter")
        self._stop_now = threading.Event()

    def run(self) -> None:
        due = time.monotonic()
        while not self._stop_now.wait(max(0.0, due - time.monotonic())):
            numbers = range(self.sent, self.sent + self.CHUNK)
            data = [packets.publish(self._topic, b"%d" % n, qos=1, packet_id=n % 60_000 + 1) for n in numbers]
            self._client.send(b"".join(data))
            for _ in numbers:
                self._client.expect(PUBACK)
            self.sent += self.CHUNK
            due += self.CHUNK / RATE

    def stop(self) -> int:
        """Returns how many were published."""
        self._stop_now.set()
        self.join(20)
        assert not self.is_alive()
        return self.sent


class Hearer:
    """What a subscriber may expect: each number once in order, and again, with DUP, only what it didn't acknowledge.

    Acknowledgements that it sent right before its connection broke may have been lost, so these may come again.
    """

    def __init__(self) -> None:
        self.next = 0
        self.repeated = 0
        self._owed: dict[int, int] = {}  # number -> packet id, in the order in which they came
        self._sent_acks: set[int] = set()  # of them, on this connection
        self._again: list[int] = []  # what may come again on this connection, in order
        self._lost_acks: set[int] = set()  # of them, need not

    def connected(self) -> None:
        self._again, self._lost_acks, self._sent_acks = sorted(self._owed), self._sent_acks, set()

    def hear(self, number: int, packet_id: int, *, dup: bool) -> None:
        if number < self.next:
            assert dup, f"{number} again without DUP"
            assert number in self._again, f"{number} again, behind others that are later or new"
            self._pass(self._again.index(number))
            assert self._again.pop(0) == number
            assert packet_id == self._owed[number]
            self.repeated += 1
            return
        self._pass(len(self._again))
        assert number == self.next, f"expected {self.next}, got {number}"
        self.next += 1
        self._owed[number] = packet_id

    def _pass(self, count: int) -> None:
        """The first `count` that might have come again don't."""
        passed, self._again = self._again[:count], self._again[count:]
        assert self._lost_acks.issuperset(passed), f"{passed} were to come before"
        for number in passed:
            del self._owed[number]

    def acknowledged(self, number: int) -> None:
        self._sent_acks.add(number)


@pytest.mark.parametrize("topic", ["balanced/count", "safe/count"])
def test_50_breaks_at_random_leave_no_gap_and_repeat_with_dup_first(own_broker: BrokerProcess, topic: str) -> None:
    own_broker.start()
    RawClient.connected(own_broker.port, "breaks", clean=False).subscribe((topic, 1))
    chance, hearer = random.Random(50), Hearer()
    counter = Counter(own_broker.port, topic)
    counter.start()
    for number in range(ROUNDS + 1):
        client = RawClient.connected(own_broker.port, "breaks", clean=False)
        assert client.session_present
        client.auto_ack = False
        hearer.connected()
        last = number == ROUNDS
        end = counter.stop() if last else hearer.next + chance.randrange(1, 150)
        while hearer.next < end:
            message = client.message(timeout=20)
            was_next = hearer.next
            hearer.hear(int(message.payload), message.packet_id, dup=message.dup)
            if last or hearer.next == was_next or chance.random() < 0.9:
                client.send(packets.ack(PUBACK, message.packet_id))
                hearer.acknowledged(int(message.payload))
        leave = chance.choice([client.disconnect, client.close, client.reset]) if not last else client.ping
        leave()
    assert hearer.next == counter.sent
    assert hearer.repeated > ROUNDS


@pytest.fixture
def shrinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker whose log keeps a few hundred messages."""
    topics = [{"topic": "short/#", "log": "short", "retention_bytes": "256KiB", "segment_bytes": "64KiB"}]
    storage = {"checkpoint_interval": "500ms", "reaper_interval": "500ms"}
    with BrokerProcess(tmp_path_factory.mktemp("shrinking"), topics=topics, storage=storage) as broker:
        yield broker


def outrun(broker: BrokerProcess, held: int) -> int:
    """Publish until retention has taken more than the first `held` messages; returns how many there were."""
    published = int(log_range(broker.port, "short/x")["high_watermark"])

    def more() -> bool:
        nonlocal published
        numbers = range(published, published + 200)
        publish_all(broker.port, "short/x", [(b"%d " % number) + os.urandom(1000) for number in numbers])
        published += 200
        return int(log_range(broker.port, "short/x")["log_start_offset"]) > held

    wait_until(more, timeout=30, what="retention")
    return published


def gaps_of(message: packets5.Message) -> list[tuple[str, str]]:
    return [pair for pair in message.all("user_property") if pair[0].startswith("gap")]


@pytest.mark.parametrize("unacknowledged", [0, 7, 20])
def test_a_parked_session_hears_what_retention_took_and_goes_on_behind_it(
    shrinking: BrokerProcess, unacknowledged: int
) -> None:
    held = 20
    client = RawClient5.connected(shrinking.port, "parked", **EXPIRY)
    client.auto_ack = False
    client.subscribe(("short/#", 1))
    publish_all(shrinking.port, "short/x", [b"%d x" % number for number in range(held)])
    for message in client.messages(held)[: held - unacknowledged]:
        client.send(packets5.ack(PUBACK, message.packet_id))
    client.disconnect()
    published = outrun(shrinking, held)
    at_least = int(log_range(shrinking.port, "short/x")["log_start_offset"])
    back = RawClient5.connected(shrinking.port, "parked", clean_start=False, **EXPIRY)
    assert back.session_present
    first = back.message(timeout=20)
    start = int(first.payload.split()[0])
    assert at_least <= start <= int(log_range(shrinking.port, "short/x")["log_start_offset"])
    assert not first.dup
    assert gaps_of(first) == [("gap", f"{held - unacknowledged}-{start - 1}"), ("gap-reason", "retention")]
    rest = back.messages(published - start - 1, timeout=20)
    assert [int(message.payload.split()[0]) for message in rest] == list(range(start + 1, published))
    assert not any(gaps_of(message) for message in rest)


@pytest.mark.parametrize("prefix", ["$replay/earliest/", "$log/0/"])
def test_a_parked_replay_of_3_1_1_hears_it_on_gap(shrinking: BrokerProcess, prefix: str) -> None:
    held = 20
    publish_all(shrinking.port, "short/x", [b"%d x" % number for number in range(held)])
    client = RawClient.connected(shrinking.port, "parked", clean=False)
    client.subscribe((f"{prefix}short/#", 1))
    assert len(client.messages(held)) == held
    client.disconnect()
    published = outrun(shrinking, held)
    back = RawClient.connected(shrinking.port, "parked", clean=False)
    notice, first, *rest = back.messages(2, timeout=20)
    start = int(first.payload.split()[0])
    assert notice.topic == "$gap/short"
    assert json.loads(notice.payload) == {"from": held, "to": start - 1, "reason": "retention"}
    rest = back.messages(published - start - 1, timeout=20)
    assert [int(message.payload.split()[0]) for message in rest] == list(range(start + 1, published))
    if prefix.startswith("$log"):
        assert [message.topic for message in (first, rest[-1])] == [
            f"$log/{offset}/short/x" for offset in (start, published - 1)
        ]


LINES = 3000


class Resender(threading.Thread):
    """One of a gateway's connections: sends its share of lines until the broker goes. All keep step by the hundred."""

    def __init__(self, port: int, topic: str, share: list[int], step: threading.Barrier) -> None:
        super().__init__(daemon=True)
        self.acknowledged = 0
        self._topic = topic
        self._share = share
        self._step = step
        self._client = RawClient5.connected(port, f"gateway-{share[0] % 2}-{random.random()}", **EXPIRY)

    def run(self) -> None:
        try:
            for start in range(0, len(self._share), 50):
                chunk = self._share[start : start + 50]
                self._client.send(b"".join(self._packet(number) for number in chunk))
                for _ in chunk:
                    self._client.expect(PUBACK)
                    self.acknowledged += 1
                self._step.wait(20)
        except (OSError, AssertionError, threading.BrokenBarrierError):
            self._step.abort()  # the broker was killed

    def _packet(self, number: int) -> bytes:
        properties: dict[str, Any] = {"user_property": [("producer", "gw"), ("sequence", str(3 * number))]}
        return packets5.publish(self._topic, b"line %d" % number, qos=1, packet_id=number + 1, **properties)


@pytest.mark.parametrize("topic", ["safe/lines", "balanced/lines"])
def test_a_gateway_with_two_connections_sends_everything_three_times_over_three_kills(
    own_broker: BrokerProcess, topic: str
) -> None:
    own_broker.start()
    chance = random.Random(3)
    # Numbers with gaps, and within a hundred lines in any order: what two connections and a refused message make of it.
    order = [n for start in range(0, LINES, 100) for n in chance.sample(range(start, start + 100), 100)]
    shares = [[number for number in order if number % 2 == half] for half in (0, 1)]

    def send(*, until: int) -> None:
        step = threading.Barrier(len(shares))
        senders = [Resender(own_broker.port, topic, share, step) for share in shares]
        for sender in senders:
            sender.start()
        wait_until(lambda: sum(sender.acknowledged for sender in senders) >= until, timeout=60, what="progress")
        if until < LINES:
            own_broker.restart()
        for sender in senders:
            sender.join(20)

    for share_of_it in (0.3, 0.6, 0.9):
        send(until=int(LINES * share_of_it))
    for _ in range(3):
        send(until=LINES)
    stored = [record.payload for record in read_log(own_broker.port, topic.replace("lines", "#"))]
    assert len(stored) == LINES
    assert sorted(stored) == sorted(b"line %d" % number for number in range(LINES))
