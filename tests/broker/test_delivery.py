"""What a session gets, and when: live, caught up, again, and never twice."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest

from highway.storage import Durability
from tests.broker.rig import Peer, Rig
from tests.harness import packets

if TYPE_CHECKING:
    from pathlib import Path

FAST, BALANCED, SAFE = Durability.FAST, Durability.BALANCED, Durability.SAFE


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, max_inflight=10)


def publish(peer: Peer, topic: str, first: int, count: int, qos: int = 1) -> None:
    """Publish payloads b"<first>" to b"<first + count - 1>" in one chunk."""
    peer.send(
        b"".join(
            packets.publish(topic, b"%d" % number, qos=qos, packet_id=number % 60_000 + 1)
            for number in range(first, first + count)
        )
    )


def numbers(messages: list[packets.Message]) -> list[int]:
    return [int(message.payload) for message in messages]


def drain(peer: Peer) -> list[packets.Message]:
    """Take and acknowledge until nothing comes any more; DUP or not, in the order of arrival."""
    got: list[packets.Message] = []
    while True:
        batch = peer.take()
        if not batch:
            return got
        for first, body in batch:
            if first >> 4 == 3:
                message = packets.parse_publish(first, body)
                got.append(message)
                if message.qos:
                    peer.send(packets.ack(0x40 if message.qos == 1 else 0x50, message.packet_id))
            elif first == 0x62:
                peer.send(packets.ack(0x70, int.from_bytes(body, "big")))


def test_a_window_that_is_full_waits_in_the_log_and_nothing_is_lost(rig: Rig) -> None:
    subscriber = rig.connect("s").send(packets.subscribe(1, ("t", 1)))
    publish(rig.connect("p"), "t", 0, 100)
    assert len(subscriber.messages()) == 10, "the window is 10"
    subscriber.send(packets.ack(0x40, 1))
    assert numbers(subscriber.messages()) == [10]
    for packet_id in range(2, 12):
        subscriber.send(packets.ack(0x40, packet_id))
    assert numbers(drain(subscriber)) == list(range(11, 100))
    assert rig.broker.counters.catchup_fallbacks == 1


def test_a_socket_that_does_not_keep_up_costs_no_memory_and_loses_nothing(rig: Rig) -> None:
    slow = rig.connect("slow").send(packets.subscribe(1, ("t", 0)))
    other = rig.connect("other").send(packets.subscribe(1, ("t", 0)))
    slow.take()
    slow.link.congested = True
    publisher = rig.connect("p")
    for start in range(0, 1000, 100):
        publish(publisher, "t", start, 100, qos=0)
    assert numbers(other.messages()) == list(range(1000)), "a slow subscriber slows nobody"
    assert slow.take() == []
    slow.link.congested = False
    rig.broker.drained(slow.client)
    rig.settle()
    assert numbers(slow.messages()) == list(range(1000))
    publish(publisher, "t", 1000, 1, qos=0)
    assert numbers(slow.messages()) == [1000], "LIVE again"


def test_what_was_missed_comes_once_in_order_and_then_live(rig: Rig) -> None:
    rig.connect("s", clean=False).send(packets.subscribe(1, ("t/#", 1))).drop()
    publisher = rig.connect("p")
    publish(publisher, "t/1", 0, 500)
    back = rig.connect("s", clean=False)
    assert back.link.written.startswith(b"\x20\x02\x01\x00"), "session present"
    missed = numbers(drain(back))
    publish(publisher, "t/1", 500, 5)
    assert missed + numbers(drain(back)) == list(range(505))


def test_unacknowledged_messages_come_first_with_dup_and_their_packet_ids(rig: Rig) -> None:
    first = rig.connect("s", clean=False).send(packets.subscribe(1, ("t", 1)))
    publisher = rig.connect("p")
    publish(publisher, "t", 0, 5)
    sent = first.messages()
    first.send(packets.ack(0x40, sent[1].packet_id)).drop()
    publish(publisher, "t", 5, 3)
    back = rig.connect("s", clean=False)
    got = back.messages()
    assert numbers(got) == [0, 2, 3, 4, 5, 6, 7]
    assert [message.dup for message in got] == [True] * 4 + [False] * 3
    assert [m.packet_id for m in got[:4]] == [m.packet_id for m in sent if m is not sent[1]]


def test_the_same_packet_ids_after_a_restart_of_the_broker(rig: Rig) -> None:
    first = rig.connect("s", clean=False).send(packets.subscribe(1, ("t", 1)))
    publish(rig.connect("p"), "t", 0, 4)
    sent = first.messages()
    first.drop()
    rig.restart()
    again = rig.connect("s", clean=False).messages()
    assert [(m.packet_id, m.payload) for m in again] == [(m.packet_id, m.payload) for m in sent]
    assert all(message.dup for message in again)


def test_an_unacknowledged_window_larger_than_the_new_one_is_sent_in_parts(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_inflight=10)
    rig.connect("s", clean=False).send(packets.subscribe(1, ("t", 1))).drop()
    publish(rig.connect("p"), "t", 0, 20)
    rig.connect("s", clean=False).drop()
    rig.broker.settings = dataclasses.replace(rig.broker.settings, max_inflight=3)
    back = rig.connect("s", clean=False)
    assert len(back.messages()) == 3
    for packet_id in (1, 2, 3):
        back.send(packets.ack(0x40, packet_id))
    rest = drain(back)
    assert numbers(rest) == list(range(3, 20))


def test_a_quiet_topic_of_a_busy_log_moves_on_with_the_watermark(rig: Rig) -> None:
    session = rig.connect("s", clean=False).send(packets.subscribe(1, ("quiet", 1)))
    publish(rig.connect("p"), "busy", 0, 300)
    rig.advance(2)
    session.drop()
    (cursor,) = rig.broker.sessions["s"].cursors()
    assert cursor.next_offset == cursor.stored == 300


def test_a_subscription_made_late_gets_nothing_from_before_it(rig: Rig) -> None:
    rig.connect("s", clean=False).send(packets.subscribe(1, ("a", 1))).drop()
    publisher = rig.connect("p")
    publish(publisher, "a", 0, 30)
    publish(publisher, "b", 100, 30)
    back = rig.connect("s", clean=False)
    assert numbers(back.messages()) == list(range(10)), "the window is full: still in CATCHUP"
    back.send(packets.subscribe(2, ("b", 1)))
    publish(publisher, "b", 200, 5)
    for packet_id in range(1, 11):
        back.send(packets.ack(0x40, packet_id))
    assert numbers(drain(back)) == [*range(10, 30), *range(200, 205)]


def test_overlapping_subscriptions_give_one_copy_at_the_highest_qos(rig: Rig) -> None:
    subscriber = rig.connect("s").send(packets.subscribe(1, ("t/#", 0), ("t/1", 1), ("+/1", 0)))
    publish(rig.connect("p"), "t/1", 0, 3)
    got = subscriber.messages()
    assert numbers(got) == [0, 1, 2]
    assert {message.qos for message in got} == {1}


def test_qos_2_is_delivered_once_across_a_restart_in_every_state(rig: Rig) -> None:
    subscriber = rig.connect("s", clean=False).send(packets.subscribe(1, ("t", 2)))
    publish(rig.connect("p"), "t", 0, 3, qos=2)
    sent = subscriber.messages()
    assert numbers(sent) == [0, 1, 2]
    subscriber.send(packets.ack(0x50, sent[0].packet_id) + packets.ack(0x50, sent[1].packet_id))
    assert [body for first, body in subscriber.take() if first == 0x62] == [b"\0\1", b"\0\2"]
    subscriber.send(packets.ack(0x70, sent[0].packet_id)).drop()
    rig.restart()
    again = rig.connect("s", clean=False).take()
    assert (0x62, b"\0\2") in again, "released before: PUBREL again, not the message"
    publishes = [packets.parse_publish(first, body) for first, body in again if first >> 4 == 3]
    assert [(m.packet_id, m.payload, m.dup) for m in publishes] == [(3, b"2", True)]


def test_a_qos_2_publish_is_stored_once_however_often_it_comes(rig: Rig) -> None:
    publisher = rig.connect("p", clean=False)
    message = packets.publish("t", b"x", qos=2, packet_id=5)
    again = packets.publish("t", b"x", qos=2, packet_id=5, dup=True)
    publisher.send(message + again).send(again)
    publisher.drop()
    rig.restart()
    publisher = rig.connect("p", clean=False).send(again)
    assert publisher.take()[1:] == [(0x50, b"\0\5")]
    assert rig.storage.logs["other"].log_end_offset == 1
    publisher.send(packets.ack(0x62, 5)).send(message)
    assert rig.storage.logs["other"].log_end_offset == 2, "after PUBCOMP the id is a new message"


def test_acknowledgements_keep_the_order_of_their_messages_across_modes(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ((b"safe", "safe", SAFE), (b"#", "other", FAST)))
    publisher = rig.connect("p")
    publisher.take()
    publisher.client.handle(publisher.protocol.receive_data(packets.publish("safe", b"1", qos=1, packet_id=1)))
    publisher.client.handle(publisher.protocol.receive_data(packets.publish("fast", b"2", qos=1, packet_id=2)))
    assert publisher.take() == [], "the FAST one waits behind the SAFE one"
    rig.settle()
    assert publisher.take() == [(0x40, b"\0\1"), (0x40, b"\0\2")]


def test_the_retained_value_seen_with_a_subscription_is_never_ahead_of_the_log(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ((b"#", "safe", SAFE),))
    publisher = rig.connect("p").send(packets.publish("t", b"1", retain=True))
    publisher.client.handle(publisher.protocol.receive_data(packets.publish("t", b"2", retain=True)))
    subscriber = rig.connect("s")  # the second is appended and not synced yet
    subscriber.send(packets.subscribe(1, ("t", 0)))
    got = [(message.payload, message.retain) for message in subscriber.messages()]
    assert got in ([(b"2", True)], [(b"1", True), (b"2", False)])


def test_a_delayed_log_is_stored_at_once_and_seen_later(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ((b"#", "late", FAST),), delays={"late": 30_000})
    subscriber = rig.connect("s").send(packets.subscribe(1, ("t", 0)))
    subscriber.take()
    publisher = rig.connect("p")
    publisher.take()
    publisher.send(packets.publish("t", b"1", qos=1, packet_id=1, retain=True))
    assert publisher.take() == [(0x40, b"\0\1")]
    rig.advance(20)
    assert subscriber.messages() == []
    assert rig.broker.retained.get(b"t") is None
    for _ in range(15):
        rig.advance(1)
    assert [message.payload for message in subscriber.messages()] == [b"1"]
    assert rig.broker.retained.get(b"t") is not None


def test_range_and_fetch_answer_once_and_leave_no_subscription(rig: Rig) -> None:
    publisher = rig.connect("p")
    publish(publisher, "a", 0, 3)
    publish(publisher, "b", 3, 1)
    reader = rig.connect("r")
    reader.take()
    reader.send(packets.subscribe(1, ("$fetch/1/a", 1), ("$range/a", 0), ("$fetch/3/a", 1), ("$fetch/9/a", 0)))
    suback, *replies = reader.take()
    assert suback == (0x90, b"\0\1\1\0\x80\x80"), "offset 3 is a message of another topic, 9 is beyond the end"
    fetched, bounds = (packets.parse_publish(first, body) for first, body in replies)
    assert (fetched.topic, fetched.payload, fetched.qos) == ("$fetch/1/a", b"1", 1)
    assert bounds.topic == "$range/a"
    value = json.loads(bounds.payload)
    assert (value["log"], value["log_start_offset"], value["high_watermark"]) == ("other", 0, 4)
    assert value["oldest"] == value["newest"] == rig.clock.now_ms()
    assert list(rig.broker.sessions["r"].subscriptions()) == []
    publish(publisher, "a", 4, 1)
    assert reader.messages() == []


def test_the_range_of_a_log_that_ends_in_a_hole_still_has_times(rig: Rig) -> None:
    publish(rig.connect("p"), "a", 0, 3)
    written_ms = rig.clock.now_ms()
    rig.advance(60)
    rig.kill()
    reader = rig.connect("r")
    reader.take()
    reader.send(packets.subscribe(1, ("$range/a", 0)))
    value = json.loads(reader.messages()[0].payload)
    assert value["high_watermark"] > 3, "a crash leaves the offsets that may have been seen unused"
    assert value["oldest"] == value["newest"] == written_ms


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", range(20)),
        ("latest", []),
        ("7", range(7, 20)),
        ("20", []),
        ("-5", range(15, 20)),
        ("-50", range(20)),
        ("5s", range(10, 20)),
        ("1h", range(20)),
    ],
)
def test_replay_starts_where_it_was_asked_to(rig: Rig, start: str, expected: range) -> None:
    publisher = rig.connect("p")
    publish(publisher, "t", 0, 10)
    rig.advance(10)
    publish(publisher, "t", 10, 10)
    reader = rig.connect("r").send(packets.subscribe(1, (f"$replay/{start}/t", 0)))
    publish(publisher, "t", 20, 2)
    got = reader.messages()
    assert numbers(got) == [*expected, 20, 21]
    assert {message.topic for message in got} == {"t"}


def test_replay_of_the_last_n_counts_matching_messages_over_all_logs(tmp_path: Path) -> None:
    rig = Rig(tmp_path, ((b"x/#", "x", FAST), (b"#", "other", FAST)))
    publisher = rig.connect("p")
    for number in range(12):
        publish(publisher, ("x/1", "y/1", "noise")[number % 3], number, 1)
        rig.advance(1)
    reader = rig.connect("r").send(packets.subscribe(1, ("$replay/-3/+/1", 0)))
    assert sorted(numbers(reader.messages())) == [7, 9, 10]


@pytest.mark.parametrize(
    "bad", ["$replay/21/t", "$replay/x/t", "$replay/0/#", "$replay/-0/t", "$replay/@/t", "$log/99/t"]
)
def test_a_start_that_is_not_there_is_refused_and_never_becomes_another(tmp_path: Path, bad: str) -> None:
    rig = Rig(tmp_path, ((b"x/#", "x", FAST), (b"#", "other", FAST)))
    publish(rig.connect("p"), "t", 0, 20)
    reader = rig.connect("r")
    reader.take()
    reader.send(packets.subscribe(1, (bad, 0)))
    assert reader.take() == [(0x90, b"\0\1\x80")]


def test_subscribing_to_the_same_replay_again_does_not_rewind_and_another_start_does(rig: Rig) -> None:
    publish(rig.connect("p"), "t", 0, 5)
    reader = rig.connect("r", clean=False).send(packets.subscribe(1, ("$replay/earliest/t", 0)))
    assert numbers(reader.messages()) == [0, 1, 2, 3, 4]
    reader.send(packets.subscribe(2, ("$replay/earliest/t", 0)))
    assert reader.messages() == []
    reader.send(packets.subscribe(3, ("$replay/-2/t", 0)))
    assert numbers(reader.messages()) == [3, 4]
    reader.drop()
    publish(rig.connect("p"), "t", 5, 1)
    assert numbers(rig.connect("r", clean=False).messages()) == [5], "the session keeps the position of the replay"


def test_log_addresses_can_be_fetched(rig: Rig) -> None:
    publish(rig.connect("p"), "t", 0, 3)
    reader = rig.connect("r").send(packets.subscribe(1, ("$log/1/t", 1)))
    got = reader.messages()
    assert [message.topic for message in got] == ["$log/1/t", "$log/2/t"]
    reader.send(packets.subscribe(2, ("$fetch/2/t", 0)))
    assert [message.payload for message in reader.messages()] == [b"2"]
    publish(rig.connect("p"), "t", 3, 1)
    assert [message.topic for message in reader.messages()] == ["$log/3/t"], "live ones carry their address too"


def test_wildcards_do_not_reach_dollar_topics_and_nothing_of_them_is_stored(rig: Rig) -> None:
    everything = rig.connect("all").send(packets.subscribe(1, ("#", 0), ("+/y", 0)))
    dollar = rig.connect("dollar").send(packets.subscribe(1, ("$x/#", 0)))
    everything.take()
    dollar.take()
    rig.connect("p").send(packets.publish("$x/y", b"1") + packets.publish("$SYS/broker/uptime", b"fake"))
    rig.advance(20)
    assert everything.messages() == []
    assert [(m.topic, m.payload) for m in dollar.messages()] == [("$x/y", b"1")]
    assert rig.storage.logs["other"].log_end_offset == 0


def test_a_takeover_publishes_the_will_once_and_before_the_newcomer(rig: Rig) -> None:
    watcher = rig.connect("w").send(packets.subscribe(1, ("st", 0)))
    connect = packets.connect("d", will=("st", b"off", 0, True))
    for _ in range(20):
        peer = Peer(rig, "d", clean=True, connect=connect)
        peer.send(packets.publish("st", b"on", retain=True))
    assert [m.payload for m in watcher.messages()] == [b"on"] + [b"off", b"on"] * 19
    retained = rig.broker.retained.get(b"st")
    assert retained is not None
    assert retained.payload == b"on"


def test_a_clean_session_forgets_the_old_one_for_good(rig: Rig) -> None:
    rig.connect("c", clean=False).send(packets.subscribe(1, ("t", 1))).drop()
    rig.connect("c").drop()
    publish(rig.connect("p"), "t", 0, 2)
    rig.restart()
    back = rig.connect("c", clean=False)
    assert back.take() == [(0x20, b"\0\0")]


def test_a_session_expires_and_its_keys_go(tmp_path: Path) -> None:
    rig = Rig(tmp_path, session_expiry_ms=60_000)
    rig.connect("s", clean=False).send(packets.subscribe(1, ("t", 1))).drop()
    rig.advance(31)
    assert "s" in rig.broker.sessions
    rig.advance(31)
    assert rig.broker.sessions == {}
    assert [key for key, _ in rig.storage.meta.items(b"") if key[:2] in (b"s/", b"p/")] == []


def test_a_new_log_is_read_from_its_beginning_by_sessions_that_waited(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.connect("s", clean=False).send(packets.subscribe(1, ("#", 1))).drop()
    rig.broker.close()
    rig.storage.close()
    rig = Rig(tmp_path, ((b"new/#", "new", FAST), (b"#", "other", FAST)))
    publish(rig.connect("p"), "new/1", 0, 2)
    assert numbers(rig.connect("s", clean=False).messages()) == [0, 1]
