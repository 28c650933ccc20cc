"""The byte tables beside this file, each case through the sans-IO core whole and byte by byte.

A case has the `bytes` of one packet in hex and either the `event` that it is, with some of its fields, or the reason
code of the `error`, with `judged_at`: the index of the byte with which the error must be known.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from highway.mqtt import ConnectPacket, ServerProtocol, State, decode_properties, publish_properties

LEVELS = {"3.1": 3, "3.1.1": 4, "5.0": 5}
TABLES = sorted(Path(__file__).parent.glob("*-*.json"))
STATEMENT = re.compile(r"\[MQTT-[\d.-]+\]")


def cases():
    tables = [(path.stem, json.loads(path.read_text())) for path in TABLES]
    return [
        pytest.param(table["packet"], table["version"], case, id=f"{stem}: {case['name']}")
        for stem, table in tables
        for case in table["cases"]
    ]


def protocol_for(packet: str, version: str) -> ServerProtocol:
    protocol = ServerProtocol(topic_alias_maximum=10)
    if packet != "connect":
        protocol.receive_data(ConnectPacket(LEVELS[version], "x").encode())
        assert protocol.state is State.CONNECTED
    return protocol


def plain(value):
    """What an event holds, as JSON can say it."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def check_fields(event, fields) -> None:
    for name, expected in fields.items():
        if name == "properties":
            actual = {key: plain(getattr(event.properties, key)) for key in expected}
        elif name == "properties_hex":
            actual = event.properties.hex()
        elif name == "payloads_hex":
            actual = [payload.hex() for payload in event.payloads]
        elif name == "password_hex":
            actual = event.password.hex()
        elif name == "packet_ids" and expected and isinstance(expected[0], str):
            actual = [packet_id.hex() for packet_id in event.packet_ids]
        elif name == "will" and expected is not None:
            check_fields(event.will, expected)
            continue
        elif name == "subscriptions":
            names = ("topic_filter", "qos", "no_local", "retain_as_published", "retain_handling")
            actual = [
                [plain(getattr(one, key)) for key in names[: len(row)]]
                for one, row in zip(event.subscriptions, expected, strict=True)
            ]
        else:
            actual = plain(getattr(event, name))
        assert actual == expected, name


@pytest.mark.parametrize(("packet", "version", "case"), cases())
def test_whole(packet, version, case):
    protocol = protocol_for(packet, version)
    events = protocol.receive_data(bytes.fromhex(case["bytes"]))
    if "error" in case:
        assert events == []
        assert protocol.error is not None
        assert f"{protocol.error.reason_code:02x}" == case["error"], protocol.error
        statement = STATEMENT.match(case["name"])
        if statement and protocol.error.rule:
            assert statement.group() in protocol.error.rule
        assert protocol.state is State.CLOSED
        assert protocol.receive_data(b"\xc0\x00") == []
    else:
        assert protocol.error is None
        assert [type(event).__name__ for event in events] == [case["event"]]
        check_fields(events[0], case["fields"])


@pytest.mark.parametrize(("packet", "version", "case"), cases())
def test_byte_by_byte(packet, version, case):
    protocol = protocol_for(packet, version)
    data = bytes.fromhex(case["bytes"])
    events = []
    judged_at = None
    for position in range(len(data)):
        events += protocol.receive_data(data[position : position + 1])
        if protocol.error is not None:
            judged_at = position
            break
    if "error" in case:
        assert protocol.error is not None
        assert f"{protocol.error.reason_code:02x}" == case["error"], protocol.error
        assert judged_at == case["judged_at"]
        assert events == []
    else:
        assert protocol.error is None
        assert [type(event).__name__ for event in events] == [case["event"]]
        check_fields(events[0], case["fields"])


def test_property_blocks_of_the_tables_are_readable_where_they_arrive():
    raw = bytes.fromhex("0101 0200000009 03000163 08000172 09000164 2600016b000176")
    assert publish_properties(raw) == decode_properties(raw, 0)
    assert publish_properties(raw).response_topic == b"r"


def test_there_is_a_table_for_each_version():
    assert {path.stem.rsplit("-", 1)[1] for path in TABLES} == set(LEVELS)
