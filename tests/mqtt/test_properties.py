from __future__ import annotations

import time

import pytest
from hypothesis import given, strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

from highway.errors import MalformedPacketError, ProtocolError
from highway.mqtt import (
    PacketType,
    Properties,
    PropertyId,
    decode_properties,
    encode_properties,
    find_property,
    property_block,
)
from highway.mqtt.properties import PROPERTIES, WILL
from tests.mqtt.strategies import properties

CARRIERS = [WILL, *(packet for packet in PacketType if packet not in (PacketType.PINGREQ, PacketType.PINGRESP))]
carriers = st.sampled_from(CARRIERS)


@given(carriers.flatmap(lambda packet: st.tuples(st.just(packet), properties(packet))))
def test_properties_survive_encode_and_decode(drawn):
    packet, original = drawn
    decoded = decode_properties(encode_properties(original, packet), packet)
    assert decoded == original
    assert list(decoded) == list(original)


def test_the_table_has_every_property():
    assert set(PROPERTIES) == set(PropertyId)
    assert len(PropertyId) == 27


@pytest.mark.parametrize("identifier", PropertyId)
@pytest.mark.parametrize("packet", CARRIERS)
def test_the_table_agrees_with_another_client(identifier, packet):
    carrier = PacketTypes.WILLMESSAGE if packet == WILL else int(packet)
    paho = PahoProperties(carrier)
    allowed = carrier in paho.properties[int(identifier)][1]
    assert int(identifier) in paho.names.values()
    assert allowed == (packet in PROPERTIES[identifier].packets)


def paho_value(value):
    return value.decode() if isinstance(value, bytes) else value


@given(properties(PacketType.PUBLISH))
def test_another_client_reads_the_same(original):
    encoded = property_block(encode_properties(original, PacketType.PUBLISH))
    paho = PahoProperties(PacketTypes.PUBLISH)
    _, length = paho.unpack(encoded)
    assert length == len(encoded)
    assert list(getattr(paho, "UserProperty", [])) == list(original.user_properties)
    assert getattr(paho, "ContentType", None) == original.content_type
    assert getattr(paho, "MessageExpiryInterval", None) == original.message_expiry_interval
    assert getattr(paho, "CorrelationData", None) == original.correlation_data
    topic = original.response_topic
    assert getattr(paho, "ResponseTopic", None) == (None if topic is None else topic.decode())


def test_another_client_s_bytes_are_read():
    paho = PahoProperties(PacketTypes.CONNECT)
    paho.SessionExpiryInterval = 60
    paho.ReceiveMaximum = 10
    paho.UserProperty = [("a", "1"), ("b", "2")]
    paho.MaximumPacketSize = 100_000
    packed = paho.pack()
    decoded = decode_properties(packed[1:], PacketType.CONNECT)
    assert packed[0] == len(packed) - 1
    assert decoded.session_expiry_interval == 60
    assert decoded.receive_maximum == 10
    assert decoded.maximum_packet_size == 100_000
    assert decoded.user_properties == [("a", "1"), ("b", "2")]


def test_attributes():
    found = Properties()
    assert found.receive_maximum is None
    assert found.user_properties == ()
    assert found.subscription_identifiers == ()
    found.receive_maximum = 5
    found.add_user_property("k", "1")
    found.add_user_property("k", "2")
    found.add_subscription_identifier(7)
    assert found == {0x21: 5, 0x26: [("k", "1"), ("k", "2")], 0x0B: [7]}
    assert found.first_user_property("k") == "1"
    assert found.first_user_property("x") is None
    found.receive_maximum = None
    assert PropertyId.RECEIVE_MAXIMUM not in found


@pytest.mark.parametrize("identifier", [key for key in PropertyId if key != PropertyId.USER_PROPERTY])
def test_twice_is_a_protocol_error_where_it_is_not_allowed(identifier):
    for packet in PROPERTIES[identifier].packets - PROPERTIES[identifier].repeatable_in:
        value = {"STRING": "s", "TOPIC": b"t", "BINARY": b"b"}.get(PROPERTIES[identifier].kind.name, 1)
        one = Properties({identifier: [value] if identifier == PropertyId.SUBSCRIPTION_IDENTIFIER else value})
        raw = encode_properties(one, packet)
        assert decode_properties(raw, packet) == one
        with pytest.raises(ProtocolError, match="twice"):
            decode_properties(raw + raw, packet)


def test_subscription_identifiers_repeat_in_publish():
    raw = encode_properties(Properties({PropertyId.SUBSCRIPTION_IDENTIFIER: [1, 200]}), PacketType.PUBLISH)
    assert decode_properties(raw, PacketType.PUBLISH).subscription_identifiers == [1, 200]
    with pytest.raises(ProtocolError):
        decode_properties(raw, PacketType.SUBSCRIBE)


@pytest.mark.parametrize("identifier", PropertyId)
def test_where_it_may_not_be(identifier):
    one = Properties({identifier: 1})
    for packet in set(CARRIERS) - PROPERTIES[identifier].packets:
        with pytest.raises(ValueError, match="does not belong"):
            encode_properties(one, packet)
        with pytest.raises(MalformedPacketError):
            decode_properties(bytes((identifier, 0, 0, 0, 0)), packet)


@pytest.mark.parametrize("raw", ["00", "7f", "8001", "11", "11000000", "260001", "09ffff", "2600016b"])
def test_malformed(raw):
    for packet in (PacketType.CONNECT, PacketType.PUBLISH):
        with pytest.raises(MalformedPacketError):
            decode_properties(bytes.fromhex(raw), packet)


@pytest.mark.parametrize(
    ("fault", "position"),
    [("2600016b", 12), ("2600016b0002c328", 14), ("2600016b000100", 14), ("26000100000176", 11), ("26", 9)],
)
def test_a_fault_behind_good_user_properties_is_told_at_its_byte(fault, position):
    with pytest.raises(MalformedPacketError) as caught:
        decode_properties(bytes.fromhex("2600016b00027676" + fault), PacketType.PUBLISH)
    assert caught.value.position == position


@given(st.integers(0, 5), st.integers(0, 5), st.booleans())
def test_a_property_is_found_among_user_properties(before, after, present):
    pair = bytes.fromhex("2600016b00027676")
    wanted = bytes.fromhex("02000000ff") if present else b""
    found = find_property(pair * before + wanted + pair * after, PacketType.PUBLISH, PropertyId.MESSAGE_EXPIRY_INTERVAL)
    assert found == (len(pair) * before + 1 if present else -1)


def test_thousands_of_user_properties_take_milliseconds():
    """A CONNECT may be full of them, and holds up everybody else while it is read."""
    raw = bytes.fromhex("2600036b6579000576616c7565") * 5000
    took = []
    for _ in range(5):
        begin = time.thread_time()
        assert len(decode_properties(raw, PacketType.CONNECT).user_properties) == 5000
        took.append(time.thread_time() - begin)
    assert min(took) < 0.015
