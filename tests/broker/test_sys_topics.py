"""The names and values of `$SYS`, and the load averages against the formula of an exponential average."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import pytest

from highway import __version__
from highway.broker.sys_topics import SYS_TOPICS, Counters, sys_messages
from highway.clock import ManualClock
from tests.broker.rig import Peer, Rig
from tests.harness import packets, packets5

if TYPE_CHECKING:
    from pathlib import Path

# As `mosquitto_sub -v -t '$SYS/#'` shows them, with the sockets that 2.1 counts.
MOSQUITTO_NAMES = [
    "version",
    "uptime",
    *(f"clients/{what}" for what in ("total", "inactive", "disconnected", "active", "connected", "expired", "maximum")),
    *(f"messages/{what}" for what in ("stored", "received", "sent")),
    "subscriptions/count",
    "shared_subscriptions/count",
    "connections/socket/count",
    *(f"heap/{what}" for what in ("current", "maximum")),
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
    fields = [name for name in Counters.__slots__ if name not in ("loads", "connects", "limited")]
    for value, name in enumerate(fields, start=1000):
        setattr(counters, name, value)
    shown = {value(counters) for name, value in SYS_TOPICS.items() if not name.startswith(b"heap/")}
    sums = {counters.clients_total, counters.messages_sent, counters.publish_dropped}
    assert shown == {*range(1000, 1000 + len(fields)), *sums} - {counters.control_sent}


# How sapcc/mosquitto-exporter, and others like it, take what `$SYS/#` brings.
NOT_READ = {"timestamp", "version", "clients/active", "clients/inactive"}


def test_exporters_can_make_a_metric_of_every_name_and_value() -> None:
    seen = set()
    for topic_name, payload in sys_messages(Counters(), ManualClock(), 0.0):
        short = topic_name.decode().removeprefix("$SYS/broker/")
        if short in NOT_READ:
            continue
        # The client library panics over a name that isn't one, or one that comes twice.
        name = topic_name.decode().removeprefix("$SYS/").replace("/", "_").replace(" ", "_")
        assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name)
        assert name not in seen
        seen.add(name)
        assert re.search(r"\d+(\.\d+)?", payload.decode())
    assert {"broker_bytes_received", "broker_publish_messages_dropped", "broker_retained_messages_count"} <= seen


PAYLOADS = [bytes(size) for size in (0, 1, 10, 100, 200, 1000, 20_000)] * 3


def publish_all(rig: Rig, qos: int) -> None:
    publisher = rig.connect("p")
    for packet_id, payload in enumerate(PAYLOADS, 1):
        publisher.send(packets.publish("t", payload, qos=qos, packet_id=packet_id))
    publisher.drop()


def publish_bytes(rig: Rig) -> tuple[int, int]:
    """What `$SYS/broker/publish/bytes/received` and `sent` say."""
    values = {name: int(value(rig.broker.counters)) for name, value in SYS_TOPICS.items() if b"publish/bytes" in name}
    return values[b"publish/bytes/received"], values[b"publish/bytes/sent"]


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("name", ["t", "$replay/earliest/t", "$log/earliest/t", "$share/g/t"])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("is_there", [True, False])
def test_of_publish_only_payloads_are_counted_in_bytes(
    tmp_path: Path, qos: int, name: str, version: int, *, is_there: bool
) -> None:
    """As mosquitto does: topic names, headers and properties are not counted there."""
    rig = Rig(tmp_path)

    def connect() -> Peer:
        return (
            rig.connect5("r", clean_start=False, session_expiry_interval=60)
            if version == 5
            else rig.connect("r", clean=False)
        )

    reader = connect()
    reader.send((packets5 if version == 5 else packets).subscribe(1, (name, qos)))
    if not is_there:
        reader.drop()
    publish_all(rig, qos)
    if not is_there:
        reader = connect()
    got = reader.messages()
    size = sum(map(len, PAYLOADS))
    assert len(got) == len(PAYLOADS)
    assert publish_bytes(rig) == (size, size)


def test_a_retained_message_and_a_repetition_count_each_time(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.connect("p").send(packets.publish("t", b"12345", retain=True, qos=1, packet_id=1))
    reader = rig.connect("r", clean=False).send(packets.subscribe(1, ("t", 1)))
    assert publish_bytes(rig) == (5, 5)
    reader.drop()
    rig.connect("r", clean=False)
    assert publish_bytes(rig) == (5, 10)


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
