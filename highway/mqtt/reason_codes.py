"""The numbers of the specifications: packet types, MQTT 5 reason codes, 3.1.1 return codes, and which goes where."""

from __future__ import annotations

import enum

__all__ = [
    "CONNECT_RETURN_CODES",
    "REASON_CODES",
    "V5",
    "V31",
    "V311",
    "ConnectReturnCode",
    "PacketType",
    "ReasonCode",
    "connect_reason_code",
    "connect_return_code",
    "subscribe_return_code",
]

# The protocol level byte of CONNECT is what tells the versions apart everywhere in this package.
V31 = 3
V311 = 4
V5 = 5


class PacketType(enum.IntEnum):
    """The upper four bits of a control packet's first byte (0 is forbidden)."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class ReasonCode(enum.IntEnum):
    """MQTT 5.0, section 2.4. Below 0x80 is success."""

    SUCCESS = 0x00
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


class ConnectReturnCode(enum.IntEnum):
    """MQTT 3.1.1, table 3.1: what CONNACK says to clients older than 5.0."""

    ACCEPTED = 0
    UNACCEPTABLE_PROTOCOL_VERSION = 1
    IDENTIFIER_REJECTED = 2
    SERVER_UNAVAILABLE = 3
    BAD_USER_NAME_OR_PASSWORD = 4
    NOT_AUTHORIZED = 5


CONNECT_RETURN_CODES: dict[int, ConnectReturnCode] = {
    ReasonCode.SUCCESS: ConnectReturnCode.ACCEPTED,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: ConnectReturnCode.IDENTIFIER_REJECTED,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED: ConnectReturnCode.NOT_AUTHORIZED,
    ReasonCode.BANNED: ConnectReturnCode.NOT_AUTHORIZED,
    ReasonCode.BAD_AUTHENTICATION_METHOD: ConnectReturnCode.NOT_AUTHORIZED,
}

_REASON_OF_RETURN_CODE: dict[int, int] = {
    ConnectReturnCode.ACCEPTED: ReasonCode.SUCCESS,
    ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION: ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    ConnectReturnCode.IDENTIFIER_REJECTED: ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    ConnectReturnCode.SERVER_UNAVAILABLE: ReasonCode.SERVER_UNAVAILABLE,
    ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    ConnectReturnCode.NOT_AUTHORIZED: ReasonCode.NOT_AUTHORIZED,
}


def connect_return_code(reason_code: int) -> int:
    """The 3.1.1 return code that says what `reason_code` says, SERVER_UNAVAILABLE when there is no nearer one."""
    return CONNECT_RETURN_CODES.get(reason_code, ConnectReturnCode.SERVER_UNAVAILABLE)


def connect_reason_code(return_code: int) -> int | None:
    """The 5.0 reason code that says what 3.1.1's `return_code` says, None for a number that is no return code."""
    return _REASON_OF_RETURN_CODE.get(return_code)


def subscribe_return_code(reason_code: int) -> int:
    """The 3.1.1 SUBACK return code for `reason_code`: the granted QoS, or 0x80 for every failure."""
    return min(128, reason_code)


def _codes(*codes: int) -> frozenset[int]:
    return frozenset(codes)


_PUBLISH_RESULTS = _codes(0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)
_RELEASE_RESULTS = _codes(0x00, 0x92)

# Which reason codes each packet type may carry, whoever sends it.
REASON_CODES: dict[PacketType, frozenset[int]] = {
    PacketType.CONNACK: _codes(0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F),
    PacketType.PUBACK: _PUBLISH_RESULTS,
    PacketType.PUBREC: _PUBLISH_RESULTS,
    PacketType.PUBREL: _RELEASE_RESULTS,
    PacketType.PUBCOMP: _RELEASE_RESULTS,
    PacketType.SUBACK: _codes(0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2),
    PacketType.UNSUBACK: _codes(0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91),
    PacketType.DISCONNECT: _codes(0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, *range(0x8B, 0x91), *range(0x93, 0xA3)),
    PacketType.AUTH: _codes(0x00, 0x18, 0x19),
}
