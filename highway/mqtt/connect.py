"""CONNECT and CONNACK (sections 3.1 and 3.2 of both specifications), and MQTT 3.1's `MQIsdp` CONNECT."""

from __future__ import annotations

from dataclasses import dataclass, field

from highway.errors import MalformedPacketError, MqttError, ProtocolError
from highway.mqtt.properties import (
    WILL,
    Properties,
    PropertyId,
    encode_properties,
    find_property,
    property_block,
    read_properties,
)
from highway.mqtt.reason_codes import (
    REASON_CODES,
    V5,
    V31,
    V311,
    PacketType,
    ReasonCode,
    connect_reason_code,
    connect_return_code,
)
from highway.mqtt.topics import validate_topic_name
from highway.mqtt.wire import Reader, encode_binary, encode_string, packet_bytes

__all__ = ["ConnackPacket", "ConnectPacket", "UnsupportedVersionError", "Will", "read_level"]

_NAMES = {b"MQTT": (V311, V5), b"MQIsdp": (V31,)}
_BRIDGE = 0x80  # mosquitto's bridges set it in the level to say that they are one

_RESERVED, _CLEAN, _WILL_FLAG, _WILL_RETAIN, _PASSWORD, _USERNAME = 0x01, 0x02, 0x04, 0x20, 0x40, 0x80


class UnsupportedVersionError(ProtocolError):
    """A CONNECT of a protocol level that is not served; `level` is the one asked for."""

    default_reason_code = ReasonCode.UNSUPPORTED_PROTOCOL_VERSION

    def __init__(self, detail: str, level: int, *, rule: str, position: int) -> None:
        super().__init__(detail, rule=rule, position=position)
        self.level = level


@dataclass(slots=True)
class Will:
    """The message that the server publishes when the connection ends without DISCONNECT.

    `properties` is the raw block of the message to publish; the delay is not part of it.
    """

    topic_name: bytes
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: bytes = b""
    delay_interval: int = 0


@dataclass(slots=True)
class ConnectPacket:
    """CONNECT. `clean_start` is what 3.1.1 calls clean session; `keep_alive` is in seconds, 0 for none."""

    protocol_version: int
    client_id: str = ""
    clean_start: bool = True
    keep_alive: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = field(default_factory=Properties)
    is_bridge: bool = False

    @property
    def session_expiry_interval(self) -> int:
        """Seconds that the session outlives the connection by, in 5.0's terms: 0xFFFFFFFF is for ever."""
        if self.protocol_version == V5:
            return self.properties.session_expiry_interval or 0
        return 0 if self.clean_start else 0xFFFFFFFF

    @classmethod
    def decode(cls, reader: Reader, level: int) -> ConnectPacket:
        """The CONNECT at `reader`, behind its protocol `level` as `read_level` returned it."""
        version = level & ~_BRIDGE
        bits_position = reader.position
        bits = reader.u8()
        _check_bits(bits, version, bits_position)
        keep_alive = reader.u16()
        properties = read_properties(reader, PacketType.CONNECT) if version == V5 else Properties()
        _check_authentication(properties, bits_position)
        packet = cls(version, "", bool(bits & _CLEAN), keep_alive, properties=properties, is_bridge=level != version)
        # The fields of the payload come in this order: [MQTT-3.1.3-1], the client id first: [MQTT-3.1.3-3].
        packet.client_id = _read_client_id(reader, version, clean_start=packet.clean_start)
        if bits & _WILL_FLAG:
            packet.will = _read_will(reader, version, bits)
        packet.username, packet.password = _read_credentials(reader, version, bits)
        # Without the flag there is no field: 3.1.1 [MQTT-3.1.2-11], [MQTT-3.1.2-18], [MQTT-3.1.2-20]; 5.0 [MQTT-3.1.2-16],
        # [MQTT-3.1.2-18]. It would be left over here.
        reader.expect_end()
        return packet

    def encode(self) -> bytes:
        """The packet as bytes, in its own version."""
        name = b"MQIsdp" if self.protocol_version == V31 else b"MQTT"
        bits = _CLEAN if self.clean_start else 0
        payload = [encode_string(self.client_id)]
        if self.will is not None:
            bits |= _WILL_FLAG | self.will.qos << 3 | (_WILL_RETAIN if self.will.retain else 0)
            payload.append(_encode_will(self.will, self.protocol_version))
        if self.username is not None:
            bits |= _USERNAME
            payload.append(encode_string(self.username))
        if self.password is not None:
            bits |= _PASSWORD
            payload.append(encode_binary(self.password))
        level = self.protocol_version | (_BRIDGE if self.is_bridge else 0)
        head = encode_binary(name) + bytes((level, bits)) + self.keep_alive.to_bytes(2, "big")
        if self.protocol_version == V5:
            head += property_block(encode_properties(self.properties, PacketType.CONNECT))
        return packet_bytes(PacketType.CONNECT << 4, head + b"".join(payload))


def read_level(reader: Reader, flags: int, versions: tuple[int, ...] = (V31, V311, V5)) -> int:
    """The protocol level of the CONNECT at `reader`, checked against the name before it.

    `flags` are the low four bits of the packet's first byte: the name tells whether they count. Raises
    UnsupportedVersionError for a level outside `versions`.
    """
    start = reader.position
    length = reader.u16()
    if length not in map(len, _NAMES):
        raise ProtocolError(
            f"a protocol name of {length} bytes, not MQTT or MQIsdp", rule="[MQTT-3.1.2-1]", position=start
        )
    if flags and length == len(b"MQTT"):  # 3.1 does not use the flags of CONNECT
        raise MalformedPacketError(
            f"the flags of CONNECT are {flags:#x}, not 0",
            rule="3.1.1 [MQTT-2.2.2-1], 3.1.1 [MQTT-2.2.2-2], 5.0 [MQTT-2.1.3-1]",
            position=0,
        )
    name = reader.raw(length)
    if name not in _NAMES:
        raise ProtocolError(
            f"the protocol name is {name!r}, not MQTT or MQIsdp", rule="[MQTT-3.1.2-1]", position=start + 2
        )
    position = reader.position
    level = reader.u8()
    version = level & ~_BRIDGE
    if version not in _NAMES[name] or version not in versions or level == V5 | _BRIDGE:
        raise UnsupportedVersionError(
            f"protocol {name.decode()} level {level} is not served", level, rule="[MQTT-3.1.2-2]", position=position
        )
    return level


def _check_bits(bits: int, version: int, position: int) -> None:
    """Check the connect flags, the first of them that is wrong."""

    def refuse(detail: str, rule: str) -> MalformedPacketError:
        return MalformedPacketError(detail, rule=rule, position=position)

    if bits & _RESERVED and version != V31:
        raise refuse("the reserved connect flag is 1", "[MQTT-3.1.2-3]")
    will_qos = bits >> 3 & 3
    if bits & _WILL_FLAG:
        if will_qos == 3:
            raise refuse("will QoS 3", "3.1.1 [MQTT-3.1.2-14], 5.0 [MQTT-3.1.2-12]")
    else:
        if will_qos:
            raise refuse("a will QoS without a will", "3.1.1 [MQTT-3.1.2-13], 5.0 [MQTT-3.1.2-11]")
        if bits & _WILL_RETAIN:
            raise refuse("will retain without a will", "3.1.1 [MQTT-3.1.2-15], 5.0 [MQTT-3.1.2-13]")
    if bits & _PASSWORD and not bits & _USERNAME and version != V5:
        raise refuse("a password without a user name", "3.1.1 [MQTT-3.1.2-22]")


def _check_authentication(properties: Properties, position: int) -> None:
    if properties.authentication_data is not None and properties.authentication_method is None:
        raise ProtocolError("authentication data without an authentication method", position=position)


def _read_client_id(reader: Reader, version: int, *, clean_start: bool) -> str:
    """The client id, of any length and any characters [MQTT-3.1.3-5]; "" asks for one of the server's making."""
    position = reader.position
    client_id = reader.name().decode()  # [MQTT-3.1.3-4]
    if client_id or version == V5:
        return client_id
    if version == V31 or not clean_start:  # an id made up by the server can't be resumed by anybody
        raise ProtocolError(
            "an empty client id" + ("" if version == V31 else " with clean session 0"),
            ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
            rule="3.1.1 [MQTT-3.1.3-7], 3.1.1 [MQTT-3.1.3-8]",
            position=position,
        )
    return client_id


def _read_credentials(reader: Reader, version: int, bits: int) -> tuple[str | None, bytes | None]:
    """User name and password. Who sends broken ones is shown nothing but the door: they are no place for hints."""
    username = password = None
    try:
        # 3.1 lets a client set the flags and leave the fields out; from 3.1.1 on they must be there
        # (3.1.1 [MQTT-3.1.2-19], [MQTT-3.1.2-21]; 5.0 [MQTT-3.1.2-17], [MQTT-3.1.2-19]).
        if bits & _USERNAME and not (version == V31 and reader.at_end()):
            username = reader.name().decode()  # 3.1.1 [MQTT-3.1.3-11], 5.0 [MQTT-3.1.3-12]
        if bits & _PASSWORD and not (version == V31 and reader.at_end()):
            password = reader.binary()
    except MqttError as error:
        error.is_answered = False
        raise
    return username, password


def _read_will(reader: Reader, version: int, bits: int) -> Will:
    """The will fields, which must be there when the will flag is set: [MQTT-3.1.2-9]."""
    raw, delay = _read_will_properties(reader) if version == V5 else (b"", 0)
    position = reader.position
    topic_name = reader.binary()
    try:
        validate_topic_name(topic_name)  # 3.1.1 [MQTT-3.1.3-10], 5.0 [MQTT-3.1.3-11]
    except MqttError as error:
        error.position = position + 2
        error.is_answered = False  # as mosquitto does it
        raise
    payload = reader.binary()
    return Will(topic_name, payload, bits >> 3 & 3, bool(bits & _WILL_RETAIN), raw, delay)


def _read_will_properties(reader: Reader) -> tuple[bytes, int]:
    """(raw block of the message to publish, as it came: 5.0 [MQTT-3.1.3-10]; its delay, which is cut out of it)."""
    start = reader.position
    reader.varint()
    begin, reader.position = reader.position, start
    delay = read_properties(reader, WILL).will_delay_interval
    raw = reader.since(begin)
    if delay is None:
        return raw, 0
    value_at = find_property(raw, WILL, PropertyId.WILL_DELAY_INTERVAL)
    return raw[: value_at - 1] + raw[value_at + 4 :], delay


def _encode_will(will: Will, version: int) -> bytes:
    fields = encode_binary(will.topic_name) + encode_binary(will.payload)
    if version != V5:
        return fields
    delay = Properties({PropertyId.WILL_DELAY_INTERVAL: will.delay_interval} if will.delay_interval else {})
    return property_block(encode_properties(delay, WILL) + will.properties) + fields


@dataclass(slots=True)
class ConnackPacket:
    """CONNACK. `reason_code` is a 5.0 reason code in every version; encoding for 3.1.1 translates it."""

    session_present: bool = False
    reason_code: int = ReasonCode.SUCCESS
    properties: Properties = field(default_factory=Properties)

    @classmethod
    def decode(cls, reader: Reader, version: int) -> ConnackPacket:
        """The CONNACK at `reader`."""
        acknowledge = reader.u8()
        if acknowledge > 1:
            raise MalformedPacketError("CONNACK flags 7 to 1 are not 0", position=reader.position - 1)
        code = reader.u8()
        reason_code = code if version == V5 else connect_reason_code(code)
        if reason_code not in REASON_CODES[PacketType.CONNACK]:
            raise MalformedPacketError(f"CONNACK code {code:#04x}", position=reader.position - 1)
        properties = read_properties(reader, PacketType.CONNACK) if version == V5 else Properties()
        reader.expect_end()
        return cls(bool(acknowledge), reason_code, properties)

    def encode(self, version: int) -> bytes:
        """The packet as bytes for a client of `version`.

        A refusal never says that a session is present: 3.1.1 [MQTT-3.2.2-4], 5.0 [MQTT-3.2.2-6]. The other flags are 0: 5.0
        [MQTT-3.2.2-1].
        """
        present = int(self.session_present and self.reason_code == ReasonCode.SUCCESS)
        if version != V5:
            if version == V31:
                present = 0  # in 3.1 the byte is reserved
            return packet_bytes(PacketType.CONNACK << 4, bytes((present, connect_return_code(self.reason_code))))
        block = property_block(encode_properties(self.properties, PacketType.CONNACK))
        return packet_bytes(PacketType.CONNACK << 4, bytes((present, self.reason_code)) + block)
