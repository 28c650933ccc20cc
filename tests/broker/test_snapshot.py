"""Retained messages on their way to a subscriber: none is lost with the connection, or with the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.rig import Peer5, Rig
from tests.harness import packets, packets5

if TYPE_CHECKING:
    from pathlib import Path

EXPIRY = {"session_expiry_interval": 300}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def retain(rig: Rig, count: int, qos: int = 1, prefix: str = "t/") -> None:
    peer = rig.connect("publisher")
    for number in range(count):
        peer.send(packets.publish(f"{prefix}{number}", b"%d" % number, qos=qos, packet_id=number + 1, retain=True))
    peer.drop()


def subscribed(rig: Rig, qos: int, **limits: int) -> Peer5:
    peer = rig.connect5("s", **EXPIRY, **limits)
    peer.subscribe(("t/#", qos))
    return peer


def back(rig: Rig, **limits: int) -> Peer5:
    peer = rig.connect5("s", clean_start=False, **EXPIRY, **limits)
    assert peer.connack.session_present
    return peer


@pytest.mark.parametrize("how", ["restart", "kill"])
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_not_sent_yet_comes_after_a_restart(rig: Rig, how: str, qos: int) -> None:
    retain(rig, 8, qos)
    peer = subscribed(rig, qos, receive_maximum=2)
    sent = peer.messages()
    assert len(sent) == 2
    getattr(rig, how)()
    got = back(rig).drain()
    assert {m.payload for m in got} == {b"%d" % number for number in range(8)}
    assert all(m.retain for m in got)
    if qos == 2 or how == "restart":
        assert [(m.packet_id, m.payload, m.dup) for m in got[:2]] == [(m.packet_id, m.payload, True) for m in sent]


@pytest.mark.parametrize("how", ["drop", "restart", "kill"])
def test_a_snapshot_that_is_through_does_not_come_again(rig: Rig, how: str) -> None:
    retain(rig, 3)
    peer = subscribed(rig, 1)
    assert len(peer.drain()) == 3
    rig.advance(2)
    if how == "drop":
        peer.drop()
    else:
        getattr(rig, how)()
    assert back(rig).drain() == []
    retain(rig, 1)
    assert [m.retain for m in rig.broker.clients["s"].session.retained] == []


@pytest.mark.parametrize("how", ["drop", "restart", "kill"])
def test_a_qos_2_exchange_is_finished_with_its_packet_id(rig: Rig, how: str) -> None:
    retain(rig, 2, 2)
    peer = subscribed(rig, 2)
    first, second = peer.messages()
    peer.send(packets5.ack(0x50, first.packet_id))
    assert [ack.first_byte for ack in peer.acks()] == [0x62]
    if how == "drop":
        peer.drop()
    else:
        getattr(rig, how)()
    peer = back(rig)
    found = peer.take()
    assert found[0] == (0x62, first.packet_id.to_bytes(2, "big"))
    again = packets5.parse_publish(*found[1])
    assert (again.packet_id, again.topic, again.payload, again.dup, again.retain) == (
        second.packet_id,
        second.topic,
        second.payload,
        True,
        True,
    )


def test_properties_and_identifiers_are_kept_and_the_life_goes_on(rig: Rig) -> None:
    peer = rig.connect5("publisher")
    values = {"message_expiry_interval": 100, "user_property": [("a", "1"), ("a", "2")]}
    peer.send(packets5.publish("t/1", b"x", qos=1, packet_id=1, retain=True, **values))
    rig.advance(10)
    peer = rig.connect5("s", **EXPIRY)
    peer.subscribe(("t/#", 1), subscription_identifier=9)
    sent = peer.message()
    assert sent.properties == (
        ("subscription_identifier", 9),
        ("message_expiry_interval", 90),
        ("user_property", ("a", "1")),
        ("user_property", ("a", "2")),
    )
    rig.advance(5)
    rig.restart()
    rig.advance(5)
    again = back(rig).message()
    assert again.all("message_expiry_interval") == [80]
    assert (again.dup, again.identifiers, again.all("user_property")) == (True, [9], [("a", "1"), ("a", "2")])


def test_a_value_that_changed_meanwhile_comes_from_the_log_only(rig: Rig) -> None:
    retain(rig, 3)
    peer = subscribed(rig, 1, receive_maximum=1)
    (first,) = peer.messages()
    news = [("t/2", b"new"), ("t/1", b""), ("t/2", b"newer")]
    rig.connect("p").send(b"".join(packets.publish(topic, payload, retain=True) for topic, payload in news))
    peer.send(packets5.ack(0x40, first.packet_id))
    assert [(m.topic, m.payload, m.retain) for m in peer.drain()] == [(*new, False) for new in news]


def test_subscribing_again_brings_the_value_as_it_is_now(rig: Rig) -> None:
    retain(rig, 1)
    peer = subscribed(rig, 1)
    rig.connect("p").send(packets.publish("t/0", b"new", retain=True))
    assert [m.payload for m in peer.drain()] == [b"0", b"new"]
    peer.subscribe(("t/#", 1))
    assert [(m.payload, m.retain) for m in peer.drain()] == [(b"new", True)]


def test_an_unsubscribe_ends_it(rig: Rig) -> None:
    retain(rig, 5)
    peer = subscribed(rig, 1, receive_maximum=1)
    peer.subscribe(("t/4", 1))
    (first,) = peer.messages()
    peer.unsubscribe("t/#")
    peer.send(packets5.ack(0x40, first.packet_id))
    assert [m.topic for m in peer.drain()] == ["t/4"]


def test_subscribing_again_starts_over_once(rig: Rig) -> None:
    retain(rig, 3)
    peer = subscribed(rig, 1, receive_maximum=1)
    (first,) = peer.messages()
    peer.subscribe(("t/#", 1))
    peer.send(packets5.ack(0x40, first.packet_id))
    assert sorted(m.topic for m in peer.drain()) == ["t/0", "t/1", "t/2"]


def test_nothing_live_passes_a_qos_2_message_that_waits_for_the_journal(rig: Rig) -> None:
    peer = rig.connect5("s", **EXPIRY)
    peer.subscribe(("t/0", 2))
    retain(rig, 1, 2)
    peer.drain()
    peer.feed(packets5.subscribe(1, ("t/#", 2)))
    rig.storage.settle()  # SUBSCRIBE is in the journal, the retained message is on its way there
    publisher = rig.connect("p")
    publisher.client.handle(publisher.protocol.receive_data(packets.publish("t/0", b"newer", retain=True)))
    rig.settle()
    values = [m.payload for m in peer.messages()]
    assert values in ([b"0", b"newer"], [b"newer", b"newer"])


def test_a_store_written_before_publishers_were_noted_is_read(rig: Rig) -> None:
    rig.storage.put([(b"r/old", b"\x01\x00\x02" + (1000).to_bytes(8, "big") + b"\x01\x01payload")])
    rig.restart()
    peer = rig.connect5("s")
    peer.subscribe(("old", 1))
    message = peer.message()
    assert (message.payload, message.qos, message.properties) == (b"payload", 1, (("payload_format_indicator", 1),))
