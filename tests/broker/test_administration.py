"""Moving and ending sessions from outside, turn by turn."""

from __future__ import annotations

import pytest

from highway.broker import administration
from highway.errors import HighwayError
from highway.storage import Durability
from tests.broker.rig import Rig
from tests.harness import packets, packets5

ENTRIES = ((b"a/#", "a", Durability.FAST), (b"#", "other", Durability.FAST))


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path / "data", ENTRIES)


def publish(rig, topic, first, count):
    publisher = rig.connect("publisher")
    for number in range(first, first + count):
        publisher.send(packets.publish(topic, b"%d" % number))
    publisher.send(packets.DISCONNECT)


def reset(rig, client_id, to):
    answers = []
    administration.reset_session(rig.broker, client_id, to, answers.append)
    rig.settle()
    (answer,) = answers
    return answer


def numbers(peer):
    return [int(message.payload) for message in peer.messages()]


def subscriber(rig, *filters, qos=0):
    peer = rig.connect("c", clean=False)
    peer.send(packets.subscribe(1, *((topic_filter, qos) for topic_filter in filters)))
    peer.take()
    return peer


def test_offline_session_goes_on_where_it_was_put(rig):
    subscriber(rig, "a/x").send(packets.DISCONNECT)
    publish(rig, "a/x", 0, 10)
    assert reset(rig, "c", "7") == {"a": 7}
    assert numbers(rig.connect("c", clean=False)) == [7, 8, 9]


def test_position_survives_a_crash(rig):
    subscriber(rig, "a/x").send(packets.DISCONNECT)
    publish(rig, "a/x", 0, 10)
    reset(rig, "c", "latest")
    rig.kill()
    assert numbers(rig.connect("c", clean=False)) == []
    publish(rig, "a/x", 10, 1)


def test_online_session_gets_history_again_and_then_goes_on_live(rig):
    peer = subscriber(rig, "a/x")
    publish(rig, "a/x", 0, 5)
    assert numbers(peer) == [0, 1, 2, 3, 4]
    assert reset(rig, "c", "-2") == {"a": 3}
    assert numbers(peer) == [3, 4]
    publish(rig, "a/x", 5, 1)
    assert numbers(peer) == [5]


def test_last_messages_are_counted_over_all_filters_together(rig):
    peer = subscriber(rig, "a/x", "a/y")
    for topic, first in (("a/x", 0), ("a/z", 1), ("a/y", 2), ("a/z", 3)):
        publish(rig, topic, first, 1)
        rig.clock.advance(1)
    peer.take()
    assert reset(rig, "c", "-2") == {"a": 0}
    assert numbers(peer) == [0, 2]


def test_what_is_unacknowledged_after_a_move_back_is_not_lost_by_a_crash(rig):
    peer = subscriber(rig, "a/x", qos=1)
    publisher = rig.connect("publisher")
    for number in range(10):
        publisher.send(packets.publish("a/x", b"%d" % number, qos=1, packet_id=number + 1))
    first = peer.messages()
    for message in first[:8]:
        peer.send(packets.ack(0x40, message.packet_id))
    reset(rig, "c", "earliest")
    assert len(peer.messages()) == 10
    rig.advance(2.0)  # positions are stored while 8 and 9 are the oldest in flight, and 0 the lowest
    rig.kill()
    assert numbers(rig.connect("c", clean=False)) == list(range(10))


@pytest.mark.parametrize(
    ("to", "message"),
    [
        ("11", "offset 11 is beyond the end of log 'a': it holds offsets 0 to 9"),
        ("yesterday", "yesterday"),
    ],
)
def test_where_it_can_not_be_put(to, message, rig):
    subscriber(rig, "a/x")
    publish(rig, "a/x", 0, 10)
    answer = reset(rig, "c", to)
    assert isinstance(answer, HighwayError)
    assert message in str(answer)


def test_offset_that_could_be_of_two_logs_is_refused(rig):
    subscriber(rig, "a/x", "b/x")
    answer = reset(rig, "c", "0")
    assert "an offset counts in one log, and 'a/x', 'b/x' spans 2 (a, other)" in str(answer)


def test_who_subscribes_to_no_log_can_not_be_moved(rig):
    rig.connect("c", clean=False)
    assert "no ordinary subscription" in str(reset(rig, "c", "earliest"))
    with pytest.raises(HighwayError, match="no session of client 'd'"):
        reset(rig, "d", "earliest")


def test_session_that_ends_meanwhile_leaves_nothing_behind(rig):
    subscriber(rig, "a/x").send(packets.DISCONNECT)
    publish(rig, "a/x", 0, 1)
    answers = []
    administration.reset_session(rig.broker, "c", "1h", answers.append)
    administration.drop_session(rig.broker, "c")
    rig.settle()
    assert "ended meanwhile" in str(answers[0])
    assert not list(rig.storage.meta.items(b"p/"))


def test_dropped_session_is_disconnected_and_gone(rig):
    peer = rig.connect5("c", session_expiry_interval=100)
    peer.subscribe(("a/x", 1))
    administration.drop_session(rig.broker, "c")
    rig.settle()
    assert peer.disconnected_with() == 0x98  # administrative action
    assert "c" not in rig.broker.sessions
    rig.kill()
    assert not rig.connect5("c", clean_start=False, session_expiry_interval=100).connack.session_present


def test_details_of_a_session_with_a_full_window(rig):
    peer = rig.connect5("c", session_expiry_interval=100, receive_maximum=3)
    peer.subscribe(("a/x", 1))
    for number in range(5):
        rig.connect("publisher").send(packets.publish("a/x", b"%d" % number, qos=1, packet_id=1))
    (summary,) = [one for one in administration.sessions(rig.broker) if one["client"] == "c"]
    assert summary["state"] == "CATCHUP"
    assert (summary["lag"], summary["inflight"]) == (2, 3)
    assert summary["oldest_unacked"] == {"packet_id": 1, "log": "a", "offset": 0}
    assert summary["window_full_since_ms"] == rig.clock.now_ms()
    for message in peer.messages():
        peer.send(packets5.ack(0x40, message.packet_id))
    detail = administration.session_detail(rig.broker.sessions["c"])
    assert (detail["state"], detail["window_full_since_ms"]) == ("LIVE", None)
    assert detail["filters"] == [{"filter": "a/x", "qos": 1}]
    (position,) = detail["positions"]
    assert (position["log"], position["next_offset"], position["lag"], position["state"]) == ("a", 5, 0, "LIVE")


def test_what_a_session_missed_for_good_is_shown(rig):
    subscriber(rig, "a/x").send(packets.DISCONNECT)
    publish(rig, "a/x", 0, 10)
    log = rig.storage.logs["a"]
    log.log_start_offset = 4  # what retention does
    assert numbers(rig.connect("c", clean=False)) == [4, 5, 6, 7, 8, 9]
    detail = administration.session_detail(rig.broker.sessions["c"])
    assert detail["missed"] == [{"log": "a", "from": 0, "to": 3, "reason": "retention"}]


def test_groups_are_shown_with_their_members(rig):
    peer = subscriber(rig, "$share/g/a/#", qos=1)
    publish(rig, "a/x", 0, 2)
    peer.take()
    detail = administration.session_detail(rig.broker.sessions["c"])
    (group,) = detail["groups"]
    assert group == {
        "name": "$share/g/a/#",
        "members": 1,
        "log": "a",
        "next_offset": 2,
        "high_watermark": 2,
        "lag": 0,
    }
