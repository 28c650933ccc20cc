"""PUBACK, PUBREC, PUBREL and PUBCOMP (sections 3.4 to 3.7), one by one and by the batch.

The successful form of all four is the same four bytes in every version: first byte, 2, packet id. Batches of them are
written and read without a step for each packet.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

from highway.errors import MalformedPacketError, ProtocolError
from highway.mqtt.properties import Properties, encode_properties, property_block, read_properties
from highway.mqtt.reason_codes import REASON_CODES, V5, PacketType
from highway.mqtt.wire import Reader, packet_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "PACKET_IDS",
    "PubackPacket",
    "PubackRun",
    "PubcompPacket",
    "PubrecPacket",
    "PubrelPacket",
    "puback_bytes",
    "pubcomp_bytes",
    "pubrec_bytes",
    "pubrel_bytes",
    "read_packet_id",
    "read_puback_run",
]

# The two bytes of every packet id, by its number: 4 MB once for the process, shared by all connections. Index 0 is here
# so that index and id agree; the id 0 is never sent.
PACKET_IDS: list[bytes] = [number.to_bytes(2, "big") for number in range(65_536)]

RULE_PACKET_ID = "3.1.1 [MQTT-2.3.1-1], 5.0 [MQTT-2.2.1-3]"

_REASON_RULES = {
    PacketType.PUBACK: "5.0 [MQTT-3.4.2-1]",
    PacketType.PUBREC: "5.0 [MQTT-3.5.2-1]",
    PacketType.PUBREL: "5.0 [MQTT-3.6.2-1]",
    PacketType.PUBCOMP: "5.0 [MQTT-3.7.2-1]",
}


def read_packet_id(reader: Reader) -> int:
    """The packet id at the reader's place, which is never 0."""
    position = reader.position
    packet_id = reader.u16()
    if packet_id == 0:
        raise ProtocolError("packet id 0", rule=RULE_PACKET_ID, position=position)
    return packet_id


@dataclass(slots=True)
class _AckPacket:
    """What the four have in common."""

    packet_type: ClassVar[PacketType]
    fixed_flags: ClassVar[int] = 0

    packet_id: int
    reason_code: int = 0
    properties: Properties = field(default_factory=Properties)

    @classmethod
    def decode(cls, reader: Reader, version: int) -> Self:
        """The packet at `reader`. 5.0 may leave out the properties, and a reason code of 0 with them."""
        packet_id = read_packet_id(reader)
        if version != V5 or reader.at_end():
            reader.expect_end()
            return cls(packet_id)
        reason_code = reader.u8()
        if reason_code not in REASON_CODES[cls.packet_type]:
            raise MalformedPacketError(
                f"{cls.packet_type.name} with reason code {reason_code:#04x}",
                rule=_REASON_RULES[cls.packet_type],
                position=reader.position - 1,
            )
        properties = Properties() if reader.at_end() else read_properties(reader, cls.packet_type)
        reader.expect_end()
        return cls(packet_id, reason_code, properties)

    def encode(self, version: int) -> bytes:
        """The packet as bytes in its shortest form; before 5.0 there is no reason code to send."""
        body = PACKET_IDS[self.packet_id]
        if version == V5 and (self.reason_code or self.properties):
            body += bytes((self.reason_code,))
            if self.properties:
                body += property_block(encode_properties(self.properties, self.packet_type))
        return packet_bytes(self.packet_type << 4 | self.fixed_flags, body)


@dataclass(slots=True)
class PubackPacket(_AckPacket):
    """The answer to a QoS 1 PUBLISH."""

    packet_type: ClassVar[PacketType] = PacketType.PUBACK


@dataclass(slots=True)
class PubrecPacket(_AckPacket):
    """The first answer to a QoS 2 PUBLISH."""

    packet_type: ClassVar[PacketType] = PacketType.PUBREC


@dataclass(slots=True)
class PubrelPacket(_AckPacket):
    """The sender of a QoS 2 PUBLISH lets go of it."""

    packet_type: ClassVar[PacketType] = PacketType.PUBREL
    fixed_flags: ClassVar[int] = 2


@dataclass(slots=True)
class PubcompPacket(_AckPacket):
    """The end of a QoS 2 exchange."""

    packet_type: ClassVar[PacketType] = PacketType.PUBCOMP


class PubackRun:
    """Consecutive PUBACKs of one chunk, all with the same reason code.

    In 5.0 a PUBACK with a reason code or properties is a run of one. Whatever the code, the exchange is over and the
    packet id is free again.
    """

    __slots__ = ("packet_ids", "properties", "reason_code")

    def __init__(self, packet_ids: list[int], reason_code: int = 0, properties: Properties | None = None) -> None:
        self.packet_ids = packet_ids
        self.reason_code = reason_code
        self.properties = properties

    def __repr__(self) -> str:
        return f"PubackRun(packet_ids={self.packet_ids}, reason_code={self.reason_code:#04x})"


def read_puback_run(data: bytes, position: int) -> tuple[list[int], int]:
    """The ids of the four-byte PUBACKs from `position` on, and the position after the last.

    At least one whole PUBACK must be at `position`. Raises nothing: an id of 0 ends the run before it, and is for the
    caller to refuse.
    """
    count = (len(data) - position) // 4
    if count == 1:  # what a client with one message in flight sends
        packet_id = data[position + 2] << 8 | data[position + 3]
        return ([packet_id], position + 4) if packet_id else ([], position)
    stop = position + 4 * count
    types = data[position:stop:4]
    lengths = data[position + 1 : stop : 4]
    if types.count(b"\x40") != count or lengths.count(b"\x02") != count:
        count = min(count - len(types.lstrip(b"\x40")), count - len(lengths.lstrip(b"\x02")))
        stop = position + 4 * count
    numbers = array("H", data[position:stop])
    if sys.byteorder == "little":
        numbers.byteswap()
    packet_ids = numbers[1::2].tolist()
    if 0 in packet_ids:
        count = packet_ids.index(0)
        return packet_ids[:count], position + 4 * count
    return packet_ids, stop


def _batch(head: bytes, packet_ids: Sequence[bytes]) -> bytes:
    return head + head.join(packet_ids) if packet_ids else b""


def puback_bytes(packet_ids: Sequence[bytes]) -> bytes:
    """One successful PUBACK for each of the two-byte ids."""
    if len(packet_ids) == 1:  # what a client with one message in flight sends
        return b"\x40\x02" + packet_ids[0]
    return _batch(b"\x40\x02", packet_ids)


def pubrec_bytes(packet_ids: Sequence[bytes]) -> bytes:
    """One successful PUBREC for each of the two-byte ids."""
    return _batch(b"\x50\x02", packet_ids)


def pubrel_bytes(packet_ids: Sequence[bytes]) -> bytes:
    """One successful PUBREL for each of the two-byte ids (its flags are 2: [MQTT-3.6.1-1])."""
    return _batch(b"\x62\x02", packet_ids)


def pubcomp_bytes(packet_ids: Sequence[bytes]) -> bytes:
    """One successful PUBCOMP for each of the two-byte ids."""
    return _batch(b"\x70\x02", packet_ids)
