"""MQTT 5 sessions and connections: how long they live, who takes them over, and what the other side is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.rig import Peer, Rig
from tests.harness import packets, packets5

if TYPE_CHECKING:
    from pathlib import Path

NEVER = 0xFFFF_FFFF


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, session_expiry_ms=None)


def test_a_session_ends_with_its_connection_where_no_expiry_was_asked_for(rig: Rig) -> None:
    peer = rig.connect5("c", clean_start=False)
    assert not peer.connack.session_present
    peer.subscribe(("t", 1))
    peer.drop()
    assert rig.broker.sessions == {}
    assert not rig.connect5("c", clean_start=False).connack.session_present


def test_a_session_with_an_expiry_is_resumed_within_it(rig: Rig) -> None:
    rig.connect5("c", session_expiry_interval=60).send(packets5.subscribe(1, ("t", 1))).drop()
    rig.connect("p").send(packets.publish("t", b"missed", qos=1, packet_id=1))
    rig.advance(59)
    back = rig.connect5("c", clean_start=False, session_expiry_interval=60)
    assert back.connack.session_present
    assert [message.payload for message in back.messages()] == [b"missed"]


def test_a_session_that_expired_between_two_sweeps_is_not_resumed(rig: Rig) -> None:
    rig.connect5("c", session_expiry_interval=10).send(packets5.subscribe(1, ("t", 1))).drop()
    rig.advance(11)
    assert "c" in rig.broker.sessions, "nobody swept yet"
    back = rig.connect5("c", clean_start=False, session_expiry_interval=10)
    assert not back.connack.session_present
    rig.connect("p").send(packets.publish("t", b"x"))
    assert back.messages() == []


def test_an_expired_session_is_forgotten_with_all_its_keys(rig: Rig) -> None:
    peer = rig.connect5("c", session_expiry_interval=10)
    peer.subscribe(("t", 2))
    rig.connect("p").send(packets.publish("t", b"x", qos=2, packet_id=1))
    peer.send(packets5.publish("u", b"y", qos=2, packet_id=9)).drop()
    assert any(key.startswith(b"o/c") for key, _ in rig.storage.meta.items(b""))
    rig.advance(31)
    assert rig.broker.sessions.keys() == {"p"}
    assert [key for key, _ in rig.storage.meta.items(b"") if b"/c" in key] == []


def test_the_longest_expiry_never_ends(rig: Rig) -> None:
    rig.connect5("c", session_expiry_interval=NEVER).drop()
    for _ in range(3):
        rig.advance(1_000_000_000)
    rig.restart()
    rig.advance(31)
    assert rig.connect5("c", clean_start=False).connack.session_present


def test_the_broker_may_shorten_an_expiry_and_says_so(tmp_path: Path) -> None:
    rig = Rig(tmp_path, session_expiry_ms=60_000)
    assert rig.connect5("long", session_expiry_interval=NEVER).connack.properties["session_expiry_interval"] == 60
    assert "session_expiry_interval" not in rig.connect5("short", session_expiry_interval=60).connack.properties


@pytest.mark.parametrize(
    ("at_connect", "at_disconnect", "present"), [(60, 0, False), (10, 300, True), (60, None, True)]
)
def test_disconnect_may_change_the_expiry(
    rig: Rig, at_connect: int, at_disconnect: int | None, *, present: bool
) -> None:
    peer = rig.connect5("c", session_expiry_interval=at_connect)
    values = {} if at_disconnect is None else {"session_expiry_interval": at_disconnect}
    peer.send(packets5.disconnect(0, **values))
    rig.advance(40)
    assert rig.connect5("c", clean_start=False).connack.session_present is present


def test_disconnect_can_not_keep_a_session_that_was_to_end(rig: Rig) -> None:
    peer = rig.connect5("c")
    peer.send(packets5.disconnect(0, session_expiry_interval=60))
    assert peer.disconnected_with() == 0x82  # 3.14.2.2.2
    assert not rig.connect5("c", clean_start=False).connack.session_present


def test_a_session_whose_connection_a_crash_ended_expires_too(rig: Rig) -> None:
    rig.connect5("c", session_expiry_interval=60)
    rig.kill()
    rig.advance(31)
    assert "c" in rig.broker.sessions
    rig.advance(31)
    assert rig.broker.sessions == {}


def test_an_expiry_goes_on_over_a_restart(rig: Rig) -> None:
    rig.connect5("c", session_expiry_interval=60).drop()
    rig.advance(40)
    rig.restart()
    rig.advance(15)
    assert rig.connect5("c", clean_start=False, session_expiry_interval=60).connack.session_present
    rig.restart()
    rig.advance(61)
    assert not rig.connect5("c", clean_start=False).connack.session_present


def test_clean_start_forgets_the_session_and_its_subscriptions(rig: Rig) -> None:
    rig.connect5("c", session_expiry_interval=60).send(packets5.subscribe(1, ("t", 1))).drop()
    fresh = rig.connect5("c", clean_start=True, session_expiry_interval=60)
    assert not fresh.connack.session_present
    rig.connect("p").send(packets.publish("t", b"x"))
    assert fresh.messages() == []
    fresh.drop()
    assert rig.connect5("c", clean_start=False).connack.session_present


def test_an_empty_client_id_is_replaced_by_one_that_can_be_resumed(rig: Rig) -> None:
    one, other = (rig.connect5("", clean_start=False, session_expiry_interval=60) for _ in range(2))
    names = [peer.connack.properties["assigned_client_identifier"] for peer in (one, other)]
    assert names[0] != names[1]
    assert not one.link.closed
    one.drop()
    assert rig.connect5(names[0], clean_start=False).connack.session_present


@pytest.mark.parametrize("length", [1, 23, 1000])
def test_client_ids_of_any_length_are_taken(rig: Rig, length: int) -> None:
    assert rig.connect5("x" * length).connack.reason_code == 0


def test_a_connection_that_is_taken_over_is_told(rig: Rig) -> None:
    old = rig.connect5("c", session_expiry_interval=60)
    old.subscribe(("t", 1))
    new = rig.connect5("c", clean_start=False, session_expiry_interval=60)
    assert old.disconnected_with() == 0x8E
    assert new.connack.session_present
    rig.connect("p").send(packets.publish("t", b"x", qos=1, packet_id=1))
    assert new.message().payload == b"x"
    assert old.take() == []


@pytest.mark.parametrize("clean_start", [True, False])
def test_a_session_that_ends_with_its_connection_is_not_there_for_who_takes_it_over(
    rig: Rig, *, clean_start: bool
) -> None:
    rig.connect5("c")
    assert not rig.connect5("c", clean_start=clean_start).connack.session_present


def test_a_3_1_1_connection_that_is_taken_over_is_just_closed(rig: Rig) -> None:
    old = rig.connect("c")
    old.take()
    rig.connect5("c")
    assert old.link.closed
    assert old.take() == []


def test_each_version_resumes_what_the_other_left(rig: Rig) -> None:
    rig.connect5("c", session_expiry_interval=60).send(packets5.subscribe(1, ("t", 1))).drop()
    old = rig.connect("c", clean=False)
    assert old.take() == [(0x20, b"\1\0")]
    old.drop()
    assert rig.connect5("c", clean_start=False).connack.session_present


def test_the_broker_says_that_it_shuts_down(rig: Rig) -> None:
    peer, old = rig.connect5("c"), rig.connect("o")
    old.take()
    rig.broker.close()
    assert peer.disconnected_with() == 0x8B
    assert old.link.closed
    assert old.take() == []


def test_silence_is_ended_with_a_reason(rig: Rig) -> None:
    peer = rig.connect5("c", keep_alive=10)
    assert peer.link.keep_alive == 10
    peer.client.end(0x8D)  # what the connection does when its timer is out
    assert peer.disconnected_with() == 0x8D


@pytest.mark.parametrize(("asked", "given"), [(10, None), (60, None), (61, 60), (65_535, 60), (0, 60)])
def test_a_keep_alive_above_the_limit_is_replaced(tmp_path: Path, asked: int, given: int | None) -> None:
    rig = Rig(tmp_path, max_keep_alive_s=60)
    peer = rig.connect5("c", keep_alive=asked)
    assert peer.connack.properties.get("server_keep_alive") == given
    assert peer.link.keep_alive == (asked if given is None else given)
    old = Peer(rig, "o", clean=True, connect=packets.connect("o", keep_alive=asked))
    assert old.link.keep_alive == asked, "3.1.1 has no way to be told"


def test_enhanced_authentication_is_refused_and_nothing_behind_it_is_read(rig: Rig) -> None:
    connect = packets5.connect("c", authentication_method="SCRAM-SHA-1", authentication_data=b"x")
    peer = Peer(rig, "c", clean=True, connect=connect + packets5.auth(0x18, authentication_method="SCRAM-SHA-1"))
    first, body = peer.take()[0]
    connack = packets5.parse_connack(first, body)
    assert (connack.reason_code, connack.session_present) == (0x8C, False)
    assert "authentication_method" not in connack.properties
    assert peer.link.closed
    assert rig.broker.sessions == {}


def test_auth_without_a_method_in_connect_ends_the_connection(rig: Rig) -> None:
    peer = rig.connect5("c")
    peer.send(packets5.auth(0x19, authentication_method="X"))
    assert peer.disconnected_with() == 0x82


def test_who_may_not_come_in_is_told_and_what_they_sent_is_not_read(tmp_path: Path) -> None:
    rig = Rig(tmp_path, anonymous=False)
    peer = Peer(rig, "c", clean=True, connect=packets5.connect("c") + packets5.publish("t", b"x"))
    assert packets5.parse_connack(*peer.take()[0]).reason_code == 0x87
    assert peer.link.closed
    assert rig.storage.logs["other"].log_end_offset == 0
    old = Peer(rig, "c", clean=True, connect=packets.connect("c") + packets.publish("t", b"x"))
    assert old.take() == [(0x20, b"\0\5")]
    assert rig.storage.logs["other"].log_end_offset == 0


def test_a_second_connect_ends_the_connection(rig: Rig) -> None:
    peer = rig.connect5("c")
    peer.send(packets5.connect("c"))
    assert peer.disconnected_with() == 0x82


def test_a_fault_behind_a_connect_that_waits_for_the_journal_is_answered_in_connack(rig: Rig) -> None:
    """No DISCONNECT before CONNACK, and no CONNACK after the end."""
    peer = Peer(rig, "c", clean=True, connect=packets5.connect("c", session_expiry_interval=60) + b"\x00\x00")
    answers = peer.take()
    assert len(answers) == 1
    assert packets5.parse_connack(*answers[0]).reason_code == 0x81
    assert peer.link.closed


def test_connack_says_no_more_than_it_has_to(rig: Rig) -> None:
    connack = rig.connect5("c", request_response_information=1, request_problem_information=1).connack
    assert connack.properties == {
        "topic_alias_maximum": 10,
        "maximum_packet_size": 1024 * 1024,
        "receive_maximum": 65_535,
    }


def test_a_client_that_can_not_take_our_connack_is_let_go(rig: Rig) -> None:
    peer = rig.connect5("c", maximum_packet_size=10)
    assert peer.connack is None
    assert peer.link.closed
    assert peer.take() == []
