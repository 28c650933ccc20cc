"""MQTT 5 wills: which end of a connection publishes them, when, and with which properties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from highway.errors import DiskFullError
from highway.storage import Durability
from tests.broker.rig import Peer, Peer5, Rig
from tests.harness import packets, packets5

if TYPE_CHECKING:
    from pathlib import Path

SAFE = Durability.SAFE


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.fixture
def watcher(rig: Rig) -> Peer5:
    peer = rig.connect5("watcher")
    peer.subscribe(("st/#", packets5.option(1, retain_as_published=True)))
    return peer


def with_will(rig: Rig, client_id: str = "c", *, delay: int = 0, expiry: int | None = 0, **settings: Any) -> Peer5:
    """A client with a will; an `expiry` of None is not told."""
    properties = {"will_delay_interval": delay} if delay else {}
    if expiry is not None:
        settings["session_expiry_interval"] = expiry
    return rig.connect5(
        client_id,
        will=("st/c", b"off", 1, False),
        will_properties={**properties, **settings.pop("will_properties", {})},
        **settings,
    )


def payloads(peer: Peer5) -> list[bytes]:
    return [message.payload for message in peer.messages()]


def stored_wills(rig: Rig) -> list[bytes]:
    return [key for key, _ in rig.storage.meta.items(b"w/")]


def test_a_lost_connection_publishes_it_and_it_is_gone(rig: Rig, watcher: Peer5) -> None:
    with_will(rig).drop()
    assert payloads(watcher) == [b"off"]
    assert stored_wills(rig) == []
    rig.connect5("c").drop()
    assert payloads(watcher) == [], "the next connection has none"


@pytest.mark.parametrize(
    ("reason_code", "published"), [(0x00, False), (0x04, True), (0x80, True), (0x82, True), (0x95, True)]
)
def test_only_a_normal_disconnect_takes_it_back(rig: Rig, watcher: Peer5, reason_code: int, *, published: bool) -> None:
    with_will(rig).send(packets5.disconnect(reason_code))
    assert payloads(watcher) == ([b"off"] if published else [])
    assert stored_wills(rig) == []
    rig.kill()
    watcher = rig.connect5("w")
    watcher.subscribe(("$replay/earliest/st/#", 0))
    assert len(watcher.messages()) == published


def test_a_disconnect_of_3_1_1_takes_it_back(rig: Rig, watcher: Peer5) -> None:
    Peer(rig, "o", clean=True, connect=packets.connect("o", will=("st/o", b"off", 0, False))).send(packets.DISCONNECT)
    assert payloads(watcher) == []


def test_a_fault_of_the_client_publishes_it(rig: Rig, watcher: Peer5) -> None:
    with_will(rig).send(b"\x00\x00")
    assert payloads(watcher) == [b"off"]


def test_silence_publishes_it(rig: Rig, watcher: Peer5) -> None:
    with_will(rig).client.end(0x8D)
    rig.settle()
    assert payloads(watcher) == [b"off"]


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_it_has_the_qos_the_retain_and_the_properties_that_connect_gave_it(
    rig: Rig, watcher: Peer5, qos: int, *, retain: bool
) -> None:
    watcher.subscribe(("st/#", packets5.option(2, retain_as_published=True)))
    pairs = [("z", "1"), ("a", "2"), ("z", "0")]
    rig.connect5(
        "c",
        will=("st/c", b"off", qos, retain),
        will_properties={
            "user_property": pairs,
            "payload_format_indicator": 1,
            "message_expiry_interval": 60,
            "content_type": "t",
            "response_topic": "r",
            "correlation_data": b"d",
        },
    ).drop()
    message = watcher.message()
    assert (message.qos, message.retain, message.payload) == (qos, retain, b"off")
    assert message.all("user_property") == pairs
    assert set(message.properties) - {("user_property", pair) for pair in pairs} == {
        ("payload_format_indicator", 1),
        ("message_expiry_interval", 60),
        ("content_type", "t"),
        ("response_topic", "r"),
        ("correlation_data", b"d"),
    }
    late = rig.connect5("late")
    late.subscribe(("st/c", 2))
    assert len(late.messages()) == retain


def test_it_waits_for_its_delay(rig: Rig, watcher: Peer5) -> None:
    with_will(rig, delay=10, expiry=100).drop()
    rig.advance(9)
    assert payloads(watcher) == []
    rig.advance(1)
    assert payloads(watcher) == [b"off"]
    rig.advance(200)
    assert payloads(watcher) == []


@pytest.mark.parametrize("at", ["connect", "disconnect"])
def test_it_does_not_wait_beyond_the_end_of_its_session(rig: Rig, watcher: Peer5, at: str) -> None:
    peer = with_will(rig, delay=1000, expiry=5 if at == "connect" else 500)
    if at == "connect":
        peer.drop()
    else:
        peer.send(packets5.disconnect(0x04, session_expiry_interval=5))
    rig.advance(4)
    assert payloads(watcher) == []
    rig.advance(1)
    assert payloads(watcher) == [b"off"]


def test_a_session_that_is_said_to_end_with_its_connection_ends_the_delay(rig: Rig, watcher: Peer5) -> None:
    with_will(rig, delay=1000).drop()
    assert payloads(watcher) == [b"off"]


def test_where_nothing_is_said_of_the_session_it_waits_for_its_delay(rig: Rig, watcher: Peer5) -> None:
    with_will(rig, delay=10, expiry=None).drop()
    rig.advance(9)
    assert payloads(watcher) == []
    rig.advance(1)
    assert payloads(watcher) == [b"off"]


def test_without_a_session_a_client_that_is_back_in_time_keeps_it_from_going_out(rig: Rig, watcher: Peer5) -> None:
    with_will(rig, delay=10, expiry=None).drop()
    rig.advance(9)
    rig.connect5("c").drop()
    rig.advance(100)
    assert payloads(watcher) == []
    assert stored_wills(rig) == []


@pytest.mark.parametrize("again", ["with a will", "without"])
def test_a_client_that_is_back_in_time_keeps_it_from_going_out(rig: Rig, watcher: Peer5, again: str) -> None:
    with_will(rig, delay=10, expiry=100).drop()
    rig.advance(9)
    if again == "without":
        peer = rig.connect5("c", clean_start=False, session_expiry_interval=100)
    else:
        peer = with_will(rig, delay=10, expiry=100, clean_start=False)
    assert peer.connack.session_present
    rig.advance(100)
    assert payloads(watcher) == []
    assert stored_wills(rig) == ([] if again == "without" else [b"w/c"])
    peer.drop()
    rig.advance(11)
    assert payloads(watcher) == ([] if again == "without" else [b"off"])


def test_a_clean_start_in_time_keeps_it_from_going_out_too(rig: Rig, watcher: Peer5) -> None:
    with_will(rig, delay=10, expiry=100).drop()
    rig.connect5("c", clean_start=True).drop()
    rig.advance(100)
    assert payloads(watcher) == []
    assert stored_wills(rig) == []


def test_a_session_that_is_over_has_published_it(rig: Rig, watcher: Peer5) -> None:
    with_will(rig, delay=1000, expiry=5).drop()
    rig.clock.advance(6)  # and no timer has fired yet
    rig.connect5("c", clean_start=False, session_expiry_interval=5)
    assert payloads(watcher) == [b"off"]
    rig.settle()
    assert payloads(watcher) == []


@pytest.mark.parametrize(
    ("delay", "expiry", "clean_start", "expected"),
    [
        (0, 100, False, [b"off"]),
        (10, 100, False, []),
        (10, 100, True, [b"off"]),
        (0, 100, True, [b"off"]),
        (10, 0, False, [b"off"]),
        (10, None, False, [b"off"]),
        (10, None, True, [b"off"]),
    ],
)
def test_report_17_takeover(
    rig: Rig, watcher: Peer5, delay: int, expiry: int | None, expected: list[bytes], *, clean_start: bool
) -> None:
    old = with_will(rig, delay=delay, expiry=expiry)
    new = rig.connect5("c", clean_start=clean_start, session_expiry_interval=100)
    assert old.disconnected_with() == 0x8E
    assert new.connack.session_present is (bool(expiry) and not clean_start)
    new.send(packets5.publish("st/c", b"on"))
    assert payloads(watcher) == [*expected, b"on"]
    rig.advance(50)
    assert payloads(watcher) == []


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_it_survives_the_broker_and_its_delay_goes_on(rig: Rig, how: str) -> None:
    with_will(rig, delay=10, expiry=100)
    getattr(rig, how)()
    watcher = rig.connect5("w")
    watcher.subscribe(("st/#", 0))
    rig.advance(9)
    assert payloads(watcher) == []
    rig.advance(1)
    assert payloads(watcher) == [b"off"]
    getattr(rig, how)()
    rig.advance(200)
    assert stored_wills(rig) == []


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_a_client_that_is_back_after_a_restart_keeps_it_from_going_out(rig: Rig, how: str) -> None:
    with_will(rig, delay=10, expiry=100).drop()
    getattr(rig, how)()
    watcher = rig.connect5("w")
    watcher.subscribe(("st/#", 0))
    assert rig.connect5("c", clean_start=False, session_expiry_interval=100).connack.session_present
    rig.advance(50)
    assert payloads(watcher) == []


def test_it_expires_like_other_messages(rig: Rig) -> None:
    reader = rig.connect5("r", session_expiry_interval=100)
    reader.subscribe(("st/#", 1))
    reader.drop()
    with_will(rig, will_properties={"message_expiry_interval": 10}).drop()
    rig.advance(11)
    assert rig.connect5("r", clean_start=False).messages() == []


def test_no_will_no_message(rig: Rig, watcher: Peer5) -> None:
    rig.connect5("c").drop()
    assert payloads(watcher) == []


def test_a_will_that_the_disk_has_no_room_for_is_owed(rig: Rig) -> None:
    peer = with_will(rig)
    rig.storage._committer.fail(DiskFullError("no space left"))
    peer.drop()
    assert stored_wills(rig) == [b"w/c"]
    rig.kill()
    reader = rig.connect5("r")
    reader.subscribe(("$replay/earliest/st/#", 0))
    assert payloads(reader) == [b"off"]


def test_a_refused_connection_has_no_will(tmp_path: Path) -> None:
    rig = Rig(tmp_path, anonymous=False)
    peer = with_will(rig)
    assert peer.connack.reason_code == 0x87
    assert stored_wills(rig) == []
    assert rig.storage.logs["other"].log_end_offset == 0
