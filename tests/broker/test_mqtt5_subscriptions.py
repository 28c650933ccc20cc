"""MQTT 5 subscription options: identifiers, No Local, Retain As Published, Retain Handling; and SUBACK's codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from highway.storage import Durability
from tests.broker.rig import Peer5, Rig
from tests.harness import packets, packets5
from tests.harness.packets5 import option

if TYPE_CHECKING:
    from pathlib import Path

FAST, SAFE = Durability.FAST, Durability.SAFE
EXPIRY = {"session_expiry_interval": 300}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def publish(rig: Rig, topic: str, *payloads: bytes, qos: int = 1, retain: bool = False) -> None:
    peer = rig.connect5("publisher")
    peer.send(
        b"".join(
            packets5.publish(topic, payload, qos=qos, packet_id=number, retain=retain)
            for number, payload in enumerate(payloads, 1)
        )
    )
    peer.drop()


def back(rig: Rig, client_id: str = "s", **settings: int) -> Peer5:
    peer = rig.connect5(client_id, clean_start=False, **{**EXPIRY, **settings})
    assert peer.connack.session_present
    return peer


# Subscription identifiers.


def test_report_25_one_copy_with_the_identifiers_of_all_that_match_and_of_nobody_else(rig: Rig) -> None:
    rig.connect5("other").subscribe(("t/1", 1), subscription_identifier=1)
    peer = rig.connect5("s", **EXPIRY)
    peer.subscribe(("t/#", 0), subscription_identifier=2)
    peer.subscribe(("t/1", 1), subscription_identifier=3)
    peer.subscribe(("t/+", 0))
    publish(rig, "t/1", b"live")
    publish(rig, "t/2", b"the other")
    first, second = peer.messages()
    assert (first.payload, first.qos, first.identifiers) == (b"live", 1, [2, 3])
    assert (second.payload, second.qos, second.identifiers) == (b"the other", 0, [2])
    peer.drop()
    publish(rig, "t/1", b"missed")
    again, missed = back(rig).messages()
    assert (again.payload, again.dup, again.identifiers) == (b"live", True, [2, 3])
    assert (missed.payload, missed.dup, missed.identifiers) == (b"missed", False, [2, 3])


def test_identifiers_survive_a_restart(rig: Rig) -> None:
    peer = rig.connect5("s", **EXPIRY)
    peer.subscribe(("t/#", 1), subscription_identifier=268_435_455)
    peer.drop()
    publish(rig, "t/1", b"x")
    rig.restart()
    assert back(rig).message().identifiers == [268_435_455]


def test_a_retained_message_carries_the_identifier_of_the_subscription_that_it_is_sent_for(rig: Rig) -> None:
    publish(rig, "t/1", b"kept", retain=True)
    peer = rig.connect5("s")
    peer.send(packets5.subscribe(1, ("t/#", 0), ("t/1", 1), subscription_identifier=7))
    got = peer.messages()
    assert [(m.payload, m.retain, m.identifiers) for m in got] == [(b"kept", True, [7])] * 2
    assert {m.qos for m in got} == {0, 1}, "each SUBSCRIBE filter is answered as if it had come alone"


def test_a_replay_carries_its_own_identifier(rig: Rig) -> None:
    publish(rig, "t/1", b"a", b"b")
    peer = rig.connect5("s")
    peer.subscribe(("$replay/earliest/t/#", 1), subscription_identifier=4)
    assert [(m.payload, m.identifiers) for m in peer.messages()] == [(b"a", [4]), (b"b", [4])]
    publish(rig, "t/1", b"c")
    assert [(m.payload, m.identifiers) for m in peer.messages()] == [(b"c", [4])]


def test_a_subscription_made_anew_has_the_new_identifier_or_none(rig: Rig) -> None:
    peer = rig.connect5("s")
    peer.subscribe(("t", 0), subscription_identifier=1)
    publish(rig, "t", b"a")
    peer.subscribe(("t", 0), subscription_identifier=2)
    publish(rig, "t", b"b")
    peer.subscribe(("t", 0))
    publish(rig, "t", b"c")
    peer.unsubscribe("t")
    publish(rig, "t", b"d")
    assert [(m.payload, m.identifiers) for m in peer.messages()] == [(b"a", [1]), (b"b", [2]), (b"c", [])]


@pytest.mark.parametrize("raw", [b"\x02\x0b\x00", b"\x04\x0b\x01\x0b\x02"], ids=["zero", "two"])
def test_an_identifier_is_one_and_not_zero(rig: Rig, raw: bytes) -> None:
    peer = rig.connect5("s")
    peer.send(packets.packet(0x82, b"\0\1" + raw + packets.text("t") + b"\0"))
    assert peer.disconnected_with() == 0x82


def test_a_client_sends_no_identifiers(rig: Rig) -> None:
    peer = rig.connect5("s")
    peer.send(packets5.publish("t", b"x", subscription_identifier=1))
    assert peer.disconnected_with() == 0x82
    assert rig.storage.logs["other"].log_end_offset == 0


# No Local.


def test_no_local_keeps_a_clients_own_messages_from_it_live(rig: Rig) -> None:
    peer, other = rig.connect5("s"), rig.connect5("o")
    peer.subscribe(("t/#", option(1, no_local=True)))
    other.subscribe(("t/#", option(1, no_local=True)))
    for qos in (0, 1, 2):
        peer.send(packets5.publish("t/1", b"%d" % qos, qos=qos, packet_id=qos + 1))
    assert [m.payload for m in other.messages()] == [b"0", b"1", b"2"]
    assert peer.messages() == []
    publish(rig, "t/1", b"theirs")
    assert [m.payload for m in peer.messages()] == [b"theirs"]


def test_no_local_of_one_of_two_subscriptions_lets_the_other_have_it(rig: Rig) -> None:
    peer = rig.connect5("s")
    peer.subscribe(("t/#", option(2, no_local=True)), subscription_identifier=1)
    peer.subscribe(("t/1", 0), subscription_identifier=2)
    peer.send(packets5.publish("t/1", b"mine", qos=1, packet_id=1))
    publish(rig, "t/1", b"theirs")
    assert [(m.payload, m.qos, m.identifiers) for m in peer.messages()] == [(b"mine", 0, [2]), (b"theirs", 1, [1, 2])]


@pytest.mark.parametrize("restart", [False, True])
def test_no_local_holds_for_what_is_read_back_from_the_log(rig: Rig, *, restart: bool) -> None:
    peer = rig.connect5("s", **EXPIRY)
    witness = rig.connect5("w", **EXPIRY)
    peer.subscribe(("t", option(1, no_local=True)))
    witness.subscribe(("t", 1))
    peer.link.congested = True  # it falls back to the log
    values = {"user_property": [("a", "b")], "message_expiry_interval": 60}
    peer.send(packets5.publish("t", b"mine", qos=1, packet_id=1, **values))
    publish(rig, "t", b"theirs")
    peer.drop()
    witness.drop()
    if restart:
        rig.restart()
    assert [m.payload for m in back(rig).messages()] == [b"theirs"]
    mine, theirs = back(rig, "w").messages()
    assert (mine.payload, mine.dup, theirs.payload) == (b"mine", True, b"theirs")
    assert mine.properties == (("user_property", ("a", "b")), ("message_expiry_interval", 60))


def test_no_local_goes_by_the_client_id_and_not_by_the_session(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ((b"#", "safe", SAFE),))
    peer = rig.connect5("s")
    peer.subscribe(("t", option(1, no_local=True)))
    peer.feed(packets5.publish("t", b"mine", qos=1, packet_id=1))  # appended, and not visible yet
    peer.client.lost()
    again = Peer5.__new__(Peer5)
    again._early = []
    Peer5.__init__(again, rig, packets5.connect("s") + packets5.subscribe(1, ("t", option(1, no_local=True))))
    assert again.messages() == []


def test_no_local_holds_for_retained_messages_too(rig: Rig) -> None:
    peer = rig.connect5("s")
    peer.send(packets5.publish("t/mine", b"x", retain=True))
    publish(rig, "t/theirs", b"y", retain=True)
    peer.subscribe(("t/#", option(1, no_local=True)))
    assert [m.topic for m in peer.messages()] == ["t/theirs"]
    peer.drop()
    rig.restart()
    peer = rig.connect5("s")
    peer.subscribe(("t/#", option(1, no_local=True)))
    assert [m.topic for m in peer.messages()] == ["t/theirs"]
    peer.subscribe(("t/#", 1))
    assert {m.topic for m in peer.messages()} == {"t/mine", "t/theirs"}


def test_no_local_on_a_dollar_topic(rig: Rig) -> None:
    peer, other = rig.connect5("s"), rig.connect5("o")
    for one in (peer, other):
        one.subscribe(("$x/#", option(0, no_local=True)))
    peer.send(packets5.publish("$x/y", b"mine"))
    assert len(other.messages()) == 1
    assert peer.messages() == []


def test_no_local_can_not_be_shared(rig: Rig) -> None:
    peer = rig.connect5("s")
    peer.send(packets5.subscribe(1, ("$share/g/t", option(1, no_local=True))))
    assert peer.disconnected_with() == 0x82


# Retain As Published and Retain Handling.


@pytest.mark.parametrize("keeps", [False, True])
def test_retain_as_published(rig: Rig, *, keeps: bool) -> None:
    peer = rig.connect5("s", **EXPIRY)
    peer.subscribe(("t", option(1, retain_as_published=keeps)))
    publish(rig, "t", b"r", retain=True)
    publish(rig, "t", b"n")
    live = peer.messages()
    assert [(m.payload, m.retain) for m in live] == [(b"r", keeps), (b"n", False)]
    peer.drop()
    publish(rig, "t", b"m", retain=True)
    got = back(rig).messages()
    assert [(m.payload, m.retain, m.dup) for m in got] == [
        (b"r", keeps, True),
        (b"n", False, True),
        (b"m", keeps, False),
    ]


def test_retain_as_published_of_one_of_two_subscriptions(rig: Rig) -> None:
    peer = rig.connect5("s")
    peer.subscribe(("t/#", option(0, retain_as_published=True)), ("t/1", 1))
    publish(rig, "t/1", b"x", retain=True)
    assert [(m.retain, m.qos) for m in peer.messages()] == [(True, 1)]


def test_retain_handling_0_sends_them_with_every_subscribe(rig: Rig) -> None:
    publish(rig, "t", b"kept", retain=True)
    peer = rig.connect5("s")
    for _ in range(2):
        peer.subscribe(("t", option(1, retain_handling=0)))
        assert [(m.payload, m.retain) for m in peer.messages()] == [(b"kept", True)]


def test_retain_handling_1_sends_them_to_a_subscription_that_is_new(rig: Rig) -> None:
    publish(rig, "t", b"kept", retain=True)
    peer = rig.connect5("s", **EXPIRY)
    peer.subscribe(("t", option(1, retain_handling=1)))
    assert [m.retain for m in peer.drain()] == [True]
    peer.subscribe(("t", option(2, retain_handling=1)))
    assert peer.messages() == []
    peer.drop()
    peer = back(rig)
    peer.subscribe(("t", option(1, retain_handling=1)))
    assert peer.messages() == []
    peer.unsubscribe("t")
    peer.subscribe(("t", option(1, retain_handling=1)))
    assert len(peer.messages()) == 1


def test_retain_handling_2_sends_none(rig: Rig) -> None:
    publish(rig, "t", b"kept", retain=True)
    peer = rig.connect5("s")
    peer.subscribe(("t", option(1, retain_handling=2)))
    assert peer.messages() == []
    publish(rig, "t", b"live")
    assert peer.message().payload == b"live"


def test_a_shared_subscription_gets_no_retained_messages(rig: Rig) -> None:
    publish(rig, "t", b"kept", retain=True)
    peer = rig.connect5("s")
    assert peer.subscribe(("$share/g/t", 1)) == [1]
    assert peer.messages() == []


def test_what_is_retained_and_what_is_not(rig: Rig) -> None:
    publish(rig, "t/1", b"one", b"two", retain=True)
    publish(rig, "t/1", b"", qos=0)
    publish(rig, "t/1", b"live only")
    publish(rig, "t/2", b"gone", retain=True)
    watcher = rig.connect5("w")
    watcher.subscribe(("t/2", option(0, retain_handling=2)))
    publish(rig, "t/2", b"", retain=True)
    assert [(m.payload, m.retain) for m in watcher.messages()] == [(b"", False)], "it is a message like others"
    publish(rig, "t/3", b"zero", qos=0, retain=True)
    for _ in range(2):
        peer = rig.connect5("s")
        peer.subscribe(("t/#", 2))
        assert [(m.topic, m.payload, m.qos) for m in peer.messages()] == [("t/1", b"two", 1), ("t/3", b"zero", 0)]
        rig.restart()


def test_retained_messages_wait_for_the_window_and_outlive_the_connection(rig: Rig) -> None:
    for number in range(10):
        publish(rig, f"t/{number}", b"%d" % number, retain=True)
    peer = rig.connect5("s", **EXPIRY, receive_maximum=3)
    peer.subscribe(("t/#", 1))
    first = peer.messages()
    assert len(first) == 3
    peer.send(packets5.ack(0x40, first[0].packet_id))
    peer.drop()
    peer = back(rig, receive_maximum=3)
    rest = peer.drain()
    assert sorted({m.payload for m in [first[0], *rest]}) == [b"%d" % number for number in range(10)]
    assert all(m.retain for m in rest)


# SUBACK and UNSUBACK.


def test_one_suback_has_a_code_for_each_filter_in_order(rig: Rig) -> None:
    peer = rig.connect5("s")
    peer.send(
        packets5.subscribe(
            9, ("a", 0), ("$replay/bad/t", 1), ("b", 2), ("$fetch/5/t", 0), ("c", 1), ("$share/g/d", 2), ("a", 2)
        )
    )
    (answer,) = peer.take()
    packet_id, codes, properties = packets5.parse_suback(*answer)
    assert (packet_id, codes) == (9, [0, 0x8F, 2, 0x8F, 1, 2, 2])
    assert "<from>" in properties["reason_string"]
    assert [subscription.qos for subscription in rig.broker.sessions["s"].subscriptions()] == [2, 2, 1]


def test_no_reasons_for_who_does_not_want_them(rig: Rig) -> None:
    peer = rig.connect5("s", request_problem_information=0)
    peer.send(packets5.subscribe(9, ("$replay/bad/t", 1)))
    assert packets5.parse_suback(*peer.take()[0]) == (9, [0x8F], {})


def test_too_many_subscriptions(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_subscriptions=2)
    peer = rig.connect5("s")
    assert peer.subscribe(("a", 0), ("b", 0), ("c", 0), ("a", 1)) == [0, 0, 0x97, 1]


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_the_lower_qos_of_the_two(rig: Rig, published: int, granted: int) -> None:
    peer = rig.connect5("s")
    assert peer.subscribe(("t", granted)) == [granted]
    publish(rig, "t", b"live", qos=published, retain=True)
    peer.subscribe(("t", granted))
    assert [m.qos for m in peer.messages()] == [min(published, granted)] * 2


def test_unsuback_has_a_code_for_each_filter_and_compares_byte_by_byte(rig: Rig) -> None:
    peer = rig.connect5("s")
    peer.subscribe(("t/#", 0), ("t/1", 0), ("$share/g/u", 0), ("$replay/latest/v", 0))
    filters = ("t/1", "t/2", "T/#", "t/+", "$share/g/u", "$share/h/u", "$replay/latest/v", "v")
    assert peer.unsubscribe(*filters) == [0, 0x11, 0x11, 0x11, 0, 0x11, 0, 0x11]
    publish(rig, "t/1", b"still by t/#")
    publish(rig, "u", b"x")
    publish(rig, "v", b"x")
    assert [m.payload for m in peer.messages()] == [b"still by t/#"]


def test_unsubscribe_is_answered_where_nothing_was_subscribed(rig: Rig) -> None:
    for peer, answer in ((rig.connect("o"), b"\0\7"), (rig.connect5("s"), b"\0\7\0\x11")):
        peer.take()
        peer.send(packets.unsubscribe(7, "x") if answer == b"\0\7" else packets5.unsubscribe(7, "x"))
        assert peer.take() == [(0xB0, answer)]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("name", ["t", "$share/g/t", "$replay/latest/t"])
def test_what_was_sent_before_an_unsubscribe_is_completed(rig: Rig, name: str, *, restart: bool) -> None:
    peer = rig.connect5("s", **EXPIRY)
    peer.subscribe((name, 2))
    publish(rig, "t", b"a", b"b", qos=2)
    first, second = peer.messages()
    peer.unsubscribe(name)
    peer.send(packets5.ack(0x50, first.packet_id))
    publish(rig, "t", b"never")
    assert [ack.first_byte for ack in peer.acks()] == [0x62]
    peer.drop()
    if restart:
        rig.restart()
    peer = back(rig)
    found = peer.take()
    assert (0x62, first.packet_id.to_bytes(2, "big")) in found
    again = [packets5.parse_publish(one, body) for one, body in found if one >> 4 == 3]
    assert [(m.payload, m.packet_id, m.dup) for m in again] == [(b"b", second.packet_id, True)]


def test_an_unsubscribe_is_not_undone_by_a_crash(rig: Rig) -> None:
    peer = rig.connect5("s", **EXPIRY)
    peer.subscribe(("t/1", 1), ("t/2", 1))
    peer.unsubscribe("t/1")
    rig.kill()
    publish(rig, "t/1", b"x")
    publish(rig, "t/2", b"y")
    assert [m.payload for m in back(rig).messages()] == [b"y"]


def test_a_subscription_replaced_loses_nothing(rig: Rig) -> None:
    peer = rig.connect5("s", receive_maximum=1)
    peer.subscribe(("t", 1))
    publish(rig, "t", *(b"%d" % number for number in range(5)))
    held = peer.messages()
    assert len(held) == 1
    peer.subscribe(("t", 2))
    publish(rig, "t", b"5")
    peer.send(packets5.ack(0x40, held[0].packet_id))
    assert [m.payload for m in [*held, *peer.drain()]] == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("name", ["$replay/@1000/t", "$log/@1000/t", "$share/g/$replay/@1000/t"])
def test_an_unsubscribe_ends_what_is_still_being_looked_up(rig: Rig, name: str) -> None:
    """Where a time is in a log the disk is asked for, and UNSUBSCRIBE may be there before its answer."""
    publish(rig, "t", b"x")
    peer = rig.connect5("s", **EXPIRY)
    peer.send(packets5.subscribe(1, (name, 1)) + packets5.unsubscribe(2, name))
    answers = {first: packets5.parse_suback(first, body)[:2] for first, body in peer.take()}
    assert answers == {0x90: (1, [1]), 0xB0: (2, [0])}
    assert peer.subscribe((name, 1)) == [1]
    assert [m.payload for m in peer.drain()] == [b"x"]
