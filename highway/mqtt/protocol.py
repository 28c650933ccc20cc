"""The server's side of one MQTT connection, without any input or output of its own.

Bytes go in through `receive_data`, events come out; what has to be sent is encoded by the packets themselves and, for a
broken connection, by `error_reply`. Nothing that a peer sends makes a method raise.
"""

from __future__ import annotations

from highway.errors import MalformedPacketError, MqttError, ProtocolError
from highway.mqtt.acks import RULE_PACKET_ID, read_puback_run
from highway.mqtt.connect import ConnackPacket, ConnectPacket, UnsupportedVersionError, read_level
from highway.mqtt.control import AuthPacket, DisconnectPacket, PingreqPacket
from highway.mqtt.packets import Event, PubackPacket, PubackRun, decode_body
from highway.mqtt.publish import PublishReader
from highway.mqtt.reason_codes import CONNECT_RETURN_CODES, REASON_CODES, V5, V31, V311, PacketType, ReasonCode
from highway.mqtt.state import TRANSITIONS, Signal, State, first_byte_error, first_bytes, next_state
from highway.mqtt.wire import MAX_REMAINING_LENGTH, NeedMoreData, Reader

__all__ = ["MAX_CONNECT_BYTES", "MAX_PACKET_BYTES", "ServerProtocol"]

# Before the client is known a packet may be no larger than this. A CONNECT with a long password (a JWT) and a will of
# some kilobytes fits; a thousand strangers hold 64 MB at most.
MAX_CONNECT_BYTES = 65_536
# The largest packet that the specification knows: five bytes of fixed header and the largest remaining length.
MAX_PACKET_BYTES = 5 + MAX_REMAINING_LENGTH

# An incomplete packet is judged anew with each piece while it is shorter than this, and then each time it has doubled,
# so that judging stays linear in what the peer sends.
_JUDGE_ALWAYS_BYTES = 1_024

# Looked up for each packet, where the attribute of an enum is slow.
_PUBLISH = int(PacketType.PUBLISH)
_PLAIN_PUBACK = PacketType.PUBACK << 4  # as every version writes it; 3.1 lets its flags be anything
_PINGREQ = int(PacketType.PINGREQ)
_PING = PingreqPacket()
# Packets that change what may come next; all others leave the state as it is.
_MOVING = {
    int(event)
    for state, row in TRANSITIONS.items()
    for event, following in row.items()
    if isinstance(event, PacketType) and following is not state
}

# Packets of a fixed size before 5.0, by type, as remaining length. PINGREQ has none in 5.0 either.
_FIXED_LENGTHS: dict[int, int] = {
    PacketType.PUBACK: 2,
    PacketType.PUBREC: 2,
    PacketType.PUBREL: 2,
    PacketType.PUBCOMP: 2,
    PacketType.PINGREQ: 0,
    PacketType.DISCONNECT: 0,
}


class ServerProtocol:
    """Turns the bytes of one client into events, in order, and knows what may come next.

    `version` is 0 before CONNECT. `error` is the first thing that the peer did wrong, with the rule and the byte in it;
    from then on `state` is CLOSED and everything received is ignored. The owner is the connection's event loop.
    """

    __slots__ = (
        "_authentication_method",
        "_backlog",
        "_connect_version",
        "_first_bytes",
        "_held",
        "_held_bytes",
        "_judged_bytes",
        "_limit",
        "_max_events",
        "_max_packet_bytes",
        "_needed_bytes",
        "_publishes",
        "_session_expires_at_once",
        "_topic_alias_maximum",
        "_versions",
        "error",
        "state",
        "version",
    )

    def __init__(
        self,
        *,
        max_packet_bytes: int = MAX_PACKET_BYTES,
        max_connect_bytes: int = MAX_CONNECT_BYTES,
        versions: tuple[int, ...] = (V31, V311, V5),
        topic_alias_maximum: int = 0,
        max_events: int = 1 << 62,
    ) -> None:
        """`max_packet_bytes` counts the whole packet, as 5.0's Maximum Packet Size does.

        `max_events` bounds what one call of `receive_data` returns, so that a flood of small packets can be worked off
        in parts: see `has_more`.
        """
        self.version = 0
        self.state = State.CONNECT_AWAITED
        self.error: MqttError | None = None
        self._versions = versions
        self._max_packet_bytes = max_packet_bytes
        self._limit = min(max_connect_bytes, max_packet_bytes)
        self._topic_alias_maximum = topic_alias_maximum
        self._max_events = max_events
        self._backlog = b""  # what comes behind the last event of a call that reached the limit
        self._first_bytes = first_bytes(self.state, 0)
        self._publishes: PublishReader | None = None
        self._authentication_method: str | None = None
        self._session_expires_at_once = False
        self._connect_version = 0  # as soon as a CONNECT has told it, however wrong the rest
        self._held: list[bytes] = []  # the pieces of an incomplete packet
        self._held_bytes = 0
        self._needed_bytes = 0  # with fewer than this no packet can be complete
        self._judged_bytes = 0  # how much of it was found right, -1 when nothing more can be told before the end

    @property
    def pending_bytes(self) -> int:
        """How many bytes of an incomplete packet are held."""
        return self._held_bytes

    @property
    def has_more(self) -> bool:
        """Whether the last call stopped at `max_events`: `receive_data(b"")` goes on."""
        return bool(self._backlog)

    @property
    def is_between_packets(self) -> bool:
        """Whether all packets that began are complete and handed on, and others may come."""
        return not self._held and not self._backlog and self.state is not State.CLOSED

    def receive_data(self, data: bytes) -> list[Event]:
        """The events in `data`, in order. The caller handles them first and looks at `error` then.

        An incomplete packet at the end is kept for the next call. On bad input the events before it are returned,
        `error` is set, and the caller sends `error_reply` and closes: [MQTT-3.1.4-1], 3.1.1 [MQTT-4.8.0-1],
        5.0 [MQTT-4.13.1-1].
        """
        events: list[Event] = []
        if self.state is State.CLOSED:
            return events
        try:
            if self._backlog:
                data, self._backlog = self._backlog + data, b""
            elif self._held:
                data = self._collect(data)
            if data:
                self._parse(data, events)
        except MqttError as error:
            # Its frames would hold what was being read, and this object, which holds it: for the collector to find one day.
            self.error = error.with_traceback(None)
            error.__context__ = error.__cause__ = None
            self._enter(Signal.ERROR)
        return events

    def receive_eof(self) -> None:
        """The connection is gone: what is held of an incomplete packet is let go of, now and not with this object."""
        self._held = []
        self._held_bytes = 0
        self._backlog = b""

    def authenticated(self) -> None:
        """Tell that CONNACK with success is being sent to a client with an authentication method."""
        self._enter(Signal.AUTHENTICATED)

    def error_reply(self, *, connack_sent: bool = True) -> bytes:
        """What to send for `error` before closing; b"" where the version has nothing for it.

        `connack_sent` says whether this client was sent CONNACK: until then 5.0 has no DISCONNECT for it (5.0
        [MQTT-3.14.0-1]).
        """
        error = self.error
        if error is None or not error.is_answered:
            return b""
        if isinstance(error, UnsupportedVersionError):
            # 3.1.1 [MQTT-3.1.2-2]: return code 1. Clients of 5.0 and later get it in their own format.
            version = V5 if error.level & 0x7F >= V5 else V311
            return ConnackPacket(reason_code=error.reason_code).encode(version)
        if self.version and connack_sent:
            return DisconnectPacket(error.reason_code).encode(V5) if self.version == V5 else b""
        version = self._connect_version
        # Before 5.0 a malformed CONNECT is closed without an answer, unless there is a return code that says just this:
        # 3.1.1 [MQTT-3.1.3-9], [MQTT-3.2.2-6]. From 5.0 on there is a reason code for everything: 5.0 [MQTT-3.2.2-8].
        if version == V5:
            code = error.reason_code
            known = code in REASON_CODES[PacketType.CONNACK]
            return ConnackPacket(reason_code=code if known else ReasonCode.PROTOCOL_ERROR).encode(V5)
        if version and error.reason_code in CONNECT_RETURN_CODES:
            return ConnackPacket(reason_code=error.reason_code).encode(version)
        return b""

    def _enter(self, event: PacketType | Signal) -> None:
        self.state = next_state(self.state, event)
        self._first_bytes = first_bytes(self.state, self.version)
        if self.state is State.CLOSED:
            self.receive_eof()

    def _collect(self, data: bytes) -> bytes:
        """All bytes held and `data`, once a packet may be complete; b"" until then."""
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes < self._needed_bytes:
            if self._judged_bytes >= 0 and (
                self._held_bytes < _JUDGE_ALWAYS_BYTES or self._held_bytes >= 2 * self._judged_bytes
            ):
                self._held = [b"".join(self._held)]
                self._judge(self._held[0])
            return b""
        data = b"".join(self._held)
        self._held = []
        self._held_bytes = 0
        return data

    def _parse(self, data: bytes, events: list[Event]) -> None:
        """Append the events of all whole packets in `data`, keep the rest."""
        position = 0
        size = len(data)
        while position < size and len(events) < self._max_events:
            first = data[position]
            packet_type = self._first_bytes[first]
            if not packet_type:
                raise first_byte_error(self.state, self.version, first) or ProtocolError(f"first byte {first:#x}")
            body = position + 2
            if body > size:
                break
            remaining = data[position + 1]
            if remaining > 0x7F:
                if body < size and 0 < data[body] < 0x80:  # two bytes, as nearly every PUBLISH has
                    remaining += (data[body] << 7) - 0x80
                    body += 1
                else:
                    remaining, body = self._read_length(data, position)
                    if not body:
                        break
            end = body + remaining
            if end - position > self._limit or (remaining != 2 and packet_type in _FIXED_LENGTHS):
                self._check_size(packet_type, remaining, end - position)
            if end > size:
                self._hold(data[position:], end - position)
                return
            if packet_type == _PUBLISH and self._publishes is not None:
                position = self._publishes.read_run(data, position, body, end, events)  # type: ignore[arg-type]
            elif first == _PLAIN_PUBACK and remaining == 2:
                position = self._read_pubacks(data, position, events)
            else:
                self._read_packet(data[position:end], body - position, events)
                position = end
                if self.state is State.CLOSED:
                    return
        if position < size:
            self._keep(data[position:], len(events))

    def _read_length(self, data: bytes, position: int) -> tuple[int, int]:
        """(remaining length, start of the body) of the packet at `position`; (0, 0) when the length is not all here."""
        reader = Reader(data[position : position + 5], 1, 5)
        try:
            return reader.varint(), position + reader.position
        except NeedMoreData:
            return 0, 0
        except MalformedPacketError as error:
            # 3.1.1 does not ask for the shortest form, and there are devices that always write four bytes.
            if error.rule and self.version != V5:
                return self._read_long_length(data, position)
            raise

    @staticmethod
    def _read_long_length(data: bytes, position: int) -> tuple[int, int]:
        """As `_read_length`, of a length with zeros in front (which is known to end within four bytes)."""
        value = shift = 0
        for body in range(position + 1, position + 5):
            value |= (data[body] & 0x7F) << shift
            if data[body] < 0x80:
                return value, body + 1
            shift += 7
        raise AssertionError("the caller has seen the last byte of the length")

    def _check_size(self, packet_type: int, remaining: int, total: int) -> None:
        """Refuse a packet by its length alone, before a byte of it is kept."""
        if total > self._limit:
            raise ProtocolError(
                f"{PacketType(packet_type).name} of {total} bytes, where {self._limit} is the limit",
                ReasonCode.PACKET_TOO_LARGE,
                rule="5.0 [MQTT-3.2.2-15]",
                position=1,
            )
        fixed = _FIXED_LENGTHS.get(packet_type)
        if fixed is not None and remaining != fixed:
            if self.version == V5 and packet_type != PacketType.PINGREQ and remaining > fixed:
                return
            raise MalformedPacketError(
                f"{PacketType(packet_type).name} with a remaining length of {remaining}, not {fixed}", position=1
            )

    def _keep(self, rest: bytes, event_count: int) -> None:
        """Keep `rest`, which begins with a packet that was not looked at, or with an incomplete header."""
        if event_count >= self._max_events:
            self._backlog = rest
        else:
            self._hold(rest, len(rest) + 1)

    def _hold(self, rest: bytes, needed: int) -> None:
        """Keep `rest`, the beginning of a packet that can't be complete before there are `needed` bytes."""
        self._held = [rest]
        self._held_bytes = len(rest)
        self._needed_bytes = needed
        self._judged_bytes = 0
        self._judge(rest)

    def _judge(self, rest: bytes) -> None:
        """Raise MqttError if what is here of an incomplete packet is already wrong."""
        first = rest[0]
        try:
            header = Reader(rest, 1, 5)
            header.varint()
        except (NeedMoreData, MalformedPacketError):
            return  # `_parse` judges the header
        reader = Reader(rest, header.position, self._needed_bytes)
        try:
            if first >> 4 == PacketType.CONNECT:
                self._decode_connect(reader, first & 0x0F)
            elif first >> 4 == PacketType.PUBLISH and self._publishes is not None:
                self._publishes.judge(reader, first)
                self._judged_bytes = -1  # the payload is the client's own
                return
            else:
                decode_body(reader, first, self.version)
        except NeedMoreData:
            self._judged_bytes = len(rest)

    def _read_pubacks(self, data: bytes, position: int, events: list[Event]) -> int:
        packet_ids, end = read_puback_run(data, position)
        if packet_ids:
            events.append(PubackRun(packet_ids))
        if end == position or (end + 4 <= len(data) and data[end : end + 4] == b"\x40\x02\0\0"):
            raise ProtocolError("a PUBACK with packet id 0", rule=RULE_PACKET_ID, position=2)
        return end

    def _read_packet(self, packet: bytes, body: int, events: list[Event]) -> None:
        """Append the event of one whole packet that is neither PUBLISH nor a plain PUBACK."""
        first = packet[0]
        if first >> 4 == _PINGREQ and body == len(packet):  # one with a body goes the long way, and is refused there
            events.append(_PING)
            return
        reader = Reader(packet, body, len(packet))
        if first >> 4 == PacketType.CONNECT:
            events.append(self._read_connect(reader, first & 0x0F))
            return
        event = decode_body(reader, first, self.version)
        if isinstance(event, PubackPacket):
            events.append(PubackRun([event.packet_id], event.reason_code, event.properties))
            return
        if isinstance(event, DisconnectPacket):
            self._check_disconnect(event)
        elif isinstance(event, AuthPacket):
            self._check_auth(event)
        if first >> 4 in _MOVING:
            self._enter(PacketType(first >> 4))
        events.append(event)  # type: ignore[arg-type]

    def _read_connect(self, reader: Reader, flags: int) -> ConnectPacket:
        packet = self._decode_connect(reader, flags)
        self.version = packet.protocol_version
        self._limit = self._max_packet_bytes
        self._authentication_method = packet.properties.authentication_method
        self._session_expires_at_once = not packet.session_expiry_interval
        self._publishes = PublishReader(self.version, self._limit, self._topic_alias_maximum)
        with_method = self._authentication_method is not None
        self._enter(Signal.CONNECT_WITH_METHOD if with_method else PacketType.CONNECT)
        return packet

    def _decode_connect(self, reader: Reader, flags: int) -> ConnectPacket:
        level = read_level(reader, flags, self._versions)
        self._connect_version = level & 0x7F  # a fault further on is answered in the client's own version
        return ConnectPacket.decode(reader, level)

    def _check_disconnect(self, packet: DisconnectPacket) -> None:
        if self._session_expires_at_once and packet.properties.session_expiry_interval:
            # 3.14.2.2.2: a session that was to end with the connection can't be kept any more.
            raise ProtocolError("DISCONNECT with a session expiry interval after CONNECT with none", position=0)

    def _check_auth(self, packet: AuthPacket) -> None:
        if self._authentication_method is None:
            raise ProtocolError(
                "AUTH after a CONNECT without an authentication method", rule="5.0 [MQTT-4.12.0-7]", position=0
            )
        if packet.properties.authentication_method != self._authentication_method:
            raise ProtocolError(
                "AUTH with another authentication method than CONNECT", rule="5.0 [MQTT-4.12.1-1]", position=0
            )
