"""What an MQTT 5 publisher is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from highway.storage import Durability
from tests.broker.rig import Peer5, Rig
from tests.harness import packets5

if TYPE_CHECKING:
    from pathlib import Path

NO_MATCHING_SUBSCRIBERS = 0x10


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def told(peer: Peer5, topic: str, qos: int = 1) -> int:
    """The reason code that a message to `topic` is answered with."""
    (ack,) = peer.send(packets5.publish(topic, b"x", qos=qos, packet_id=1)).acks()
    return ack.reason_code


def test_puback_says_when_nobody_subscribes(rig: Rig) -> None:
    publisher = rig.connect5("p")
    assert told(publisher, "t") == NO_MATCHING_SUBSCRIBERS
    reader = rig.connect5("r")
    reader.subscribe(("t", 0))
    assert told(publisher, "t") == 0
    assert told(publisher, "u") == NO_MATCHING_SUBSCRIBERS
    reader.unsubscribe("t")
    assert told(publisher, "t") == NO_MATCHING_SUBSCRIBERS


def test_a_session_that_is_away_subscribes_all_the_same(rig: Rig) -> None:
    publisher = rig.connect5("p")
    rig.connect5("r", session_expiry_interval=60).send(packets5.subscribe(1, ("t/+", 1))).drop()
    assert told(publisher, "t/1") == 0
    rig.restart()
    publisher = rig.connect5("p")
    assert told(publisher, "t/1") == 0
    rig.advance(61)
    assert told(publisher, "t/1") == NO_MATCHING_SUBSCRIBERS


@pytest.mark.parametrize("name", ["$share/g/t", "$replay/latest/t", "$log/latest/t"])
def test_every_kind_of_subscription_counts(rig: Rig, name: str) -> None:
    rig.connect5("r").subscribe((name, 1))
    assert told(rig.connect5("p"), "t") == 0


def test_pubrec_is_plain_as_routing_is_told_by_puback_only(rig: Rig) -> None:
    assert told(rig.connect5("p"), "t", qos=2) == 0


def test_a_run_is_told_message_by_message(rig: Rig) -> None:
    peer = rig.connect5("p")
    peer.send(b"".join(packets5.publish("t", b"%d" % n, qos=1, packet_id=n) for n in range(1, 4)))
    assert [(ack.packet_id, ack.reason_code) for ack in peer.acks()] == [(n, 0x10) for n in range(1, 4)]


@pytest.mark.parametrize("durability", list(Durability))
@pytest.mark.parametrize("expiry", [0, 60])
def test_what_a_client_sends_itself_at_qos_2_comes_behind_its_pubrec(
    tmp_path: Path, durability: Durability, expiry: int
) -> None:
    rig = Rig(tmp_path, ((b"#", "other", durability),))
    peer = rig.connect5("c", session_expiry_interval=expiry)
    peer.subscribe(("t", 2))
    peer.send(packets5.publish("t", b"x", qos=2, packet_id=301))
    assert [first >> 4 for first, _ in peer.take()] == [5, 3]


def test_a_message_that_expired_unsent_uses_its_packet_id_up(rig: Rig) -> None:
    rig.connect5("s", session_expiry_interval=60).send(packets5.subscribe(1, ("t", 1))).drop()
    publisher = rig.connect5("p")
    for packet_id, seconds in enumerate((1, 100), 1):
        publisher.send(packets5.publish("t", b"x", qos=1, packet_id=packet_id, message_expiry_interval=seconds))
    rig.advance(2)
    back = rig.connect5("s", clean_start=False, session_expiry_interval=60)
    assert [message.packet_id for message in back.drain()] == [2]


def test_connack_names_the_limits_in_mosquitto_s_order(rig: Rig) -> None:
    connack = rig.connect5("").connack
    assert connack is not None
    names = ["topic_alias_maximum", "assigned_client_identifier", "maximum_packet_size", "receive_maximum"]
    assert list(connack.properties) == names
    assert len(connack.properties["assigned_client_identifier"]) == len("auto-00000000-0000-0000-0000-000000000000")
