from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from highway.errors import ProtocolError
from highway.mqtt import (
    PACKET_IDS,
    PINGREQ,
    ConnectPacket,
    PingreqPacket,
    Properties,
    PubackPacket,
    PubackRun,
    PubcompPacket,
    PubrecPacket,
    PubrelPacket,
    ServerProtocol,
    encode_within,
    puback_bytes,
    pubcomp_bytes,
    pubrec_bytes,
    pubrel_bytes,
)
from highway.mqtt.acks import read_puback_run

ids = st.lists(st.integers(1, 65_535), min_size=1, max_size=300)


@given(ids)
def test_batches_are_what_the_packets_are_one_by_one(numbers):
    wire = [PACKET_IDS[number] for number in numbers]
    for batch, kind in [
        (puback_bytes, PubackPacket),
        (pubrec_bytes, PubrecPacket),
        (pubrel_bytes, PubrelPacket),
        (pubcomp_bytes, PubcompPacket),
    ]:
        for version in (4, 5):
            assert batch(wire) == b"".join(kind(number).encode(version) for number in numbers)


def test_an_empty_batch():
    assert puback_bytes([]) == pubrec_bytes([]) == b""


@given(ids, st.binary(max_size=9))
def test_a_run_of_pubacks_ends_where_something_else_begins(numbers, rest):
    data = puback_bytes([PACKET_IDS[number] for number in numbers])
    found, position = read_puback_run(data + b"\xc0\x00" + rest, 0)
    assert (found, position) == (numbers, len(data))
    found, position = read_puback_run(b"xx" + data + b"\x40\x02\x01", 2)
    assert (found, position) == (numbers, len(data) + 2)


def test_bytes_of_ids_that_look_like_headers():
    numbers = [0x4002, 0x0240, 0x4040, 0x0202] * 3
    assert read_puback_run(puback_bytes([PACKET_IDS[number] for number in numbers]), 0)[0] == numbers


def test_a_run_with_id_0_in_it():
    protocol = ServerProtocol()
    protocol.receive_data(ConnectPacket(4, "x").encode())
    events = protocol.receive_data(PINGREQ + puback_bytes([PACKET_IDS[number] for number in (5, 6, 0, 7)]))
    assert isinstance(events[0], PingreqPacket)
    assert isinstance(events[1], PubackRun)
    assert events[1].packet_ids == [5, 6]
    assert isinstance(protocol.error, ProtocolError)
    assert repr(events[1]) == "PubackRun(packet_ids=[5, 6], reason_code=0x00)"


def test_every_packet_id_has_its_bytes():
    assert len(PACKET_IDS) == 65_536
    assert all(PACKET_IDS[number] == number.to_bytes(2, "big") for number in (0, 1, 255, 256, 65_535))


def test_reason_codes_are_for_5_0():
    packet = PubrecPacket(1, 0x97)
    assert packet.encode(4) == b"\x50\x02\x00\x01"
    assert packet.encode(5) == b"\x50\x03\x00\x01\x97"


@pytest.mark.parametrize(
    ("limit", "size"),
    [(1000, 24), (24, 24), (23, 17), (17, 17), (16, 5), (5, 5), (4, 0)],
)
def test_what_is_left_out_when_there_is_no_room(limit, size):
    properties = Properties()
    properties.reason_string = "because!"
    properties.add_user_property("k", "v")
    packet = PubackPacket(1, 0x87, properties)
    encoded = encode_within(packet, 5, limit)
    assert len(encoded) == size
    assert packet.properties.user_properties == [("k", "v")]
