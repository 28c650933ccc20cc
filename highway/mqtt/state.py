"""Which control packet may come from a client, and when: the one place that decides it.

The rules, for the server's side of one network connection:

- The first packet is CONNECT, and no second one follows ([MQTT-3.1.0-1], [MQTT-3.1.0-2]).
- A client need not wait for CONNACK, so that CONNECT alone makes the connection CONNECTED for what may come next. The
  exception is enhanced authentication (5.0): a CONNECT with an authentication method leads to AUTHENTICATING, where
  only AUTH and DISCONNECT may come (5.0 [MQTT-3.1.2-30]) until the server says that the client is in.
- CONNACK, SUBACK, UNSUBACK and PINGRESP go from server to client only; PUBLISH and its acknowledgements go both ways.
- AUTH exists from 5.0 on. That a client which did not begin with an authentication method may not send it (5.0
  [MQTT-4.12.0-7]) depends on the CONNECT and is checked in `protocol`.
- After DISCONNECT a client sends nothing more (3.1.1 [MQTT-3.14.4-2], 5.0 [MQTT-3.14.4-1]); after an error nothing more is
  read. Both are CLOSED.

A packet that has no entry in `TRANSITIONS` is a protocol error. `FIXED_FLAGS` is the other thing that a first byte can
be judged by; from both come the tables of `first_bytes`, with one look-up for each packet.
"""

from __future__ import annotations

import enum
import functools

from highway.errors import MalformedPacketError, MqttError, ProtocolError
from highway.mqtt.reason_codes import V5, V31, PacketType

__all__ = ["FIXED_FLAGS", "TRANSITIONS", "Signal", "State", "first_byte_error", "first_bytes", "next_state"]


class State(enum.Enum):
    """Where a connection is, seen from the server."""

    CONNECT_AWAITED = enum.auto()
    AUTHENTICATING = enum.auto()
    CONNECTED = enum.auto()
    CLOSED = enum.auto()


class Signal(enum.Enum):
    """What moves a connection besides the packet types."""

    CONNECT_WITH_METHOD = enum.auto()  # a CONNECT that asks for enhanced authentication
    AUTHENTICATED = enum.auto()  # the server sends CONNACK with success
    ERROR = enum.auto()


TRANSITIONS: dict[State, dict[PacketType | Signal, State]] = {
    State.CONNECT_AWAITED: {
        PacketType.CONNECT: State.CONNECTED,
        Signal.CONNECT_WITH_METHOD: State.AUTHENTICATING,
        Signal.ERROR: State.CLOSED,
    },
    State.AUTHENTICATING: {
        PacketType.AUTH: State.AUTHENTICATING,
        PacketType.DISCONNECT: State.CLOSED,
        Signal.AUTHENTICATED: State.CONNECTED,
        Signal.ERROR: State.CLOSED,
    },
    State.CONNECTED: {
        PacketType.PUBLISH: State.CONNECTED,
        PacketType.PUBACK: State.CONNECTED,
        PacketType.PUBREC: State.CONNECTED,
        PacketType.PUBREL: State.CONNECTED,
        PacketType.PUBCOMP: State.CONNECTED,
        PacketType.SUBSCRIBE: State.CONNECTED,
        PacketType.UNSUBSCRIBE: State.CONNECTED,
        PacketType.PINGREQ: State.CONNECTED,
        PacketType.AUTH: State.CONNECTED,
        PacketType.DISCONNECT: State.CLOSED,
        Signal.AUTHENTICATED: State.CONNECTED,
        Signal.ERROR: State.CLOSED,
    },
    State.CLOSED: {Signal.ERROR: State.CLOSED},
}

# The low four bits of the first byte, where they are not 0 (table 2.2 of 3.1.1, 2-2 of 5.0). Those of PUBLISH carry
# DUP, QoS and RETAIN.
FIXED_FLAGS: dict[PacketType, int] = {PacketType.PUBREL: 2, PacketType.SUBSCRIBE: 2, PacketType.UNSUBSCRIBE: 2}

RULE_FLAGS = "3.1.1 [MQTT-2.2.2-1], 3.1.1 [MQTT-2.2.2-2], 5.0 [MQTT-2.1.3-1]"
_FLAG_RULES = {
    PacketType.PUBREL: "[MQTT-3.6.1-1]",
    PacketType.SUBSCRIBE: "[MQTT-3.8.1-1]",
    PacketType.UNSUBSCRIBE: "[MQTT-3.10.1-1]",
    PacketType.DISCONNECT: "[MQTT-3.14.1-1]",
    PacketType.AUTH: "5.0 [MQTT-3.15.1-1]",
}


def next_state(state: State, event: PacketType | Signal) -> State:
    """The state that follows `state` on `event`; ProtocolError where the table has no such entry."""
    try:
        return TRANSITIONS[state][event]
    except KeyError:
        raise ProtocolError(f"{event.name} in state {state.name}", rule=_state_rule(state, event), position=0) from None


def _state_rule(state: State, event: PacketType | Signal) -> str:
    if event is PacketType.CONNECT:
        return "[MQTT-3.1.0-2]"
    if state is State.CONNECT_AWAITED:
        return "[MQTT-3.1.0-1]"
    if state is State.AUTHENTICATING:
        return "5.0 [MQTT-3.1.2-30]"
    return ""


def _flag_error(packet_type: PacketType, flags: int, version: int) -> MqttError | None:
    if packet_type is PacketType.PUBLISH:
        qos = flags >> 1 & 3
        if qos == 3:
            return MalformedPacketError("a PUBLISH of QoS 3", rule="[MQTT-3.3.1-4]", position=0)
        if qos == 0 and flags & 8:
            return MalformedPacketError("DUP on a PUBLISH of QoS 0", rule="[MQTT-3.3.1-2]", position=0)
        return None
    # CONNECT tells only in its body whether it is one of 3.1, which does not use these flags in any packet type but
    # PUBLISH (and sets DUP and QoS in some).
    if version == V31 or packet_type is PacketType.CONNECT:
        return None
    expected = FIXED_FLAGS.get(packet_type, 0)
    if flags == expected:
        return None
    return MalformedPacketError(
        f"the flags of {packet_type.name} are {flags:#x}, not {expected:#x}",
        rule=_FLAG_RULES.get(packet_type, RULE_FLAGS),
        position=0,
    )


def first_byte_error(state: State, version: int, first: int) -> MqttError | None:
    """What is wrong with a packet that begins with `first`, None when it may come."""
    try:
        packet_type = PacketType(first >> 4)
        if packet_type is PacketType.AUTH and 0 < version < V5:
            raise ValueError
    except ValueError:
        return MalformedPacketError(f"packet type {first >> 4} is reserved", rule=RULE_FLAGS, position=0)
    try:
        next_state(state, packet_type)
    except MqttError as error:
        return error
    return _flag_error(packet_type, first & 0x0F, version)


@functools.cache
def first_bytes(state: State, version: int) -> tuple[int, ...]:
    """The packet type for each of the 256 first bytes, 0 where the byte is an error in that state and version."""
    return tuple(0 if first_byte_error(state, version, first) else first >> 4 for first in range(256))
