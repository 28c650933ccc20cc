"""What many publishers send in one turn of the loop comes into the logs together, and as if it had come alone."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from highway.broker.publishing.gathering import GATHERED_BYTES
from highway.storage import Durability
from tests.broker.rig import Peer, Rig
from tests.harness import packets, packets5

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FAST, BALANCED, SAFE = Durability


def primed(directory: Path, *entries: tuple[bytes, str, Durability]) -> Rig:
    """A broker whose logs have reserved offsets, with a message each: before that nothing is gathered."""
    rig = Rig(directory, entries or ((b"#", "other", FAST),))
    peer = rig.connect("first")
    for entry in rig.settings.entries:
        peer.send(packets.publish(entry.topic_filter.decode().replace("#", "first"), b"first", qos=1, packet_id=1))
    return rig


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return primed(tmp_path)


@contextlib.contextmanager
def turn(rig: Rig) -> Iterator[None]:
    """What is fed within is read in one turn of the loop."""
    rig.broker.gathering.begin()
    yield
    rig.broker.gathering.end()


def peers(rig: Rig, count: int) -> list[Peer]:
    found = [rig.connect(f"p{number}") for number in range(count)]
    for peer in found:
        peer.take()
    return found


def appended(rig: Rig, name: str = "other") -> list[tuple[int, int]]:
    """(first offset, count) of each append that the journal hasn't taken yet."""
    log_id = rig.storage.logs[name].log_id
    return [
        (batch.base_offset, batch.count)
        for found, batch, _ in rig.storage._journal.queue
        if batch is not None and found == log_id
    ]


def sizes(rig: Rig) -> list[tuple[int, int]]:
    """(count, bytes) of each append that the journal hasn't taken yet."""
    return [(batch.count, len(batch.data)) for _, batch, _ in rig.storage._journal.queue if batch is not None]


def payloads(rig: Rig) -> list[bytes]:
    """Everything that is stored behind the first message, in order."""
    reader = rig.connect("reader").send(packets.subscribe(1, ("$replay/earliest/#", 0)))
    return [message.payload for message in reader.messages()][1:]


@pytest.mark.parametrize("durability", [FAST, BALANCED, SAFE])
def test_a_turn_of_many_publishers_is_one_append_in_the_order_of_arrival(
    tmp_path: Path, durability: Durability
) -> None:
    rig = primed(tmp_path, (b"#", "other", durability))
    publishers = peers(rig, 10)
    with turn(rig):
        for number, peer in enumerate(publishers):
            peer.feed(packets.publish(f"t/{number // 4}", b"%d" % number, qos=number % 2, packet_id=1))
    assert appended(rig)[-1] == (1, 10)
    rig.settle()
    assert [peer.take() for peer in publishers] == [[], [(0x40, b"\0\1")]] * 5
    assert payloads(rig) == [b"%d" % number for number in range(10)]


def test_live_subscribers_get_a_turn_in_order_with_its_topics(rig: Rig) -> None:
    publishers = peers(rig, 6)
    subscriber = rig.connect("s").send(packets.subscribe(1, ("#", 1)))
    subscriber.take()
    with turn(rig):
        for number, peer in enumerate(publishers):
            peer.feed(packets.publish(f"t/{number // 2}", b"%d" % number, qos=1, packet_id=1))
    rig.settle()
    got = [(message.topic, message.payload) for message in subscriber.messages()]
    assert got == [(f"t/{number // 2}", b"%d" % number) for number in range(6)]


def test_nothing_is_acknowledged_before_the_sync_and_all_of_it_after(tmp_path: Path) -> None:
    rig = primed(tmp_path, (b"#", "other", SAFE))
    publishers = peers(rig, 3)
    with turn(rig):
        for peer in publishers:
            peer.feed(packets.publish("t", b"x", qos=1, packet_id=7) + packets.PINGREQ)
    assert [peer.take() for peer in publishers] == [[]] * 3
    rig.settle()
    assert [peer.take() for peer in publishers] == [[(0x40, b"\0\7"), (0xD0, b"")]] * 3


def test_a_message_that_is_not_plain_comes_behind_those_before_it(rig: Rig) -> None:
    first, second = peers(rig, 2)
    large = bytes(GATHERED_BYTES)
    with turn(rig):
        first.feed(packets.publish("t", b"1"))
        second.feed(packets.publish("t", b"2", retain=True))
        first.feed(packets.publish("t", b"3"))
        second.feed(packets.publish("t", b"4", qos=2, packet_id=1))
        first.feed(packets.publish("t", b"5"))
        second.feed(packets.publish("t", large))
        first.feed(packets.publish("t", b"6"))
    rig.settle()
    assert payloads(rig) == [b"1", b"2", b"3", b"4", b"5", large, b"6"]


def test_who_subscribes_in_the_same_turn_gets_what_comes_behind(rig: Rig) -> None:
    publisher, subscriber = peers(rig, 2)
    with turn(rig):
        publisher.feed(packets.publish("t", b"before"))
        subscriber.feed(packets.subscribe(1, ("t", 0)))
        publisher.feed(packets.publish("t", b"behind"))
    rig.settle()
    assert [message.payload for message in subscriber.messages()] == [b"behind"]


def test_what_came_before_in_the_same_turn_can_be_fetched(rig: Rig) -> None:
    asks = rig.connect5("asks")
    asks.subscribe(("answers", 0))
    with turn(rig):
        asks.feed(packets5.publish("t", b"1"))
        asks.feed(packets5.publish("$fetch/1/t", b"", response_topic="answers"))
    rig.settle()
    answer = asks.message()
    assert (answer.payload, dict(answer.properties)["user_property"]) == (b"1", ("high-watermark", "2"))


def test_no_local_holds_within_a_turn(rig: Rig) -> None:
    own, other = rig.connect5("own"), rig.connect5("other")
    own.send(packets5.subscribe(1, ("t", 0x04)))
    own.take()
    with turn(rig):
        own.feed(packets5.publish("t", b"mine"))
        other.feed(packets5.publish("t", b"yours"))
    rig.settle()
    assert [message.payload for message in own.messages()] == [b"yours"]


def test_an_acknowledgement_names_the_offset_of_its_message(rig: Rig) -> None:
    plain = rig.connect("p")
    told = rig.connect5("told", user_property=[("ack-offsets", "1")])
    with turn(rig):
        plain.feed(packets.publish("t", b"0", qos=1, packet_id=1))
        told.feed(packets5.publish("t", b"1", qos=1, packet_id=1))
        plain.feed(packets.publish("t", b"2", qos=1, packet_id=2))
    rig.settle()
    ((first, body),) = told.take()
    assert (first, b"\0\6offset\0\1" + b"2" in body) == (0x40, True)
    assert payloads(rig) == [b"0", b"1", b"2"]


def test_logs_of_a_turn_get_one_append_each(tmp_path: Path) -> None:
    rig = primed(tmp_path, (b"a/#", "a", BALANCED), (b"b/#", "b", SAFE))
    publishers = peers(rig, 8)
    with turn(rig):
        for peer, topic in zip(publishers, "abababab", strict=True):
            peer.feed(packets.publish(f"{topic}/x", b"x", qos=1, packet_id=1))
    assert (appended(rig, "a"), appended(rig, "b")) == ([(1, 4)], [(1, 4)])
    rig.settle()
    assert [peer.take() for peer in publishers] == [[(0x40, b"\0\1")]] * 8


def test_a_turn_that_ends_above_the_reserved_offsets_waits_for_the_next_block(rig: Rig) -> None:
    log = rig.storage.logs["other"]
    first, second = peers(rig, 2)
    first.feed(packets.publish("t", b"x") * (log.room - 5))
    assert log.room == 5
    with turn(rig):
        for packet_id in range(1, 8):
            second.feed(packets.publish("t", b"x", qos=1, packet_id=packet_id))
    acked = [int.from_bytes(body, "big") for _, body in second.take()]
    assert acked == [1, 2, 3, 4, 5], "an offset above the durable ceiling could be forgotten and used again"
    rig.settle()
    assert len(second.take()) == 2


def test_a_long_topic_behind_an_alias_counts_with_each_message(rig: Rig) -> None:
    publisher = rig.connect5("p")
    topic, alias, count = "t" * 60_000, b"\3\x23\0\1", 300
    (other,) = peers(rig, 1)
    with turn(rig):
        other.feed(packets.publish("t", b"x", qos=1, packet_id=1))
        publisher.feed(packets.packet(0x30, len(topic).to_bytes(2, "big") + topic.encode() + alias))
        publisher.feed(packets.packet(0x30, b"\0\0" + alias) * count)
    assert max(size for _, size in sizes(rig)) < GATHERED_BYTES + 1024
    rig.settle()
    assert other.take() == [(0x40, b"\0\1")]
    assert rig.storage.logs["other"].log_end_offset == 1 + 1 + 1 + count


def test_a_client_s_acknowledgements_keep_their_order_where_all_are_due_at_once(tmp_path: Path) -> None:
    rig = primed(tmp_path, (b"a/#", "a", BALANCED), (b"b/#", "b", SAFE))
    first, second = peers(rig, 2)
    gathering = rig.broker.gathering
    gathering.begin()
    # Nothing is appended: both are due at the end of the turn, whichever came first in it.
    gathering.acknowledge(SAFE, second.client, b"\x40\2\0\1", 0)
    gathering.acknowledge(BALANCED, first.client, b"\x40\2\0\1", 0)
    gathering.acknowledge(SAFE, first.client, b"\x40\2\0\2", 0)
    gathering.end()
    assert first.take() == [(0x40, b"\0\1"), (0x40, b"\0\2")]
