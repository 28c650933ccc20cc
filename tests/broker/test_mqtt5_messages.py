"""What becomes of an MQTT 5 message on its way: properties, expiry, the other version, what its publisher is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from highway.errors import DiskFullError
from highway.storage import Durability
from tests.broker.rig import Peer, Peer5, Rig
from tests.harness import packets, packets5

if TYPE_CHECKING:
    from pathlib import Path

FAST, SAFE = Durability.FAST, Durability.SAFE
EXPIRY = {"session_expiry_interval": 3000}
EVERYTHING = {
    "payload_format_indicator": 1,
    "content_type": "text/plain",
    "user_property": [("b", "1"), ("a", "2"), ("b", "1"), ("", "")],
    "response_topic": "answers/here",
    "correlation_data": b"\x00\xff",
}
AS_PAIRS = (
    ("payload_format_indicator", 1),
    ("content_type", "text/plain"),
    ("user_property", ("b", "1")),
    ("user_property", ("a", "2")),
    ("user_property", ("b", "1")),
    ("user_property", ("", "")),
    ("response_topic", "answers/here"),
    ("correlation_data", b"\x00\xff"),
)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def publish(
    rig: Rig, payload: bytes = b"x", *, topic: str = "t", qos: int = 1, retain: bool = False, **values: Any
) -> None:
    peer = rig.connect5("publisher")
    peer.send(packets5.publish(topic, payload, qos=qos, packet_id=1, retain=retain, **values)).drop()


def away(rig: Rig, qos: int = 1) -> None:
    peer = rig.connect5("s", **EXPIRY)
    peer.subscribe(("t", qos))
    peer.drop()


def back(rig: Rig, **values: int) -> Peer5:
    return rig.connect5("s", clean_start=False, **EXPIRY, **values)


# Passed on unaltered and in order.


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_are_passed_on_unaltered_and_in_order(rig: Rig, qos: int) -> None:
    peer = rig.connect5("s", **EXPIRY)
    peer.subscribe(("t", qos))
    publish(rig, b"live", qos=qos, retain=True, **EVERYTHING)
    assert peer.message().properties == AS_PAIRS
    if qos:
        peer.drop()
        peer = back(rig)
        again = peer.message()
        assert (again.dup, again.properties) == (True, AS_PAIRS)
    peer.drop()
    publish(rig, b"missed", qos=qos, **EVERYTHING)
    rig.restart()
    assert [m.properties for m in back(rig).messages()][-1] == AS_PAIRS
    other = rig.connect5("o")
    other.subscribe(("t", qos))
    assert other.message().properties == AS_PAIRS, "retained"
    other.subscribe(("$replay/earliest/t", qos))
    assert [m.properties for m in other.messages()] == [AS_PAIRS, AS_PAIRS]


def test_request_and_response(rig: Rig) -> None:
    asker, answerer = rig.connect5("a"), rig.connect5("b")
    asker.subscribe(("answers/#", 1))
    answerer.subscribe(("ask/time", 1))
    asker.send(
        packets5.publish("ask/time", b"?", qos=1, packet_id=1, response_topic="answers/a", correlation_data=b"42")
    )
    request = answerer.message()
    topic, data = dict(request.properties)["response_topic"], dict(request.properties)["correlation_data"]
    answerer.send(packets5.publish(topic, b"noon", qos=1, packet_id=1, correlation_data=data))
    (answer,) = [m for m in asker.messages() if m.topic == "answers/a"]
    assert (answer.payload, answer.properties) == (b"noon", (("correlation_data", b"42"),))


@pytest.mark.parametrize(("values", "reason_code"), [({"response_topic": "a/+"}, 0x82), ({"response_topic": ""}, 0x82)])
def test_a_response_topic_is_a_topic_name(rig: Rig, values: dict[str, Any], reason_code: int) -> None:
    peer = rig.connect5("p")
    peer.send(packets5.publish("t", b"x", **values))
    assert peer.disconnected_with() == reason_code


def test_no_property_of_a_publish_is_made_up(rig: Rig) -> None:
    peer = rig.connect5("s")
    peer.subscribe(("t", 1))
    publish(rig)
    rig.connect("old").send(packets.publish("t", b"x"))
    assert [m.properties for m in peer.messages()] == [(), ()]


# Message expiry.


def test_a_message_that_waited_too_long_is_not_delivered_and_what_follows_is(rig: Rig) -> None:
    away(rig)
    publish(rig, b"short", message_expiry_interval=10)
    publish(rig, b"long", message_expiry_interval=100)
    publish(rig, b"for ever")
    rig.advance(10)
    got = back(rig).messages()
    assert [(m.payload, m.all("message_expiry_interval")) for m in got] == [(b"long", [90]), (b"for ever", [])]


def test_a_live_message_has_its_whole_life_left(rig: Rig) -> None:
    peer = rig.connect5("s")
    peer.subscribe(("t", 0))
    publish(rig, qos=0, message_expiry_interval=10, user_property=[("a", "b")])
    assert peer.message().properties == (("message_expiry_interval", 10), ("user_property", ("a", "b")))


def test_waiting_counts_over_a_restart(rig: Rig) -> None:
    away(rig)
    publish(rig, message_expiry_interval=100)
    rig.advance(30)
    rig.restart()
    rig.advance(30)
    assert back(rig).message().all("message_expiry_interval") == [40]


def test_a_retained_message_expires(rig: Rig) -> None:
    publish(rig, retain=True, message_expiry_interval=50)
    for seconds, left in ((20, [30]), (20, [10])):
        rig.advance(seconds)
        rig.restart()
        peer = rig.connect5("s")
        peer.subscribe(("t", 0))
        assert peer.message().all("message_expiry_interval") == left
    rig.advance(10)
    peer.subscribe(("t", 0))
    assert peer.messages() == []


def test_a_replay_leaves_out_what_expired(rig: Rig) -> None:
    publish(rig, b"a", message_expiry_interval=10)
    publish(rig, b"b", message_expiry_interval=30)
    rig.advance(15)
    peer = rig.connect5("s")
    peer.subscribe(("$replay/earliest/t", 0))
    assert [(m.payload, m.all("message_expiry_interval")) for m in peer.messages()] == [(b"b", [15])]


def test_a_3_1_1_subscriber_gets_no_expired_message_either(rig: Rig) -> None:
    rig.connect("s", clean=False).send(packets.subscribe(1, ("t", 1))).drop()
    publish(rig, b"a", message_expiry_interval=10)
    publish(rig, b"b", message_expiry_interval=100, user_property=[("a", "b")])
    rig.advance(15)
    assert [m.payload for m in rig.connect("s", clean=False).messages()] == [b"b"]


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_sent_once_does_not_expire_any_more(rig: Rig, qos: int) -> None:
    peer = rig.connect5("s", **EXPIRY)
    peer.subscribe(("t", qos))
    publish(rig, qos=qos, message_expiry_interval=10)
    first = peer.message()
    peer.drop()
    rig.advance(20)
    rig.restart()
    again = back(rig).message()
    assert (again.packet_id, again.dup, again.all("message_expiry_interval")) == (first.packet_id, True, [0])


def test_a_publisher_goes_on_with_qos_2_whatever_became_of_its_message(rig: Rig) -> None:
    peer = rig.connect5("p", **EXPIRY)
    peer.send(packets5.publish("t", b"x", qos=2, packet_id=3, message_expiry_interval=1))
    rig.advance(10)
    peer.send(packets5.publish("t", b"x", qos=2, packet_id=3, dup=True, message_expiry_interval=1))
    peer.send(packets5.ack(0x62, 3))
    assert [(ack.first_byte, ack.reason_code) for ack in peer.acks()] == [(0x50, 0), (0x50, 0), (0x70, 0)]


def test_a_clock_that_steps_back_shortens_no_life(rig: Rig) -> None:
    away(rig)
    publish(rig, message_expiry_interval=100)
    rig.clock.advance(-50)
    rig.settle()
    assert back(rig).message().all("message_expiry_interval") == [100]


# The other version.


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_version_reads_what_the_other_wrote_live_retained_and_replayed(rig: Rig, qos: int) -> None:
    old, new = rig.connect("old"), rig.connect5("new", topic_alias_maximum=2)
    old.send(packets.subscribe(1, ("t/#", qos)))
    new.subscribe(("t/#", qos), subscription_identifier=5)
    writer = rig.connect("writer")
    publish(rig, b"new", topic="t/new", qos=qos, retain=True, message_expiry_interval=50, **EVERYTHING)
    writer.send(packets.publish("t/old", b"old", qos=qos, packet_id=1, retain=True))
    as_5 = (("message_expiry_interval", 50), *AS_PAIRS)

    def check(seen_old: list[packets.Message], seen_new: list[packets5.Message], identifier: int) -> None:
        assert sorted((m.topic, m.payload, m.qos) for m in seen_old) == [
            ("t/new", b"new", qos),
            ("t/old", b"old", qos),
        ]
        assert sorted((m.payload, m.qos, m.identifiers) for m in seen_new) == [
            (b"new", qos, [identifier]),
            (b"old", qos, [identifier]),
        ]
        kept = {
            m.payload: tuple(p for p in m.properties if p[0] not in ("topic_alias", "subscription_identifier"))
            for m in seen_new
        }
        assert kept == {b"new": as_5, b"old": ()}

    check(old.messages(), new.messages(), 5)
    old, new = rig.connect("old"), rig.connect5("new")
    old.send(packets.subscribe(1, ("t/#", qos)))
    new.subscribe(("t/#", qos), subscription_identifier=6)
    check(old.messages(), new.messages(), 6)
    old, new = rig.connect("old"), rig.connect5("new")
    old.send(packets.subscribe(1, ("$replay/earliest/t/#", qos)))
    new.subscribe(("$replay/earliest/t/#", qos), subscription_identifier=7)
    check(old.messages(), new.messages(), 7)


def test_a_session_that_changes_its_version_is_sent_what_it_can_read(rig: Rig) -> None:
    peer = rig.connect5("s", **EXPIRY)
    peer.subscribe(("t", packets5.option(1, retain_as_published=True)), subscription_identifier=5)
    publish(rig, b"unacknowledged", **EVERYTHING)
    assert len(peer.messages()) == 1
    peer.drop()
    publish(rig, b"missed", **EVERYTHING)
    old = rig.connect("s", clean=False)
    publish(rig, b"live", **EVERYTHING)
    first, *rest = old.take()
    assert first == (0x20, b"\1\0")
    seen = [packets.parse_publish(*one) for one in rest]
    assert [(m.payload, m.dup) for m in seen] == [(b"unacknowledged", True), (b"missed", False), (b"live", False)]
    old.drop()
    again = back(rig).messages()
    assert [m.payload for m in again] == [b"unacknowledged", b"missed", b"live"]
    assert {(*m.identifiers, m.properties[1:]) for m in again} == {(5, AS_PAIRS)}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_one_publish_in_three_versions(rig: Rig, qos: int) -> None:
    oldest = Peer(
        rig, "3.1", clean=True, connect=packets.packet(0x10, packets.text("MQIsdp") + b"\3\2\0\x3c" + packets.text("m"))
    )
    assert oldest.take() == [(0x20, b"\0\0")]
    peers = [oldest, rig.connect("o"), rig.connect5("n")]
    for peer in peers[:2]:
        peer.send(packets.subscribe(1, ("t", qos)))
    peers[2].send(packets5.subscribe(1, ("t", qos)))
    publish(rig, b"payload", qos=qos, **EVERYTHING)
    assert [[m.payload for m in peer.messages()] for peer in peers] == [[b"payload"]] * 3


# What the publisher is told.


@pytest.fixture
def full(rig: Rig) -> Rig:
    """A broker whose disk is full, with somebody who subscribes to everything."""
    rig.connect5("all").subscribe(("#", 0))
    rig.storage._committer.fail(DiskFullError("no space left"))
    return rig


def has_room_again(rig: Rig) -> None:
    rig.storage._committer.fault = None


def test_a_full_disk_is_told_and_nothing_is_stored(full: Rig) -> None:
    peer = full.connect5("p")
    peer.send(packets5.publish("t", b"a", qos=1, packet_id=1) + packets5.publish("t", b"b", qos=2, packet_id=2))
    assert [(ack.first_byte, ack.packet_id, ack.reason_code) for ack in peer.acks()] == [
        (0x40, 1, 0x97),
        (0x50, 2, 0x97),
    ]
    assert not peer.link.closed
    has_room_again(full)
    peer.send(packets5.publish("t", b"new", qos=2, packet_id=2))
    assert [(ack.packet_id, ack.reason_code) for ack in peer.acks()] == [(2, 0)]
    assert full.storage.logs["other"].log_end_offset == 1, "under a refused id comes a new message"


def test_a_full_disk_closes_on_what_has_no_answer(full: Rig) -> None:
    peer = full.connect5("p")
    peer.send(packets5.publish("t", b"a"))
    assert peer.disconnected_with() == 0x97


@pytest.mark.parametrize("qos", [1, 2])
def test_a_3_1_1_publisher_is_closed_and_its_message_is_taken_when_it_comes_again(full: Rig, qos: int) -> None:
    message = packets.publish("t", b"a", qos=qos, packet_id=1)
    peer = full.connect("p", clean=False)
    peer.take()
    peer.send(message)
    assert peer.link.closed
    assert peer.take() == []
    has_room_again(full)
    peer = full.connect("p", clean=False)
    peer.take()
    peer.send(packets.publish("t", b"a", qos=qos, packet_id=1, dup=True))
    assert peer.take() == [(0x40 if qos == 1 else 0x50, b"\0\1")]
    assert full.storage.logs["other"].log_end_offset == 1


def test_a_repetition_of_what_is_stored_is_acknowledged_by_a_full_disk_too(rig: Rig) -> None:
    peer = rig.connect5("p", **EXPIRY)
    peer.send(packets5.publish("t", b"a", qos=2, packet_id=1))
    assert [ack.reason_code for ack in peer.acks()] == [0]
    rig.storage._committer.fail(DiskFullError("no space left"))
    peer.feed(
        packets5.publish("t", b"a", qos=2, packet_id=1, dup=True)
        + packets5.publish("t", b"b", qos=2, packet_id=2, dup=True)
    )
    has_room_again(rig)
    peer.send(packets.PINGREQ)
    assert [(ack.packet_id, ack.reason_code) for ack in peer.acks()] == [(1, 0), (2, 0x97)]
    peer.send(
        packets5.publish("t", b"a", qos=2, packet_id=1, dup=True) + packets5.publish("t", b"b", qos=2, packet_id=2)
    )
    assert [(ack.packet_id, ack.reason_code) for ack in peer.acks()] == [(1, 0), (2, 0)]
    assert rig.storage.logs["other"].log_end_offset == 2


def test_properties_that_no_record_can_hold_end_the_connection(rig: Rig) -> None:
    pairs = [("k" * 100, "v" * 900)] * 70
    peer = rig.connect5("p")
    peer.send(packets5.publish("t", b"x", qos=1, packet_id=1, user_property=pairs))
    assert peer.disconnected_with() == 0x95
    assert rig.storage.logs["other"].log_end_offset == 0


def test_topics_that_no_entry_takes_are_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ((b"known/#", "known", FAST),), unmatched_reject=True)
    peer = rig.connect5("p")
    peer.send(packets5.publish("other", b"a", qos=1, packet_id=1) + packets5.publish("other", b"b", qos=2, packet_id=2))
    assert [(ack.first_byte, ack.packet_id, ack.reason_code) for ack in peer.acks()] == [
        (0x40, 1, 0x87),
        (0x50, 2, 0x87),
    ]
    old = rig.connect("o")
    old.take()
    old.send(packets.publish("other", b"a", qos=1, packet_id=1) + packets.publish("other", b"b", qos=2, packet_id=2))
    assert old.take() == [(0x40, b"\0\1"), (0x50, b"\0\2")], "3.1.1 has no other answer: acknowledged, dropped, counted"
    assert rig.broker.counters.publish_dropped == 4


def test_a_qos_2_message_is_taken_once_until_it_is_released(rig: Rig) -> None:
    watcher = rig.connect5("w")
    watcher.subscribe(("t", 2))
    peer = rig.connect5("p", **EXPIRY)
    for _ in range(3):
        peer.send(packets5.publish("t", b"once", qos=2, packet_id=7))
    peer.drop()
    rig.kill()
    watcher = rig.connect5("w")
    watcher.subscribe(("t", 2))
    peer = rig.connect5("p", clean_start=False, **EXPIRY)
    peer.send(packets5.publish("t", b"once", qos=2, packet_id=7, dup=True))
    peer.send(packets5.ack(0x62, 7) + packets5.ack(0x62, 7))
    assert [(ack.first_byte, ack.reason_code) for ack in peer.acks()] == [(0x50, 0), (0x70, 0), (0x70, 0)]
    assert watcher.messages() == []
    peer.send(packets5.publish("t", b"twice", qos=2, packet_id=7, dup=True))
    assert watcher.message().payload == b"twice", "whatever DUP says"


def test_a_qos_1_message_is_new_each_time_and_dup_is_not_passed_on(rig: Rig) -> None:
    watcher = rig.connect5("w")
    watcher.subscribe(("t", 1))
    peer = rig.connect5("p")
    for dup in (False, True):
        peer.send(packets5.publish("t", b"x", qos=1, packet_id=7, dup=dup))
    assert [m.dup for m in watcher.messages()] == [False, False]
