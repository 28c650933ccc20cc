"""What a restart must neither forget nor keep: retained messages within a delay, empty groups, sessions in time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from highway.storage import Durability
from tests.broker.rig import Rig
from tests.harness import packets

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400.0


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    entries = ((b"late/#", "late", Durability.BALANCED), (b"#", "other", Durability.BALANCED))
    return Rig(tmp_path, entries, delays={"late": 30_000}, session_expiry_ms=3_600_000)


def publish(rig: Rig, topic: str, payload: bytes) -> None:
    rig.connect("p").send(packets.publish(topic, payload, qos=1, packet_id=1, retain=True))


def retained(rig: Rig, topic_filter: str) -> list[bytes]:
    peer = rig.connect("look").send(packets.subscribe(1, (topic_filter, 0)))
    return [message.payload for message in peer.messages() if message.retain]


def keys(rig: Rig, prefix: bytes) -> list[bytes]:
    return [key for key, _ in rig.storage.meta.items(prefix)]


@pytest.mark.parametrize("restart", ["restart", "kill"])
def test_a_retained_message_outlives_a_restart_within_its_delay(rig: Rig, restart: str) -> None:
    publish(rig, "late/t", b"old")
    rig.advance(40.0)
    publish(rig, "late/t", b"new")
    publish(rig, "late/gone", b"x")
    rig.advance(10.0)
    getattr(rig, restart)()
    assert retained(rig, "late/#") == [b"old"], "not before its time"
    publish(rig, "late/gone", b"")
    rig.advance(25.0)
    assert sorted(retained(rig, "late/#")) == [b"new", b"x"]
    rig.advance(15.0)
    assert retained(rig, "late/#") == [b"new"]
    assert keys(rig, b"d/") == []
    getattr(rig, restart)()
    assert retained(rig, "late/#") == [b"new"]


def test_a_retained_message_whose_delay_ends_while_the_broker_is_down_is_there(rig: Rig) -> None:
    publish(rig, "late/t", b"new")
    rig.clock.advance(60.0)
    rig.kill()
    rig.advance(1.0)
    assert retained(rig, "late/#") == [b"new"]
    assert keys(rig, b"d/") == []


def test_a_retained_message_is_there_at_once_if_its_log_has_no_delay_any_more(rig: Rig) -> None:
    publish(rig, "late/t", b"new")
    rig.settings = replace(rig.settings, entries=tuple(replace(entry, delay_ms=0) for entry in rig.settings.entries))
    rig.restart()
    assert retained(rig, "late/#") == [b"new"]
    assert keys(rig, b"d/") == []


def test_nothing_is_left_of_a_group_whose_members_died_with_the_broker(rig: Rig) -> None:
    rig.connect("m").send(packets.subscribe(1, ("$share/g/a/#", 1)))
    rig.connect("s", clean=False).send(packets.subscribe(1, ("$share/stays/a/#", 1)))
    publish(rig, "a/t", b"1")
    rig.advance(2.0)
    assert {key[2:].split(b"\0")[0] for key in keys(rig, b"g/")} == {b"$share/g/a/#", b"$share/stays/a/#"}
    rig.kill()
    rig.advance(2.0)
    assert {key[2:].split(b"\0")[0] for key in keys(rig, b"g/")} == {b"$share/stays/a/#"}


def test_a_clock_that_jumps_ends_no_session_at_once(rig: Rig) -> None:
    rig.connect("s", clean=False).send(packets.subscribe(1, ("a/#", 1))).drop()
    rig.clock.step(400 * DAY)
    rig.advance(60.0)
    assert "s" in rig.broker.sessions
    rig.clock.step(-400 * DAY)  # the clock was mended
    rig.advance(700.0)
    assert "s" in rig.broker.sessions
    rig.advance(3600.0)
    assert "s" not in rig.broker.sessions, "its hour is over"


def test_a_start_after_a_long_stop_waits_before_it_ends_sessions(rig: Rig) -> None:
    rig.connect("s", clean=False).send(packets.subscribe(1, ("a/#", 1))).drop()
    rig.clock.advance(3 * DAY)
    rig.kill()
    rig.advance(60.0)
    assert "s" in rig.broker.sessions
    rig.advance(700.0)
    assert "s" not in rig.broker.sessions
