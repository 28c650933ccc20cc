"""MQTT 5 limits both ways: receive maximum, maximum packet size, topic aliases, packet ids; and the order of it all."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from highway.storage import Durability
from tests.broker.rig import Peer, Peer5, Rig
from tests.harness import packets, packets5

if TYPE_CHECKING:
    from pathlib import Path

FAST, BALANCED, SAFE = Durability.FAST, Durability.BALANCED, Durability.SAFE
EXPIRY = {"session_expiry_interval": 300}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def publish(rig: Rig, topic: str, *payloads: bytes, qos: int = 1) -> None:
    peer = rig.connect("publisher")
    peer.send(b"".join(packets.publish(topic, p, qos=qos, packet_id=n) for n, p in enumerate(payloads, 1)))
    peer.drop()


def numbered(first: int, last: int) -> list[bytes]:
    return [b"m%d" % number for number in range(first, last + 1)]


def payloads(messages: list[packets5.Message]) -> list[bytes]:
    return [message.payload for message in messages]


def away(rig: Rig, topic_filter: str = "t/#", qos: int = 1, **limits: int) -> None:
    """A session `s` that is subscribed and offline."""
    peer = rig.connect5("s", **EXPIRY, **limits)
    peer.subscribe((topic_filter, qos))
    peer.drop()


def back(rig: Rig, **limits: int) -> Peer5:
    peer = rig.connect5("s", clean_start=False, **EXPIRY, **limits)
    assert peer.connack.session_present
    return peer


# Receive maximum.


def test_no_more_than_receive_maximum_is_ever_unacknowledged(rig: Rig) -> None:
    peer = rig.connect5("s", receive_maximum=3)
    peer.subscribe(("t", 2))
    publish(rig, "t", *numbered(0, 9), qos=2)
    waiting = peer.messages()
    assert payloads(waiting) == numbered(0, 2)
    peer.send(packets5.ack(0x50, waiting[0].packet_id))
    assert [ack.first_byte for ack in peer.acks()] == [0x62]
    assert peer.messages() == [], "PUBREC does not open the window"
    peer.send(packets5.ack(0x70, waiting[0].packet_id))
    (fourth,) = peer.messages()
    assert fourth.payload == b"m3"
    peer.send(packets5.ack(0x50, waiting[1].packet_id, 0x80))
    assert payloads(peer.messages()) == [b"m4"], "a refusal ends the exchange"


def test_a_full_window_holds_up_nothing_else(rig: Rig) -> None:
    peer = rig.connect5("s", receive_maximum=1)
    peer.subscribe(("t", 1))
    publish(rig, "t", *numbered(0, 4))
    assert len(peer.messages()) == 1
    assert peer.subscribe(("u", 0)) == [0]
    peer.send(packets.PINGREQ)
    assert peer.take() == [(0xD0, b"")]
    peer.send(packets5.publish("x", b"y", qos=1, packet_id=9))
    assert [ack.packet_id for ack in peer.acks()] == [9]
    assert peer.unsubscribe("u") == [0]


def test_report_23_the_quota_starts_afresh_with_each_connection(rig: Rig) -> None:
    peer = rig.connect5("s", **EXPIRY, receive_maximum=1)
    peer.subscribe(("t", 1))
    publish(rig, "t", b"m0")
    assert payloads(peer.messages()) == [b"m0"]
    peer.drop()
    publish(rig, "t", *numbered(1, 4))
    peer = back(rig, receive_maximum=4)
    first = peer.messages()
    assert payloads(first) == numbered(0, 3)
    assert [message.dup for message in first] == [True, False, False, False]
    for message in first:
        peer.send(packets5.ack(0x40, message.packet_id))
    assert payloads(peer.drain()) == [b"m4"]


@pytest.mark.parametrize("qos", [1, 2])
def test_report_23_a_quota_smaller_than_what_is_unacknowledged(rig: Rig, qos: int) -> None:
    peer = rig.connect5("s", **EXPIRY, receive_maximum=8)
    peer.subscribe(("t", qos))
    publish(rig, "t", *numbered(0, 11), qos=qos)
    sent = peer.messages()
    assert len(sent) == 8
    peer.drop()
    peer = back(rig, receive_maximum=2)
    again = peer.messages()
    assert payloads(again) == numbered(0, 1)
    assert [message.packet_id for message in again] == [message.packet_id for message in sent[:2]]
    for message in again:
        peer.send(packets5.ack(0x40 if qos == 1 else 0x50, message.packet_id))
        if qos == 2:
            peer.send(packets5.ack(0x70, message.packet_id))
    rest = peer.drain()
    assert payloads(rest) == numbered(2, 11)
    assert [message.dup for message in rest] == [True] * 6 + [False] * 4


def test_65535_messages_can_be_sent_and_ids_around_the_wrap_are_passed_over(rig: Rig) -> None:
    peer = rig.connect5("s", receive_maximum=5)
    peer.subscribe(("t", 1))
    session = rig.broker.sessions["s"]
    publish(rig, "t", b"held")
    (held,) = peer.messages()
    session.inflight.next_id = 65_534
    publish(rig, "t", *numbered(0, 3))
    ids = [message.packet_id for message in peer.messages()]
    assert ids == [65_534, 65_535, 2, 3]
    assert held.packet_id == 1


def publishes(qos: int, first: int, last: int, *, topic: str = "t", dup: bool = False) -> bytes:
    return b"".join(packets5.publish(topic, b"", qos=qos, packet_id=n, dup=dup) for n in range(first, last + 1))


def test_our_receive_maximum_is_as_many_as_there_are_packet_ids(rig: Rig) -> None:
    peer = rig.connect5("p")
    assert peer.connack.properties["receive_maximum"] == 65_535
    peer.send(publishes(2, 1, 65_535))
    assert len(peer.acks()) == 65_535
    peer.send(publishes(2, 9, 9, dup=True))
    assert [ack.reason_code for ack in peer.acks()] == [0]
    peer.send(publishes(2, 9, 9))
    assert peer.disconnected_with() == 0x93


@pytest.mark.parametrize("qos", [1, 2])
def test_a_client_that_exceeds_our_receive_maximum_is_closed(tmp_path: Path, qos: int) -> None:
    rig = Rig(tmp_path, ((b"#", "safe", SAFE),), receive_maximum=5)
    peer = rig.connect5("p")
    for _ in range(3):
        peer.send(publishes(qos, 1, 5))
        assert len(peer.acks()) == 5
        if qos == 2:
            peer.send(b"".join(packets5.ack(0x62, n) for n in range(1, 6)))
            assert len(peer.acks()) == 5
    peer.feed(publishes(qos, 1, 3) + publishes(qos, 4, 6, topic="u"))
    assert peer.disconnected_with() == 0x93
    rig.settle()
    assert rig.storage.logs["safe"].log_end_offset == 18, "the run that was too much is not stored"


def test_qos_1_and_2_count_together_and_qos_0_does_not(tmp_path: Path) -> None:
    rig = Rig(tmp_path, receive_maximum=5)
    peer = rig.connect5("p")
    peer.send(publishes(2, 1, 4) + packets5.publish("t", b"") * 20 + publishes(1, 5, 5) + publishes(1, 5, 5))
    assert peer.disconnected_with() == 0x93


def test_repetitions_do_not_count_twice_and_older_clients_not_at_all(tmp_path: Path) -> None:
    rig = Rig(tmp_path, receive_maximum=5)
    peer = rig.connect5("p")
    peer.send(publishes(2, 1, 5))
    for _ in range(3):
        peer.send(publishes(2, 1, 5, dup=True))
    assert len(peer.acks()) == 20
    old = rig.connect("o")
    old.take()
    old.send(b"".join(packets.publish("t", b"", qos=2, packet_id=n) for n in range(1, 50)))
    assert len(old.take()) == 49


def test_a_clients_quota_starts_afresh_with_each_connection(tmp_path: Path) -> None:
    rig = Rig(tmp_path, receive_maximum=5)
    rig.connect5("p", **EXPIRY).send(publishes(2, 1, 5)).drop()
    peer = rig.connect5("p", clean_start=False, **EXPIRY)
    peer.send(publishes(2, 1, 2, dup=True) + publishes(2, 11, 13))  # 3 to 5 are past their PUBREC
    assert len(peer.acks()) == 5
    peer.send(b"".join(packets5.ack(0x62, n) for n in (3, 4, 5, 1)) + publishes(2, 14, 14))
    assert [ack.first_byte for ack in peer.acks()] == [0x70] * 4 + [0x50]
    peer.send(publishes(2, 15, 15))
    assert peer.disconnected_with() == 0x93


# Maximum packet size.


def of_size(size: int, topic: str = "t") -> bytes:
    """A payload with which a QoS 1 PUBLISH to `topic` without properties has `size` bytes."""
    payload = bytes(size - 2 - 2 - len(topic) - 2 - 1)
    assert len(packets5.publish(topic, payload, qos=1, packet_id=1)) == size
    return payload


def test_report_27_what_is_too_large_is_passed_over_and_the_rest_arrives(rig: Rig) -> None:
    away(rig, "t", maximum_packet_size=100)
    publish(rig, "t", b"first", bytes(5000), b"third")
    peer = back(rig, maximum_packet_size=100)
    assert payloads(peer.drain()) == [b"first", b"third"]
    assert rig.broker.counters.publish_dropped == 1
    peer.drop()
    assert payloads(back(rig, maximum_packet_size=100).messages()) == [], "the position is past it"


@pytest.mark.parametrize("live", [True, False], ids=["live", "missed"])
def test_report_27_the_limit_is_exact(rig: Rig, *, live: bool) -> None:
    if not live:
        away(rig, "t", maximum_packet_size=100)
        publish(rig, "t", of_size(101), of_size(100), of_size(99))
    peer = rig.connect5("s", clean_start=live, **EXPIRY, maximum_packet_size=100)
    if live:
        peer.subscribe(("t", 1))
        publish(rig, "t", of_size(101), of_size(100), of_size(99))
    assert [message.size for message in peer.messages()] == [100, 99]


def test_subscription_identifiers_count_for_the_size(rig: Rig) -> None:
    peer = rig.connect5("s", maximum_packet_size=200)
    levels = [(first, second, third) for first in "a+" for second in "b+" for third in "c+"]
    for number, parts in enumerate([*levels, *((*parts, "#") for parts in levels)]):
        peer.subscribe(("/".join(parts), 0), subscription_identifier=200_000_000 + number)
    publish(rig, "a/b/c", *(bytes(length) for length in range(100, 130)), qos=0)
    got = peer.messages()
    assert max(message.size for message in got) == 200
    assert {len(message.identifiers) for message in got} == {16}
    assert 0 < len(got) < 30


def test_what_is_sent_again_fits_the_new_connection(rig: Rig) -> None:
    peer = rig.connect5("s", **EXPIRY)
    peer.subscribe(("t", 1))
    publish(rig, "t", b"small", bytes(1000), b"also small")
    assert len(peer.messages()) == 3
    peer.drop()
    peer = back(rig, maximum_packet_size=100, receive_maximum=1)
    assert payloads(peer.drain()) == [b"small", b"also small"]
    publish(rig, "t", b"new")
    assert payloads(peer.drain()) == [b"new"]


def test_a_retained_message_that_is_too_large_is_left_out(rig: Rig) -> None:
    for name, size in (("a", 10), ("b", 500), ("c", 10)):
        rig.connect("p").send(packets.publish(f"t/{name}", bytes(size), retain=True))
    peer = rig.connect5("s", maximum_packet_size=100)
    peer.subscribe(("t/#", 1))
    assert [message.topic for message in peer.messages()] == ["t/a", "t/c"]


def test_answers_fit_too(rig: Rig) -> None:
    peer = rig.connect5("s", maximum_packet_size=40)
    peer.send(packets5.subscribe(1, ("$replay/nonsense/t", 0)))
    (answer,) = peer.take()
    assert packets5.parse_suback(*answer) == (1, [0x8F], {}), "without the reason string, for which there is no room"
    many = [(f"t/{number}", 0) for number in range(60)]
    peer.send(packets5.subscribe(2, *many))
    assert peer.take() == [], "a SUBACK of 60 codes is discarded as if it had been sent"
    peer.send(packets5.unsubscribe(3, *(name for name, _ in many)))
    assert peer.take() == []
    peer.send(packets.PINGREQ)
    assert peer.take() == [(0xD0, b"")]


def test_a_packet_above_our_limit_ends_the_connection(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_packet_bytes=1000)
    peer = rig.connect5("s")
    assert peer.connack.properties["maximum_packet_size"] == 1000
    exact = packets5.publish("t", bytes(1000 - 3 - 3 - 2 - 1), qos=1, packet_id=1)
    assert len(exact) == 1000
    peer.send(exact)
    assert [ack.packet_id for ack in peer.acks()] == [1]
    peer.send(packets5.publish("t", bytes(1000 - 3 - 3 - 2), qos=1, packet_id=2))
    assert peer.disconnected_with() == 0x95


# Topic aliases.


def test_a_topic_name_is_sent_once_and_then_its_alias(rig: Rig) -> None:
    peer = rig.connect5("s", topic_alias_maximum=1)
    peer.subscribe(("t/#", 0))
    publish(rig, "t/1", b"a", qos=0)
    publish(rig, "t/2", b"b", qos=0)
    publish(rig, "t/1", b"c", b"d", qos=0)
    got = peer.messages()
    assert [(m.topic, m.all("topic_alias"), m.payload) for m in got] == [
        ("t/1", [1], b"a"),
        ("t/2", [], b"b"),  # no second alias
        ("", [1], b"c"),
        ("", [1], b"d"),
    ]


def test_a_reader_of_the_log_uses_the_aliases_that_its_client_was_told(rig: Rig) -> None:
    peer = rig.connect5("s", topic_alias_maximum=1)
    peer.subscribe(("t/#", 2))
    publish(rig, "t/1", b"live")
    peer.link.congested = True
    publish(rig, "t/1", b"behind", b"further")
    publish(rig, "t/2", b"no alias left")
    peer.link.congested = False
    rig.broker.drained(peer.client)
    rig.settle()
    got = peer.messages()
    assert [(m.topic, m.all("topic_alias"), m.payload) for m in got] == [
        ("t/1", [1], b"live"),
        ("", [1], b"behind"),
        ("", [1], b"further"),
        ("t/2", [], b"no alias left"),
    ]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_no_alias_for_who_asked_for_none(rig: Rig, qos: int) -> None:
    peer = rig.connect5("s")
    peer.subscribe(("t", qos))
    publish(rig, "t", b"a", b"b", qos=qos)
    assert [(m.topic, m.properties) for m in peer.drain()] == [("t", ()), ("t", ())]


@pytest.mark.parametrize("qos", [0, 1])
def test_aliases_of_a_connection_end_with_it(rig: Rig, qos: int) -> None:
    peer = rig.connect5("s", **EXPIRY, topic_alias_maximum=5)
    peer.subscribe(("t", qos))
    publish(rig, "t", b"a", qos=qos)
    publish(rig, "t", b"b", qos=qos)
    assert [message.topic for message in peer.drain()] == ["t", ""]
    peer.drop()
    publish(rig, "t", b"c", qos=qos)
    peer = back(rig, topic_alias_maximum=5)
    publish(rig, "t", b"d", qos=qos)
    publish(rig, "t", b"e", qos=qos)
    assert [message.topic for message in peer.drain()] == ["t", "t", ""]
    peer.drop()
    peer = back(rig)
    publish(rig, "t", b"f", qos=qos)
    assert [message.topic for message in peer.drain()] == ["t"]


def test_a_message_that_went_out_behind_an_alias_is_sent_again_with_its_name(rig: Rig) -> None:
    peer = rig.connect5("s", **EXPIRY, topic_alias_maximum=5)
    peer.subscribe(("t", 1))
    publish(rig, "t", b"a")
    publish(rig, "t", b"b")
    assert [message.topic for message in peer.messages()] == ["t", ""]
    peer.drop()
    assert [message.topic for message in back(rig, topic_alias_maximum=5).messages()] == ["t", "t"]


def test_every_alias_up_to_the_maximum_is_taken_and_may_be_set_anew(rig: Rig) -> None:
    watcher = rig.connect5("w")
    watcher.subscribe(("#", 0))
    peer = rig.connect5("p")
    for alias in range(1, 11):
        peer.send(packets5.publish(f"t/{alias}", b"", topic_alias=alias))
    peer.send(packets5.publish("", b"x", topic_alias=10))
    peer.send(packets5.publish("u", b"y", topic_alias=10) + packets5.publish("", b"z", topic_alias=10))
    got = watcher.messages()
    assert [message.topic for message in got] == [*(f"t/{alias}" for alias in range(1, 11)), "t/10", "u", "u"]
    assert all(message.properties == () for message in got), "an alias is of one connection"


@pytest.mark.parametrize(
    ("topic", "alias", "reason_code"), [("t", 11, 0x94), ("t", 0, 0x94), ("", 3, 0x82), ("", None, 0x82)]
)
def test_an_alias_that_means_nothing_ends_the_connection(
    rig: Rig, topic: str, alias: int | None, reason_code: int
) -> None:
    peer = rig.connect5("p")
    values = {} if alias is None else {"topic_alias": alias}
    peer.send(packets5.publish(topic, b"x", **values))
    assert peer.disconnected_with() == reason_code
    assert rig.storage.logs["other"].log_end_offset == 0


def test_our_memory_of_a_clients_aliases_ends_with_its_connection(rig: Rig) -> None:
    rig.connect5("p", **EXPIRY).send(packets5.publish("t", b"x", topic_alias=1)).drop()
    peer = rig.connect5("p", clean_start=False, **EXPIRY)
    peer.send(packets5.publish("", b"x", topic_alias=1))
    assert peer.disconnected_with() == 0x82


# Acknowledgements.


@pytest.mark.parametrize(("qos", "first_byte"), [(1, 0x50), (1, 0x70), (2, 0x40), (2, 0x70)])
def test_an_acknowledgement_of_the_wrong_kind_ends_the_connection(rig: Rig, qos: int, first_byte: int) -> None:
    peer = rig.connect5("s")
    peer.subscribe(("t", qos))
    publish(rig, "t", b"x", qos=qos)
    peer.send(packets5.ack(first_byte, peer.message().packet_id))
    assert peer.disconnected_with() == 0x82


@pytest.mark.parametrize("version", ["3.1.1", "5.0"])
def test_acknowledgements_of_unknown_ids_are_answered_and_do_no_harm(rig: Rig, version: str) -> None:
    peer: Peer = rig.connect("s") if version == "3.1.1" else rig.connect5("s")
    peer.take()
    peer.send(packets.ack(0x40, 9) + packets.ack(0x50, 9) + packets.ack(0x62, 9) + packets.ack(0x70, 9))
    assert peer.take() == [(0x62, b"\0\t"), (0x70, b"\0\t")]
    peer.send(packets.PINGREQ)
    assert peer.take() == [(0xD0, b"")]


@pytest.mark.parametrize(("qos", "first_byte"), [(1, 0x40), (2, 0x50)])
def test_a_message_that_the_client_refuses_is_not_sent_again(rig: Rig, qos: int, first_byte: int) -> None:
    peer = rig.connect5("s", **EXPIRY)
    peer.subscribe(("t", qos))
    publish(rig, "t", b"refused", b"taken", qos=qos)
    first, _ = peer.messages()
    peer.send(packets5.ack(first_byte, first.packet_id, 0x97)).drop()
    peer = back(rig)
    assert payloads(peer.drain()) == [b"taken"]
    peer.drop()
    rig.restart()
    assert back(rig).messages() == []


def test_acknowledgements_keep_the_order_of_their_messages_across_modes_and_reasons(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ((b"safe", "safe", SAFE), (b"balanced", "balanced", BALANCED), (b"fast", "fast", FAST)))
    rig.connect5("w").subscribe(("#", 0))
    peer = rig.connect5("p")
    topics = ["safe", "fast", "balanced", "nobody/takes/it", "fast", "safe", "fast"]
    for packet_id, topic in enumerate(topics, 1):
        peer.feed(packets5.publish(topic, b"x", qos=1, packet_id=packet_id))
    peer.feed(packets.PINGREQ)
    rig.settle()
    found = peer.take()
    assert [int.from_bytes(body[:2], "big") for first, body in found if first == 0x40] == list(range(1, 8))
    assert [body[2] for first, body in found if first == 0x40 and len(body) > 2] == [0x87]
    assert found[-1] == (0xD0, b"")


def test_pubrels_keep_the_order_of_their_pubrecs(rig: Rig) -> None:
    peer = rig.connect5("s", **EXPIRY)
    peer.subscribe(("t", 2))
    publish(rig, "t", *numbered(0, 4), qos=2)
    ids = [message.packet_id for message in peer.messages()]
    order = [ids[2], ids[0], ids[4], ids[1], ids[3]]
    peer.send(b"".join(packets5.ack(0x50, packet_id) for packet_id in order))
    assert [ack.packet_id for ack in peer.acks()] == order


# Order.


def test_order_across_live_falling_back_and_catching_up(rig: Rig) -> None:
    peer = rig.connect5("s", **EXPIRY, receive_maximum=7, topic_alias_maximum=2)
    peer.subscribe(("t", 1))
    count = itertools.count()
    got: list[bytes] = []
    for step in range(30):
        publish(rig, "t", *(b"%d" % next(count) for _ in range(step % 5 + 1)))
        if step % 4 == 0:
            peer.link.congested = True
        elif step % 4 == 2:
            peer.link.congested = False
            rig.broker.drained(peer.client)
            rig.settle()
        if step % 7 == 6:
            got += payloads(peer.drain())
    peer.link.congested = False
    rig.broker.drained(peer.client)
    rig.settle()
    got += payloads(peer.drain())
    assert got == [b"%d" % number for number in range(next(count))]
