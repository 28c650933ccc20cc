"""What only a hostile or a broken client does: it costs itself, never the others, and leaves nothing behind."""

from __future__ import annotations

import gc
import json
import sys
from typing import TYPE_CHECKING

import pytest

from highway.broker import administration
from highway.broker.delivery.cursor import Cursor
from highway.broker.sessions.reader import Reader
from highway.broker.sessions.session import Session
from highway.storage import Durability
from tests.broker.rig import Rig
from tests.harness import packets, packets5

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FAST = Durability.FAST
HUGE = {"user_property": [("n" * 1000, "v" * 1000)] * 40}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, max_packet_bytes=4 * 1024 * 1024)


def keys(rig: Rig, prefix: bytes = b"") -> list[bytes]:
    return sorted(key for key, _ in rig.storage.meta.items(prefix))


# Nothing is left of sessions that are over.


def test_a_session_resumed_to_end_with_its_connection_leaves_nothing(rig: Rig) -> None:
    peer = rig.connect5("c", session_expiry_interval=100)
    peer.subscribe(("a", 1))
    peer.drop()
    rig.connect("p").send(packets.publish("a", b"1", qos=1, packet_id=1))
    peer = rig.connect5("c", clean_start=False)
    assert peer.connack is not None
    assert peer.connack.session_present
    assert peer.message().payload == b"1"
    assert keys(rig) == []
    peer.drop()
    rig.restart()
    assert (rig.broker.sessions, keys(rig)) == ({}, [])


def test_an_answer_that_comes_after_the_end_of_its_session_does_not_bring_it_back(rig: Rig) -> None:
    rig.connect("p").send(packets.publish("a", b"1", qos=1, packet_id=1))
    rig.restart()
    peer = rig.connect("c", clean=False)
    peer.feed(packets.subscribe(1, ("$fetch/0/a", 1), ("$replay/-5/a", 1), ("b", 1)))
    peer.client.lost()
    administration.drop_session(rig.broker, "c")
    rig.settle()
    assert (rig.broker.sessions, keys(rig)) == ({}, [])


def test_a_session_that_ends_while_it_is_reset_is_not_stored_again(rig: Rig) -> None:
    rig.connect("p").send(packets.publish("a", b"1", qos=1, packet_id=1))
    rig.restart()
    rig.connect("c", clean=False).send(packets.subscribe(1, ("a", 1))).drop()
    answers: list[object] = []
    administration.reset_session(rig.broker, "c", "-1", answers.append)
    administration.drop_session(rig.broker, "c")
    rig.settle()
    assert "ended meanwhile" in str(answers)
    assert keys(rig) == []


def test_puback_for_a_qos_2_message_leaves_those_before_it_acknowledged(rig: Rig) -> None:
    publisher = rig.connect("p")
    peer = rig.connect("c", clean=False).send(packets.subscribe(1, ("a", 2)))
    publisher.send(packets.publish("a", b"1", qos=1, packet_id=1))
    peer.drop()
    peer = rig.connect("c", clean=False)
    publisher.send(packets.publish("a", b"2", qos=2, packet_id=2))
    assert [(m.payload, m.packet_id) for m in peer.messages()] == [(b"1", 1), (b"2", 2)]
    peer.send(packets.ack(0x40, 1) + packets.ack(0x40, 2))
    assert peer.link.closed
    assert keys(rig, b"o/") == [b"o/c\0\0\2"]
    assert [m.payload for m in rig.connect("c", clean=False).messages()] == [b"2"]


# Sizes that don't fit.


@pytest.mark.parametrize(("qos", "retain"), [(0, True), (1, False), (2, True)])
def test_properties_that_can_not_be_stored_are_refused_on_dollar_topics_too(
    rig: Rig, qos: int, *, retain: bool
) -> None:
    reader = rig.connect5("r", session_expiry_interval=100)
    reader.subscribe(("$x/#", 2))
    writer = rig.connect5("w")
    writer.send(packets5.publish("$x/y", b"1", qos=qos, packet_id=1, retain=retain, **HUGE))
    assert writer.disconnected_with() == 0x95
    assert reader.messages() == []
    assert (keys(rig, b"r/"), keys(rig, b"o/")) == ([], [])


def test_the_largest_properties_and_a_subscription_identifier_survive_the_connection(rig: Rig) -> None:
    largest = [("n" * 100, "v" * (size - 105)) for size in (30_000, 30_000, 5535)]
    rig.connect5("p").send(packets5.publish("a", b"1", qos=1, packet_id=1, retain=True, user_property=largest))
    peer = rig.connect5("c", session_expiry_interval=100)
    peer.subscribe(("a", 1), subscription_identifier=268_435_455)
    assert len(peer.messages()) == 1
    rig.kill()
    (message,) = rig.connect5("c", clean_start=False).messages()
    assert (message.all("user_property"), message.identifiers) == (largest, [268_435_455])


def test_a_topic_too_long_for_its_address_is_passed_over(rig: Rig) -> None:
    publisher = rig.connect("p")
    for topic in ("t" * 65_535, "t" * 65_523, "short"):
        publisher.send(packets.publish(topic, b"1", qos=1, packet_id=1))
    for peer in (rig.connect("c"), rig.connect5("c5")):
        peer.send((packets if peer.client.version == 4 else packets5).subscribe(1, ("$log/earliest/#", 1)))
        assert [len(m.topic) for m in peer.messages()] == [65_530, len("$log/2/short")]


def test_one_reader_that_can_not_be_served_does_not_hold_up_the_others(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    one = rig.connect("one").send(packets.subscribe(1, ("$replay/earliest/#", 0)))
    two = rig.connect("two").send(packets.subscribe(1, ("$log/earliest/#", 0)))
    two.take()
    rig.broker.sessions["one"].readers = {}  # broken in a way that nobody foresaw
    for session in rig.broker.sessions.values():
        rig.broker.pump_later(session)
    rig.broker.sessions["one"].behind[object()] = None  # type: ignore[index]
    rig.connect("p").send(packets.publish("a", b"1"))
    assert len(two.messages()) == 1
    assert "can't be served" in caplog.text
    assert not one.link.closed


# Memory.


def test_a_publisher_of_qos_0_is_held_back_too(rig: Rig) -> None:
    peer = rig.connect("p")
    for _ in range(40):
        peer.feed(packets.publish("a", bytes(1_000_000)))
    assert not peer.link.reading
    rig.settle()
    assert peer.link.reading


def test_what_is_fetched_and_not_acknowledged_is_no_more_than_the_window(rig: Rig) -> None:
    rig.connect("p").send(packets.publish("a", b"1" * 1000, qos=1, packet_id=1))
    peer = rig.connect5("c", receive_maximum=2)
    codes = [peer.subscribe(("$fetch/0/a", 1))[0] for _ in range(4)]
    assert codes == [1, 1, 0, 0]
    assert [m.qos for m in peer.messages()] == [1, 1, 0, 0]
    assert len(rig.broker.sessions["c"].inflight) == 2


def test_a_small_request_brings_no_more_than_the_client_reads(rig: Rig) -> None:
    rig.connect("p").send(packets.publish("a", bytes(100_000), qos=1, packet_id=1))
    peer = rig.connect5("c")
    codes = peer.subscribe(*[("$fetch/0/a", 0)] * 1000)
    assert codes == [0] * 3 + [0x97] * 997
    assert len(peer.messages()) == 3
    peer.link.congested = True
    assert peer.subscribe(("$fetch/0/a", 0)) == [0x97]


def test_a_delayed_log_sets_one_timer_however_much_is_published(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ((b"#", "late", FAST),), delays={"late": 30_000})
    peer = rig.connect("p")
    before = len(rig.scheduler.timers)
    for _ in range(100):
        peer.send(packets.publish("a", b"1"))
        rig.advance(0.003)
    assert len(rig.scheduler.timers) < before + 10


# Time, counted in lines of Python, which no other process and no garbage collection changes.


def lines_run(work: Callable[[], object]) -> int:
    count = 0

    def trace(_frame: object, event: str, _arg: object) -> Callable[..., object]:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


SHAPES = ["a/{}", "a/{}/+", "$replay/earliest/a/{}", "$share/g{}/a"]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("clean", [True, False])
def test_the_cost_of_a_subscription_does_not_grow_with_those_before_it(rig: Rig, shape: str, *, clean: bool) -> None:
    peer = rig.connect("c", clean=clean)
    lines = []
    for count in (50, 500):
        names = [shape.format(number) for number in range(count)]

        def come_and_go(names: list[str] = names) -> None:
            peer.send(packets.subscribe(1, *[(name, 1) for name in names]))
            peer.send(packets.unsubscribe(1, *names))

        lines.append(lines_run(come_and_go))
    # Ten times as many cost ten times as much, and a hundred times where one looks at all others.
    assert lines[1] < 12 * lines[0]
    assert rig.broker.sessions["c"].subscription_count == 0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("clean", [True, False])
def test_subscriptions_one_by_one_cost_no_more_than_together(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, shape: str, *, clean: bool
) -> None:
    rig.connect("p").send(packets.publish("a/1", b"kept", retain=True, qos=1, packet_id=1))
    peer = rig.connect("c", clean=clean)
    stored = []
    put = rig.storage.put
    monkeypatch.setattr(rig.storage, "put", lambda puts, *rest: stored.extend(puts) or put(puts, *rest))
    requests = [packets.subscribe(1, (shape.format(number), 1)) for number in range(400)]
    first = lines_run(lambda: [peer.send(request) for request in requests[:40]])
    bytes_first = sum(len(key) + len(value or b"") for key, value in stored)
    lines_run(lambda: [peer.send(request) for request in requests[40:-40]])
    stored.clear()
    last = lines_run(lambda: [peer.send(request) for request in requests[-40:]])
    bytes_last = sum(len(key) + len(value or b"") for key, value in stored)
    assert rig.broker.sessions["c"].subscription_count == 400
    assert last < 1.5 * first
    assert bytes_last <= 1.2 * bytes_first


def test_storing_the_position_of_a_group_costs_no_look_at_what_its_members_hold(rig: Rig) -> None:
    publisher = rig.connect("p")
    for number in range(4):
        rig.connect(f"m{number}").send(packets.subscribe(1, ("$share/g/a", 1)))
    for number in range(2000):
        publisher.feed(packets.publish("a", b"%d" % number, qos=1, packet_id=1))
    rig.settle()
    assert [len(rig.broker.sessions[f"m{number}"].inflight) for number in range(4)] == [500] * 4
    rig.clock.advance(1.0)
    assert lines_run(rig.settle) < 2000
    assert rig.storage.meta.get(b"g/$share/g/a\0other") == (0).to_bytes(8, "big")


def test_subscriptions_that_an_earlier_format_has_in_their_session_are_read_and_stored_apart(rig: Rig) -> None:
    publisher = rig.connect("p")
    publisher.send(packets.publish("a", b"1", qos=1, packet_id=1))
    peer = rig.connect5("c", session_expiry_interval=100)
    peer.subscribe(("a", 1), ("b/#", 2), ("$share/g/s", 1), ("$replay/earliest/a", 1))
    peer.drain()
    peer.drop()
    rows = [json.loads(value) for key, value in rig.storage.meta.items(b"u/")]
    assert len(rows) == 4
    for row in rows:
        del row["retained_owed"]
    head = {**json.loads(rig.storage.meta.get(b"s/c") or b""), "subscriptions": rows, "snapshots": ["b/#"]}
    rig.storage.put([(key, None) for key in keys(rig, b"u/")] + [(b"s/c", json.dumps(head).encode())])
    publisher.send(packets.publish("b/1", b"kept", qos=1, packet_id=1, retain=True))
    for _ in range(2):
        rig.restart()
        assert keys(rig, b"u/") == sorted(b"u/c\0" + row["name"].encode() for row in rows)
        assert b"subscriptions" not in (rig.storage.meta.get(b"s/c") or b"")
    rig.connect("p").send(packets.publish("a", b"2", qos=1, packet_id=1) + packets.publish("s", b"3"))
    peer = rig.connect5("c", clean_start=False, session_expiry_interval=100)
    messages = peer.drain()
    assert sorted((m.topic, m.payload) for m in messages) == [
        *(("a", b"2"), ("a", b"2"), ("b/1", b"kept"), ("b/1", b"kept"), ("s", b"3"))
    ]
    assert peer.unsubscribe(*(row["name"] for row in rows)) == [0] * 4
    assert keys(rig, b"u/") == []
    peer.drop()
    rig.kill()
    assert rig.broker.sessions["c"].subscription_count == 0


@pytest.mark.parametrize("dropped", [False, True])
def test_a_change_that_waits_for_the_disk_is_stored_though_its_connection_ends(rig: Rig, *, dropped: bool) -> None:
    rig.connect("p").send(packets.publish("a", b"1", qos=1, packet_id=1))
    rig.restart()
    peer = rig.connect("c", clean=False)
    peer.send(packets.subscribe(1, ("$replay/-1/a", 1)))
    peer.feed(packets.subscribe(1, ("$replay/-2/a", 1), ("b", 1)))
    peer.client.lost()
    if dropped:
        administration.drop_session(rig.broker, "c")
    rig.settle()
    expected = [] if dropped else [b"u/c\0$replay/-1/a", b"u/c\0b"]
    assert keys(rig, b"u/") == expected
    rig.kill()
    assert sorted(s.name for session in rig.broker.sessions.values() for s in session.subscriptions()) == [
        key[4:] for key in expected
    ]


def test_retained_messages_that_a_client_can_not_take_do_not_stop_the_loop(rig: Rig) -> None:
    publisher = rig.connect("p")
    for number in range(3000):
        publisher.feed(packets.publish(f"r/{number}", bytes(100), retain=True))
    rig.settle()
    peer = rig.connect5("c", maximum_packet_size=50)
    peer.feed(packets5.subscribe(1, ("r/#", 0)))
    rig.storage.settle()
    turns = 0
    while rig.broker.sessions["c"].retained:
        callbacks = len(rig.scheduler.soon)
        for _ in range(callbacks):
            callback, args = rig.scheduler.soon.popleft()
            callback(*args)
        turns += 1
        assert turns < 100
    assert turns >= 5
    assert peer.messages() == []


# Subscriptions that replace one another.


def test_an_ordinary_subscription_replaces_a_replay_of_the_same_filter(rig: Rig) -> None:
    publisher = rig.connect("p").send(packets.publish("a", b"old"))
    peer = rig.connect5("c", session_expiry_interval=100)
    peer.subscribe(("a", 0), user_property=[("replay-from", "earliest")])
    assert [m.payload for m in peer.messages()] == [b"old"]
    peer.subscribe(("a", 0))
    publisher.send(packets.publish("a", b"new"))
    assert [m.payload for m in peer.messages()] == [b"new"]
    assert [key for key in keys(rig, b"p/") if key.endswith(b"$replay/a")] == []
    assert peer.unsubscribe("a") == [0]
    publisher.send(packets.publish("a", b"unheard"))
    assert peer.messages() == []
    assert rig.broker.sessions["c"].subscription_count == 0


def test_what_comes_behind_a_connect_that_waits_for_the_disk_waits_in_the_network(rig: Rig) -> None:
    peer = rig.unsettled(packets.connect("c", clean=False) + packets.publish("a", b"1"))
    assert not peer.link.reading
    rig.settle()
    assert peer.link.reading
    assert rig.storage.logs["other"].log_end_offset == 1


def test_long_topic_names_are_not_remembered(rig: Rig) -> None:
    peer = rig.connect("c").send(packets.subscribe(1, ("#", 0)))
    before = len(rig.broker.router._routes)
    for number in range(20):
        peer.send(packets.publish(f"{number}/" + "x" * 60_000, b"1"))
    assert len(peer.messages()) == 20
    assert len(rig.broker.router._routes) == before


def test_a_reader_of_many_filters_finds_those_that_match(rig: Rig) -> None:
    publisher = rig.connect("p")
    peer = rig.connect("c", clean=False)
    peer.send(packets.subscribe(1, *[(f"a/{number}/+", 1) for number in range(50)], ("b", 1))).drop()
    for topic in ("a/7/x", "a/77/x", "a/49/x", "b", "c"):
        publisher.send(packets.publish(topic, b"1"))
    peer = rig.connect("c", clean=False)
    assert [m.topic for m in peer.messages()] == ["a/7/x", "a/49/x", "b"]
    peer.send(packets.unsubscribe(1, "a/7/+", "b") + packets.subscribe(2, ("a/7/x", 1))).drop()
    for topic in ("a/7/x", "a/7/y", "a/49/x", "b"):
        publisher.send(packets.publish(topic, b"2"))
    assert [m.topic for m in rig.connect("c", clean=False).messages()] == ["a/7/x", "a/49/x"]


# A CONNECT that is refused.

NO_ROOM = {"max_sessions": 1}
NO_RIGHTS = {"acl": ()}
WILL = ("w", b"1", 1, True)


@pytest.mark.parametrize(
    ("settings", "connect"),
    [
        (NO_ROOM, packets.connect("c", clean=False)),
        (NO_ROOM, packets5.connect("c", session_expiry_interval=60, will=WILL)),
        (NO_RIGHTS, packets.connect("c", clean=False, will=WILL)),
        (
            NO_RIGHTS,
            packets5.connect("c", session_expiry_interval=60, will=WILL, will_properties={"will_delay_interval": 5}),
        ),
        ({"max_topic_bytes": 3}, packets.connect("c", clean=False, will=("long", b"1", 0, False))),
        ({}, packets.connect("c", clean=False, will=("$CONTROL/x", b"1", 0, False))),
        ({}, packets.connect("c", clean=False, will=("$SYS/x", b"1", 0, False))),
        ({}, packets5.connect("c", session_expiry_interval=60, authentication_method="SCRAM")),
        ({}, packets.connect("", clean=False)),
    ],
)
def test_a_connect_that_is_refused_leaves_nothing(tmp_path: Path, settings: dict[str, object], connect: bytes) -> None:
    rig = Rig(tmp_path, **settings)
    rig.connect("there", clean=False).drop()
    before = keys(rig)
    peer = rig.unsettled(connect + packets.publish("a", b"1"))
    rig.settle()
    assert peer.link.closed
    peer.drop()
    rig.advance(60.0)
    assert (keys(rig), set(rig.broker.sessions), rig.broker.clients) == (before, {"there"}, {})
    assert (rig.storage.logs["other"].log_end_offset, len(rig.broker.wills._waiting)) == (0, 0)
    rig.restart()
    assert set(rig.broker.sessions) == {"there"}


def test_a_session_that_is_over_is_freed_without_the_collector(rig: Rig) -> None:
    def alive() -> int:
        return sum(type(found) in (Session, Cursor, Reader) for found in gc.get_objects())

    def come_and_go() -> None:
        rig.connect("p").send(packets.publish("a", b"1", retain=True)).drop()
        peer = rig.connect("c").send(packets.subscribe(1, ("a", 1), ("$replay/earliest/a", 0), ("$share/g/a", 1)))
        assert len(peer.messages()) >= 2
        peer.drop()
        rig.scheduler.timers = [timer for timer in rig.scheduler.timers if not timer.cancelled]

    come_and_go()
    gc.collect()
    gc.disable()
    try:
        before = alive()
        for _ in range(3):
            come_and_go()
        assert alive() <= before
    finally:
        gc.enable()
