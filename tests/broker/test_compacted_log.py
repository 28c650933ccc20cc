"""A compacted log as clients see it: the newest message of each topic, and no word of what it replaced."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from highway.storage.log.writer import SETTLING_CHECKPOINTS
from tests.broker.rig import Peer, Rig
from tests.harness import packets

if TYPE_CHECKING:
    from pathlib import Path

TOPICS = 5
COUNT = 400


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    rig = Rig(tmp_path, max_inflight=100)
    rig.logs = [dataclasses.replace(log, cleanup="compact", retention_ms=None) for log in rig.logs]
    rig.restart()
    return rig


def publish(rig: Rig, count: int = COUNT, first: int = 0) -> None:
    peer = rig.connect("sensor")
    for number in range(first, first + count):
        peer.feed(packets.publish(f"state/{number % TOPICS}", b"%d" % number, qos=1, packet_id=number % 60_000 + 1))
    rig.settle()
    peer.drop()


def compact(rig: Rig) -> None:
    """Do now what a broker does in time."""
    storage = rig.storage
    log = storage.logs["other"]
    log.flush(lambda: None, everything=True)
    rig.settle()
    log.roll(lambda: None)
    rig.settle()
    for _ in range(SETTLING_CHECKPOINTS):
        storage.checkpoint()
        rig.settle()
    storage.maintainer.compact_now(log)
    assert sum(segment.index.records for segment in log.writer.segments) == TOPICS


def payloads(peer: Peer) -> list[int]:
    return [int(message.payload) for message in peer.messages()]


NEWEST = list(range(COUNT - TOPICS, COUNT))


def test_a_replay_gets_the_newest_of_each_topic(rig: Rig) -> None:
    publish(rig)
    compact(rig)
    assert payloads(rig.connect("a").send(packets.subscribe(1, ("$replay/earliest/#", 1)))) == NEWEST
    assert payloads(rig.connect("b").send(packets.subscribe(1, ("$replay/100/state/#", 1)))) == NEWEST
    assert payloads(rig.connect("c").send(packets.subscribe(1, ("$replay/-3/#", 1)))) == NEWEST[-3:]
    assert payloads(rig.connect("d").send(packets.subscribe(1, ("$replay/earliest/state/2", 0)))) == [COUNT - 3]


def test_a_session_that_comes_back_is_told_of_no_gap(rig: Rig) -> None:
    peer = rig.connect5("away", session_expiry_interval=3600)
    peer.subscribe(("state/#", 1))
    peer.drop()
    publish(rig)
    compact(rig)
    back = rig.connect5("away", clean_start=False, session_expiry_interval=3600)
    messages = back.drain()
    assert [int(message.payload) for message in messages] == NEWEST
    assert not any("gap" in str(message) for message in messages)
    assert rig.broker.counters.gap_messages == 0
    publish(rig, 3, COUNT)
    assert [int(message.payload) for message in back.drain()] == [COUNT, COUNT + 1, COUNT + 2]


def test_what_was_sent_and_is_replaced_before_its_acknowledgement_is_forgotten(rig: Rig) -> None:
    peer = rig.connect("c", clean=False)
    peer.send(packets.subscribe(1, ("state/#", 1)))
    publish(rig)
    assert len(peer.messages()) == 100, "a window of messages that nobody acknowledges"
    peer.drop()
    compact(rig)
    back = rig.connect("c", clean=False)
    assert payloads(back) == NEWEST


def test_a_message_that_was_replaced_can_not_be_fetched_and_says_why(rig: Rig) -> None:
    publish(rig)
    compact(rig)
    peer = rig.connect5("c")
    assert peer.subscribe(("$fetch/399/state/4", 0)) == [0]
    assert int(peer.message().payload) == 399
    (code,) = peer.subscribe(("$fetch/3/state/3", 0))
    assert code >= 0x80


def test_what_goes_on_while_a_reader_is_half_way_through_is_not_noticed(rig: Rig) -> None:
    publish(rig)
    slow = rig.connect("slow")
    slow.send(packets.subscribe(1, ("$replay/earliest/#", 1)))
    got = [slow.messages()]
    compact(rig)
    while got[-1]:
        for message in got[-1]:
            slow.send(packets.ack(0x40, message.packet_id))
        got.append(slow.messages())
    numbers = [int(message.payload) for messages in got for message in messages]
    assert numbers[:100] == list(range(100))
    assert numbers == sorted(set(numbers))
    assert set(NEWEST) <= set(numbers)
