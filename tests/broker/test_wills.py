"""A will is published once: when the connection ends, or when the broker that promised it comes back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from highway.broker.authorisation import AclRule, Right
from highway.broker.connections.wills import decode_will
from highway.broker.reconfiguring import reconfigure
from highway.mqtt import Will
from highway.storage import Durability
from tests.broker.rig import Peer, Rig
from tests.harness import packets

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, ((b"st/#", "st", Durability.BALANCED),))


def with_will(rig: Rig, client_id: str, topic: str = "st/x") -> Peer:
    connect = packets.connect(client_id, will=(topic, b"off " + client_id.encode(), 1, True))
    return Peer(rig, client_id, clean=True, connect=connect)


def published(rig: Rig) -> list[bytes]:
    """What the log holds."""
    reader = rig.connect("reader")
    reader.send(packets.subscribe(1, ("$replay/earliest/st/#", 0)))
    return [message.payload for message in reader.messages() if message.topic == "st/x"]


@pytest.mark.parametrize("limit", [{"max_topic_levels": 1}, {"max_topic_bytes": 3}])
@pytest.mark.parametrize("crash", [False, True])
def test_a_will_beyond_limits_that_came_later_is_dropped(rig: Rig, limit: dict[str, int], *, crash: bool) -> None:
    peer = with_will(rig, "a")
    if crash:
        rig.settings = replace(rig.settings, **limit)
        rig.kill()
    else:
        reconfigure(rig.broker, replace(rig.broker.settings, **limit))
        peer.drop()
    assert rig.broker.clients == {}
    assert list(rig.storage.meta.items(b"w/")) == []
    assert rig.storage.logs["st"].log_end_offset == 0


@pytest.mark.parametrize("denied", ["st/x", "st/y"])
def test_a_right_that_is_lost_takes_the_will_with_it(rig: Rig, denied: str) -> None:
    peer = with_will(rig, "a")
    rules = (AclRule(False, frozenset(Right), denied.encode()), AclRule(True, frozenset(Right), b"#"))
    reconfigure(rig.broker, replace(rig.broker.settings, acl=rules))
    rig.settle()
    assert len(list(rig.storage.meta.items(b"w/"))) == (denied == "st/y")
    peer.drop()
    assert rig.storage.logs["st"].log_end_offset == (denied == "st/y")


def test_a_killed_broker_owes_the_will_and_publishes_it_once(rig: Rig) -> None:
    with_will(rig, "a")
    rig.kill()
    assert published(rig) == [b"off a"]
    retained = rig.broker.retained.get(b"st/x")
    assert retained is not None
    assert retained.payload == b"off a"
    rig.kill()
    assert published(rig) == [b"off a"]


def test_a_stopped_broker_owes_it_too(rig: Rig) -> None:
    with_will(rig, "a")
    rig.restart()
    rig.restart()
    assert published(rig) == [b"off a"]


def test_goodbye_takes_it_back(rig: Rig) -> None:
    with_will(rig, "a").send(packets.DISCONNECT)
    rig.kill()
    assert published(rig) == []


def test_a_will_that_is_out_is_not_owed(rig: Rig) -> None:
    with_will(rig, "a").drop()
    rig.settle()
    assert published(rig) == [b"off a"]
    rig.kill()
    assert published(rig) == [b"off a"]


def test_a_takeover_publishes_the_old_one_and_owes_the_new_one(rig: Rig) -> None:
    with_will(rig, "a")
    with_will(rig, "a")
    rig.settle()
    assert published(rig) == [b"off a"]
    rig.kill()
    assert published(rig) == [b"off a", b"off a"]


def test_a_will_on_a_topic_that_no_log_takes_is_not_owed_for_ever(rig: Rig) -> None:
    with_will(rig, "a", topic="$x/y")
    rig.kill()
    assert list(rig.storage.meta.items(b"w/")) == []


def test_every_field_survives(rig: Rig) -> None:
    for client_id, will in (("full", Will(b"st/w", b"\0\xff", 2, True)), ("empty", Will(b"st/w", b""))):
        connect = packets.connect(client_id, will=("st/w", will.payload, will.qos, will.retain))
        Peer(rig, client_id, clean=True, connect=connect)
        assert decode_will(dict(rig.storage.meta.items(b"w/"))[b"w/" + client_id.encode()]) == will
