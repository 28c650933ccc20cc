from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from highway.errors import MalformedPacketError, MqttError
from highway.mqtt import decode_packet
from tests.mqtt.strategies import connects, packets, versions


@given(versions.flatmap(lambda version: st.tuples(st.just(version), packets(version))))
def test_every_packet_survives_encode_and_decode(drawn):
    version, packet = drawn
    assert decode_packet(packet.encode(version), version) == packet


@given(versions.flatmap(connects))
def test_connect_survives_encode_and_decode(packet):
    assert decode_packet(packet.encode(), packet.protocol_version) == packet


@given(versions.flatmap(lambda version: st.tuples(st.just(version), packets(version))), st.data())
def test_every_prefix_of_a_packet_is_refused(drawn, data):
    version, packet = drawn
    encoded = packet.encode(version)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(MqttError):
        decode_packet(encoded[:cut], version)


@given(st.binary(max_size=60), versions)
def test_any_bytes_are_a_packet_or_an_mqtt_error(data, version):
    try:
        packet = decode_packet(data, version)
    except MqttError:
        return
    assert packet is not None


@pytest.mark.parametrize("data", [b"", b"\x40", b"\x40\x02", b"\x41\x02\x00\x01", b"\x30\x03\x00\x01a", b"\x00\x00"])
def test_what_is_no_packet_of_this_decoder(data):
    with pytest.raises(MalformedPacketError):
        decode_packet(data, 4)
