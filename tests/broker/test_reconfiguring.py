"""Other settings while clients are connected: routes, positions, rights and limits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from highway.broker import TopicEntry
from highway.broker.authorisation import AclRule, Right
from highway.broker.reconfiguring import reconfigure
from highway.storage import Durability, LogSettings
from tests.broker.rig import Rig
from tests.harness import packets

if TYPE_CHECKING:
    from pathlib import Path

SAFE, BALANCED, FAST = Durability.SAFE, Durability.BALANCED, Durability.FAST
REST = (b"#", "other", BALANCED)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, ((b"a/#", "a", BALANCED), REST))


def change(rig: Rig, *entries: tuple[bytes, str, Durability], **settings: Any) -> None:
    """What the server does: open logs, then the broker."""
    if entries:
        rig.logs = [LogSettings(name, durability) for _, name, durability in entries]
        settings["entries"] = tuple(TopicEntry(topic_filter, name) for topic_filter, name, _ in entries)
    for log in rig.logs:
        rig.storage.change_logs([log])
    rig.settings = replace(rig.broker.settings, **settings)
    reconfigure(rig.broker, rig.settings)
    rig.settle()


def publish(rig: Rig, topic: str, *payloads: bytes) -> None:
    peer = rig.connect("publisher")
    for payload in payloads:
        peer.send(packets.publish(topic, payload, qos=1, packet_id=1))
    rig.settle()


def payloads(peer: Any) -> list[bytes]:
    return [message.payload for message in peer.messages()]


def subscribed(rig: Rig, client_id: str, topic_filter: str, *, clean: bool = True) -> Any:
    peer = rig.connect(client_id, clean=clean)
    peer.send(packets.subscribe(1, (topic_filter, 0)))
    rig.settle()
    peer.take()
    return peer


def test_what_is_remembered_of_routes_and_rights_outlives_a_change_that_is_not_about_them(rig: Rig) -> None:
    change(rig, acl=(AclRule(allow=True, rights=frozenset(Right), topic_filter=b"#"),))
    subscribed(rig, "reader", "a/#")
    publish(rig, "a/x", b"1")
    route = rig.broker.router.route(b"a/x")
    rights = rig.broker.clients["reader"].session.rights
    assert rights is not None
    change(rig, max_connections=7)
    rig.storage.change_logs([LogSettings("a", SAFE, retention_ms=1000)])
    assert rig.broker.router.route(b"a/x") is route
    assert rig.broker.clients["reader"].session.rights is rights
    change(rig, *NEW)
    assert rig.broker.router.route(b"a/x") is not route


NEW = ((b"a/new/#", "new", SAFE), (b"a/#", "a", BALANCED), REST)


@pytest.mark.parametrize("topic_filter", ["#", "a/#", "a/new/x", "$share/g/a/#", "$replay/latest/a/#"])
def test_a_subscriber_that_is_connected_gets_what_a_new_log_takes(rig: Rig, topic_filter: str) -> None:
    peer = subscribed(rig, "s", topic_filter)
    publish(rig, "a/new/x", b"1")
    change(rig, *NEW)
    publish(rig, "a/new/x", b"2")
    publish(rig, "a/new/x", b"3")
    assert payloads(peer) == [b"1", b"2", b"3"]
    assert rig.storage.logs["new"].log_end_offset == 2
    assert rig.storage.logs["a"].log_end_offset == 1


@pytest.mark.parametrize("topic_filter", ["a/#", "a/new/x", "$share/g/a/#"])
@pytest.mark.parametrize("crash", [False, True])
def test_a_subscriber_that_is_away_misses_nothing_and_gets_nothing_older(
    rig: Rig, topic_filter: str, *, crash: bool
) -> None:
    change(rig, *NEW)
    publish(rig, "a/new/x", b"before it subscribed")
    change(rig, (b"a/#", "a", BALANCED), REST)
    subscribed(rig, "s", topic_filter, clean=False).drop()
    rig.settle()
    publish(rig, "a/new/x", b"1")
    change(rig, *NEW)
    publish(rig, "a/new/x", b"2")
    if crash:
        rig.kill()
    publish(rig, "a/new/x", b"3")
    peer = rig.connect("s", clean=False)
    rig.settle()
    assert sorted(payloads(peer)) == [b"1", b"2", b"3"]


def test_a_log_that_no_entry_names_takes_nothing_and_can_be_read(rig: Rig) -> None:
    publish(rig, "a/x", b"1", b"2")
    subscribed(rig, "s", "a/#", clean=False).drop()
    publish(rig, "a/x", b"3")
    change(rig, REST)
    publish(rig, "a/x", b"4")
    assert rig.storage.logs["a"].log_end_offset == 3
    assert "a" in rig.broker.feeds
    for start in (rig.settle, rig.restart):
        start()
        assert "a" in rig.broker.feeds
    peer = rig.connect("s", clean=False)
    rig.settle()
    assert sorted(payloads(peer)) == [b"3", b"4"], "what it had not read of the old log comes as well"


def test_an_entry_that_comes_back_goes_on_where_its_log_ended(rig: Rig) -> None:
    publish(rig, "a/x", b"1")
    change(rig, REST)
    change(rig, (b"a/#", "a", SAFE), REST)
    publish(rig, "a/x", b"2")
    assert rig.storage.logs["a"].log_end_offset == 2
    assert rig.broker.router.route(b"a/x").feed is rig.broker.feeds["a"]


def test_nobody_is_disconnected_and_nothing_in_flight_is_lost(rig: Rig) -> None:
    peer = rig.connect("s", clean=False)
    peer.send(packets.subscribe(1, ("a/#", 1)))
    rig.settle()
    peer.take()
    publish(rig, "a/x", b"1")
    (message,) = peer.messages()
    for number in range(20):
        change(rig, *(NEW if number % 2 else NEW[1:]))
        publish(rig, "a/new/x", b"%d" % number)
    peer.send(packets.ack(0x40, message.packet_id))
    rig.settle()
    assert [int(payload) for payload in payloads(peer)] == list(range(20))
    assert rig.broker.clients["s"].session is not None


DENY = AclRule(allow=False, rights=frozenset(Right), topic_filter=b"a/secret/#")
ALLOW = AclRule(allow=True, rights=frozenset(Right), topic_filter=b"#")


@pytest.mark.parametrize("topic_filter", ["a/#", "a/secret/x", "$share/g/a/#"])
def test_rights_count_at_once_in_both_directions(rig: Rig, topic_filter: str) -> None:
    peer = subscribed(rig, "s", topic_filter)
    publisher = rig.connect("p")

    def send(payload: bytes) -> list[bytes]:
        publisher.send(packets.publish("a/secret/x", payload))
        rig.settle()
        return payloads(peer)

    assert send(b"1") == [b"1"]
    change(rig, acl=(replace(DENY, client="s"), ALLOW))
    assert send(b"2") == []
    change(rig, acl=None)
    assert send(b"3")[-1:] == [b"3"]
    change(rig, acl=(DENY, ALLOW))
    end = rig.storage.logs["a"].log_end_offset
    assert send(b"4") == []
    assert rig.storage.logs["a"].log_end_offset == end, "nor is it stored"


def test_a_limit_that_is_looked_up_counts_at_once(rig: Rig) -> None:
    before = rig.connect("before")
    change(rig, max_subscriptions=1)
    before.send(packets.subscribe(1, ("x", 0), ("y", 0)))
    rig.settle()
    assert before.take()[1:] == [(0x90, b"\0\1\0\x80")]


def test_every_session_that_is_away_gets_its_position(rig: Rig) -> None:
    for number in range(300):
        subscribed(rig, f"s{number}", f"a/new/{number}/#", clean=False).drop()
    rig.settle()
    change(rig, *NEW)
    new = rig.broker.feeds["new"]
    placed = [session for session in rig.broker.sessions.values() if new in session.readers[b""].cursors]
    assert len(placed) == 300
