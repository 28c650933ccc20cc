"""Byte streams that a hostile or broken client could send: random, valid, and mutated from valid, for every version.

Valid packets come from the harness's own encoders, and so know nothing of the broker's. Topics are chosen where it may
hurt: what the client has no right to, requests to the log, names of the broker's own, names at the edge of the grammar.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from tests.harness import packets, packets5

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

__all__ = ["StreamMaker", "pieces"]

VERSIONS = (3, 4, 5)

TOPICS = (
    *("a", "a/b", "a/b/c", "a//b", "/", "/a/", " ", "\u00e9/\u2603", "\ufeffx", "x" * 300, "l/" * 100 + "l"),
    *("secret/x", "secret/y/z", "secret", "forbidden/x", "honest/a", "honest/b"),
    *("$SYS/broker/uptime", "$SYS/broker/connection/x/state", "$CONTROL/dynamic-security/v1", "$x/y", "$gap/other"),
    *("$fetch/0/secret/x", "$fetch/1/a", "$fetch/99999999999999999999/a", "$fetch/-1/a", "$log/0/a", "$replay/0/a"),
    *("a/b\0", "a+", "#", "$share/g/a", "$end/other", "\ud7ff"),
)
FILTERS = (
    *TOPICS,
    *("#", "+", "+/+", "+/#", "a/#", "a/+/c", "a/#/b", "a+/b", "secret/#", "secret/+", "+/x", "forbidden/#"),
    *("$SYS/#", "$x/#", "$/#", "+/broker/uptime"),
    *("$share/g/#", "$share/g/secret/#", "$share//a", "$share/g/", "$share/+/a", "$share/g/$replay/earliest/#"),
    *("$replay/earliest/#", "$replay/earliest/secret/#", "$replay/-5/a", "$replay/1h/+/x", "$replay/latest/#"),
    *("$replay/2024-01-01T00:00:00Z/#", "$replay/99999999999/a", "$replay//a", "$replay/x/a", "$replay/stored/#"),
    *("$log/earliest/#", "$log/0/secret/x", "$log/-1/+/+", "$range/a", "$range/secret/x", "$range/#"),
    "/".join(["+"] * 30),
)
IDS = tuple(f"fuzz-{number}" for number in range(150))
EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x100, 0x3FFF, 0x4000, 0xFFFF)

# Properties that belong to each packet of MQTT 5, with makers of their values.
_TEXTS = ("", "x", "\u00e9", "y" * 200)
_VALUES: dict[str, Any] = {
    "payload_format_indicator": lambda rng: rng.choice((0, 1, 2)),
    "message_expiry_interval": lambda rng: rng.choice((0, 1, 60, 0xFFFFFFFF)),
    "content_type": lambda rng: rng.choice(_TEXTS),
    "response_topic": lambda rng: rng.choice(("a", "secret/x", "a/#", "")),
    "correlation_data": lambda rng: rng.randbytes(rng.randrange(20)),
    "subscription_identifier": lambda rng: rng.choice((0, 1, 127, 128, 268_435_455)),
    "session_expiry_interval": lambda rng: rng.choice((0, 1, 5, 0xFFFFFFFF)),
    "authentication_method": lambda rng: rng.choice(("SCRAM", "")),
    "request_problem_information": lambda rng: rng.choice((0, 1, 2)),
    "will_delay_interval": lambda rng: rng.choice((0, 1, 3)),
    "request_response_information": lambda rng: rng.choice((0, 1)),
    "reason_string": lambda rng: rng.choice(_TEXTS),
    "receive_maximum": lambda rng: rng.choice((0, 1, 2, 20, 65_535)),
    "topic_alias_maximum": lambda rng: rng.choice((0, 1, 10, 65_535)),
    "topic_alias": lambda rng: rng.choice((0, 1, 2, 10, 11, 65_535)),
    "maximum_packet_size": lambda rng: rng.choice((0, 1, 20, 100, 1000, 0xFFFFFFFF)),
    "user_property": lambda rng: [
        rng.choice((("a", "b"), ("replay-from", "earliest"), ("replay-rate", "5"), ("replay-until", "10"), ("", "")))
        for _ in range(rng.randint(1, 3))
    ],
}
_PUBLISH = ("payload_format_indicator", "message_expiry_interval", "content_type", "response_topic")
_PUBLISH += ("correlation_data", "user_property", "topic_alias")
_CONNECT = ("session_expiry_interval", "receive_maximum", "maximum_packet_size", "topic_alias_maximum")
_CONNECT += ("request_problem_information", "request_response_information", "user_property")


class StreamMaker:
    """Makes streams, all from one source of chance."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def stream(self) -> tuple[bytes, int]:
        """What one connection sends, and of how many packets it was made."""
        rng = self._rng
        version = rng.choice(VERSIONS)
        kind = rng.random()
        if kind < 0.08:
            return rng.randbytes(rng.randint(1, 2000)), 1
        made = [self.connect(version), *(self.packet(version) for _ in range(rng.randint(1, 30)))]
        if kind < 0.14:
            made.insert(1, rng.randbytes(rng.randint(1, 200)))
        elif kind < 0.20:
            made[1:] = [self.lie()]
        elif kind < 0.70:
            made = self.mutated(made)
        elif kind < 0.75:
            rng.shuffle(made)
        return b"".join(made), len(made)

    def mutated(self, made: list[bytes]) -> list[bytes]:
        """One to three changes, of bytes behind CONNECT mostly, so that they reach more than its decoder."""
        rng = self._rng
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(made)) if rng.random() < 0.3 else rng.randrange(min(1, len(made) - 1), len(made))
            made[place] = _mutate(made[place], rng)
        return made

    def lie(self) -> bytes:
        """The head of a packet of some type that announces more than will ever come."""
        rng = self._rng
        return (
            bytes([rng.randrange(256)])
            + rng.choice((b"\xff\xff\xff\x7f", b"\xff\xff\x7f", b"\xff\xff\xff\xff", b"\xff\x7f"))
            + rng.randbytes(9)
        )

    def properties(self, names: tuple[str, ...]) -> dict[str, Any]:
        """A few of the named properties, and now and then one that does not belong there."""
        rng = self._rng
        chosen = [name for name in names if rng.random() < 0.2]
        if rng.random() < 0.03:
            chosen.append(rng.choice([*_VALUES]))
        return {name: _VALUES[name](rng) for name in chosen}

    def connect(self, version: int) -> bytes:
        rng = self._rng
        client_id, clean = rng.choice((*IDS, "", "x")), rng.random() < 0.5
        keep_alive = rng.choice((0, 1, 60, 65_535))
        will = None
        if rng.random() < 0.3:
            will = (rng.choice(TOPICS[:18]), rng.randbytes(10), rng.randrange(3), rng.random() < 0.5)
        if version == 5:
            will_values = self.properties(("will_delay_interval", *_PUBLISH[:5]))
            return packets5.connect(
                client_id,
                clean_start=clean,
                keep_alive=keep_alive,
                will=will,
                **({"will_properties": will_values} if will else {}),
                **self.properties(_CONNECT),
            )
        data = packets.connect(client_id, clean=clean or not client_id, keep_alive=keep_alive, will=will)
        return data if version == 4 else _as_31(data)

    def packet(self, version: int) -> bytes:
        """Any packet that a client may send behind its CONNECT."""
        rng = self._rng
        kind, packet_id = rng.random(), rng.choice((1, 2, 3, 100, 65_535, rng.randrange(65_536)))
        if kind < 0.45:
            return self._publish(version, packet_id)
        if kind < 0.65:
            filters = [(rng.choice(FILTERS), self._options(version)) for _ in range(rng.choice((1, 1, 2, 5)))]
            if version == 5:
                return packets5.subscribe(
                    packet_id, *filters, **self.properties(("subscription_identifier", "user_property"))
                )
            return packets.subscribe(packet_id, *filters)
        if kind < 0.72:
            names = [rng.choice(FILTERS) for _ in range(rng.choice((1, 3)))]
            return (packets5 if version == 5 else packets).unsubscribe(packet_id, *names)
        if kind < 0.92:
            first = rng.choice((0x40, 0x50, 0x62, 0x70))
            if version == 5 and rng.random() < 0.3:
                return packets5.ack(
                    first, packet_id, rng.choice((0, 0x10, 0x80, 0x92, 0xFF)), **self.properties(("reason_string",))
                )
            return packets.ack(first, packet_id)
        if kind < 0.97:
            return packets.PINGREQ
        if version == 5 and kind < 0.985:
            return packets.packet(
                0xF0, b"\x18" + packets5.properties(**self.properties(("authentication_method", "reason_string")))
            )
        if version == 5:
            return packets5.disconnect(rng.choice((0, 4, 0x80, 0x8E)), **self.properties(("session_expiry_interval",)))
        return packets.DISCONNECT

    def _options(self, version: int) -> int:
        rng = self._rng
        options = rng.choice((0, 1, 2, 2, 3))
        return options | rng.choice((0, 4, 8, 0x10, 0x20, 0x30, 0xC0)) if version == 5 else options

    def _publish(self, version: int, packet_id: int) -> bytes:
        rng = self._rng
        payload = rng.randbytes(rng.choice((0, 1, 10, 100, 1000))) if rng.random() < 0.98 else bytes(100_000)
        values: dict[str, Any] = {
            "qos": rng.choice((0, 0, 1, 1, 2, 3)),
            "packet_id": packet_id,
            "retain": rng.random() < 0.2,
        }
        topic = rng.choice(TOPICS)
        if version == 5:
            return packets5.publish(topic if rng.random() < 0.9 else "", payload, **values, **self.properties(_PUBLISH))
        return packets.publish(topic, payload, **values)


def _as_31(connect: bytes) -> bytes:
    """A CONNECT of 3.1.1 as one of 3.1: another protocol name, two bytes longer."""
    return packets.packet(0x10, packets.text("MQIsdp") + b"\x03" + connect[connect.index(b"MQTT\x04") + 5 :])


def _mutate(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data or b"\0")
    place = rng.randrange(len(changed))
    kind = rng.randrange(7)
    if kind == 0:
        changed[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    elif kind == 1:
        changed[place] ^= 1 << rng.randrange(8)
    elif kind == 2:
        del changed[place : place + rng.randint(1, 8)]
    elif kind == 3:
        changed[place:place] = changed[place : place + rng.randint(1, 20)]
    elif kind == 4:
        changed[place:place] = rng.randbytes(rng.randint(1, 4))
    elif kind == 5:  # a length, or half of one
        changed[place : place + 2] = struct.pack(">H", rng.choice(EDGES))
    else:
        changed[0] = rng.randrange(256)
    return bytes(changed)


def pieces(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """`data` as it comes: whole, byte by byte, or cut anywhere."""
    kind = rng.random()
    size = len(data) if kind < 0.6 else 1 if kind < 0.75 and len(data) < 3000 else 0
    place = 0
    while place < len(data):
        step = size or rng.randint(1, 200)
        yield data[place : place + step]
        place += step
