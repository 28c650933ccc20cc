"""Packet ids: never one that is in use, whatever the client leaves unacknowledged."""

from __future__ import annotations

from hypothesis import given, strategies as st

from highway.broker.message import Message
from highway.broker.sessions.inflight import RELEASED, SENT_1, SENT_2, Inflight


def test_ids_come_in_order_and_wrap_past_zero() -> None:
    inflight = Inflight()
    inflight.next_id = 65_534
    ids = inflight.free_ids(4)
    assert list(ids) == [65_534, 65_535, 1, 2]
    inflight.take(ids, None, [7, 8, 9, 10], SENT_1)  # type: ignore[arg-type]
    assert list(inflight.free_ids(1)) == [3]


def test_a_wrap_steps_over_an_id_that_the_client_never_acknowledged() -> None:
    inflight = Inflight()
    inflight.take([2], None, [0], SENT_1)  # type: ignore[arg-type]
    inflight.next_id = 65_535
    assert list(inflight.free_ids(3)) == [65_535, 1, 3]


def test_the_ids_of_an_earlier_connection_are_kept_until_sent_again_or_given_up() -> None:
    inflight = Inflight()
    inflight.take([1, 2, 3], None, [7, 8, 9], SENT_1)  # type: ignore[arg-type]
    entries = inflight.drain()
    assert len(inflight) == 0
    inflight.next_id = 1
    assert list(inflight.free_ids(2)) == [4, 5]
    inflight.restore(*entries[1])
    inflight.release(3)
    assert list(inflight.free_ids(2)) == [3, 4]
    assert len(inflight) == 1


def test_no_id_is_given_when_all_are_in_use() -> None:
    inflight = Inflight()
    inflight.take(range(1, 65_536), None, range(65_535), SENT_1)  # type: ignore[arg-type]
    assert list(inflight.free_ids(1)) == []
    assert inflight.take_message(Message(b"t", b"", 1, False, b""), SENT_1) == 0


def test_qos_2_goes_through_released_and_only_pubcomp_frees_it() -> None:
    inflight = Inflight()
    packet_id = inflight.take_message(Message(b"t", b"x", 2, False, b""), SENT_2)
    assert not inflight.acknowledged([packet_id]), "a PUBACK must not end a QoS 2 exchange"
    assert inflight.received(packet_id)
    entry = inflight.get(packet_id)
    assert entry is not None
    assert entry[2] == RELEASED
    assert inflight.remove(packet_id)
    assert not inflight.remove(packet_id)
    assert len(inflight) == 0


def test_entries_come_back_as_they_were_taken() -> None:
    inflight = Inflight()
    expected = {}
    for number in range(300):  # cursors come and go
        cursor, offset = f"cursor {number}", (1 << 64) - 1 - number
        ids = inflight.free_ids(3)
        inflight.take(ids[:2], cursor, [number, offset], [SENT_1, SENT_2])  # type: ignore[arg-type]
        message = Message(b"t", b"%d" % number, 1, False, b"")
        assert inflight.take_message(message, SENT_1) == ids[2]
        expected[ids[0]] = (cursor, number, SENT_1)
        expected[ids[1]] = (cursor, offset, SENT_2)
        expected[ids[2]] = (None, message, SENT_1)
        if number % 3:
            assert inflight.acknowledged([ids[0], ids[2]])
            assert inflight.received(ids[1])
            assert inflight.get(ids[1]) == (cursor, offset, RELEASED)
            assert inflight.remove(ids[1])
            for packet_id in ids:
                del expected[packet_id]
    assert dict(inflight) == expected
    cursor, number, _ = expected[next(iter(expected))]
    assert inflight.lowest(cursor) == number  # type: ignore[arg-type]
    assert inflight.lowest(cursor, {next(iter(expected))}) == (1 << 64) - 1 - number  # type: ignore[arg-type]
    assert inflight.lowest("nobody") is None  # type: ignore[arg-type]
    assert dict(inflight.drain()) == expected
    assert list(inflight) == []
    assert len(inflight._cursors) == 1


@given(st.lists(st.tuples(st.integers(1, 30), st.lists(st.integers(1, 65_535), max_size=20)), max_size=40))
def test_ids_in_use_are_never_given_again(steps: list[tuple[int, list[int]]]) -> None:
    inflight = Inflight()
    inflight.next_id = 65_500
    in_use: set[int] = set()
    for count, acknowledged in steps:
        ids = list(inflight.free_ids(count))
        assert not in_use.intersection(ids)
        assert len(set(ids)) == len(ids) == count
        assert 0 not in ids
        inflight.take(ids, None, range(len(ids)), SENT_1)  # type: ignore[arg-type]
        in_use.update(ids)
        inflight.acknowledged(acknowledged)
        in_use.difference_update(acknowledged)
