"""MQTT 3.1.1 packets as bytes, written from the specification and apart from the broker's own codec: an oracle."""

from __future__ import annotations

import struct
from dataclasses import dataclass

__all__ = [
    "DISCONNECT",
    "PINGREQ",
    "PINGRESP",
    "Message",
    "PacketSplitter",
    "ack",
    "connect",
    "connect_payload",
    "packet",
    "parse_publish",
    "publish",
    "remaining_length",
    "subscribe",
    "text",
    "unsubscribe",
]

PINGREQ = bytes.fromhex("c000")
PINGRESP = bytes.fromhex("d000")
DISCONNECT = bytes.fromhex("e000")


def remaining_length(length: int) -> bytes:
    out = bytearray()
    while True:
        length, low = length >> 7, length & 0x7F
        out.append(low | (0x80 if length else 0))
        if not length:
            return bytes(out)


def packet(first_byte: int, body: bytes) -> bytes:
    return bytes([first_byte]) + remaining_length(len(body)) + body


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack(">H", len(raw)) + raw


def connect(
    client_id: str | bytes,
    *,
    clean: bool = True,
    keep_alive: int = 60,
    will: tuple[str, bytes, int, bool] | None = None,
    username: str | None = None,
    password: bytes | None = None,
) -> bytes:
    """CONNECT; `will` is topic name, payload, QoS, retain."""
    flags, payload = connect_payload(client_id, will, b"", username, password, clean=clean)
    return packet(0x10, text("MQTT") + bytes([4, flags]) + struct.pack(">H", keep_alive) + payload)


def connect_payload(
    client_id: str | bytes,
    will: tuple[str, bytes, int, bool] | None,
    will_properties: bytes,
    username: str | None,
    password: bytes | None,
    *,
    clean: bool,
) -> tuple[int, bytes]:
    """The flags of a CONNECT and its payload; before MQTT 5 a will has no properties, not even a length of them."""
    flags = 0x02 if clean else 0
    payload = text(client_id)
    if will is not None:
        will_topic, will_payload, will_qos, will_retain = will
        flags |= 0x04 | will_qos << 3 | (0x20 if will_retain else 0)
        payload += will_properties + text(will_topic) + text(will_payload)
    if username is not None:
        flags |= 0x80
        payload += text(username)
    if password is not None:
        flags |= 0x40
        payload += len(password).to_bytes(2, "big") + password
    return flags, payload


def publish(
    topic: str | bytes, payload: bytes, *, qos: int = 0, packet_id: int = 0, retain: bool = False, dup: bool = False
) -> bytes:
    identifier = struct.pack(">H", packet_id) if qos else b""
    return packet(0x30 | dup << 3 | qos << 1 | retain, text(topic) + identifier + payload)


def subscribe(packet_id: int, *filters: tuple[str | bytes, int]) -> bytes:
    body = b"".join(text(topic_filter) + bytes([qos]) for topic_filter, qos in filters)
    return packet(0x82, struct.pack(">H", packet_id) + body)


def unsubscribe(packet_id: int, *filters: str | bytes) -> bytes:
    return packet(0xA2, struct.pack(">H", packet_id) + b"".join(map(text, filters)))


def ack(first_byte: int, packet_id: int) -> bytes:
    """PUBACK 0x40, PUBREC 0x50, PUBREL 0x62, PUBCOMP 0x70."""
    return struct.pack(">BBH", first_byte, 2, packet_id)


@dataclass(frozen=True, slots=True)
class Message:
    """One PUBLISH as received."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    dup: bool
    packet_id: int


def parse_publish(first_byte: int, body: bytes) -> Message:
    length = int.from_bytes(body[:2], "big")
    topic, rest = body[2 : 2 + length].decode(), body[2 + length :]
    qos = first_byte >> 1 & 3
    packet_id = int.from_bytes(rest[:2], "big") if qos else 0
    return Message(topic, rest[2:] if qos else rest, qos, bool(first_byte & 1), bool(first_byte & 8), packet_id)


class PacketSplitter:
    """Cuts a byte stream into (first byte, body)."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        buffer = self._buffer + data
        packets, position, size = [], 0, len(buffer)
        while position + 2 <= size:
            length, shift, body = 0, 0, position + 1
            while body < size:
                byte = buffer[body]
                body += 1
                length |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            else:
                break
            if body + length > size:
                break
            packets.append((buffer[position], buffer[body : body + length]))
            position = body + length
        self._buffer = buffer[position:]
        return packets

    @property
    def pending(self) -> int:
        """Bytes of a packet that isn't complete."""
        return len(self._buffer)
