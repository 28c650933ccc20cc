"""Shared subscriptions: every message to one member, none lost when a member goes, one position for the group."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from highway.broker.authorisation import AclRule, Right
from highway.broker.reconfiguring import reconfigure
from tests.broker.rig import Peer, Rig
from tests.harness import packets

if TYPE_CHECKING:
    from pathlib import Path

SHARE = "$share/g/t/#"


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, max_inflight=10)


def publish(rig: Rig, first: int, count: int, qos: int = 1, topic: str = "t/1") -> None:
    peer = rig.connect("publisher")
    peer.send(
        b"".join(packets.publish(topic, b"%d" % n, qos=qos, packet_id=n + 1) for n in range(first, first + count))
    )
    peer.drop()


def member(rig: Rig, client_id: str, *, clean: bool = True, qos: int = 1, name: str = SHARE) -> Peer:
    return rig.connect(client_id, clean=clean).send(packets.subscribe(1, (name, qos)))


def take(peer: Peer, *, ack: bool = True) -> list[int]:
    got = []
    while batch := peer.messages():
        for message in batch:
            got.append(int(message.payload))
            if ack and message.qos == 1:
                peer.send(packets.ack(0x40, message.packet_id))
    return got


def test_members_take_turns_and_each_message_goes_to_one(rig: Rig) -> None:
    peers = [member(rig, f"m{number}") for number in range(3)]
    publish(rig, 0, 300, qos=0)
    shares = [take(peer) for peer in peers]
    assert sorted(number for share in shares for number in share) == list(range(300))
    assert [len(share) for share in shares] == [100, 100, 100]
    assert all(share == sorted(share) for share in shares)


def test_turns_begin_with_the_member_that_joined_first(rig: Rig) -> None:
    peers = [member(rig, f"m{number}") for number in range(3)]
    for number in range(7):
        publish(rig, number, 1, qos=0)
    assert [take(peer) for peer in peers] == [[0, 3, 6], [1, 4], [2, 5]]


def test_turns_go_on_in_order_when_a_member_goes(rig: Rig) -> None:
    peers = [member(rig, f"m{number}") for number in range(4)]
    publish(rig, 0, 2, qos=0)
    peers[0].drop()
    publish(rig, 2, 3, qos=0)
    assert [take(peer) for peer in peers[1:]] == [[1, 4], [2], [3]]
    peers[3].drop()
    publish(rig, 5, 2, qos=0)
    assert [take(peer) for peer in peers[1:3]] == [[6], [5]]


def test_one_member_gets_everything_in_order(rig: Rig) -> None:
    only = member(rig, "m")
    publish(rig, 0, 50)
    assert take(only) == list(range(50))


def test_a_member_that_is_stuck_is_passed_over(rig: Rig) -> None:
    stuck, works = member(rig, "stuck"), member(rig, "works")
    publish(rig, 0, 60)
    held = take(stuck, ack=False)
    assert len(held) == 10, "its window"
    done = take(works)
    assert sorted(held + done) == list(range(60))


def test_what_a_member_left_unacknowledged_goes_to_the_others(rig: Rig) -> None:
    leaves, stays = member(rig, "leaves"), member(rig, "stays")
    publish(rig, 0, 30)
    held = take(leaves, ack=False)
    assert held
    leaves.drop()
    assert sorted(take(stays)) == list(range(30))


def test_a_persistent_member_that_is_away_keeps_its_own_and_gets_nothing_new(rig: Rig) -> None:
    away, stays = member(rig, "away", clean=False), member(rig, "stays")
    publish(rig, 0, 20)
    held = take(away, ack=False)
    away.drop()
    publish(rig, 20, 20)
    others = take(stays)
    assert sorted(held + others) == list(range(40))
    assert take(rig.connect("away", clean=False)) == held


def test_the_group_waits_for_persistent_members_across_a_restart(rig: Rig) -> None:
    first = member(rig, "a", clean=False)
    publish(rig, 0, 5)
    assert take(first) == [0, 1, 2, 3, 4]
    rig.advance(2)
    first.drop()
    publish(rig, 5, 5)
    rig.restart()
    publish(rig, 10, 5)
    assert take(rig.connect("a", clean=False)) == list(range(5, 15))


def test_in_flight_of_a_group_survives_a_restart_under_its_packet_ids(rig: Rig) -> None:
    first = member(rig, "a", clean=False)
    publish(rig, 0, 3)
    sent = first.messages()
    first.drop()
    rig.restart()
    again = rig.connect("a", clean=False).messages()
    assert [(m.packet_id, m.payload, m.dup) for m in again] == [(m.packet_id, m.payload, True) for m in sent]


def test_a_group_that_starts_from_replay_begins_there_and_is_not_rewound(rig: Rig) -> None:
    publish(rig, 0, 5)
    name = "$share/g/$replay/earliest/t/#"
    first = member(rig, "a", name=name)
    assert take(first) == [0, 1, 2, 3, 4]
    second = member(rig, "b", name=name)
    assert take(second) == []
    publish(rig, 5, 4)
    assert sorted(take(first) + take(second)) == [5, 6, 7, 8]


def test_the_last_member_ends_the_group(rig: Rig) -> None:
    only = member(rig, "a")
    only.send(packets.unsubscribe(2, SHARE))
    assert rig.broker.groups == {}
    publish(rig, 0, 3)
    assert take(member(rig, "b")) == []


def test_a_subscription_of_its_own_beside_the_group(rig: Rig) -> None:
    both = member(rig, "a")
    both.send(packets.subscribe(2, ("t/1", 0)))
    publish(rig, 0, 3, qos=0)
    assert sorted(take(both)) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("bad", ["$share/g/", "$share//t", "$share/g+/t"])
def test_a_bad_share_name_closes_the_connection(rig: Rig, bad: str) -> None:
    peer = rig.connect("a")
    peer.take()
    peer.send(packets.subscribe(1, (bad, 0)))
    assert peer.protocol.error is not None


def test_only_a_replay_can_be_shared(rig: Rig) -> None:
    peer = rig.connect("a")
    peer.take()
    peer.send(packets.subscribe(1, ("$share/g/$fetch/1/t", 0)))
    assert peer.take() == [(0x90, b"\0\1\x80")]


def test_a_group_that_was_at_the_end_when_its_last_member_left_misses_nothing(rig: Rig) -> None:
    away = member(rig, "a", clean=False)
    publish(rig, 0, 3)
    assert take(away) == [0, 1, 2]
    away.drop()
    publish(rig, 3, 3)
    back = rig.connect("a", clean=False)
    assert take(back) == [3, 4, 5]


def test_one_group_by_two_names_is_left_with_the_second(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    peer = rig.connect("c", clean=False)
    peer.send(packets.subscribe(1, ("$share/g/a", 0), ("$share/g/$replay/earliest/a", 0)))
    writer = rig.connect("w").send(packets.publish("a", b"1"))
    assert [m.payload for m in peer.messages()] == [b"1"]
    peer.send(packets.unsubscribe(2, "$share/g/a"))
    writer.send(packets.publish("a", b"2"))
    assert [m.payload for m in peer.messages()] == [b"2"]
    rig.restart()
    peer = rig.connect("c", clean=False)
    rig.connect("w").send(packets.publish("a", b"3"))
    assert [m.payload for m in peer.messages()] == [b"3"]
    peer.send(packets.unsubscribe(3, "$share/g/$replay/earliest/a"))
    assert rig.broker.groups == {}
    both = packets.subscribe(4, ("$share/g/a", 0), ("$share/g/$replay/earliest/a", 0))
    peer.send(both).drop()
    assert not rig.connect("c").link.closed
    assert rig.broker.groups == {}


def test_a_group_that_was_left_before_its_suback_stays_left(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    peer = rig.connect("c", clean=False)
    peer.send(packets.subscribe(1, ("$share/g/a", 0)) + packets.unsubscribe(2, "$share/g/a"))
    assert not peer.link.closed
    assert rig.broker.groups == {}
    rig.connect("w").send(packets.publish("a", b"1"))
    assert peer.messages() == []


def test_what_waits_is_not_passed_over_when_the_last_member_acknowledges_and_leaves(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_inflight=1)
    peer = member(rig, "a", clean=False)
    publish(rig, 0, 3)
    (message,) = peer.messages()
    peer.send(packets.ack(0x40, message.packet_id) + packets.DISCONNECT)
    assert take(rig.connect("a", clean=False)) == [1, 2]


def test_what_a_member_left_unacknowledged_comes_before_what_waits(rig: Rig) -> None:
    peer = member(rig, "a", clean=False)
    publish(rig, 0, 2)
    assert take(peer, ack=False) == [0, 1]
    peer.drop()
    publish(rig, 2, 2)
    assert take(rig.connect("a", clean=False)) == [0, 1, 2, 3]


@pytest.mark.parametrize("how", ["a right that is lost", "a smaller maximum packet size"])
def test_what_a_member_can_not_be_sent_again_goes_to_another(rig: Rig, how: str) -> None:
    peer = member(rig, "a", clean=False)
    rig.connect("publisher").send(packets.publish("t/1", b"0" * 100, qos=1, packet_id=1))
    assert len(peer.messages()) == 1
    other = member(rig, "b", clean=False)
    peer.drop()
    if how == "a right that is lost":
        everything = AclRule(allow=True, rights=frozenset(Right), topic_filter=b"#", client="b")
        reconfigure(rig.broker, replace(rig.settings, acl=(everything,)))
        rig.connect("a", clean=False)
    else:
        rig.connect5("a", clean_start=False, session_expiry_interval=100, maximum_packet_size=50)
    assert take(other) == [0]


def test_a_group_that_ended_before_its_suback_leaves_no_position(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    publish(rig, 0, 1, topic="t")
    peer = rig.connect("c", clean=False)
    slow = packets.subscribe(1, ("$share/g/t", 1), ("$replay/@1000/t", 1))  # a time is looked up on the disk
    peer.send(slow + packets.unsubscribe(2, "$share/g/t"))
    assert sorted(first for first, _ in peer.take() if first in (0x90, 0xB0)) == [0x90, 0xB0]
    assert rig.broker.groups == {}
    assert list(rig.storage.meta.items(b"g/")) == []
