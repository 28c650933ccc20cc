"""PUBLISH (section 3.3), by the run: the hot path of the broker.

A client that publishes sends the same topic with the same flags again and again. `PublishReader` checks the first
PUBLISH of such a run in full and takes the ones that follow with a few slices each, for as long as first byte, topic
and property block are the same bytes: what was valid once is valid again. A run never goes beyond the chunk of bytes
that it was read from.

`PublishHeads`, `encode_qos0` and `encode_qos` are the way back: a run of payloads becomes one `bytes` through joins.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import TYPE_CHECKING, NamedTuple

from highway.errors import MalformedPacketError, MqttError, ProtocolError
from highway.mqtt.acks import PACKET_IDS, RULE_PACKET_ID, read_packet_id
from highway.mqtt.properties import Properties, PropertyId, decode_properties, encode_properties, property_block
from highway.mqtt.reason_codes import V5, PacketType, ReasonCode
from highway.mqtt.topics import validate_topic_name
from highway.mqtt.wire import Reader, encode_binary, encode_varint

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "PublishHeads",
    "PublishReader",
    "PublishRun",
    "encode_publish",
    "encode_qos",
    "encode_qos0",
    "publish_first_byte",
    "publish_properties",
    "topic_alias_block",
]

_ZERO_ID = b"\0\0"
_BEYOND = 1 << 62
# Runs of which a connection remembers the sizes of packets, and sizes in each: a device has a few topics and lengths.
_MAX_RUNS = 16
_MAX_SIZES = 512

# Topic names found valid, and raw property blocks with what was found in them. They hold results of pure functions, so
# they may be emptied at any time, and are when they reach their limit. With the limits on the size of an entry they take
# 45 MB and 6 MB at most, whatever clients send; real devices publish to the same names for years, and a fleet has 100,000.
_MAX_TOPICS = 131_072
_MAX_REMEMBERED = 16_384
_MAX_REMEMBERED_BYTES = 256
_known_topics: set[bytes] = set()
_known_properties: dict[bytes, tuple[int, bytes]] = {b"": (0, b"")}


class PublishRun:
    """Consecutive PUBLISH packets of one chunk with the same first byte, topic and properties.

    `packet_ids` holds the two bytes of each id and is empty for QoS 0. `properties` is the raw block without its length
    and without the topic alias, which belongs to the connection and not to the message (5.0 [MQTT-3.3.2-7]); in
    `topic_name` the alias is already resolved. `head` is set for a message that came alone in its chunk, complete and
    without properties: all bytes before its packet id, at QoS 0 before its payload.
    """

    __slots__ = ("dup", "head", "packet_ids", "payload_bytes", "payloads", "properties", "qos", "retain", "topic_name")

    def __init__(
        self,
        topic_name: bytes,
        first_byte: int,
        payloads: list[bytes],
        packet_ids: list[bytes],
        properties: bytes = b"",
        payload_bytes: int = 0,
        head: bytes = b"",
    ) -> None:
        self.topic_name = topic_name
        self.qos = first_byte >> 1 & 3
        self.retain = bool(first_byte & 1)
        self.dup = bool(first_byte & 8)
        self.payloads = payloads
        self.packet_ids = packet_ids
        self.properties = properties
        self.payload_bytes = payload_bytes  # as they came on the wire; 0 for what was not read from it
        self.head = head

    def __repr__(self) -> str:
        return (
            f"PublishRun(topic_name={self.topic_name!r}, qos={self.qos}, retain={self.retain}, dup={self.dup},"
            f" payloads={len(self.payloads)}, properties={self.properties!r})"
        )


def publish_first_byte(qos: int, *, retain: bool = False, dup: bool = False) -> int:
    """The first byte of a PUBLISH. DUP is for QoS above 0 only: [MQTT-3.3.1-2], [MQTT-4.3.1-1]."""
    return PacketType.PUBLISH << 4 | (dup and qos > 0) << 3 | qos << 1 | retain


def publish_properties(raw: bytes) -> Properties:
    """The properties of a run, read from its raw block."""
    return decode_properties(raw, PacketType.PUBLISH)


def _check_topic(topic_name: bytes, position: int) -> None:
    """Check a topic name not met before, and remember it."""
    try:
        validate_topic_name(topic_name)
    except MqttError as error:
        error.position = position
        raise
    if len(topic_name) <= _MAX_REMEMBERED_BYTES:
        if len(_known_topics) >= _MAX_TOPICS:
            _known_topics.clear()
        _known_topics.add(topic_name)


def _check_properties(raw: bytes, position: int) -> tuple[int, bytes]:
    """The topic alias in a raw block (0 for none) and the block without it, for a block not met before."""
    try:
        properties = publish_properties(raw)
    except MqttError as error:
        error.position = None if error.position is None else error.position + position
        raise
    if properties.subscription_identifiers:
        raise ProtocolError(
            "a subscription identifier in a client's PUBLISH", rule="5.0 [MQTT-3.3.4-6]", position=position
        )
    alias = properties.topic_alias or 0
    if alias:
        properties.topic_alias = None
        found = alias, encode_properties(properties, PacketType.PUBLISH)
    else:
        found = 0, raw
    if len(raw) <= _MAX_REMEMBERED_BYTES:
        if len(_known_properties) >= _MAX_REMEMBERED:
            _known_properties.clear()
            _known_properties[b""] = (0, b"")
        _known_properties[raw] = found
    return found


class PublishReader:
    """Reads the PUBLISH packets of one connection; keeps the topic aliases that its client set."""

    __slots__ = ("_aliases", "_has_properties", "_max_packet_bytes", "_sizes", "_topic_alias_maximum")

    def __init__(self, version: int, max_packet_bytes: int, topic_alias_maximum: int) -> None:
        self._has_properties = version == V5
        self._max_packet_bytes = max_packet_bytes
        self._topic_alias_maximum = topic_alias_maximum
        self._aliases: dict[int, bytes] = {}
        self._sizes: dict[tuple[int, bytes, int], dict[bytes, int]] = {}

    def _sizes_of(self, first: int, key: bytes, key_at: int) -> dict[bytes, int]:
        """The sizes known of packets of one run: everything up to the packet id or payload, to the whole size."""
        sizes = self._sizes.get((first, key, key_at))
        if sizes is None:
            if len(self._sizes) >= _MAX_RUNS:
                self._sizes.clear()
            sizes = self._sizes[first, key, key_at] = {}
        elif len(sizes) >= _MAX_SIZES:
            sizes.clear()
        return sizes

    def read_run(self, data: bytes, start: int, body: int, end: int, events: list[object]) -> int:
        """Append the run that begins at `start` to `events`; return the position after its last packet.

        The first packet's body is data[body:end], all of it here, and its first byte is legal. On bad input what came
        before it is in `events`, and MqttError is raised.
        """
        first = data[start]
        topic_end = body + 2
        if topic_end <= end:
            topic_end += data[body] << 8 | data[body + 1]
        if topic_end > end:
            raise MalformedPacketError("the topic name goes beyond the packet", position=body - start)
        topic_name = data[body + 2 : topic_end]  # the first field: [MQTT-3.3.2-1]
        if topic_name and topic_name not in _known_topics:
            _check_topic(topic_name, body + 2 - start)
        place = topic_end
        packet_ids: list[bytes] = []
        if first & 6:
            place += 2
            if place > end:
                raise MalformedPacketError("no room for the packet id", position=topic_end - start)
            packet_ids.append(data[topic_end:place])
        properties = tail = b""
        if self._has_properties:
            payload_start, alias, properties = self._read_properties(data, start, place, end)
            tail = data[place:payload_start]
            place = payload_start
            if alias or not topic_name:
                topic_name = self._resolve(alias, topic_name, body - start)
        elif not topic_name:
            raise ProtocolError("an empty topic name", rule="[MQTT-4.7.3-1]", position=body - start)
        payloads = [data[place:end]]
        # At QoS 0 the property block, if any, is part of what followers must have in common up to the payload.
        head_end = topic_end if first & 6 else topic_end + len(tail)
        key = data[body:head_end]
        key_at = body - start
        # Most devices send one message at a time, and a long topic is not worth the memory: nothing to remember then. One
        # behind an alias is stored with each message: a run of them, 8 bytes each as they come, would ask for gigabytes.
        is_short = head_end - start <= _MAX_REMEMBERED_BYTES >= len(topic_name)
        is_alone = is_short and not start and end == len(data) and len(tail) < 2
        if is_short and data.startswith(key, end + key_at):
            sizes = self._sizes_of(first, key, key_at)
            sizes[data[start:head_end]] = end - start
            follower = _Follower(first, key, key_at, self._max_packet_bytes, sizes)
            if not first & 6:
                end = _follow_qos0(data, end, follower, payloads)
            elif tail:
                end = _follow_with_properties(data, end, follower, tail, packet_ids, payloads)
            else:
                end = _follow(data, end, follower, packet_ids, payloads)
        if _ZERO_ID in packet_ids:
            self._refuse_zero_id(topic_name, first, payloads, packet_ids, properties, topic_end - start, events)
        # All before the payload is of the same length in each packet, the remaining length included.
        payload_bytes = end - start - len(payloads) * (place - start)
        head = data[:head_end] if is_alone else b""
        events.append(PublishRun(topic_name, first, payloads, packet_ids, properties, payload_bytes, head))
        return end

    def judge(self, reader: Reader, first: int) -> None:
        """Check the head of a PUBLISH that is here only in part; NeedMoreData when even the head is not complete."""
        position = reader.position
        topic_name = reader.binary()
        if topic_name and topic_name not in _known_topics:
            _check_topic(topic_name, position + 2)
        elif not topic_name and not self._has_properties:
            raise ProtocolError("an empty topic name", rule="[MQTT-4.7.3-1]", position=position)
        if first & 6:
            read_packet_id(reader)
        if self._has_properties:
            block = reader.block(reader.varint())
            position = block.position
            raw = block.rest()
            if raw not in _known_properties:
                _check_properties(raw, position)

    def _read_properties(self, data: bytes, start: int, place: int, end: int) -> tuple[int, int, bytes]:
        """(start of the payload, topic alias, block to pass on) of the property block at `place`."""
        if place < end and data[place] == 0:
            return place + 1, 0, b""
        # A slice, because positions in errors count from the packet's start.
        reader = Reader(data[start:end], place - start, end - start)
        block = reader.block(reader.varint())
        position = block.position
        raw = block.rest()
        found = _known_properties.get(raw)
        alias, properties = _check_properties(raw, position) if found is None else found
        return start + block.end, alias, properties

    def _resolve(self, alias: int, topic_name: bytes, position: int) -> bytes:
        """The topic name that `alias` and `topic_name` together mean; remembers a new mapping."""
        if not alias:
            raise ProtocolError(
                "an empty topic name without a topic alias", rule="5.0 [MQTT-4.7.3-1]", position=position
            )
        if alias > self._topic_alias_maximum:
            raise ProtocolError(
                f"topic alias {alias}, where {self._topic_alias_maximum} is the maximum",
                ReasonCode.TOPIC_ALIAS_INVALID,
                rule="5.0 [MQTT-3.3.2-9], 5.0 [MQTT-3.2.2-17], 5.0 [MQTT-3.2.2-18]",
                position=position,
            )
        if topic_name:
            self._aliases[alias] = topic_name  # every alias up to the maximum is accepted: 5.0 [MQTT-3.3.2-12]
            return topic_name
        if alias not in self._aliases:
            raise ProtocolError(f"topic alias {alias} was never set", position=position)
        return self._aliases[alias]

    def _refuse_zero_id(
        self,
        topic_name: bytes,
        first: int,
        payloads: list[bytes],
        packet_ids: list[bytes],
        properties: bytes,
        position: int,
        events: list[object],
    ) -> None:
        """Hand on what came before the packet id 0, and raise."""
        count = packet_ids.index(_ZERO_ID)
        if count:
            events.append(PublishRun(topic_name, first, payloads[:count], packet_ids[:count], properties))
        raise ProtocolError("a PUBLISH with packet id 0", rule=RULE_PACKET_ID, position=position)


class _Follower(NamedTuple):
    """What a packet must look like to belong to a run, and what is known of the sizes of such packets."""

    first: int
    key: bytes  # length of the topic name, topic name, and at QoS 0 the property block
    key_at: int  # 2 to 5: where the remaining length ends
    max_packet_bytes: int
    sizes: dict[bytes, int]

    def learn(self, data: bytes, position: int) -> bool:
        """Whether the packet at `position` belongs to the run, its size not met before; it is known from now on."""
        key_end = position + self.key_at + len(self.key)
        if len(data) < key_end or data[position] != self.first or not data.startswith(self.key, position + self.key_at):
            return False
        remaining = shift = 0
        for index in range(position + 1, position + self.key_at):
            remaining |= (data[index] & 0x7F) << shift
            shift += 7
        last = data[position + self.key_at - 1]
        # One byte of length less or more than the packet before makes another run; so does one that could be shorter.
        if any(data[index] < 0x80 for index in range(position + 1, position + self.key_at - 1)) or last > 0x7F:
            return False
        needed = len(self.key) + (2 if self.first & 6 else 0)
        size = self.key_at + remaining
        if (not last and self.key_at > 2) or remaining < needed or size > self.max_packet_bytes:
            return False
        if len(self.sizes) >= _MAX_SIZES:
            self.sizes.clear()
        self.sizes[data[position:key_end]] = size
        return True


# The three loops below differ in what stands between topic and payload. They are the innermost loops of ingest: what
# a packet costs here is one look-up, of everything in front of its packet id, and two slices. `_BEYOND` is the size of
# a packet that is not known, so that one comparison finds both that and the end of the data.


def _follow_qos0(data: bytes, position: int, follower: _Follower, payloads: list[bytes]) -> int:
    """Take the packets after `position` that belong to the run; QoS 0."""
    size = len(data)
    head_length = follower.key_at + len(follower.key)
    find = follower.sizes.get
    add = payloads.append
    while True:
        body = position + head_length
        end = position + find(data[position:body], _BEYOND)
        if end > size:
            if end < _BEYOND or not follower.learn(data, position):
                return position
            continue
        add(data[body:end])
        position = end


def _follow(data: bytes, position: int, follower: _Follower, packet_ids: list[bytes], payloads: list[bytes]) -> int:
    """Take the packets after `position` that belong to the run; QoS 1 and 2 before 5.0."""
    size = len(data)
    head_length = follower.key_at + len(follower.key)
    find = follower.sizes.get
    add_id = packet_ids.append
    add = payloads.append
    while True:
        body = position + head_length
        end = position + find(data[position:body], _BEYOND)
        if end > size:
            if end < _BEYOND or not follower.learn(data, position):
                return position
            continue
        add_id(data[body : body + 2])
        add(data[body + 2 : end])
        position = end


def _follow_with_properties(
    data: bytes, position: int, follower: _Follower, tail: bytes, packet_ids: list[bytes], payloads: list[bytes]
) -> int:
    """Take the packets after `position` that belong to the run and have the property block `tail`; QoS 1 and 2."""
    size = len(data)
    head_length = follower.key_at + len(follower.key)
    tail_length = 2 + len(tail)
    find = follower.sizes.get
    add_id = packet_ids.append
    add = payloads.append
    starts_with = data.startswith
    while True:
        body = position + head_length
        end = position + find(data[position:body], _BEYOND)
        if end > size:
            if end < _BEYOND or not follower.learn(data, position):
                return position
            continue
        if end - body < tail_length or not starts_with(tail, body + 2):
            return position
        add_id(data[body : body + 2])
        add(data[body + tail_length : end])
        position = end


class PublishHeads(dict[int, bytes]):
    """Payload length to what stands before it: first byte, remaining length, topic name and `suffix`.

    `suffix` is whatever follows the topic in every packet alike (the property block, at QoS 0); `tail_length` counts
    the bytes that the caller puts between head and payload (packet id, and the property block behind it).
    """

    __slots__ = ("_after", "_before", "_fixed_length")

    # Sizes remembered for one topic before all are forgotten: a device has a few, a broker has many devices. A head is
    # rebuilt in under a microsecond.
    MAX_SIZES = 64

    def __init__(self, first_byte: int, topic_name: bytes, tail_length: int = 0, suffix: bytes = b"") -> None:
        super().__init__()
        self._before = bytes((first_byte,))
        self._after = encode_binary(topic_name) + suffix
        self._fixed_length = len(self._after) + tail_length

    def __missing__(self, payload_length: int) -> bytes:
        if len(self) >= self.MAX_SIZES:
            self.clear()
        head = self._before + encode_varint(self._fixed_length + payload_length) + self._after
        self[payload_length] = head
        return head


def encode_qos0(heads: PublishHeads, payloads: Sequence[bytes]) -> bytes:
    """One QoS 0 PUBLISH for each payload. In 5.0 `heads` has the property block as its suffix."""
    return b"".join(chain.from_iterable(zip(map(heads.__getitem__, map(len, payloads)), payloads, strict=True)))


def encode_qos(
    heads: PublishHeads, packet_ids: Iterable[bytes], payloads: Sequence[bytes], block: bytes = b""
) -> bytes:
    """One QoS 1 or 2 PUBLISH for each payload, under the two-byte id at the same place in `packet_ids`.

    `block` is 5.0's property block with its length. `heads` has a tail length of 2 plus that of `block`.
    """
    found = map(heads.__getitem__, map(len, payloads))
    if block:
        return b"".join(chain.from_iterable(zip(found, packet_ids, repeat(block), payloads, strict=False)))
    return b"".join(chain.from_iterable(zip(found, packet_ids, payloads, strict=True)))


def encode_publish(
    version: int,
    topic_name: bytes,
    payload: bytes,
    *,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int = 0,
    properties: bytes = b"",
) -> bytes:
    """A single PUBLISH for a peer of `version`; `properties` is a raw block, which only 5.0 is sent.

    QoS 0 carries no packet id: 3.1.1 [MQTT-2.3.1-5], 5.0 [MQTT-2.2.1-2].
    """
    middle = PACKET_IDS[packet_id] if qos else b""
    if version == V5:
        middle += property_block(properties)
    heads = PublishHeads(publish_first_byte(qos, retain=retain, dup=dup), topic_name, len(middle))
    return heads[len(payload)] + middle + payload


def topic_alias_block(alias: int, properties: bytes = b"") -> bytes:
    """A property block with its length that sets or uses `alias`, before the raw `properties`."""
    return property_block(bytes((PropertyId.TOPIC_ALIAS,)) + alias.to_bytes(2, "big") + properties)
