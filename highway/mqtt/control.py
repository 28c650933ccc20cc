"""PINGREQ, PINGRESP, DISCONNECT and AUTH (sections 3.12 to 3.15)."""

from __future__ import annotations

from dataclasses import dataclass, field

from highway.errors import MalformedPacketError, ProtocolError
from highway.mqtt.properties import Properties, encode_properties, property_block, read_properties
from highway.mqtt.reason_codes import REASON_CODES, V5, PacketType, ReasonCode
from highway.mqtt.wire import Reader, packet_bytes

__all__ = ["PINGREQ", "PINGRESP", "AuthPacket", "DisconnectPacket", "PingreqPacket", "PingrespPacket"]

PINGREQ = b"\xc0\x00"
PINGRESP = b"\xd0\x00"


@dataclass(slots=True)
class PingreqPacket:
    """PINGREQ, which has neither fields nor versions."""

    @classmethod
    def decode(cls, reader: Reader, _version: int) -> PingreqPacket:
        """The PINGREQ at `reader`, which is empty."""
        reader.expect_end()
        return cls()

    def encode(self, _version: int) -> bytes:
        """The two bytes."""
        return PINGREQ


@dataclass(slots=True)
class PingrespPacket:
    """PINGRESP, which has neither fields nor versions."""

    @classmethod
    def decode(cls, reader: Reader, _version: int) -> PingrespPacket:
        """The PINGRESP at `reader`, which is empty."""
        reader.expect_end()
        return cls()

    def encode(self, _version: int) -> bytes:
        """The two bytes."""
        return PINGRESP


@dataclass(slots=True)
class DisconnectPacket:
    """DISCONNECT. Before 5.0 only clients send it, always empty, and it means reason code 0."""

    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=Properties)

    @classmethod
    def decode(cls, reader: Reader, version: int) -> DisconnectPacket:
        """The DISCONNECT at `reader`; what is left out stands for success and no properties."""
        if version != V5 or reader.at_end():
            reader.expect_end()
            return cls()
        reason_code = reader.u8()
        if reason_code not in REASON_CODES[PacketType.DISCONNECT]:
            raise MalformedPacketError(
                f"DISCONNECT with reason code {reason_code:#04x}",
                rule="5.0 [MQTT-3.14.2-1]",
                position=reader.position - 1,
            )
        properties = Properties() if reader.at_end() else read_properties(reader, PacketType.DISCONNECT)
        reader.expect_end()
        return cls(reason_code, properties)

    def encode(self, version: int) -> bytes:
        """The packet as bytes for `version`, in its shortest form."""
        if version != V5 or not (self.reason_code or self.properties):
            return packet_bytes(PacketType.DISCONNECT << 4, b"")
        body = bytes((self.reason_code,))
        if self.properties:
            body += property_block(encode_properties(self.properties, PacketType.DISCONNECT))
        return packet_bytes(PacketType.DISCONNECT << 4, body)


@dataclass(slots=True)
class AuthPacket:
    """AUTH, of 5.0 only."""

    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=Properties)

    @classmethod
    def decode(cls, reader: Reader, _version: int) -> AuthPacket:
        """The AUTH at `reader`; what is left out stands for success and no properties."""
        if reader.at_end():
            return cls()
        reason_code = reader.u8()
        if reason_code not in REASON_CODES[PacketType.AUTH]:
            raise MalformedPacketError(
                f"AUTH with reason code {reason_code:#04x}", rule="5.0 [MQTT-3.15.2-1]", position=reader.position - 1
            )
        properties = Properties() if reader.at_end() else read_properties(reader, PacketType.AUTH)
        if properties.authentication_method is None:
            raise ProtocolError("AUTH without an authentication method", position=reader.position)
        reader.expect_end()
        return cls(reason_code, properties)

    def encode(self, version: int) -> bytes:
        """The packet as bytes; ValueError before 5.0, which has no AUTH."""
        if version != V5:
            raise ValueError("AUTH exists from MQTT 5.0 on")
        if not (self.reason_code or self.properties):
            return packet_bytes(PacketType.AUTH << 4, b"")
        block = property_block(encode_properties(self.properties, PacketType.AUTH))
        return packet_bytes(PacketType.AUTH << 4, bytes((self.reason_code,)) + block)
