from __future__ import annotations

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode as PahoReasonCode

from highway.mqtt import PacketType, ReasonCode, connect_return_code
from highway.mqtt.reason_codes import REASON_CODES, subscribe_return_code


@pytest.mark.parametrize("packet", REASON_CODES)
def test_the_codes_of_a_packet_are_those_of_another_client(packet):
    known = set()
    for value in range(256):
        try:
            PahoReasonCode(int(packet), identifier=value)
        except (KeyError, ValueError):
            continue
        known.add(value)
    assert REASON_CODES[packet] ^ known == DIFFERENCES.get(packet, set())


# paho leaves 0x99 out of CONNACK, where table 3-1 has it.
DIFFERENCES = {PacketType.CONNACK: {0x99}}


def test_every_code_is_carried_by_some_packet():
    carried = set().union(*REASON_CODES.values())
    assert carried == {int(code) for code in ReasonCode}
    assert PacketTypes.CONNACK == PacketType.CONNACK


@pytest.mark.parametrize(
    ("reason_code", "return_code"),
    [(0x00, 0), (0x84, 1), (0x85, 2), (0x88, 3), (0x86, 4), (0x87, 5), (0x97, 3), (0x8A, 5), (0x80, 3)],
)
def test_connack_before_5_0(reason_code, return_code):
    assert connect_return_code(reason_code) == return_code


@pytest.mark.parametrize(("reason_code", "return_code"), [(0, 0), (1, 1), (2, 2), (0x80, 0x80), (0x8F, 0x80)])
def test_suback_before_5_0(reason_code, return_code):
    assert subscribe_return_code(reason_code) == return_code
