"""The names and values of `$SYS`, and the load averages against the formula of an exponential average."""

from __future__ import annotations

import math

import pytest

from highway import __version__
from highway.broker.sys_topics import SYS_TOPICS, Counters, sys_messages
from highway.clock import ManualClock

# As `mosquitto_sub -v -t '$SYS/#'` shows them, without what only mosquitto can know (its heap, shared subscriptions).
MOSQUITTO_NAMES = [
    "version",
    "uptime",
    *(f"clients/{what}" for what in ("total", "inactive", "disconnected", "active", "connected", "expired", "maximum")),
    *(f"messages/{what}" for what in ("stored", "received", "sent")),
    "subscriptions/count",
    "retained messages/count",
    *(f"store/messages/{what}" for what in ("count", "bytes")),
    *(f"publish/messages/{what}" for what in ("dropped", "received", "sent")),
    *(f"{what}/{way}" for what in ("publish/bytes", "bytes") for way in ("received", "sent")),
    *(
        f"load/{what}/{way}/{n}min"
        for what in ("messages", "bytes")
        for way in ("received", "sent")
        for n in (1, 5, 15)
    ),
    *(f"load/publish/{what}/{n}min" for what in ("dropped", "received", "sent") for n in (1, 5, 15)),
    *(f"load/{what}/{n}min" for what in ("sockets", "connections") for n in (1, 5, 15)),
]


def test_every_mosquitto_name_is_there_and_the_rest_is_below_highway() -> None:
    names = {name.decode() for name, _ in sys_messages(Counters(), ManualClock(), 0.0)}
    expected = {f"$SYS/broker/{name}" for name in MOSQUITTO_NAMES}
    assert expected <= names
    assert all(name.startswith("$SYS/broker/highway/") for name in names - expected)


def test_every_field_has_a_topic_of_its_own_value() -> None:
    counters = Counters()
    fields = [name for name in Counters.__slots__ if name != "loads"]
    for value, name in enumerate(fields, start=1000):
        setattr(counters, name, value)
    shown = {value(counters) for value in SYS_TOPICS.values()}
    assert shown == {*range(1000, 1000 + len(fields)), counters.clients_total}


def test_uptime_and_version_read_like_mosquitto() -> None:
    clock = ManualClock()
    clock.advance(75.9)
    messages = dict(sys_messages(Counters(), clock, 0.0))
    assert messages[b"$SYS/broker/uptime"] == b"75 seconds"
    assert messages[b"$SYS/broker/version"] == b"highway version " + __version__.encode()


@pytest.mark.parametrize("minutes", [1, 5, 15])
def test_a_load_average_decays_over_its_minutes(minutes: int) -> None:
    counters, clock = Counters(), ManualClock()
    name = b"$SYS/broker/load/messages/received/%dmin" % minutes
    assert dict(sys_messages(counters, clock, 0.0))[name] == b"0.00"
    expected = 0.0
    for received in (100, 0, 40):
        counters.messages_received += received
        clock.advance(10)
        rate, decay = received * 6.0, math.exp(-10 / (60 * minutes))
        expected = rate + decay * (expected - rate)
        assert dict(sys_messages(counters, clock, 0.0))[name] == b"%.2f" % expected
    # Asked again at once, nothing has changed: no division by an elapsed time of 0.
    assert dict(sys_messages(counters, clock, 0.0))[name] == b"%.2f" % expected
