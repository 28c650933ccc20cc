"""Sessions while the disk is full or has failed: nothing overtakes a message whose packet id can't be made durable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from highway.errors import DiskFailedError, DiskFullError
from highway.storage import Durability
from tests.broker.rig import Peer, Rig
from tests.harness import packets

if TYPE_CHECKING:
    from pathlib import Path

WINDOW = 2
PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, ((b"#", "s", Durability.SAFE),), max_inflight=WINDOW)


def behind(rig: Rig) -> tuple[Peer, list[packets.Message]]:
    """A persistent subscriber that owes acknowledgements for its window; `two` comes next, and `three` at QoS 1."""
    subscriber = rig.connect("follower", clean=False).send(packets.subscribe(1, ("t", 2)))
    publisher = rig.connect("p")
    for payload, qos in ((b"zero", 1), (b"one", 1), (b"two", 2), (b"three", 1)):
        publisher.send(packets.publish("t", payload, qos=qos, packet_id=7))
    sent = subscriber.messages()
    assert [message.payload for message in sent] == [b"zero", b"one"]
    return subscriber, sent


def payloads(peer: Peer) -> list[bytes]:
    return [message.payload for message in peer.messages()]


def test_nothing_overtakes_a_message_that_a_failed_disk_holds_up(rig: Rig) -> None:
    subscriber, sent = behind(rig)
    rig.storage._committer.fail(DiskFailedError("a checkpoint can't be written"))
    for message in sent:
        subscriber.send(packets.ack(PUBACK, message.packet_id))
    assert payloads(subscriber) == []
    rig.kill()
    subscriber = rig.connect("follower", clean=False)
    got = {message.payload: message.packet_id for message in subscriber.messages()}
    while len(got) < 4:  # the acknowledgements were not stored any more: those come again
        for payload, packet_id in list(got.items()):
            subscriber.send(packets.ack(PUBREC if payload == b"two" else PUBACK, packet_id))
        got |= {message.payload: message.packet_id for message in subscriber.messages()}
    assert list(got) == [b"zero", b"one", b"two", b"three"]


def test_on_a_full_disk_a_message_at_qos_2_waits_and_nothing_overtakes_it(rig: Rig) -> None:
    subscriber, sent = behind(rig)
    rig.storage._committer.refuse(DiskFullError("full"))
    for message in sent:
        subscriber.send(packets.ack(PUBACK, message.packet_id))
    rig.advance(5.0)
    assert payloads(subscriber) == []
    rig.storage._committer.resume()
    rig.advance(5.0)
    assert payloads(subscriber) == [b"two", b"three"]


def test_what_a_session_did_on_a_full_disk_is_stored_when_there_is_space(rig: Rig) -> None:
    """Its packet ids are among it: after a crash they belong to the messages that they were sent under."""
    subscriber, sent = behind(rig)
    rig.storage._committer.refuse(DiskFullError("full"))
    for message in sent:
        subscriber.send(packets.ack(PUBACK, message.packet_id))
    rig.storage._committer.resume()
    rig.advance(5.0)
    before = [(message.payload, message.packet_id) for message in subscriber.messages()]
    rig.kill()
    after = [(message.payload, message.packet_id) for message in rig.connect("follower", clean=False).messages()]
    assert (b"two", before[0][1]) in after


def test_another_connection_gets_no_packet_id_before_it_is_durable(rig: Rig) -> None:
    subscriber, sent = behind(rig)
    rig.storage._committer.refuse(DiskFullError("full"))
    for message in sent:
        subscriber.send(packets.ack(PUBACK, message.packet_id))
    again = rig.connect("follower", clean=False)
    rig.advance(3.0)
    assert payloads(again) == []
    rig.storage._committer.resume()
    rig.advance(3.0)
    assert payloads(again) == [b"two", b"three"]


def test_a_pubrec_on_a_full_disk_is_answered_once_it_is_stored(rig: Rig) -> None:
    subscriber = rig.connect("follower", clean=False).send(packets.subscribe(1, ("t", 2)))
    rig.connect("p").send(packets.publish("t", b"one", qos=2, packet_id=7))
    (message,) = subscriber.messages()
    rig.storage._committer.refuse(DiskFullError("full"))
    subscriber.send(packets.ack(PUBREC, message.packet_id))
    again = rig.connect("follower", clean=False)
    assert PUBREL not in [first for first, _ in again.take()]
    rig.storage._committer.resume()
    rig.advance(3.0)
    assert PUBREL in [first for first, _ in again.take()]
    rig.kill()
    resent = rig.connect("follower", clean=False).take()
    assert PUBREL in [first for first, _ in resent]
    assert not [first for first, _ in resent if first >> 4 == 3], "the message would be taken for a new one"
