"""Every control packet in one place, and the decoder for each type."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeAlias

from highway.errors import MalformedPacketError
from highway.mqtt.acks import PubackPacket, PubackRun, PubcompPacket, PubrecPacket, PubrelPacket
from highway.mqtt.connect import ConnackPacket, ConnectPacket, UnsupportedVersionError, Will, read_level
from highway.mqtt.control import AuthPacket, DisconnectPacket, PingreqPacket, PingrespPacket
from highway.mqtt.properties import Properties, PropertyId
from highway.mqtt.publish import PublishRun
from highway.mqtt.reason_codes import PacketType
from highway.mqtt.state import FIXED_FLAGS
from highway.mqtt.subscribe import SubackPacket, SubscribePacket, Subscription, UnsubackPacket, UnsubscribePacket
from highway.mqtt.wire import NeedMoreData, Reader

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "AuthPacket",
    "ConnackPacket",
    "ConnectPacket",
    "DisconnectPacket",
    "Event",
    "Packet",
    "PingreqPacket",
    "PingrespPacket",
    "PubackPacket",
    "PubackRun",
    "PubcompPacket",
    "PublishRun",
    "PubrecPacket",
    "PubrelPacket",
    "SubackPacket",
    "SubscribePacket",
    "Subscription",
    "UnsubackPacket",
    "UnsubscribePacket",
    "UnsupportedVersionError",
    "Will",
    "decode_body",
    "decode_packet",
    "encode_within",
]

# What `ServerProtocol.receive_data` returns.
Event: TypeAlias = (
    ConnectPacket
    | PublishRun
    | PubackRun
    | PubrecPacket
    | PubrelPacket
    | PubcompPacket
    | SubscribePacket
    | UnsubscribePacket
    | PingreqPacket
    | DisconnectPacket
    | AuthPacket
)

Packet: TypeAlias = (
    ConnectPacket
    | ConnackPacket
    | PubackPacket
    | PubrecPacket
    | PubrelPacket
    | PubcompPacket
    | SubscribePacket
    | SubackPacket
    | UnsubscribePacket
    | UnsubackPacket
    | PingreqPacket
    | PingrespPacket
    | DisconnectPacket
    | AuthPacket
)

_DECODERS: dict[int, Callable[[Reader, int], Packet]] = {
    PacketType.CONNACK: ConnackPacket.decode,
    PacketType.PUBACK: PubackPacket.decode,
    PacketType.PUBREC: PubrecPacket.decode,
    PacketType.PUBREL: PubrelPacket.decode,
    PacketType.PUBCOMP: PubcompPacket.decode,
    PacketType.SUBSCRIBE: SubscribePacket.decode,
    PacketType.SUBACK: SubackPacket.decode,
    PacketType.UNSUBSCRIBE: UnsubscribePacket.decode,
    PacketType.UNSUBACK: UnsubackPacket.decode,
    PacketType.PINGREQ: PingreqPacket.decode,
    PacketType.PINGRESP: PingrespPacket.decode,
    PacketType.DISCONNECT: DisconnectPacket.decode,
    PacketType.AUTH: AuthPacket.decode,
}


def decode_body(reader: Reader, first_byte: int, version: int) -> Packet:
    """The packet whose body is at `reader`, of any type but CONNECT and PUBLISH.

    It reads and changes nothing else, so that a packet which is here only in part may be tried again and again.
    """
    return _DECODERS[first_byte >> 4](reader, version)


def encode_within(
    packet: AuthPacket
    | ConnackPacket
    | DisconnectPacket
    | PubackPacket
    | PubcompPacket
    | PubrecPacket
    | PubrelPacket
    | SubackPacket
    | UnsubackPacket,
    version: int,
    max_packet_bytes: int,
) -> bytes:
    """`packet` as bytes of at most `max_packet_bytes`, b"" if even its shortest form is longer (5.0 [MQTT-3.1.2-24]).

    The reason string and the user properties are for information, and go first when there is no room: 5.0
    [MQTT-3.2.2-19], [MQTT-3.2.2-20], [MQTT-3.4.2-2], [MQTT-3.4.2-3], [MQTT-3.5.2-2], [MQTT-3.5.2-3], [MQTT-3.6.2-2],
    [MQTT-3.6.2-3], [MQTT-3.7.2-2], [MQTT-3.7.2-3], [MQTT-3.9.2-1], [MQTT-3.9.2-2], [MQTT-3.11.2-1], [MQTT-3.11.2-2],
    [MQTT-3.14.2-3], [MQTT-3.14.2-4], [MQTT-3.15.2-2], [MQTT-3.15.2-3].
    """
    encoded = packet.encode(version)
    if len(encoded) <= max_packet_bytes:
        return encoded
    for identifier in (PropertyId.USER_PROPERTY, PropertyId.REASON_STRING):
        properties = Properties(packet.properties)
        properties.pop(identifier, None)
        packet = dataclasses.replace(packet, properties=properties)
        encoded = packet.encode(version)
        if len(encoded) <= max_packet_bytes:
            return encoded
    return b""


def decode_packet(data: bytes, version: int) -> Packet:
    """The one packet that `data` is, in either direction, of any type but PUBLISH. For clients and tests.

    Raises MqttError for bytes that are not exactly one valid packet.
    """
    try:
        reader = Reader(data, 1, len(data))
        remaining = reader.varint()
        reader.end = reader.position + remaining
        if reader.end != len(data):
            raise MalformedPacketError(f"{len(data)} bytes, where the header says {reader.end}", position=1)
        if data[0] >> 4 == PacketType.CONNECT:
            return ConnectPacket.decode(reader, read_level(reader, data[0] & 0x0F))
        expected = FIXED_FLAGS.get(PacketType(data[0] >> 4), 0)
        if data[0] & 0x0F != expected:
            raise MalformedPacketError(f"flags {data[0] & 0x0F:#x}, not {expected:#x}", position=0)
        return decode_body(reader, data[0], version)
    except (NeedMoreData, IndexError, KeyError, ValueError) as error:
        raise MalformedPacketError(f"{data[:16].hex()} is not a packet") from error
