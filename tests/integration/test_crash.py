"""`kill -9` of the real broker in full traffic, over and over, held against a ledger outside it."""

from __future__ import annotations

import os
import random
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests.crash.reading import shown_to
from tests.harness import packets
from tests.harness.broker_process import wait_until
from tests.harness.ledger import Ledger, Stored
from tests.harness.log_reader import read_log
from tests.harness.publisher import Publisher, publish_all

if TYPE_CHECKING:
    from tests.harness.broker_process import BrokerProcess
    from tests.harness.raw_client import RawClient

# A thousand by hand: HIGHWAY_TEST_KILLS=1000 make test ARGS=tests/integration/test_crash.py
CYCLES = int(os.environ.get("HIGHWAY_TEST_KILLS", "20"))
# The default flush_interval, and what a busy test machine adds to a timer of the loop and a write.
FAST_WINDOW_SECONDS = 0.1 + 0.5

MODES = ("safe", "balanced", "fast")


class Cycle:
    """One life of the broker under traffic: a publisher and a live `$log` subscriber for each mode."""

    def __init__(self, broker: BrokerProcess, ledger: Ledger, number: int) -> None:
        self.broker = broker
        self.ledger = ledger
        self.watchers: dict[str, RawClient] = {}
        for mode in MODES:
            watcher = self.watchers[mode] = broker.client(f"watcher-{mode}-{number}")
            assert watcher.subscribe((f"$log/latest/{mode}/#", 0)) == [0]
        # Windows keep the amount of data down, and the broker busy all the same.
        self.publishers = [
            Publisher(broker.port, f"{mode}/{half}", ledger, window=32) for mode in MODES for half in ("a", "b")
        ]

    def run_and_kill(self, acks: int) -> float:
        """Traffic until every publisher has so many acks, then kill; returns the monotonic time before the kill."""
        for publisher in self.publishers:
            publisher.start()
        wait_until(lambda: all(publisher.acked >= acks for publisher in self.publishers), timeout=60, what="traffic")
        killed_at = time.monotonic()
        self.broker.kill()
        for publisher in self.publishers:
            publisher.finish()
        for mode, watcher in self.watchers.items():
            self.ledger.add_seen(mode, shown_to(watcher))
            watcher.close()
        return killed_at


@pytest.mark.timeout(60 + 10 * CYCLES)
def test_20_kills_in_full_traffic_lose_no_ack_and_reuse_no_offset(own_broker: BrokerProcess) -> None:
    """SAFE and BALANCED lose nothing that was acked, FAST at most its flush window; every offset keeps its message."""
    seed = random.randrange(2**32)
    choose = random.Random(seed)
    ledger = Ledger()
    lost_by_fast = 0
    known: dict[str, list[Stored]] = {mode: [] for mode in MODES}
    for number in range(CYCLES):
        own_broker.start()
        killed_at = Cycle(own_broker, ledger, number).run_and_kill(choose.randrange(1, 500))
        if number % 4 == 3:
            kill_while_starting(own_broker, choose)
        own_broker.start()
        for mode in MODES:
            start = str(known[mode][-1].offset + 1) if known[mode] else "earliest"
            records = known[mode] = known[mode] + read_log(own_broker.port, f"{mode}/#", start=start)
            may_lose_after = killed_at - FAST_WINDOW_SECONDS if mode == "fast" else None
            topics = [f"{mode}/a", f"{mode}/b"]
            lost = ledger.check(mode, topics, records, may_lose_after=may_lose_after)
            lost_by_fast += lost
            if lost:
                for topic in topics:
                    ledger.forget_lost(topic, {record.payload for record in records if record.topic == topic})
        own_broker.kill()
    own_broker.start()
    for mode in MODES:
        whole = read_log(own_broker.port, f"{mode}/#")
        assert whole == known[mode], f"seed {seed}: {mode} reads differently from its start"
        assert ledger.check(mode, [f"{mode}/a", f"{mode}/b"], whole) == 0
        assert len(ledger.acked(f"{mode}/a")) >= CYCLES
    print(f"seed {seed}: {sum(map(len, known.values()))} records, {lost_by_fast} acked by FAST lost")  # noqa: T201


def kill_while_starting(broker: BrokerProcess, choose: random.Random) -> None:
    """Recovery interrupted wherever it happens to be must be recovered from too."""
    broker.spawn()
    assert broker.process is not None
    try:
        broker.process.wait(choose.uniform(0.05, 0.8))
    except subprocess.TimeoutExpired:
        broker.kill()
    else:
        raise AssertionError("the broker ended by itself:\n" + "\n".join(broker.stderr[-30:]))


def test_qos_2_in_flight_over_a_kill_is_delivered_exactly_once(own_broker: BrokerProcess) -> None:
    own_broker.start()
    with own_broker.client("away", clean=False) as subscriber:
        subscriber.subscribe(("safe/#", 2))
        subscriber.disconnect()
    publisher = own_broker.client("gateway", clean=False)
    publisher.send(packets.publish("safe/q2", b"once", qos=2, packet_id=7))
    publisher.expect_bytes("50020007")
    own_broker.restart()
    # The publisher heard PUBREC, forgot it, and sends again: the broker must know the id.
    publisher = own_broker.client("gateway", clean=False)
    assert publisher.session_present
    publisher.send(packets.publish("safe/q2", b"once", qos=2, packet_id=7, dup=True))
    publisher.expect_bytes("50020007")
    publisher.send(packets.ack(0x62, 7))
    publisher.expect_bytes("70020007")
    own_broker.restart()
    publisher = own_broker.client("gateway", clean=False)
    publisher.send(packets.ack(0x62, 7))
    publisher.expect_bytes("70020007")
    publish_all(own_broker.port, "safe/q2", [b"last"])
    subscriber = own_broker.client("away", clean=False)
    assert [message.payload for message in subscriber.messages(2)] == [b"once", b"last"]
    assert subscriber.waiting_messages() == []


def test_retained_sessions_and_wills_survive_a_kill(own_broker: BrokerProcess) -> None:
    own_broker.start()
    with own_broker.client("watcher", clean=False) as watcher:
        watcher.subscribe(("st/#", 1), ("gone/#", 1))
        watcher.unsubscribe("gone/#")
        watcher.disconnect()
    with own_broker.client("publisher") as publisher:
        publisher.publish("st/kept", b"old", retain=True)
        publisher.publish("st/kept", b"new", retain=True)
        publisher.publish("st/cleared", b"x", retain=True)
        publisher.publish("st/cleared", b"", retain=True)
        publisher.publish("gone/x", b"x")
    dying = own_broker.client("dying", will=("st/will", b"offline", 1, True))
    dying.ping()
    own_broker.restart()
    with own_broker.client("fresh") as fresh:
        fresh.subscribe(("st/#", 1))
        # The will may still be on its way into the log, and then it comes live.
        retained = {message.topic: message.payload for message in fresh.messages(2)}
        assert retained == {"st/kept": b"new", "st/will": b"offline"}, "a will is published after a broker crash too"
        assert fresh.waiting_messages() == []
    watcher = own_broker.client("watcher", clean=False)
    assert watcher.session_present
    got = [(message.topic, message.payload) for message in watcher.messages(5)]
    assert [payload for topic, payload in got if topic == "st/kept"] == [b"old", b"new"]
    assert ("st/will", b"offline") in got
    assert not [topic for topic, _ in got if topic.startswith("gone/")]


def test_kills_without_traffic_add_no_files(own_broker: BrokerProcess) -> None:
    """Field report 47: a crash loop must not fill the disk."""
    own_broker.start()
    publish_all(own_broker.port, "safe/x", [b"%d" % number for number in range(100)])
    own_broker.restart()
    before = files_of(own_broker)
    for _ in range(10):
        own_broker.restart()
    # Killed right after `ready`, the broker may or may not have made its next journal file.
    assert len(files_of(own_broker)) <= len(before) + 2, files_of(own_broker)


def files_of(broker: BrokerProcess) -> list[str]:
    return sorted(str(path.relative_to(broker.data)) for path in broker.data.rglob("*") if path.is_file())
