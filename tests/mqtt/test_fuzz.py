"""Wrong bytes of every kind. The documented outcomes, and the only ones: events, or events and `error`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings, strategies as st

from highway.errors import MalformedPacketError, MqttError, ProtocolError
from highway.mqtt import ConnectPacket, ServerProtocol, State, decode_packet
from tests.mqtt.test_protocol import flat, streams

if TYPE_CHECKING:
    import random


def outcome(data: bytes, size: int | None = None) -> tuple[list[object], MqttError | None]:
    protocol = ServerProtocol(max_packet_bytes=100_000, topic_alias_maximum=3)
    events = []
    for start in range(0, len(data), size or len(data) or 1):
        events += protocol.receive_data(data[start : start + (size or len(data))])
    error = protocol.error
    if error is not None:
        assert isinstance(error, MalformedPacketError | ProtocolError)
        assert error.reason_code >= 0x80
        assert protocol.state is State.CLOSED
        assert protocol.pending_bytes == 0
        for sent in (False, True):
            reply = protocol.error_reply(connack_sent=sent)
            if reply:
                decode_packet(reply, 5 if len(reply) != 4 else 4)
    return list(flat(events)), error


def check(data: bytes) -> None:
    whole, error = outcome(data)
    for size in (1, 7):
        pieces, found = outcome(data, size)
        assert pieces == whole
        # In pieces an incomplete packet at the end may be found wrong with a byte that whole input ends before.
        assert found is not None or error is None


def test_acknowledgements_of_3_1_with_flags_in_a_run():
    connect = bytes.fromhex("100f00064d514973647003000000000178")
    check(connect + bytes.fromhex("41020001 300500 03612f62 e000"))
    events, error = outcome(connect + bytes.fromhex("40020001 41020002 4f020003 40020004"))
    assert [event[1] for event in events[1:]] == [1, 2, 3, 4]
    assert error is None


@given(st.binary(max_size=200))
def test_any_bytes_at_all(data):
    check(data)
    check(ConnectPacket(4, "x").encode() + data)
    check(ConnectPacket(5, "x").encode() + data)


@given(streams(), st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_mutated_streams(stream, rng):
    check(mutate(b"".join(stream), rng))


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to three changes: a byte, a bit, a piece cut out, doubled, or put in."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(changed) + 1)
        kind = rng.randrange(5)
        if kind == 0 and place < len(changed):
            changed[place] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        elif kind == 1 and place < len(changed):
            changed[place] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del changed[place : place + rng.randint(1, 8)]
        elif kind == 3:
            changed[place:place] = changed[place : place + rng.randint(1, 20)]
        else:
            changed[place:place] = rng.randbytes(rng.randint(1, 4))
    return bytes(changed)


def test_every_single_byte_changed_to_every_value_in_one_short_stream():
    streams_by_version = [
        bytes.fromhex("100d00044d5154540402003c000161 3206000161000178 820600020001 6101 40020001"),
        bytes.fromhex("100e00044d5154540502003c00000161 320700016100010078 82070002000001 6101 4003000187"),
    ]
    for stream in streams_by_version:
        for place in range(len(stream)):
            for value in range(256):
                changed = stream[:place] + bytes((value,)) + stream[place + 1 :]
                whole, error = outcome(changed)
                pieces, found = outcome(changed, 1)
                assert pieces == whole
                assert found is not None or error is None
