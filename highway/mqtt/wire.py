"""The data types of the wire: integers, variable byte integers, strings and binary data.

`Reader` walks over one control packet that may have arrived only in part. It tells two things apart: a field that goes
beyond the packet's own end is malformed, and is so at once; a field that goes beyond the bytes that are here raises
`NeedMoreData`. So a packet is judged as far as it has come, without waiting for the rest.
"""

from __future__ import annotations

import re

from highway.errors import MalformedPacketError

__all__ = [
    "MAX_REMAINING_LENGTH",
    "NeedMoreData",
    "Reader",
    "encode_binary",
    "encode_string",
    "encode_varint",
    "packet_bytes",
    "text_fault",
]

MAX_REMAINING_LENGTH = 268_435_455  # four bytes of seven bits

RULE_UTF8 = "3.1.1 [MQTT-1.5.3-1], 5.0 [MQTT-1.5.4-1]"
RULE_NUL = "3.1.1 [MQTT-1.5.3-2], 5.0 [MQTT-1.5.4-2]"
RULE_MINIMAL = "5.0 [MQTT-1.5.5-1]"

# Control codes and non-characters: the specification lets a server refuse them in names (1.5.3, 1.5.4). They do no good
# in log lines, file names and access rules, and mosquitto refuses them too. U+FEFF is not among them: it is a character
# as any other, never stripped: 3.1.1 [MQTT-1.5.3-3], 5.0 [MQTT-1.5.4-3].
_UNWELCOME_ASCII = re.compile(rb"[\x00-\x1f\x7f]")
_UNWELCOME = re.compile(
    "[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff"
    + "".join(f"{chr(p << 16 | 0xFFFE)}{chr(p << 16 | 0xFFFF)}" for p in range(1, 17))
    + "]"
)


class NeedMoreData(Exception):  # noqa: N818 - not an error: the rest of the packet has not come yet
    """The packet is right as far as it has arrived."""


def text_fault(text: bytes) -> tuple[str, str] | None:
    """What is wrong with `text` as a name, and the rule; None when it is a good one."""
    if text.isascii():
        if _UNWELCOME_ASCII.search(text) is None:
            return None
        return ("U+0000", RULE_NUL) if b"\0" in text else ("a control character", RULE_UTF8)
    try:
        decoded = text.decode()
    except UnicodeDecodeError:
        return "ill-formed UTF-8", RULE_UTF8
    if (found := _UNWELCOME.search(decoded)) is None:
        return None
    code_point = ord(found.group())
    return f"U+{code_point:04X}", RULE_NUL if code_point == 0 else RULE_UTF8


class Reader:
    """Reads the fields of one packet in order. `position` counts from the packet's first byte."""

    __slots__ = ("_data", "end", "position")

    def __init__(self, data: bytes, position: int, end: int) -> None:
        """Read `data` (which starts with the fixed header) from `position` up to `end`, where the packet ends."""
        self._data = data
        self.position = position
        self.end = end

    def _take(self, count: int) -> int:
        start = self.position
        stop = start + count
        if stop > self.end:
            raise MalformedPacketError(
                f"a field up to byte {stop}, where the packet ends at {self.end}", position=start
            )
        if stop > len(self._data):
            raise NeedMoreData
        self.position = stop
        return start

    def at_end(self) -> bool:
        """Whether every byte of the packet was read."""
        return self.position == self.end

    def expect_end(self) -> None:
        """Raise unless every byte of the packet was read."""
        if self.position != self.end:
            raise MalformedPacketError(
                f"the packet ends at byte {self.end}, its fields before that", position=self.position
            )

    def u8(self) -> int:
        return self._data[self._take(1)]

    def u16(self) -> int:
        start = self._take(2)
        return self._data[start] << 8 | self._data[start + 1]

    def u32(self) -> int:
        start = self._take(4)
        return int.from_bytes(self._data[start : start + 4], "big")

    def varint(self) -> int:
        """A variable byte integer of at most four bytes in its shortest form."""
        start = self.position
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift:
                    raise MalformedPacketError(
                        "a variable byte integer longer than it need be", rule=RULE_MINIMAL, position=start
                    )
                return value
        raise MalformedPacketError("a variable byte integer of more than 4 bytes", position=start)

    def raw(self, count: int) -> bytes:
        start = self._take(count)
        return self._data[start : start + count]

    def rest(self) -> bytes:
        """All bytes up to the packet's end."""
        return self.raw(self.end - self.position)

    def since(self, position: int) -> bytes:
        """The bytes read from `position` on."""
        return self._data[position : self.position]

    def binary(self) -> bytes:
        """Binary data: a two-byte length, then as many bytes."""
        return self.raw(self.u16())

    def name(self) -> bytes:
        """A UTF-8 string that names something (topic, filter, client, user): its bytes, without control characters."""
        start = self.position
        text = self.binary()
        if (fault := text_fault(text)) is not None:
            raise MalformedPacketError(f"{fault[0]} in a name", rule=fault[1], position=start + 2)
        return text

    def string(self) -> str:
        """A UTF-8 string of free text. Only what the specification forbids outright is refused."""
        start = self.position
        raw = self.binary()
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise MalformedPacketError(
                "ill-formed UTF-8 in a string", rule=RULE_UTF8, position=start + 2 + error.start
            ) from None
        if "\0" in text:
            raise MalformedPacketError("U+0000 in a string", rule=RULE_NUL, position=start + 2 + raw.index(0))
        return text

    def pairs(self, identifier: int) -> list[tuple[str, str]]:
        """The pairs of strings from here on that stand behind the byte `identifier`, as far as they are whole and good.

        A packet may hold thousands of them. What stops this is left to the other methods, which know what to say of it.
        """
        data, end = self._data, min(self.end, len(self._data))
        position = self.position
        found: list[tuple[str, str]] = []
        while position + 5 <= end and data[position] == identifier:
            value_at = position + 5 + (data[position + 1] << 8 | data[position + 2])
            if value_at > end:
                break
            stop = value_at + (data[value_at - 2] << 8 | data[value_at - 1])
            if stop > end:
                break
            try:
                name, value = data[position + 3 : value_at - 2].decode(), data[value_at:stop].decode()
            except UnicodeDecodeError:
                break
            if "\0" in name or "\0" in value:
                break
            found.append((name, value))
            position = stop
        self.position = position
        return found

    def block(self, length: int) -> Reader:
        """A reader for the next `length` bytes, which this one skips; they need not be here yet."""
        start = self.position
        if start + length > self.end:
            raise MalformedPacketError(
                f"properties up to byte {start + length}, where the packet ends at {self.end}", position=start
            )
        self.position = start + length
        return Reader(self._data, start, start + length)


def encode_varint(value: int) -> bytes:
    """`value` as a variable byte integer in its shortest form."""
    if value < 0x80:
        return bytes((value,))
    if value > MAX_REMAINING_LENGTH:
        raise ValueError(f"{value} does not fit a variable byte integer, whose largest is {MAX_REMAINING_LENGTH}")
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_binary(data: bytes) -> bytes:
    """`data` behind its two-byte length; ValueError above 65,535 bytes."""
    if len(data) > 0xFFFF:
        raise ValueError(f"{len(data)} bytes do not fit a field of at most 65535")
    return len(data).to_bytes(2, "big") + data


def encode_string(text: str) -> bytes:
    """`text` in UTF-8 behind its two-byte length."""
    return encode_binary(text.encode())


def packet_bytes(first_byte: int, body: bytes) -> bytes:
    """A whole control packet: first byte, remaining length, body."""
    return bytes((first_byte,)) + encode_varint(len(body)) + body
