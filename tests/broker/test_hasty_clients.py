"""Clients that don't wait for answers: all that they said before they left is heard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from highway.storage import Durability
from tests.broker.rig import Peer, Rig
from tests.harness import packets, packets5

if TYPE_CHECKING:
    from pathlib import Path

WILL = ("t/will", b"off", 0, False)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, ((b"t/#", "t", Durability.BALANCED),))


@pytest.fixture
def watcher(rig: Rig) -> Peer:
    peer = rig.connect("w").send(packets.subscribe(1, ("t/#", 0)))
    peer.take()
    return peer


@pytest.mark.parametrize("goodbye", [True, False])
def test_a_client_that_leaves_before_its_connack_is_heard_out(rig: Rig, watcher: Peer, *, goodbye: bool) -> None:
    said = packets.connect("hasty", clean=False, will=WILL) + packets.publish("t/1", b"here I am")
    early = rig.unsettled(said + (packets.DISCONNECT if goodbye else b""))
    early.client.lost()
    rig.settle()
    assert [message.payload for message in watcher.messages()] == [b"here I am"] + ([] if goodbye else [b"off"])
    assert rig.broker.clients.keys() == {"w"}
    assert rig.broker.sessions["hasty"].link is None
    assert list(rig.storage.meta.items(b"w/")) == []


def test_who_is_taken_over_before_the_connack_is_not(rig: Rig, watcher: Peer) -> None:
    early = rig.unsettled(packets.connect("hasty", clean=False, will=WILL) + packets.publish("t/1", b"too late"))
    early.client.lost()
    late = rig.connect("hasty", clean=False)
    assert late.take()[0] == (0x20, b"\1\0")
    assert [message.payload for message in watcher.messages()] == [b"off"]
    assert rig.broker.clients["hasty"] is late.client
    late.send(packets.publish("t/1", b"mine"))
    assert [message.payload for message in watcher.messages()] == [b"mine"]


def test_a_fault_behind_it_ends_it(rig: Rig, watcher: Peer) -> None:
    early = rig.unsettled(packets5.connect("hasty", will=WILL) + packets5.publish("t/1", b"x") + b"\0\0")
    assert early.link.closed
    rig.settle()
    assert [message.payload for message in watcher.messages()] == [b"x", b"off"]
    assert "hasty" not in rig.broker.clients
