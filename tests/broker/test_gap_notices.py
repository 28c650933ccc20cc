"""Gap notices of MQTT 5 and a client's Maximum Packet Size: told with what has room, and what never is, is counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from highway.broker.delivery import gap_notices
from highway.broker.replay.options import user_property
from highway.broker.sessions.session import Session
from highway.storage import Durability
from highway.storage.gaps import Gap
from tests.broker.rig import Peer5, Rig
from tests.harness import packets, packets5

if TYPE_CHECKING:
    from pathlib import Path


# Long, so that an answer to CONNECT is not what has no room.
T = "t" * 60
GONE = "1-65536"  # what of the block that was reserved for the first message was never used


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, ((b"#", "other", Durability.BALANCED),))


def publish(rig: Rig, *payloads: bytes) -> None:
    publisher = rig.connect("p")
    for payload in payloads:
        publisher.send(packets.publish(T, payload, qos=1, packet_id=1))
    publisher.drop()


def behind_a_hole(rig: Rig, size: int, *payloads: bytes, group: bool) -> Peer5:
    """A client that takes packets of `size` bytes at most and met offsets that are gone."""
    publish(rig, b"0")
    rig.kill()
    assert f"1-{rig.storage.logs['other'].log_end_offset - 1}" == GONE
    publish(rig, *payloads)
    reader = rig.connect5("r", maximum_packet_size=size)
    name = f"$share/g/$replay/earliest/{T}" if group else f"$replay/earliest/{T}"
    return reader.send(packets5.subscribe(1, (name, 1)))


def pairs_of(reader: Peer5) -> list[tuple[bytes, list[tuple[str, str]]]]:
    return [(message.payload, message.all("user_property")) for message in reader.drain()[1:]]


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize("spare", [0, -1])
def test_a_gap_is_told_in_short_where_there_is_no_room_for_its_reason(rig: Rig, *, group: bool, spare: int) -> None:
    whole = [("gap", GONE), ("gap-reason", "unclean-stop")]
    with_reason = len(packets5.publish(T, b"x", qos=1, packet_id=1, user_property=whole))
    reader = behind_a_hole(rig, with_reason + spare, b"x", group=group)
    assert pairs_of(reader) == [(b"x", whole if not spare else whole[:1])]


@pytest.mark.parametrize("group", [False, True])
def test_a_gap_waits_for_a_message_that_leaves_room_for_it(rig: Rig, *, group: bool) -> None:
    short = len(packets5.publish(T, b"", qos=1, packet_id=1, user_property=[("gap", GONE)]))
    bare = len(packets5.publish(T, b"", qos=1, packet_id=1))
    large, too_large = bytes(short - bare), bytes(short - bare + 1)
    reader = behind_a_hole(rig, short, too_large, large, b"", b"next", group=group)
    assert pairs_of(reader) == [(large, []), (b"", [("gap", GONE)]), (b"next", [])]
    assert rig.broker.counters.dropped_too_large == 1
    assert rig.broker.counters.gap_notices_dropped == 0


@pytest.mark.parametrize("group", [False, True])
def test_a_gap_that_no_message_leaves_room_for_is_counted_and_logged_once(
    rig: Rig, caplog: pytest.LogCaptureFixture, *, group: bool
) -> None:
    bare = len(packets5.publish(T, b"x", qos=1, packet_id=1))
    count = gap_notices.MAX_DELIVERIES + 1
    reader = behind_a_hole(rig, bare, *[b"x"] * count, group=group)
    assert pairs_of(reader) == [(b"x", [])] * count
    assert rig.broker.counters.gap_notices_dropped == 1
    assert [record.message for record in caplog.records if "can't be told" in record.message] == [
        f"1 gaps can't be told, from 1 of log other on: no message has room for them in a Maximum Packet Size of {bare}"
    ]


def test_of_several_gaps_as_many_are_told_as_there_is_room_for(rig: Rig) -> None:
    """And the others with the next message."""
    notices = gap_notices.GapNotices()
    for start in range(4):
        notices.add("log", Gap(start * 10, start * 10 + 2, "retention", 0))
    session = rig.broker.sessions[""] = Session(rig.broker, "")
    ranges = [user_property("gap", f"{start}-{start + 1}") for start in (0, 10, 20, 30)]
    room = len(b"".join(ranges[1:]))
    told = [notices.take(session, lambda length: length <= room), notices.take(session, lambda _: True)]
    assert told[0] == b"".join(ranges[:2])
    assert told[1].count(b"gap-reason") == 2
    assert not notices


def test_a_client_that_comes_back_with_3_1_1_is_told_what_waited_for_a_delivery(rig: Rig) -> None:
    publish(rig, b"0")
    reader = rig.connect5("r", session_expiry_interval=100)
    reader.subscribe((f"$replay/earliest/{T}", 1))
    reader.drain()
    reader.drop()
    rig.kill()
    rig.connect5("r", clean_start=False, session_expiry_interval=100).drop()  # meets the gap, and no message behind it
    publish(rig, b"1")
    told, message = rig.connect("r", clean=False).messages()
    assert (told.topic, told.payload) == ("$gap/other", b'{"from": 1, "to": 65536, "reason": "unclean-stop"}')
    assert message.payload == b"1"
