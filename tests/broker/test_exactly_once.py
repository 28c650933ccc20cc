"""QoS 2 and the power: what would break exactly once if it were lost is durable before the other side hears of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from highway.storage import Durability
from highway.storage.disk.filesystem import OsFileSystem
from tests.broker.rig import Peer, Rig
from tests.harness import packets

if TYPE_CHECKING:
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
