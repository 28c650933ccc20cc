from __future__ import annotations

import pytest

from highway.errors import MqttError
from highway.mqtt import (
    ConnackPacket,
    ConnectPacket,
    Properties,
    ReasonCode,
    ServerProtocol,
    UnsupportedVersionError,
    Will,
    decode_packet,
)
from highway.mqtt.connect import read_level
from highway.mqtt.wire import NeedMoreData, Reader


def test_the_session_expiry_of_every_version():
    assert ConnectPacket(4, "a", clean_start=True).session_expiry_interval == 0
    assert ConnectPacket(4, "a", clean_start=False).session_expiry_interval == 0xFFFFFFFF
    assert ConnectPacket(5, "a", clean_start=False).session_expiry_interval == 0
    properties = Properties({0x11: 60})
    assert ConnectPacket(5, "a", properties=properties).session_expiry_interval == 60


def test_the_will_s_delay_is_not_part_of_its_message():
    will = Will(b"t", b"bye", 1, properties=b"\x01\x01", delay_interval=30)
    packet = ConnectPacket(5, "a", will=will)
    decoded = decode_packet(packet.encode(), 5)
    assert decoded.will == will
    assert b"\x18\0\0\0\x1e\x01\x01" in packet.encode()


@pytest.mark.parametrize("delay", ["", "180000001e"])
def test_the_will_s_properties_keep_their_order(delay):
    before, after = "2600016b000176" + "010126" + "00016b000177", "0300017426" + "00016b000178"
    block = bytes.fromhex(before + delay + after)
    body = b"\0\4MQTT\5\6\0\0\0" + b"\0\1a" + bytes((len(block),)) + block + b"\0\1t" + b"\0\0"
    will = decode_packet(bytes((0x10, len(body))) + body, 5).will
    assert will == Will(b"t", b"", properties=bytes.fromhex(before + after), delay_interval=30 if delay else 0)


def test_before_5_0_a_will_has_no_properties():
    encoded = ConnectPacket(4, "a", will=Will(b"t", b"bye", properties=b"\x01\x01", delay_interval=3)).encode()
    assert decode_packet(encoded, 4).will == Will(b"t", b"bye")


@pytest.mark.parametrize(
    ("name", "level", "versions", "served"),
    [
        (b"MQTT", 4, (3, 4, 5), True),
        (b"MQTT", 5, (3, 4, 5), True),
        (b"MQTT", 5, (3, 4), False),
        (b"MQTT", 0x84, (3, 4), True),
        (b"MQTT", 0x85, (3, 4, 5), False),
        (b"MQIsdp", 3, (3, 4, 5), True),
        (b"MQIsdp", 3, (4, 5), False),
        (b"MQIsdp", 0x83, (3,), True),
        (b"MQIsdp", 4, (3, 4, 5), False),
        (b"MQTT", 3, (3, 4, 5), False),
    ],
)
def test_levels(name, level, versions, served):
    data = bytes((0, len(name))) + name + bytes((level,))
    if served:
        assert read_level(Reader(data, 0, len(data)), 0, versions) == level
    else:
        with pytest.raises(UnsupportedVersionError) as raised:
            read_level(Reader(data, 0, len(data)), 0, versions)
        assert raised.value.level == level
        assert raised.value.reason_code == 0x84


def test_the_name_is_judged_as_soon_as_it_is_here():
    with pytest.raises(NeedMoreData):
        read_level(Reader(b"\0\4MQ", 0, 20), 0)
    with pytest.raises(MqttError):
        read_level(Reader(b"\0\5", 0, 20), 0)


@pytest.mark.parametrize(("version", "expected"), [(3, "20020000"), (4, "20020100"), (5, "2003010000")])
def test_connack(version, expected):
    assert ConnackPacket(session_present=True).encode(version).hex() == expected


@pytest.mark.parametrize(
    ("version", "code", "expected"),
    [
        (4, ReasonCode.NOT_AUTHORIZED, "20020005"),
        (3, ReasonCode.BAD_USER_NAME_OR_PASSWORD, "20020004"),
        (4, ReasonCode.QUOTA_EXCEEDED, "20020003"),
        (5, ReasonCode.QUOTA_EXCEEDED, "2003009700"),
    ],
)
def test_a_refusal_has_no_session(version, code, expected):
    assert ConnackPacket(session_present=True, reason_code=code).encode(version).hex() == expected


def test_connack_with_properties():
    properties = Properties()
    properties.assigned_client_identifier = "highway-1"
    properties.server_keep_alive = 60
    properties.topic_alias_maximum = 10
    packet = ConnackPacket(properties=properties)
    assert decode_packet(packet.encode(5), 5) == packet


def test_a_long_password_and_a_will_fit_before_the_client_is_known():
    packet = ConnectPacket(4, "a", username="u", password=b"p" * 8000, will=Will(b"t", b"w" * 20_000))
    assert ServerProtocol().receive_data(packet.encode()) == [packet]
