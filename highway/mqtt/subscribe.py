"""SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK (sections 3.8 to 3.11 of both specifications)."""

from __future__ import annotations

from dataclasses import dataclass, field

from highway.errors import MalformedPacketError, MqttError, ProtocolError
from highway.mqtt.acks import read_packet_id
from highway.mqtt.properties import Properties, encode_properties, property_block, read_properties
from highway.mqtt.reason_codes import REASON_CODES, V5, PacketType, subscribe_return_code
from highway.mqtt.topics import SHARE_PREFIX, validate_topic_filter
from highway.mqtt.wire import Reader, encode_binary, packet_bytes

__all__ = ["SubackPacket", "SubscribePacket", "Subscription", "UnsubackPacket", "UnsubscribePacket"]

_NO_LOCAL, _RETAIN_AS_PUBLISHED = 0x04, 0x08
_RETURN_CODES_311 = frozenset({0, 1, 2, 0x80})


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic filter of a SUBSCRIBE with its options; `topic_filter` is validated UTF-8."""

    topic_filter: bytes
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0

    @property
    def options(self) -> int:
        """The options byte of the wire."""
        return (
            self.qos
            | (_NO_LOCAL if self.no_local else 0)
            | (_RETAIN_AS_PUBLISHED if self.retain_as_published else 0)
            | self.retain_handling << 4
        )


@dataclass(slots=True)
class SubscribePacket:
    """SUBSCRIBE: the filters in the order of their reason codes in SUBACK."""

    packet_id: int
    subscriptions: list[Subscription]
    properties: Properties = field(default_factory=Properties)

    @classmethod
    def decode(cls, reader: Reader, version: int) -> SubscribePacket:
        """The SUBSCRIBE at `reader`, with at least one subscription: 3.1.1 [MQTT-3.8.3-3], 5.0 [MQTT-3.8.3-2]."""
        packet_id = read_packet_id(reader)
        properties = read_properties(reader, PacketType.SUBSCRIBE) if version == V5 else Properties()
        if reader.at_end():
            raise ProtocolError(
                "a SUBSCRIBE without a topic filter",
                rule="3.1.1 [MQTT-3.8.3-3], 5.0 [MQTT-3.8.3-2]",
                position=reader.position,
            )
        subscriptions: list[Subscription] = []
        while not reader.at_end():
            subscriptions.append(_read_subscription(reader, version))
        return cls(packet_id, subscriptions, properties)

    def encode(self, version: int) -> bytes:
        """The packet as bytes for a server of `version`; before 5.0 only the QoS of the options is sent."""
        head = self.packet_id.to_bytes(2, "big")
        if version == V5:
            head += property_block(encode_properties(self.properties, PacketType.SUBSCRIBE))
        payload = b"".join(
            encode_binary(one.topic_filter) + bytes((one.options if version == V5 else one.qos,))
            for one in self.subscriptions
        )
        return packet_bytes(PacketType.SUBSCRIBE << 4 | 2, head + payload)


def _read_filter(reader: Reader) -> bytes:
    """A topic filter: 3.1.1 [MQTT-3.8.3-1], [MQTT-3.10.3-1]; 5.0 [MQTT-3.8.3-1], [MQTT-3.10.3-1]."""
    position = reader.position
    topic_filter = reader.binary()
    try:
        validate_topic_filter(topic_filter)
    except MqttError as error:
        error.position = position + 2
        raise
    return topic_filter


def _read_subscription(reader: Reader, version: int) -> Subscription:
    topic_filter = _read_filter(reader)
    position = reader.position
    options = reader.u8()
    # "The Server MUST treat a SUBSCRIBE packet as malformed [...] if any of Reserved bits in the payload are non-zero, or
    # QoS is not 0, 1 or 2": 3.1.1 [MQTT-3-8.3-4] (so spelt there), 5.0 [MQTT-3.8.3-5].
    if options & 3 == 3:
        raise MalformedPacketError("a subscription of QoS 3", rule="3.1.1 [MQTT-3-8.3-4]", position=position)
    if options & (0xC0 if version == V5 else 0xFC):
        raise MalformedPacketError(
            f"reserved bits in the subscription options {options:#04x}",
            rule="3.1.1 [MQTT-3-8.3-4], 5.0 [MQTT-3.8.3-5]",
            position=position,
        )
    retain_handling = options >> 4 & 3
    if retain_handling == 3:
        raise ProtocolError("retain handling 3", position=position)
    if options & _NO_LOCAL and topic_filter.startswith(SHARE_PREFIX):
        raise ProtocolError("no local on a shared subscription", rule="5.0 [MQTT-3.8.3-4]", position=position)
    return Subscription(
        topic_filter, options & 3, bool(options & _NO_LOCAL), bool(options & _RETAIN_AS_PUBLISHED), retain_handling
    )


@dataclass(slots=True)
class UnsubscribePacket:
    """UNSUBSCRIBE: the filters in the order of their reason codes in UNSUBACK."""

    packet_id: int
    topic_filters: list[bytes]
    properties: Properties = field(default_factory=Properties)

    @classmethod
    def decode(cls, reader: Reader, version: int) -> UnsubscribePacket:
        """The UNSUBSCRIBE at `reader`, with at least one topic filter: [MQTT-3.10.3-2]."""
        packet_id = read_packet_id(reader)
        properties = read_properties(reader, PacketType.UNSUBSCRIBE) if version == V5 else Properties()
        if reader.at_end():
            raise ProtocolError(
                "an UNSUBSCRIBE without a topic filter", rule="[MQTT-3.10.3-2]", position=reader.position
            )
        topic_filters: list[bytes] = []
        while not reader.at_end():
            topic_filters.append(_read_filter(reader))
        return cls(packet_id, topic_filters, properties)

    def encode(self, version: int) -> bytes:
        """The packet as bytes for a server of `version`."""
        head = self.packet_id.to_bytes(2, "big")
        if version == V5:
            head += property_block(encode_properties(self.properties, PacketType.UNSUBSCRIBE))
        return packet_bytes(PacketType.UNSUBSCRIBE << 4 | 2, head + b"".join(map(encode_binary, self.topic_filters)))


def _read_codes(reader: Reader, known: frozenset[int], what: str) -> list[int]:
    position = reader.position
    codes = list(reader.rest())
    if not codes:
        raise ProtocolError(f"{what} without a code", position=position)
    for number, code in enumerate(codes):
        if code not in known:
            raise MalformedPacketError(f"{what} code {code:#04x}", position=position + number)
    return codes


@dataclass(slots=True)
class SubackPacket:
    """SUBACK: one 5.0 reason code for each topic filter of the SUBSCRIBE, in its order."""

    packet_id: int
    reason_codes: list[int]
    properties: Properties = field(default_factory=Properties)

    @classmethod
    def decode(cls, reader: Reader, version: int) -> SubackPacket:
        """The SUBACK at `reader`."""
        packet_id = read_packet_id(reader)
        properties = read_properties(reader, PacketType.SUBACK) if version == V5 else Properties()
        known = REASON_CODES[PacketType.SUBACK] if version == V5 else _RETURN_CODES_311
        return cls(packet_id, _read_codes(reader, known, "SUBACK"), properties)

    def encode(self, version: int) -> bytes:
        """The packet as bytes for a client of `version`; before 5.0 every failure is 0x80 (3.1.1 [MQTT-3.9.3-2])."""
        head = self.packet_id.to_bytes(2, "big")
        if version != V5:
            return packet_bytes(PacketType.SUBACK << 4, head + bytes(map(subscribe_return_code, self.reason_codes)))
        block = property_block(encode_properties(self.properties, PacketType.SUBACK))
        return packet_bytes(PacketType.SUBACK << 4, head + block + bytes(self.reason_codes))


@dataclass(slots=True)
class UnsubackPacket:
    """UNSUBACK: one reason code for each topic filter; before 5.0 none are sent."""

    packet_id: int
    reason_codes: list[int] = field(default_factory=list)
    properties: Properties = field(default_factory=Properties)

    @classmethod
    def decode(cls, reader: Reader, version: int) -> UnsubackPacket:
        """The UNSUBACK at `reader`."""
        packet_id = read_packet_id(reader)
        if version != V5:
            reader.expect_end()
            return cls(packet_id)
        properties = read_properties(reader, PacketType.UNSUBACK)
        return cls(packet_id, _read_codes(reader, REASON_CODES[PacketType.UNSUBACK], "UNSUBACK"), properties)

    def encode(self, version: int) -> bytes:
        """The packet as bytes for a client of `version`."""
        head = self.packet_id.to_bytes(2, "big")
        if version != V5:
            return packet_bytes(PacketType.UNSUBACK << 4, head)
        block = property_block(encode_properties(self.properties, PacketType.UNSUBACK))
        return packet_bytes(PacketType.UNSUBACK << 4, head + block + bytes(self.reason_codes))
