"""MQTT 5 properties (section 2.2.2): one table, and the codec that it drives.

A property block travels as "raw" bytes (without its length) where it only passes through, and as `Properties` where
somebody reads it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from highway.errors import MalformedPacketError, MqttError, ProtocolError
from highway.mqtt.reason_codes import PacketType, ReasonCode
from highway.mqtt.topics import validate_topic_name
from highway.mqtt.wire import Reader, encode_binary, encode_string, encode_varint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "PROPERTIES",
    "WILL",
    "Properties",
    "PropertyId",
    "PropertySpec",
    "decode_properties",
    "encode_properties",
    "find_property",
    "property_block",
    "read_properties",
]

WILL = 0  # stands for the will properties of CONNECT where a packet type is asked for; 0 is no packet type


class PropertyId(enum.IntEnum):
    """MQTT 5.0, table 2-4."""

    PAYLOAD_FORMAT_INDICATOR = 0x01
    MESSAGE_EXPIRY_INTERVAL = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    SESSION_EXPIRY_INTERVAL = 0x11
    ASSIGNED_CLIENT_IDENTIFIER = 0x12
    SERVER_KEEP_ALIVE = 0x13
    AUTHENTICATION_METHOD = 0x15
    AUTHENTICATION_DATA = 0x16
    REQUEST_PROBLEM_INFORMATION = 0x17
    WILL_DELAY_INTERVAL = 0x18
    REQUEST_RESPONSE_INFORMATION = 0x19
    RESPONSE_INFORMATION = 0x1A
    SERVER_REFERENCE = 0x1C
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS_MAXIMUM = 0x22
    TOPIC_ALIAS = 0x23
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = 0x29
    SHARED_SUBSCRIPTION_AVAILABLE = 0x2A


class _Kind(enum.Enum):
    """The data type of a property's value, and how it is written."""

    BYTE = enum.auto()
    TWO_BYTE = enum.auto()
    FOUR_BYTE = enum.auto()
    VARINT = enum.auto()
    STRING = enum.auto()
    TOPIC = enum.auto()
    BINARY = enum.auto()
    PAIR = enum.auto()


@dataclass(frozen=True, slots=True)
class PropertySpec:
    """One line of table 2-4, with the range that the text allows an integer."""

    kind: _Kind
    packets: frozenset[int]
    low: int = 0
    high: int = 0xFFFFFFFF
    repeatable_in: frozenset[int] = frozenset()


_P = PacketType
_MESSAGE = frozenset({_P.PUBLISH, WILL})
_CONNECT = frozenset({_P.CONNECT})
_CONNACK = frozenset({_P.CONNACK})
_BOTH = _CONNECT | _CONNACK
_AUTH = _BOTH | {_P.AUTH}
_ACKS = frozenset({_P.PUBACK, _P.PUBREC, _P.PUBREL, _P.PUBCOMP, _P.SUBACK, _P.UNSUBACK})
_REASONS = _ACKS | {_P.CONNACK, _P.DISCONNECT, _P.AUTH}
_EVERYWHERE = _REASONS | {_P.CONNECT, _P.PUBLISH, WILL, _P.SUBSCRIBE, _P.UNSUBSCRIBE}
_PUBLISH = frozenset({_P.PUBLISH})

PROPERTIES: dict[int, PropertySpec] = {
    PropertyId.PAYLOAD_FORMAT_INDICATOR: PropertySpec(_Kind.BYTE, _MESSAGE, 0, 1),
    PropertyId.MESSAGE_EXPIRY_INTERVAL: PropertySpec(_Kind.FOUR_BYTE, _MESSAGE),
    PropertyId.CONTENT_TYPE: PropertySpec(_Kind.STRING, _MESSAGE),
    PropertyId.RESPONSE_TOPIC: PropertySpec(_Kind.TOPIC, _MESSAGE),
    PropertyId.CORRELATION_DATA: PropertySpec(_Kind.BINARY, _MESSAGE),
    PropertyId.SUBSCRIPTION_IDENTIFIER: PropertySpec(
        _Kind.VARINT, _PUBLISH | {_P.SUBSCRIBE}, 1, 268_435_455, repeatable_in=_PUBLISH
    ),
    PropertyId.SESSION_EXPIRY_INTERVAL: PropertySpec(_Kind.FOUR_BYTE, _BOTH | {_P.DISCONNECT}),
    PropertyId.ASSIGNED_CLIENT_IDENTIFIER: PropertySpec(_Kind.STRING, _CONNACK),
    PropertyId.SERVER_KEEP_ALIVE: PropertySpec(_Kind.TWO_BYTE, _CONNACK),
    PropertyId.AUTHENTICATION_METHOD: PropertySpec(_Kind.STRING, _AUTH),
    PropertyId.AUTHENTICATION_DATA: PropertySpec(_Kind.BINARY, _AUTH),
    PropertyId.REQUEST_PROBLEM_INFORMATION: PropertySpec(_Kind.BYTE, _CONNECT, 0, 1),
    PropertyId.WILL_DELAY_INTERVAL: PropertySpec(_Kind.FOUR_BYTE, frozenset({WILL})),
    PropertyId.REQUEST_RESPONSE_INFORMATION: PropertySpec(_Kind.BYTE, _CONNECT, 0, 1),
    PropertyId.RESPONSE_INFORMATION: PropertySpec(_Kind.STRING, _CONNACK),
    PropertyId.SERVER_REFERENCE: PropertySpec(_Kind.STRING, _CONNACK | {_P.DISCONNECT}),
    PropertyId.REASON_STRING: PropertySpec(_Kind.STRING, _REASONS),
    PropertyId.RECEIVE_MAXIMUM: PropertySpec(_Kind.TWO_BYTE, _BOTH, 1),
    PropertyId.TOPIC_ALIAS_MAXIMUM: PropertySpec(_Kind.TWO_BYTE, _BOTH),
    PropertyId.TOPIC_ALIAS: PropertySpec(_Kind.TWO_BYTE, _PUBLISH, 1),
    PropertyId.MAXIMUM_QOS: PropertySpec(_Kind.BYTE, _CONNACK, 0, 1),
    PropertyId.RETAIN_AVAILABLE: PropertySpec(_Kind.BYTE, _CONNACK, 0, 1),
    PropertyId.USER_PROPERTY: PropertySpec(_Kind.PAIR, _EVERYWHERE, repeatable_in=_EVERYWHERE),
    PropertyId.MAXIMUM_PACKET_SIZE: PropertySpec(_Kind.FOUR_BYTE, _BOTH, 1),
    PropertyId.WILDCARD_SUBSCRIPTION_AVAILABLE: PropertySpec(_Kind.BYTE, _CONNACK, 0, 1),
    PropertyId.SUBSCRIPTION_IDENTIFIER_AVAILABLE: PropertySpec(_Kind.BYTE, _CONNACK, 0, 1),
    PropertyId.SHARED_SUBSCRIPTION_AVAILABLE: PropertySpec(_Kind.BYTE, _CONNACK, 0, 1),
}

_LISTS = (PropertyId.USER_PROPERTY, PropertyId.SUBSCRIPTION_IDENTIFIER)

T = TypeVar("T")


class _Field(Generic[T]):
    """Attribute access to one property: None when it is absent, and setting None removes it."""

    __slots__ = ("_key",)

    def __init__(self, key: PropertyId) -> None:
        self._key = key

    @overload
    def __get__(self, instance: None, owner: type[Properties]) -> _Field[T]: ...
    @overload
    def __get__(self, instance: Properties, owner: type[Properties]) -> T | None: ...
    def __get__(self, instance: Properties | None, owner: type[Properties]) -> T | _Field[T] | None:
        return self if instance is None else instance.get(self._key)

    def __set__(self, instance: Properties, value: T | None) -> None:
        if value is None:
            instance.pop(self._key, None)
        else:
            instance[self._key] = value


class Properties(dict[int, Any]):
    """The properties of one packet, by id in the order of arrival, and as typed attributes.

    Repeatable ones hold a list: user properties of (name, value) in the order sent, subscription identifiers of ints.
    """

    __slots__ = ()

    payload_format_indicator = _Field[int](PropertyId.PAYLOAD_FORMAT_INDICATOR)
    message_expiry_interval = _Field[int](PropertyId.MESSAGE_EXPIRY_INTERVAL)
    content_type = _Field[str](PropertyId.CONTENT_TYPE)
    response_topic = _Field[bytes](PropertyId.RESPONSE_TOPIC)
    correlation_data = _Field[bytes](PropertyId.CORRELATION_DATA)
    session_expiry_interval = _Field[int](PropertyId.SESSION_EXPIRY_INTERVAL)
    assigned_client_identifier = _Field[str](PropertyId.ASSIGNED_CLIENT_IDENTIFIER)
    server_keep_alive = _Field[int](PropertyId.SERVER_KEEP_ALIVE)
    authentication_method = _Field[str](PropertyId.AUTHENTICATION_METHOD)
    authentication_data = _Field[bytes](PropertyId.AUTHENTICATION_DATA)
    request_problem_information = _Field[int](PropertyId.REQUEST_PROBLEM_INFORMATION)
    will_delay_interval = _Field[int](PropertyId.WILL_DELAY_INTERVAL)
    request_response_information = _Field[int](PropertyId.REQUEST_RESPONSE_INFORMATION)
    response_information = _Field[str](PropertyId.RESPONSE_INFORMATION)
    server_reference = _Field[str](PropertyId.SERVER_REFERENCE)
    reason_string = _Field[str](PropertyId.REASON_STRING)
    receive_maximum = _Field[int](PropertyId.RECEIVE_MAXIMUM)
    topic_alias_maximum = _Field[int](PropertyId.TOPIC_ALIAS_MAXIMUM)
    topic_alias = _Field[int](PropertyId.TOPIC_ALIAS)
    maximum_qos = _Field[int](PropertyId.MAXIMUM_QOS)
    retain_available = _Field[int](PropertyId.RETAIN_AVAILABLE)
    maximum_packet_size = _Field[int](PropertyId.MAXIMUM_PACKET_SIZE)
    wildcard_subscription_available = _Field[int](PropertyId.WILDCARD_SUBSCRIPTION_AVAILABLE)
    subscription_identifier_available = _Field[int](PropertyId.SUBSCRIPTION_IDENTIFIER_AVAILABLE)
    shared_subscription_available = _Field[int](PropertyId.SHARED_SUBSCRIPTION_AVAILABLE)

    @property
    def user_properties(self) -> Sequence[tuple[str, str]]:
        """Every (name, value) in the order sent: 5.0 [MQTT-3.3.2-18]."""
        pairs: Sequence[tuple[str, str]] = self.get(PropertyId.USER_PROPERTY, ())
        return pairs

    @property
    def subscription_identifiers(self) -> Sequence[int]:
        """The subscription identifiers: any number on a PUBLISH, at most one on a SUBSCRIBE."""
        identifiers: Sequence[int] = self.get(PropertyId.SUBSCRIPTION_IDENTIFIER, ())
        return identifiers

    def add_user_property(self, name: str, value: str) -> None:
        """Append one user property."""
        self.setdefault(PropertyId.USER_PROPERTY, []).append((name, value))

    def add_subscription_identifier(self, identifier: int) -> None:
        """Append one subscription identifier."""
        self.setdefault(PropertyId.SUBSCRIPTION_IDENTIFIER, []).append(identifier)

    def first_user_property(self, name: str) -> str | None:
        """The value of the first user property called `name`, None when there is none."""
        return next((value for key, value in self.user_properties if key == name), None)


def _read_pair(reader: Reader) -> tuple[str, str]:
    return reader.string(), reader.string()  # both under the rules for strings: 5.0 [MQTT-1.5.7-1]


_READERS: dict[_Kind, Callable[[Reader], Any]] = {
    _Kind.BYTE: Reader.u8,
    _Kind.TWO_BYTE: Reader.u16,
    _Kind.FOUR_BYTE: Reader.u32,
    _Kind.VARINT: Reader.varint,
    _Kind.STRING: Reader.string,  # Content Type, for one, is UTF-8: 5.0 [MQTT-3.3.2-19]
    _Kind.TOPIC: Reader.name,  # Response Topic: 5.0 [MQTT-3.3.2-13]
    _Kind.BINARY: Reader.binary,
    _Kind.PAIR: _read_pair,
}

_WRITERS: dict[_Kind, Callable[[Any], bytes]] = {
    _Kind.BYTE: lambda value: int(value).to_bytes(1, "big"),
    _Kind.TWO_BYTE: lambda value: int(value).to_bytes(2, "big"),
    _Kind.FOUR_BYTE: lambda value: int(value).to_bytes(4, "big"),
    _Kind.VARINT: encode_varint,
    _Kind.STRING: encode_string,
    _Kind.TOPIC: encode_binary,
    _Kind.BINARY: encode_binary,
    _Kind.PAIR: lambda pair: encode_string(pair[0]) + encode_string(pair[1]),
}

_RULES = {
    PropertyId.TOPIC_ALIAS: "5.0 [MQTT-3.3.2-8]",
    PropertyId.RESPONSE_TOPIC: "5.0 [MQTT-3.3.2-14]",
}


def read_properties(reader: Reader, packet: int) -> Properties:
    """The property block at the reader's place: its length (never left out: 5.0 [MQTT-2.2.2-1]), then that many bytes.

    `packet` is the packet type that carries it, or WILL.
    """
    return _read_all(reader.block(reader.varint()), packet)


def decode_properties(raw: bytes, packet: int) -> Properties:
    """The properties in `raw`, a whole block without its length; raises MqttError where it breaks a rule."""
    return _read_all(Reader(raw, 0, len(raw)), packet)


def _read_all(block: Reader, packet: int) -> Properties:
    properties = Properties()
    while not block.at_end():
        if pairs := block.pairs(PropertyId.USER_PROPERTY):
            properties.setdefault(PropertyId.USER_PROPERTY, []).extend(pairs)
        else:
            _read_one(block, packet, properties)
    return properties


def find_property(raw: bytes, packet: int, identifier: PropertyId) -> int:
    """Where the value of a property stands in a raw block that is known to be right, -1 where it isn't in it."""
    block = Reader(raw, 0, len(raw))
    properties = Properties()
    while not block.at_end():
        if block.pairs(PropertyId.USER_PROPERTY):
            continue
        start = block.position
        _read_one(block, packet, properties)
        if identifier in properties:
            return start + 1
    return -1


def _read_one(block: Reader, packet: int, properties: Properties) -> None:
    position = block.position
    identifier = block.varint()
    spec = PROPERTIES.get(identifier)
    if spec is None:
        raise MalformedPacketError(f"unknown property 0x{identifier:02x}", position=position)
    name = PropertyId(identifier).name.lower()
    if packet not in spec.packets:
        # 2.2.2.2: an identifier that is not valid for its packet type makes the packet malformed.
        raise MalformedPacketError(f"property {name} where it may not be", position=position)
    if identifier in properties and packet not in spec.repeatable_in:
        raise ProtocolError(f"property {name} twice", position=position)
    value_position = block.position
    value = _READERS[spec.kind](block)
    _check_value(identifier, spec, value, value_position)
    if identifier in _LISTS:
        properties.setdefault(PropertyId(identifier), []).append(value)
    else:
        properties[PropertyId(identifier)] = value


def _check_value(identifier: int, spec: PropertySpec, value: Any, position: int) -> None:
    name = PropertyId(identifier).name.lower()
    if isinstance(value, int):
        if not spec.low <= value <= spec.high:
            code = ReasonCode.TOPIC_ALIAS_INVALID if identifier == PropertyId.TOPIC_ALIAS else ReasonCode.PROTOCOL_ERROR
            raise ProtocolError(
                f"property {name} is {value}", code, rule=_RULES.get(PropertyId(identifier), ""), position=position
            )
    elif spec.kind is _Kind.TOPIC:
        try:
            validate_topic_name(value)
        except MqttError as error:
            raise ProtocolError(
                f"property {name}: {error.detail}", rule=_RULES[PropertyId(identifier)], position=position + 2
            ) from None


def encode_properties(properties: Properties, packet: int) -> bytes:
    """`properties` as a raw block without its length; ValueError for one that `packet` may not carry."""
    parts: list[bytes] = []
    for identifier, value in properties.items():
        spec = PROPERTIES[identifier]
        if packet not in spec.packets:
            raise ValueError(f"{PropertyId(identifier).name.lower()} does not belong in packet type {packet}")
        write = _WRITERS[spec.kind]
        for item in value if identifier in _LISTS else (value,):
            parts += (bytes((identifier,)), write(item))
    return b"".join(parts)


def property_block(raw: bytes) -> bytes:
    """`raw` behind its length, as it stands in a packet."""
    return encode_varint(len(raw)) + raw
