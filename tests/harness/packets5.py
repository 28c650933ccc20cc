"""MQTT 5 packets as bytes, written from the specification and apart from the broker's own codec: an oracle.

Properties are keyword arguments in the order in which they are to stand, with the names of table 2-4 in snake case;
a list repeats one. What is parsed comes back in the order in which it stood.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from tests.harness import packets
from tests.harness.packets import connect_payload, packet, remaining_length, text

__all__ = [
    "Ack",
    "Connack",
    "Message",
    "ack",
    "auth",
    "connect",
    "disconnect",
    "option",
    "parse_ack",
    "parse_connack",
    "parse_disconnect",
    "parse_publish",
    "parse_suback",
    "properties",
    "publish",
    "subscribe",
    "unsubscribe",
]

NO_LOCAL, RETAIN_AS_PUBLISHED = 0x04, 0x08

_PROPERTIES = {
    "payload_format_indicator": (0x01, "byte"),
    "message_expiry_interval": (0x02, "four"),
    "content_type": (0x03, "text"),
    "response_topic": (0x08, "text"),
    "correlation_data": (0x09, "binary"),
    "subscription_identifier": (0x0B, "varint"),
    "session_expiry_interval": (0x11, "four"),
    "assigned_client_identifier": (0x12, "text"),
    "server_keep_alive": (0x13, "two"),
    "authentication_method": (0x15, "text"),
    "authentication_data": (0x16, "binary"),
    "request_problem_information": (0x17, "byte"),
    "will_delay_interval": (0x18, "four"),
    "request_response_information": (0x19, "byte"),
    "response_information": (0x1A, "text"),
    "server_reference": (0x1C, "text"),
    "reason_string": (0x1F, "text"),
    "receive_maximum": (0x21, "two"),
    "topic_alias_maximum": (0x22, "two"),
    "topic_alias": (0x23, "two"),
    "maximum_qos": (0x24, "byte"),
    "retain_available": (0x25, "byte"),
    "user_property": (0x26, "pair"),
    "maximum_packet_size": (0x27, "four"),
    "wildcard_subscription_available": (0x28, "byte"),
    "subscription_identifier_available": (0x29, "byte"),
    "shared_subscription_available": (0x2A, "byte"),
}
_NAMES = {identifier: (name, kind) for name, (identifier, kind) in _PROPERTIES.items()}
_WIDTHS = {"byte": 1, "two": 2, "four": 4}


def _read_varint(data: bytes) -> tuple[int, bytes]:
    value = 0
    for index in range(4):
        value |= (data[index] & 0x7F) << 7 * index
        if data[index] < 0x80:
            return value, data[index + 1 :]
    raise AssertionError(f"a variable byte integer without an end: {data[:4].hex()}")


def _write(kind: str, value: Any) -> bytes:
    if kind in _WIDTHS:
        return int(value).to_bytes(_WIDTHS[kind], "big")
    if kind == "varint":
        return remaining_length(value)
    if kind == "pair":
        return text(value[0]) + text(value[1])
    return text(value)


def _read(kind: str, data: bytes) -> tuple[Any, bytes]:
    if kind in _WIDTHS:
        width = _WIDTHS[kind]
        return int.from_bytes(data[:width], "big"), data[width:]
    if kind == "varint":
        return _read_varint(data)
    raw, data = _read_field(data)
    if kind == "binary":
        return raw, data
    if kind == "pair":
        value, data = _read_field(data)
        return (raw.decode(), value.decode()), data
    return raw.decode(), data


def _read_field(data: bytes) -> tuple[bytes, bytes]:
    length = int.from_bytes(data[:2], "big")
    assert len(data) >= 2 + length, "a field that goes beyond the packet"
    return data[2 : 2 + length], data[2 + length :]


def properties(**values: Any) -> bytes:
    """The property block with its length."""
    raw = b""
    for name, value in values.items():
        identifier, kind = _PROPERTIES[name]
        for one in value if isinstance(value, list) else [value]:
            raw += bytes([identifier]) + _write(kind, one)
    return remaining_length(len(raw)) + raw


def _read_properties(data: bytes) -> tuple[list[tuple[str, Any]], bytes]:
    length, data = _read_varint(data)
    block, rest = data[:length], data[length:]
    assert len(block) == length, "a property block that goes beyond the packet"
    found = []
    while block:
        name, kind = _NAMES[block[0]]
        value, block = _read(kind, block[1:])
        found.append((name, value))
    return found, rest


def connect(
    client_id: str | bytes,
    *,
    clean_start: bool = True,
    keep_alive: int = 60,
    will: tuple[str, bytes, int, bool] | None = None,
    will_properties: dict[str, Any] | None = None,
    username: str | None = None,
    password: bytes | None = None,
    **values: Any,
) -> bytes:
    """CONNECT; `will` is topic name, payload, QoS, retain."""
    block = properties(**(will_properties or {}))
    flags, payload = connect_payload(client_id, will, block, username, password, clean=clean_start)
    head = text("MQTT") + bytes([5, flags]) + struct.pack(">H", keep_alive)
    return packet(0x10, head + properties(**values) + payload)


def publish(
    topic: str | bytes,
    payload: bytes,
    *,
    qos: int = 0,
    packet_id: int = 0,
    retain: bool = False,
    dup: bool = False,
    **values: Any,
) -> bytes:
    identifier = struct.pack(">H", packet_id) if qos else b""
    return packet(0x30 | dup << 3 | qos << 1 | retain, text(topic) + identifier + properties(**values) + payload)


def option(qos: int = 0, *, no_local: bool = False, retain_as_published: bool = False, retain_handling: int = 0) -> int:
    """The options byte of one subscription."""
    return (
        qos | (NO_LOCAL if no_local else 0) | (RETAIN_AS_PUBLISHED if retain_as_published else 0) | retain_handling << 4
    )


def subscribe(packet_id: int, *filters: tuple[str | bytes, int], **values: Any) -> bytes:
    """SUBSCRIBE of (topic filter, options byte)."""
    body = b"".join(text(topic_filter) + bytes([options]) for topic_filter, options in filters)
    return packet(0x82, struct.pack(">H", packet_id) + properties(**values) + body)


def unsubscribe(packet_id: int, *filters: str | bytes, **values: Any) -> bytes:
    return packet(0xA2, struct.pack(">H", packet_id) + properties(**values) + b"".join(map(text, filters)))


def ack(first_byte: int, packet_id: int, reason_code: int = 0, **values: Any) -> bytes:
    """PUBACK 0x40, PUBREC 0x50, PUBREL 0x62, PUBCOMP 0x70."""
    body = struct.pack(">H", packet_id)
    if reason_code or values:
        body += bytes([reason_code])
    if values:
        body += properties(**values)
    return packet(first_byte, body)


def disconnect(reason_code: int = 0, **values: Any) -> bytes:
    return packet(0xE0, bytes([reason_code]) + properties(**values))


def auth(reason_code: int, **values: Any) -> bytes:
    return packet(0xF0, bytes([reason_code]) + properties(**values))


@dataclass(frozen=True, slots=True)
class Connack:
    session_present: bool
    reason_code: int
    properties: dict[str, Any]


def parse_connack(first_byte: int, body: bytes) -> Connack:
    assert first_byte == 0x20, f"CONNACK expected, got {first_byte:#x} {body.hex()}"
    assert body[0] in (0, 1)
    found, rest = _read_properties(body[2:])
    assert not rest
    assert len(dict(found)) == len(found), "a property twice"
    return Connack(bool(body[0]), body[1], dict(found))


@dataclass(frozen=True, slots=True)
class Message(packets.Message):
    """One PUBLISH as received; `properties` in the order in which they stood."""

    properties: tuple[tuple[str, Any], ...] = ()
    size: int = 0  # of the whole packet

    def all(self, name: str) -> list[Any]:
        return [value for key, value in self.properties if key == name]

    @property
    def identifiers(self) -> list[int]:
        return sorted(self.all("subscription_identifier"))


def parse_publish(first_byte: int, body: bytes) -> Message:
    topic, rest = _read_field(body)
    qos = first_byte >> 1 & 3
    assert qos < 3
    packet_id = 0
    if qos:
        packet_id, rest = int.from_bytes(rest[:2], "big"), rest[2:]
        assert packet_id
    found, payload = _read_properties(rest)
    size = len(packet(first_byte, body))
    return Message(
        topic.decode(), payload, qos, bool(first_byte & 1), bool(first_byte & 8), packet_id, tuple(found), size
    )


@dataclass(frozen=True, slots=True)
class Ack:
    """PUBACK, PUBREC, PUBREL, PUBCOMP."""

    first_byte: int
    packet_id: int
    reason_code: int
    properties: tuple[tuple[str, Any], ...]


def parse_ack(first_byte: int, body: bytes) -> Ack:
    found: list[tuple[str, Any]] = []
    if len(body) > 3:
        found, rest = _read_properties(body[3:])
        assert not rest
    return Ack(first_byte, int.from_bytes(body[:2], "big"), body[2] if len(body) > 2 else 0, tuple(found))


def parse_suback(first_byte: int, body: bytes) -> tuple[int, list[int], dict[str, Any]]:
    """(packet id, reason codes, properties) of a SUBACK or UNSUBACK."""
    assert first_byte in (0x90, 0xB0), f"{first_byte:#x} {body.hex()}"
    found, codes = _read_properties(body[2:])
    return int.from_bytes(body[:2], "big"), list(codes), dict(found)


def parse_disconnect(first_byte: int, body: bytes) -> tuple[int, dict[str, Any]]:
    assert first_byte == 0xE0, f"DISCONNECT expected, got {first_byte:#x} {body.hex()}"
    found, rest = _read_properties(body[1:]) if len(body) > 1 else ([], b"")
    assert not rest
    return body[0] if body else 0, dict(found)
