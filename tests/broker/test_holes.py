"""Readers that meet offsets which hold nothing: what a crash took is told once, and never waited for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from highway.storage import Durability
from tests.broker.rig import Peer, Rig
from tests.harness import packets, packets5

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, ((b"#", "b", Durability.BALANCED),))


def publish(peer: Peer, *payloads: bytes) -> None:
    for payload in payloads:
        peer.send(packets.publish("t", payload, qos=1, packet_id=1))


def drained(rig: Rig) -> None:
    """Have every record in a segment, and nothing in memory."""
    rig.storage.checkpoint()
    rig.advance(30.0)
    rig.storage.checkpoint()
    rig.settle()
    for log in rig.storage.logs.values():
        log.drain()
    rig.settle()
    rig.storage._cache.discard_below(rig.storage.logs["b"].log_id, 1 << 62)


def test_a_reader_crosses_the_hole_that_a_crash_left_in_the_segments(rig: Rig) -> None:
    publish(rig.connect("p"), b"one", b"two")
    rig.kill()
    publish(rig.connect("p"), b"three")
    drained(rig)
    reader = rig.connect("r").send(packets.subscribe(1, ("$log/earliest/t", 0)))
    got = reader.messages()
    beyond = rig.storage.logs["b"].high_watermark - 1
    notice = {"from": 2, "to": beyond - 1, "reason": "unclean-stop"}
    assert [(message.topic, message.payload) for message in got if message.topic.startswith("$log")] == [
        ("$log/0/t", b"one"),
        ("$log/1/t", b"two"),
        (f"$log/{beyond}/t", b"three"),
    ]
    assert [json.loads(message.payload) for message in got if message.topic == "$gap/b"] == [notice]


def test_a_reader_is_live_although_the_log_ends_in_a_hole(rig: Rig) -> None:
    publish(rig.connect("p"), b"one")
    rig.kill()
    drained(rig)
    reader = rig.connect("r").send(packets.subscribe(1, ("$log/earliest/t", 0)))
    assert [message.topic for message in reader.messages()] == ["$log/0/t", "$gap/b"]
    publish(rig.connect("p"), b"two")
    assert [message.payload for message in reader.messages()] == [b"two"]


def test_what_a_crash_left_empty_is_not_counted_as_stored(rig: Rig) -> None:
    publish(rig.connect("p"), b"one", b"two")
    rig.kill()
    publish(rig.connect("p"), b"three")
    reader = rig.connect("r").send(packets.subscribe(1, ("$SYS/broker/store/messages/count", 0)))
    rig.advance(10.0)
    assert rig.storage.logs["b"].high_watermark > 3
    assert [message.payload for message in reader.messages()][-1] == b"3"


def test_a_batch_larger_than_the_cache_is_read_all_the_same(rig: Rig) -> None:
    publish(rig.connect("p"), bytes(1000))
    rig.storage._cache._limit = 10
    drained(rig)
    reader = rig.connect("r").send(packets.subscribe(1, ("$replay/earliest/t", 0)))
    assert [message.payload for message in reader.messages()] == [bytes(1000)]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("came_back", [False, True])
def test_a_group_hears_of_the_hole_from_the_member_that_gets_what_is_behind_it(
    rig: Rig, version: int, *, came_back: bool
) -> None:
    publish(rig.connect("p"), b"one", b"two")
    share = "$share/g/$replay/earliest/t"

    def member(name: str) -> Peer:
        if version == 5:
            peer: Peer = rig.connect5(name)
            return peer.send(packets5.subscribe(1, (share, 1)))
        return rig.connect(name).send(packets.subscribe(1, (share, 1)))

    first = None
    if came_back:  # "one" and "two" are given to a member that ends, and go to the next
        first = member("first")
        assert len(first.messages()) == 2
    rig.kill()
    publish(rig.connect("p"), b"three")
    drained(rig)
    got = member("second").messages()
    beyond = rig.storage.logs["b"].high_watermark - 1
    assert [message.payload for message in got if message.topic == "t"] == [b"one", b"two", b"three"]
    if version == 5:
        expected = [("gap", f"2-{beyond - 1}"), ("gap-reason", "unclean-stop")]
        assert [message.all("user_property") for message in got] == [[], [], expected]
    else:
        notice = {"from": 2, "to": beyond - 1, "reason": "unclean-stop"}
        assert [json.loads(message.payload) for message in got if message.topic == "$gap/b"] == [notice]


def test_a_gap_that_no_member_can_be_told_of_waits_for_one_who_can(rig: Rig) -> None:
    publish(rig.connect("p"), b"one")
    old = rig.connect("old", clean=False).send(packets.subscribe(1, ("$share/g/t", 0)))
    rig.kill()
    old = rig.connect("old", clean=False)
    publish(rig.connect("p"), b"two")
    drained(rig)
    assert [message.payload for message in old.messages()] == [b"two"]
    new = rig.connect5("new")
    new.send(packets5.subscribe(1, ("$share/g/t", 0)))
    old.send(packets.DISCONNECT)
    publish(rig.connect("p"), b"three")
    (message,) = new.messages()
    assert message.all("user_property")[0] == ("gap", f"1-{rig.storage.logs['b'].high_watermark - 3}")
