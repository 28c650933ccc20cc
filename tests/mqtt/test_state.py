from __future__ import annotations

import itertools

import pytest

from highway.errors import MalformedPacketError, ProtocolError
from highway.mqtt.reason_codes import PacketType
from highway.mqtt.state import FIXED_FLAGS, TRANSITIONS, Signal, State, first_byte_error, first_bytes, next_state

EVENTS = [*PacketType, *Signal]
FROM_SERVER = {PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, EVENTS)))
def test_the_whole_table(state, event):
    if event in TRANSITIONS[state]:
        assert next_state(state, event) is TRANSITIONS[state][event]
    else:
        with pytest.raises(ProtocolError, match=f"{event.name} in state {state.name}"):
            next_state(state, event)


def test_every_state_is_in_the_table_and_can_be_reached():
    assert set(TRANSITIONS) == set(State)
    reached = {State.CONNECT_AWAITED} | {target for row in TRANSITIONS.values() for target in row.values()}
    assert reached == set(State)


def test_an_error_closes_every_state():
    assert all(row[Signal.ERROR] is State.CLOSED for row in TRANSITIONS.values())


def test_what_a_server_sends_is_legal_nowhere():
    assert not any(FROM_SERVER & set(row) for row in TRANSITIONS.values())


def test_the_rules_of_the_first_packet():
    assert first_byte_error(State.CONNECT_AWAITED, 0, 0x30).rule == "[MQTT-3.1.0-1]"
    assert first_byte_error(State.CONNECTED, 4, 0x10).rule == "[MQTT-3.1.0-2]"
    assert first_byte_error(State.AUTHENTICATING, 5, 0x30).rule == "5.0 [MQTT-3.1.2-30]"


@pytest.mark.parametrize("version", [3, 4, 5])
def test_the_first_bytes_of_a_connected_client(version):
    table = first_bytes(State.CONNECTED, version)
    legal = {first for first in range(256) if table[first]}
    publishes = {0x30 | dup << 3 | qos << 1 | retain for dup in (0, 1) for qos in (0, 1, 2) for retain in (0, 1)}
    publishes -= {0x38, 0x39}
    others = [PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP, PacketType.SUBSCRIBE]
    others += [PacketType.UNSUBSCRIBE, PacketType.PINGREQ, PacketType.DISCONNECT]
    if version == 5:
        others.append(PacketType.AUTH)
    flags = range(16) if version == 3 else (0,)
    expected = publishes | {kind << 4 | (extra or FIXED_FLAGS.get(kind, 0)) for kind in others for extra in flags}
    if version == 3:
        expected |= {kind << 4 for kind in others}
    assert legal == expected
    assert all(table[first] == first >> 4 for first in legal)


def test_reserved_types():
    for first in range(16):
        assert isinstance(first_byte_error(State.CONNECTED, 5, first), MalformedPacketError)
    assert isinstance(first_byte_error(State.CONNECTED, 4, 0xF0), MalformedPacketError)
    assert first_byte_error(State.CONNECTED, 5, 0xF0) is None


def test_nothing_is_legal_when_closed():
    assert not any(first_bytes(State.CLOSED, 4))
