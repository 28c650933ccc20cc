"""Where a subscription begins: behind everything that was published before it, visible by then or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from highway.errors import DiskFullError
from highway.storage import Durability
from tests.broker.rig import Peer, Rig
from tests.harness import packets

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=[Durability.FAST, Durability.BALANCED, Durability.SAFE])
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> Rig:
    return Rig(tmp_path, ((b"t/#", "t", request.param),))


def received(peer: Peer) -> list[tuple[str, bytes, bool]]:
    """(topic, payload, retain) of what came behind the SUBACKs."""
    found = peer.take()
    kinds = [first >> 4 for first, _ in found if first >> 4 in (3, 9)]
    assert kinds == sorted(kinds, reverse=True), "a message before its SUBACK"
    messages = [packets.parse_publish(first, body) for first, body in found if first >> 4 == 3]
    return [(message.topic, message.payload, message.retain) for message in messages]


def subscribed(rig: Rig, data: bytes, *, clean: bool = True, before: bytes = b"") -> list[tuple[str, bytes, bool]]:
    """What a client gets that sends `data` as one chunk."""
    peer = rig.connect("c", clean=clean)
    if before:
        peer.send(before)
    peer.take()
    peer.send(data)
    return received(peer)


@pytest.mark.parametrize("clean", [True, False])
def test_a_message_before_the_subscribe_is_not_delivered(rig: Rig, clean: bool) -> None:  # noqa: FBT001
    chunk = packets.publish("t/1", b"before") + packets.subscribe(1, ("t/#", 0)) + packets.publish("t/1", b"after")
    assert subscribed(rig, chunk, clean=clean) == [("t/1", b"after", False)]


@pytest.mark.parametrize("clean", [True, False])
def test_a_retained_message_before_the_subscribe_comes_as_retained(rig: Rig, clean: bool) -> None:  # noqa: FBT001
    chunk = packets.publish("t/1", b"value", retain=True) + packets.subscribe(1, ("t/#", 0))
    assert subscribed(rig, chunk, clean=clean) == [("t/1", b"value", True)]


@pytest.mark.parametrize("clean", [True, False])
def test_a_value_never_goes_back(rig: Rig, clean: bool) -> None:  # noqa: FBT001
    values = [packets.publish("t/1", b"%d" % number, retain=True) for number in range(6)]
    got = subscribed(rig, b"".join([*values[:3], packets.subscribe(1, ("t/#", 0)), *values[3:]]), clean=clean)
    assert [int(payload) for _, payload, _ in got if payload] in ([2, 3, 4, 5], [3, 4, 5])
    assert sum(retain for *_, retain in got) <= 1


def test_a_second_subscription_of_a_live_session_begins_in_the_same_way(rig: Rig) -> None:
    chunk = packets.publish("t/1", b"before") + packets.subscribe(2, ("t/1", 0)) + packets.publish("t/1", b"after")
    assert subscribed(rig, chunk, before=packets.subscribe(1, ("t/0", 0))) == [("t/1", b"after", False)]


def test_the_first_one_misses_nothing_by_it(rig: Rig) -> None:
    both = [packets.publish("t/0", b"%d" % number) + packets.publish("t/1", b"%d" % number) for number in range(4)]
    chunk = b"".join([*both[:2], packets.subscribe(2, ("t/1", 0)), *both[2:]])
    got = subscribed(rig, chunk, before=packets.subscribe(1, ("t/0", 0)))
    assert [(topic, int(payload)) for topic, payload, _ in got] == [
        ("t/0", 0),
        ("t/0", 1),
        ("t/0", 2),
        ("t/1", 2),
        ("t/0", 3),
        ("t/1", 3),
    ]


def test_once_all_have_begun_nobody_looks_at_it_any_more(rig: Rig) -> None:
    peer = rig.connect("c").send(packets.subscribe(1, ("t/0", 0)))
    peer.send(packets.publish("t/1", b"before") + packets.subscribe(2, ("t/1", 0)))
    session = rig.broker.sessions["c"]
    assert not any(reader.since for reader in session.readers.values())
    assert not any(subscription.since for subscription in session.subscriptions())
    assert all(cursor.live for cursor in session.cursors())


def test_a_new_group_begins_in_the_same_way_and_reads_on(rig: Rig) -> None:
    name = "$share/g/t/#"
    chunk = packets.publish("t/1", b"before") + packets.subscribe(1, (name, 0)) + packets.publish("t/1", b"after")
    assert subscribed(rig, chunk) == [("t/1", b"after", False)]


def test_a_reader_is_let_in_while_the_disk_takes_nothing(rig: Rig) -> None:
    peer = rig.connect("c")
    peer.take()
    peer.feed(packets.publish("t/1", b"before") + packets.subscribe(1, ("t/#", 0), ("$share/g/t/#", 0)))
    rig.storage._committer.fail(DiskFullError("no room"))
    assert peer.take()[0] == (0x90, b"\0\1\0\0")
