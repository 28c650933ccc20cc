"""QoS 2 and the power: what would break exactly once if it were lost is durable before the other side hears of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from highway.storage import Durability
from highway.storage.disk.filesystem import OsFileSystem
from tests.broker.rig import Peer, Rig
from tests.harness import packets, packets5

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, ((b"#", "b", Durability.BALANCED),))


def watch_syncs(monkeypatch: pytest.MonkeyPatch, peer: Peer) -> list[bytes]:
    """What had been written to the peer at each sync from now on."""
    seen: list[bytes] = []
    sync = OsFileSystem.fdatasync

    def fdatasync(self: OsFileSystem, fd: int) -> None:
        seen.append(bytes(peer.link.written))
        sync(self, fd)

    monkeypatch.setattr(OsFileSystem, "fdatasync", fdatasync)
    return seen


def test_pubcomp_waits_until_the_id_is_durably_forgotten(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a new message under that id would be taken for the old one after a power cut, acknowledged and dropped."""
    gateway = rig.connect("gateway", clean=False)
    gateway.send(packets.publish("t", b"1", qos=2, packet_id=7))
    assert gateway.take()[-1] == (0x50, b"\0\7")
    at_sync = watch_syncs(monkeypatch, gateway)
    gateway.send(packets.ack(0x62, 7))
    assert at_sync == [b""]
    assert gateway.take() == [(0x70, b"\0\7")]


def test_a_message_is_sent_at_qos_2_once_its_id_is_durable(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be sent again after a power cut, under another id and as a new message."""
    subscriber = rig.connect("s", clean=False).send(packets.subscribe(1, ("t", 2)))
    subscriber.take()
    publisher = rig.connect("p")
    at_sync = watch_syncs(monkeypatch, subscriber)
    publisher.send(packets.publish("t", b"1", qos=2, packet_id=1))
    assert at_sync
    assert not any(at_sync)
    message = subscriber.messages()[0]
    assert message.qos == 2
    at_sync.clear()
    subscriber.send(packets.ack(0x50, message.packet_id))
    assert at_sync == [b""], "PUBREL before it is durable that PUBREC came"
    assert subscriber.take() == [(0x62, message.packet_id.to_bytes(2, "big"))]


def test_a_group_sends_at_qos_2_once_the_id_is_durable(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    member = rig.connect("s", clean=False).send(packets.subscribe(1, ("$share/g/t", 2)))
    member.take()
    publisher = rig.connect("p")
    at_sync = watch_syncs(monkeypatch, member)
    publisher.send(packets.publish("t", b"1", qos=2, packet_id=1))
    assert at_sync
    assert not any(at_sync)
    assert [message.qos for message in member.messages()] == [2]


def publish_twice(rig: Rig) -> None:
    rig.connect("p").send(b"".join(packets.publish("t", b"%d" % n, qos=2, packet_id=n) for n in (1, 2)))


def test_what_a_group_gave_at_qos_2_is_after_a_crash_the_same_message(rig: Rig) -> None:
    """The same packet id and DUP, to the same session; and nobody else in the group is given it as a new message."""
    first = rig.connect("a", clean=False).send(packets.subscribe(1, ("$share/g/t", 2)))
    second = rig.connect("b", clean=False).send(packets.subscribe(1, ("$share/g/t", 2)))
    publish_twice(rig)
    sent = [peer.messages() for peer in (first, second)]
    assert [len(messages) for messages in sent] == [1, 1]
    rig.kill()
    again = [rig.connect(client_id, clean=False).messages() for client_id in ("a", "b")]
    assert [[(m.packet_id, m.payload, m.dup) for m in messages] for messages in again] == [
        [(m.packet_id, m.payload, True) for m in messages] for messages in sent
    ]


def test_what_a_group_completed_at_qos_2_is_not_given_again_for_what_another_member_held(rig: Rig) -> None:
    """A member whose session dies with the broker held an earlier message: that alone is given again after a crash."""
    holds = rig.connect("holds").send(packets.subscribe(1, ("$share/g/t", 1)))
    exact = rig.connect("exact", clean=False).send(packets.subscribe(1, ("$share/g/t", 2)))
    publish_twice(rig)
    assert [m.payload for m in holds.messages()] == [b"1"]
    (message,) = exact.messages()
    assert (message.payload, message.qos) == (b"2", 2)
    exact.send(packets.ack(0x50, message.packet_id)).send(packets.ack(0x70, message.packet_id))
    rig.advance(2)  # positions that moved are stored by and by
    rig.kill()
    exact = rig.connect("exact", clean=False)
    assert [m.payload for m in exact.messages()] == [b"1"]
    rig.advance(2)
    rig.kill()  # and so it is after a second one
    assert [m.payload for m in rig.connect("exact", clean=False).messages()] == [b"1"]


def end(rig: Rig, peer: Peer) -> None:
    peer.drop()
    rig.connect("away")  # a clean session ends the one before


def end_with_disconnect(rig: Rig, peer: Peer) -> None:
    peer.drop()
    again = rig.connect5("away", clean_start=False, session_expiry_interval=100)
    again.send(packets5.disconnect(session_expiry_interval=0))


def end_with_the_broker(rig: Rig, peer: Peer) -> None:
    peer.drop()
    rig.connect5("away", clean_start=False, session_expiry_interval=0)


@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("ends", [end, end_with_disconnect, end_with_the_broker])
def test_what_an_ended_session_held_of_a_group_is_given_to_others_after_a_crash_too(
    rig: Rig, ends: Callable[[Rig, Peer], None], *, leaves: bool
) -> None:
    away = rig.connect("away", clean=False).send(packets.subscribe(1, ("$share/g/t", 1)))
    stays = rig.connect("stays", clean=False).send(packets.subscribe(1, ("$share/g/t", 2)))
    publish_twice(rig)
    assert [m.payload for m in away.messages()] == [b"1"]
    if leaves:
        away.send(packets.unsubscribe(2, "$share/g/t"))
    stays.drop()
    ends(rig, away)
    rig.kill()
    assert {m.payload for m in rig.connect("stays", clean=False).messages()} == {b"1", b"2"}


def test_what_a_clean_session_held_of_a_group_that_it_left_is_given_to_others_after_a_crash(
    rig: Rig,
) -> None:
    leaves = rig.connect("leaves").send(packets.subscribe(1, ("$share/g/t", 1)))
    stays = rig.connect("stays", clean=False).send(packets.subscribe(1, ("$share/g/t", 2)))
    publish_twice(rig)
    assert [m.payload for m in leaves.messages()] == [b"1"]
    leaves.send(packets.unsubscribe(2, "$share/g/t"))
    stays.drop()
    rig.advance(2)  # positions that moved are stored by and by
    rig.kill()
    assert {m.payload for m in rig.connect("stays", clean=False).messages()} == {b"1", b"2"}


@pytest.mark.parametrize("ends", [end, end_with_disconnect])
def test_what_an_ended_session_held_of_a_group_at_qos_2_is_given_to_nobody(
    rig: Rig, ends: Callable[[Rig, Peer], None]
) -> None:
    """5.0 [MQTT-4.8.2-5]"""
    away = rig.connect("away", clean=False).send(packets.subscribe(1, ("$share/g/t", 2)))
    stays = rig.connect("stays", clean=False).send(packets.subscribe(1, ("$share/g/t", 2)))
    publish_twice(rig)
    assert [m.payload for m in away.messages()] == [b"1"]
    stays.drop()
    ends(rig, away)
    rig.kill()
    assert [m.payload for m in rig.connect("stays", clean=False).messages()] == [b"2"]
