"""What one client, or all together, may take of the broker: topics, sessions, retained messages, turns to connect."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from highway.broker import reconfiguring
from highway.broker.authentication import TrustEverybody
from highway.broker.publishing import routing
from highway.broker.publishing.routing import Router
from highway.broker.settings import BrokerSettings
from highway.broker.token_bucket import Rate, TokenBuckets
from highway.storage import Durability
from highway.storage.segment.records import encode_records
from tests.broker.rig import Rig
from tests.harness import packets, packets5

if TYPE_CHECKING:
    from pathlib import Path

FAST = Durability.FAST


def limited(rig: Rig) -> dict[str, int]:
    """The limits that bit, and how often."""
    return {limit: count for limit, count in rig.broker.counters.limited.items() if count}


# Topics.


@pytest.mark.parametrize(("topic", "limit"), [("12345678901", "max_topic_bytes"), ("a/b/c/d", "max_topic_levels")])
def test_a_topic_beyond_its_limit_is_not_published_to(tmp_path: Path, topic: str, limit: str) -> None:
    rig = Rig(tmp_path, max_topic_bytes=10, max_topic_levels=3)
    for qos in (0, 1, 2):
        peer = rig.connect("old", clean=False).send(packets.publish(topic, b"1", qos=qos, packet_id=1))
        assert peer.link.closed
        peer5 = rig.connect5("new")
        peer5.send(packets5.publish(topic, b"1", qos=qos, packet_id=1, retain=True))
        assert peer5.disconnected_with() == 0x90
    assert (rig.storage.logs["other"].log_end_offset, rig.broker.retained.get(topic.encode())) == (0, None)
    assert limited(rig) == {limit: 6}
    rig.connect("fits").send(packets.publish("a/b/45678", b"1"))
    assert rig.storage.logs["other"].log_end_offset == 1


def test_a_filter_beyond_its_limit_is_refused_and_others_beside_it_are_not(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_topic_bytes=20, max_topic_levels=3)
    peer = rig.connect5("new")
    assert peer.subscribe(("a/+/#", 1), ("a/b/c/d", 1), ("x" * 21, 1), ("$share/g/" + "x" * 12, 1)) == [
        1,
        0x8F,
        0x8F,
        0x8F,
    ]
    assert limited(rig) == {"max_topic_levels": 1, "max_topic_bytes": 2}
    old = rig.connect("old").send(packets.subscribe(1, ("a/b/c/d", 1), ("a", 0)))
    assert (0x90, b"\0\1\x80\0") in old.take()


def test_a_will_beyond_the_limit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_topic_levels=3)
    peer = rig.unsettled(packets.connect("c", clean=False, will=("a/b/c/d", b"x", 0, False)))
    rig.settle()
    assert peer.link.closed
    assert rig.broker.sessions == {}
    assert [key for key, _ in rig.storage.meta.items(b"")] == []


def test_limits_of_topics_change_while_the_broker_runs(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    peer = rig.connect("c").send(packets.publish("a/b/c", b"1"))
    reconfiguring.reconfigure(rig.broker, BrokerSettings(entries=rig.settings.entries, max_topic_levels=2))
    peer.send(packets.publish("a/b", b"1"))
    assert not peer.link.closed
    assert peer.send(packets.publish("a/b/c", b"1")).link.closed


def test_subscriptions_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_subscriptions=2)
    assert rig.connect5("c").subscribe(("a", 0), ("b", 0), ("c", 0), ("a", 1)) == [0, 0, 0x97, 1]
    assert limited(rig) == {"max_subscriptions": 1}


def test_names_count_as_new_once_whatever_is_forgotten_meanwhile(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    peer = rig.connect("c")
    before = rig.broker.router.new_topics
    for _ in range(3):
        for name in ("a", "b", "c"):
            peer.send(packets.publish(name, b"1"))
        peer.send(packets.subscribe(1, ("+/x", 0), ("a", 0)) + packets.unsubscribe(2, "+/x", "a"))
    assert rig.broker.router.new_topics == before + 3


def test_as_many_topics_as_a_fleet_has_keep_their_routes() -> None:
    router = Router([])
    names = [b"fleet/%d/telemetry" % number for number in range(100_000)]
    routes = [*map(router.route, names)]
    assert all(router.route(name) is route for name, route in zip(names, routes, strict=True))


def test_topics_in_turn_that_are_more_than_the_routes_are_not_new_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "MAX_ROUTES", 10)
    router = Router([])
    for number in [*range(35)] * 5:
        router.route(b"fleet/%d" % number)
    assert router.new_topics == 35


@pytest.mark.parametrize("lengths", [(1,), (2,), (1, 2, 1, 1), (1, 1, 1, 1)])
def test_records_are_the_same_whatever_was_encoded_before(lengths: tuple[int, ...]) -> None:
    route = Router([]).route(b"a/b")
    for delta_ms in (5, 5, 6, 6, 6, 5):
        for flags in (0, 1):
            for count in lengths:
                payloads = [b"1", b"22"][:count]
                wanted = encode_records([(b"a/b", flags, delta_ms, b"", payload) for payload in payloads])
                assert route.encode_records(payloads, flags, delta_ms) == wanted


# Retained messages.


def test_beyond_the_number_of_retained_messages_others_are_published_without_being_kept(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_retained=2)
    reader = rig.connect5("r")
    reader.subscribe(("#", 0x08))  # Retain As Published
    writer = rig.connect("w")
    for topic in ("a", "b", "c", "a"):
        writer.send(packets.publish(topic, topic.encode(), qos=1, packet_id=1, retain=True))
    assert [(m.topic, m.retain) for m in reader.messages()] == [("a", True), ("b", True), ("c", False), ("a", True)]
    assert rig.storage.logs["other"].log_end_offset == 4
    writer.send(packets.publish("a", b"", retain=True) + packets.publish("c", b"2", retain=True))
    rig.restart()
    assert [m.topic for m in rig.connect("n").send(packets.subscribe(1, ("#", 0))).messages()] == ["b", "c"]


def test_beyond_the_bytes_of_retained_messages_what_was_there_goes_as_it_is_out_of_date(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_retained_bytes=3000)
    writer = rig.connect("w")
    used = rig.broker.retained.size_bytes
    rig.broker.settings = BrokerSettings(entries=rig.settings.entries, max_retained_bytes=used + 100)
    writer.send(packets.publish("a", bytes(40), retain=True) + packets.publish("b", bytes(50), retain=True))
    writer.send(packets.publish("b", bytes(30), retain=True) + packets.publish("c", bytes(30), retain=True))
    assert limited(rig) == {"max_retained_bytes": 1}
    writer.send(packets.publish("a", bytes(90), retain=True))
    assert limited(rig) == {"max_retained_bytes": 2}
    assert (rig.broker.retained.get(b"a"), rig.broker.retained.get(b"c")) == (None, None)
    rig.restart()
    assert [m.topic for m in rig.connect("n").send(packets.subscribe(1, ("#", 0))).messages()] == ["b"]


# Sessions.


def test_a_new_session_beyond_the_limit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_sessions=2)
    for name in ("a", "b"):
        rig.connect(name, clean=False).drop()
    keys = [key for key, _ in rig.storage.meta.items(b"")]
    refused = rig.connect("c", clean=False)
    assert refused.take() == [(0x20, b"\0\3")]
    assert refused.link.closed
    refused5 = rig.connect5("d", session_expiry_interval=60)
    assert refused5.connack is not None
    assert refused5.connack.reason_code == 0x97
    assert (sorted(rig.broker.sessions), [key for key, _ in rig.storage.meta.items(b"")]) == (["a", "b"], keys)
    assert limited(rig) == {"max_sessions": 2}
    for name, clean in (("a", False), ("e", True)):
        assert rig.connect(name, clean=clean).take()[0][1][1] == 0


# Flapping.


def test_a_client_that_comes_back_too_often_is_held_off(tmp_path: Path) -> None:
    rig = Rig(tmp_path, reconnect_rate=Rate(3, 60))
    for _ in range(3):
        first = rig.connect("twin")
        assert first.take()[0] == (0x20, b"\0\0")
    other = rig.connect("other").send(packets.subscribe(1, ("t", 0)))
    other.take()
    second = rig.unsettled(packets.connect("twin"))
    second.feed(packets.publish("t", b"1"))
    rig.settle()
    assert (second.take(), second.link.reading, first.link.closed) == ([], False, False)
    rig.advance(19.0)
    assert not first.link.closed
    rig.advance(2.0)
    assert (second.take()[0], second.link.reading, first.link.closed) == ((0x20, b"\0\0"), True, True)
    assert [m.payload for m in other.messages()] == [b"1"]
    assert limited(rig) == {"reconnect_rate": 1}


def test_one_that_gave_up_meanwhile_takes_nothing_over(tmp_path: Path) -> None:
    rig = Rig(tmp_path, reconnect_rate=Rate(1, 60))
    first = rig.connect("twin")
    second = rig.connect("twin")
    second.drop()
    rig.advance(70.0)
    assert not first.link.closed
    assert rig.broker.clients["twin"] is first.client
    assert second.take() == []


def test_one_that_is_not_known_any_more_when_its_turn_comes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, reconnect_rate=Rate(1, 60))
    first, second = rig.connect("twin"), rig.connect("twin")
    first.take()
    monkeypatch.setattr(TrustEverybody, "still_knows", lambda _, identity: identity.user is not None)
    rig.advance(70.0)
    assert (second.take(), second.link.closed, first.link.closed) == ([(0x20, b"\0\5")], True, False)


def test_clients_without_an_id_are_not_held_off(tmp_path: Path) -> None:
    rig = Rig(tmp_path, reconnect_rate=Rate(1, 60))
    for _ in range(5):
        assert rig.connect("").take()[0] == (0x20, b"\0\0")


def test_nobody_owes_more_than_anybody_waits() -> None:
    buckets = TokenBuckets()
    waits = [buckets.wait_s("a", Rate(1, 1), 0.0, 10.0) for _ in range(100)]
    assert max(waits) == pytest.approx(11.0)
    assert buckets.wait_s("b", Rate(1, 1), 0.0, 10.0) == 0.0
    assert buckets.wait_s("b", None, 0.0, 10.0) == 0.0


# Catching up, and what is in flight.


def test_catching_up_keeps_to_its_rate_and_live_messages_do_not_count(tmp_path: Path) -> None:
    rig = Rig(tmp_path, catchup_bytes=Rate(10_000, 1))
    reader = rig.connect("r", clean=False).send(packets.subscribe(1, ("t", 0)))
    writer = rig.connect("w")
    for _ in range(50):
        writer.send(packets.publish("t", bytes(1000)))
    assert len(reader.messages()) == 50
    reader.drop()
    for number in range(50):
        writer.send(packets.publish("t", b"%04d" % number * 250))
    reader = rig.connect("r", clean=False)
    got = [m.payload[:4] for m in reader.messages()]
    assert 9 <= len(got) <= 22
    for seconds in range(1, 6):
        rig.advance(1.0)
        got += [m.payload[:4] for m in reader.messages()]
        assert len(got) <= 22 + 10 * seconds
    assert got == [b"%04d" % number for number in range(50)]
    assert limited(rig)["catchup_bytes"] >= 3
    writer.send(packets.publish("t", b"live"))
    assert [m.payload for m in reader.messages()] == [b"live"]


def test_a_member_of_a_group_catches_up_at_its_rate_and_live_messages_do_not_count(tmp_path: Path) -> None:
    rig = Rig(tmp_path, catchup_bytes=Rate(10_000, 1))
    writer = rig.connect("w")

    def write(first: int, count: int) -> None:
        for number in range(first, first + count):
            writer.send(packets.publish("t", b"%04d" % number * 250))

    write(0, 60)
    group = packets.subscribe(1, ("$share/g/$replay/earliest/t", 0))
    members = [rig.connect(name, clean=False).send(group) for name in "ab"]

    def take() -> list[list[bytes]]:
        return [[message.payload[:4] for message in peer.messages()] for peer in members]

    got = take()
    assert all(5 <= len(payloads) <= 12 for payloads in got)
    write(60, 20)  # while the group is behind: it is behind with these too
    for seconds in range(1, 5):
        rig.advance(1.0)
        got = [before + now for before, now in zip(got, take(), strict=True)]
        assert all(len(payloads) <= 12 + 10 * seconds for payloads in got)
    assert sorted(got[0] + got[1]) == [b"%04d" % number for number in range(80)]
    assert limited(rig)["catchup_bytes"] >= 4
    write(80, 100)
    assert sum(map(len, take())) == 100
    for peer in members:
        peer.drop()
    write(180, 30)  # nobody is there
    members = [rig.connect("a", clean=False)]
    assert len(take()[0]) <= 12


def test_a_window_that_is_full_is_counted_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_inflight=5)
    reader = rig.connect("r", clean=False).send(packets.subscribe(1, ("t", 1)))
    writer = rig.connect("w")
    for _ in range(20):
        writer.send(packets.publish("t", b"1", qos=1, packet_id=1))
    assert len(reader.messages()) == 5
    assert limited(rig) == {"max_inflight": 1}


@pytest.mark.parametrize("name", ["$replay/@1000/t%d", "$share/g/$replay/@1000/t%d"])
def test_subscriptions_that_are_looked_up_together_keep_to_the_limit_together(tmp_path: Path, name: str) -> None:
    rig = Rig(tmp_path, max_subscriptions=3)
    rig.connect("w").send(packets.publish("t0", b"x", qos=1, packet_id=1))
    peer = rig.connect("s")
    peer.take()
    peer.send(packets.subscribe(1, *((name % number, 1) for number in range(5))))
    assert (0x90, b"\0\1" + bytes([1, 1, 1, 0x80, 0x80])) in peer.take()
    assert len(peer.client.session.all_subscriptions()) == 3
