from __future__ import annotations

import pytest

from highway.mqtt import (
    PINGREQ,
    PINGRESP,
    AuthPacket,
    DisconnectPacket,
    PingreqPacket,
    PingrespPacket,
    Properties,
    ReasonCode,
    decode_packet,
)


def test_pings():
    assert PingreqPacket().encode(4) == PINGREQ
    assert PingrespPacket().encode(5) == PINGRESP
    assert decode_packet(PINGRESP, 4) == PingrespPacket()


def test_disconnect_in_its_shortest_form():
    assert DisconnectPacket().encode(5).hex() == "e000"
    assert DisconnectPacket(ReasonCode.SESSION_TAKEN_OVER).encode(5).hex() == "e0018e"
    assert DisconnectPacket(ReasonCode.SESSION_TAKEN_OVER).encode(4).hex() == "e000"
    assert DisconnectPacket(0, Properties({0x1F: "bye"})).encode(5).hex() == "e008 00 06 1f 0003 627965".replace(
        " ", ""
    )


def test_auth():
    packet = AuthPacket(ReasonCode.CONTINUE_AUTHENTICATION, Properties({0x15: "SCRAM-SHA-256", 0x16: b"data"}))
    assert decode_packet(packet.encode(5), 5) == packet
    assert AuthPacket().encode(5).hex() == "f000"
    with pytest.raises(ValueError, match=r"5\.0"):
        packet.encode(4)
