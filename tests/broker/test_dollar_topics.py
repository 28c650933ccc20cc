"""Topics that begin with `$`: never logged, delivered to whoever is there, and retained where a client asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.broker.rig import Rig
from tests.harness import packets, packets5

if TYPE_CHECKING:
    from pathlib import Path

BRIDGE_STATE = "$SYS/broker/connection/site7/state"


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.mark.parametrize(
    ("topic", "reason_code"),
    [
        ("$SYS/broker/uptime", 0x87),
        ("$SYS/broker/connection/site7", 0x87),
        ("$SYS/broker/connection/site7/x/state", 0x87),
        ("$share/g/t", 0x87),
        ("$replay/earliest/t", 0x87),
        (BRIDGE_STATE, 0x10),
        ("$x/y", 0x10),
    ],
)
def test_the_broker_s_own_topics_are_refused_but_the_state_of_a_bridge(rig: Rig, topic: str, reason_code: int) -> None:
    peer = rig.connect5("c")
    peer.send(packets5.publish(topic, b"x", qos=1, packet_id=1))
    assert [ack.reason_code for ack in peer.acks()] == [reason_code]


def test_a_retained_message_on_a_dollar_topic_stays(rig: Rig) -> None:
    watcher = rig.connect("w").send(packets.subscribe(1, (BRIDGE_STATE, 0)))
    watcher.take()
    rig.connect("bridge").send(packets.publish(BRIDGE_STATE, b"1", qos=1, packet_id=1, retain=True))
    assert [(message.payload, message.retain) for message in watcher.messages()] == [(b"1", False)]
    rig.restart()
    late = rig.connect("late").send(packets.subscribe(1, (BRIDGE_STATE, 0), ("#", 0)))
    assert [(message.topic, message.payload, message.retain) for message in late.messages()] == [
        (BRIDGE_STATE, b"1", True)
    ]
    rig.connect("bridge").send(packets.publish(BRIDGE_STATE, b"", retain=True))
    assert rig.connect("x").send(packets.subscribe(1, (BRIDGE_STATE, 0))).messages() == []


def test_a_qos_2_message_on_a_dollar_topic_comes_once_across_a_crash(rig: Rig) -> None:
    rig.connect("p", clean=False).send(packets.publish("$x/y", b"once", qos=2, packet_id=7))
    rig.kill()
    watcher = rig.connect("w").send(packets.subscribe(1, ("$x/y", 0)))
    watcher.take()
    again = rig.connect("p", clean=False).send(packets.publish("$x/y", b"once", qos=2, packet_id=7, dup=True))
    assert again.take()[-1] == (0x50, b"\0\7")
    assert watcher.messages() == []
