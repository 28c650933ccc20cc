"""`per_topic`: each topic has a log of its own, from its first message on, up to a limit, and after a restart."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from highway.broker import TopicEntry, administration
from highway.broker.reconfiguring import reconfigure
from highway.storage import Durability, LogSettings
from tests.broker.rig import Peer, Rig
from tests.harness import packets

if TYPE_CHECKING:
    from pathlib import Path

ENTRIES = ((b"a/#", "own", Durability.BALANCED), (b"#", "other", Durability.FAST))
LONG = "a/" + "x" * 200


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, ENTRIES, per_topic={"own": 3})


def publish(rig: Rig, topic: str, *payloads: bytes) -> None:
    peer = rig.connect("p")
    for payload in payloads:
        peer.send(packets.publish(topic, payload, qos=1, packet_id=1))


def got(peer: Peer) -> list[tuple[str, bytes]]:
    return [(message.topic, message.payload) for message in peer.messages()]


def logs(rig: Rig) -> dict[str, int]:
    return {name: feed.log.log_end_offset for name, feed in rig.broker.feeds.items()}


def test_each_topic_counts_its_own_offsets(rig: Rig) -> None:
    publish(rig, "a/1", b"one", b"two")
    publish(rig, "a/2", b"three")
    publish(rig, "b", b"four")
    assert logs(rig) == {"own/a/1": 2, "own/a/2": 1, "other": 1}
    reader = rig.connect("r").send(packets.subscribe(1, ("$log/1/a/1", 0), ("$log/0/a/2", 0)))
    assert got(reader) == [("$log/1/a/1", b"two"), ("$log/0/a/2", b"three")]
    reader.send(packets.subscribe(2, ("$fetch/0/a/1", 0)))
    assert got(reader) == [("$fetch/0/a/1", b"one")]
    reader.send(packets.subscribe(3, ("$range/a/2", 0)))
    (message,) = reader.messages()
    assert json.loads(message.payload)["high_watermark"] == 1
    assert json.loads(message.payload)["log"] == "own/a/2"


def test_a_log_begins_with_the_first_message_and_not_with_a_look(rig: Rig) -> None:
    reader = rig.connect("r").send(packets.subscribe(1, ("a/1", 1), ("$range/a/1", 0), ("$replay/earliest/a/1", 0)))
    assert logs(rig) == {"other": 0}
    publish(rig, "a/1", b"one")
    assert logs(rig) == {"own/a/1": 1, "other": 0}
    assert [payload for _, payload in got(reader)] == [b"one", b"one"]


@pytest.mark.parametrize("topic_filter", ["a/#", "a/+", "#", "a/1", "$replay/latest/a/+"])
@pytest.mark.parametrize("away", [False, True])
def test_a_subscriber_comes_to_a_log_that_begins_later(rig: Rig, topic_filter: str, *, away: bool) -> None:
    subscriber = rig.connect("s", clean=False).send(packets.subscribe(1, (topic_filter, 1)))
    subscriber.take()
    if away:
        subscriber.drop()
    publish(rig, "a/1", b"one", b"two")
    if away:
        subscriber = rig.connect("s", clean=False)
    assert got(subscriber) == [("a/1", b"one"), ("a/1", b"two")]
    publish(rig, "a/1", b"three")
    assert got(subscriber) == [("a/1", b"three")], "it is live there"


def test_a_group_comes_to_a_log_that_begins_later(rig: Rig) -> None:
    member = rig.connect("m", clean=False).send(packets.subscribe(1, ("$share/g/a/#", 1)))
    publish(rig, "a/1", b"one")
    assert got(member) == [("a/1", b"one")]
    member.drop()
    publish(rig, "a/2", b"two")
    member = rig.connect("m", clean=False)
    assert ("a/2", b"two") in got(member)


def test_a_subscription_made_later_has_nothing_of_before(rig: Rig) -> None:
    publish(rig, "a/1", b"one")
    subscriber = rig.connect("s", clean=False).send(packets.subscribe(1, ("a/#", 1)))
    subscriber.drop()
    publish(rig, "a/1", b"two")
    assert got(rig.connect("s", clean=False)) == [("a/1", b"two")]


def test_the_logs_are_known_again_after_a_restart(rig: Rig) -> None:
    publish(rig, "a/1", b"one")
    publish(rig, "a/2", b"two")
    for again in (rig.restart, rig.kill):
        again()
        assert sorted(logs(rig)) == ["other", "own/a/1", "own/a/2"]
        reader = rig.connect("r").send(packets.subscribe(1, ("$replay/earliest/a/+", 0)))
        assert {("a/1", b"one"), ("a/2", b"two")} <= set(got(reader))


def test_a_session_keeps_its_place_in_each_log(rig: Rig) -> None:
    subscriber = rig.connect("s", clean=False).send(packets.subscribe(1, ("a/#", 1)))
    publish(rig, "a/1", b"one")
    for message in subscriber.messages():
        subscriber.send(packets.ack(0x40, message.packet_id))
    subscriber.drop()
    publish(rig, "a/2", b"two")
    rig.restart()
    publish(rig, "a/1", b"three")
    assert sorted(got(rig.connect("s", clean=False))) == [("a/1", b"three"), ("a/2", b"two")]


def test_beyond_max_logs_the_next_entry_takes_it_and_that_is_said_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    subscriber = rig.connect("s").send(packets.subscribe(1, ("a/+", 0)))
    for number in range(6):
        publish(rig, f"a/{number}", b"%d" % number)
    assert sorted(logs(rig)) == ["other", "own/a/0", "own/a/1", "own/a/2"]
    assert logs(rig)["other"] == 3
    assert [payload for _, payload in got(subscriber)] == [b"%d" % number for number in range(6)]
    assert len([line for line in caplog.messages if "log own: 3 topics" in line]) == 1
    assert administration.status(rig.broker)["topics_without_log"] >= 3
    reader = rig.connect("r").send(packets.subscribe(1, ("$log/1/a/4", 0)))
    assert got(reader) == [("$log/1/a/4", b"4")], "one log holds it, and offsets count there"


def test_a_topic_too_long_for_a_directory_goes_to_the_next_entry(rig: Rig) -> None:
    publish(rig, LONG, b"long")
    assert logs(rig) == {"other": 1}
    assert got(rig.connect("r").send(packets.subscribe(1, (f"$log/0/{LONG}", 0)))) == [(f"$log/0/{LONG}", b"long")]


def test_an_unsubscribe_leaves_the_logs_that_nothing_needs(rig: Rig) -> None:
    subscriber = rig.connect("s", clean=False).send(packets.subscribe(1, ("a/#", 1), ("a/1", 1)))
    publish(rig, "a/1", b"one")
    publish(rig, "a/2", b"two")
    subscriber.send(packets.unsubscribe(2, "a/#"))
    reader = rig.broker.sessions["s"].readers[b""]
    assert sorted(feed.log.name for feed in reader.cursors) == ["own/a/1"]


def test_operators_see_each_log_with_its_topic(rig: Rig) -> None:
    publish(rig, "a/1", b"one")
    found = administration.log_of(rig.broker, "own/a/1", administration.segment_totals([]))
    assert (found["topics"], found["records"]) == (["a/1"], 1)
    assert administration.log_of(rig.broker, "other", administration.segment_totals([]))["topics"] == ["#"]


def test_a_replay_with_an_end_has_one_only_in_the_logs_that_there_were(rig: Rig) -> None:
    publish(rig, "a/1", b"one", b"two")
    reader = rig.connect5("r", receive_maximum=1)
    reader.subscribe(("$replay/earliest/a/#", 1), user_property=[("replay-until", "latest")])
    publish(rig, "a/2", b"three")
    publish(rig, "a/2", b"four")
    assert [message.payload for message in reader.drain() if message.topic.startswith("a/")] == [b"one", b"two"]


@pytest.mark.parametrize("away", [False, True])
def test_an_entry_becomes_per_topic_while_it_runs_and_is_none_again(rig: Rig, *, away: bool) -> None:
    subscriber = rig.connect("s", clean=False).send(packets.subscribe(1, ("#", 1)))
    publish(rig, "a/1", b"one")
    publish(rig, "b/1", b"two")
    if away:
        subscriber.drop()
        publish(rig, "a/2", b"three")
    else:
        publish(rig, "a/2", b"three")
        assert len(got(subscriber)) == 3
        subscriber.drop()
        subscriber = rig.connect("s", clean=False)
        subscriber.take()
    log = LogSettings("b", durability=Durability.SAFE, per_topic=True)
    rig.storage.change_logs([log])
    rig.storage.change_logs([], ["own"])
    rig.storage.change_logs([LogSettings("own")])
    entries = (TopicEntry(b"b/#", "b", per_topic=True), TopicEntry(b"a/#", "own"), TopicEntry(b"#", "other"))
    reconfigure(rig.broker, replace(rig.settings, entries=entries))
    rig.settle()
    publish(rig, "b/1", b"four")
    publish(rig, "a/1", b"five")
    assert logs(rig) == {"own/a/1": 1, "own/a/2": 1, "own": 1, "other": 1, "b/b/1": 1}
    assert rig.broker.feeds["b/b/1"].log.settings is log
    assert rig.broker.feeds["own/a/1"].log.settings.retention_ms is None
    if away:
        subscriber = rig.connect("s", clean=False)
    assert {payload for _, payload in got(subscriber)} == (
        {b"one", b"two", b"three", b"four", b"five"} if away else {b"four", b"five"}
    )
