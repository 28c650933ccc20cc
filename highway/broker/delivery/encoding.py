"""From messages to the bytes that a subscriber reads: live runs, and records read back from the log.

A live run at QoS 0 is encoded once for each protocol version and the same bytes object goes to every subscriber; at
QoS 1 two bytes of packet id differ. Both are loops in C (`map`, `zip`, `join`), as is nothing that would run Python
code for each message. Records read back from a log are of mixed topics and are taken one by one.

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from highway.broker.delivery.publisher_mark import FLAG_PUBLISHER, split_publisher
from highway.broker.replay.options import user_property
from highway.mqtt import PACKET_IDS, V5, PropertyId, PublishHeads, encode_qos, encode_qos0, property_block
from highway.mqtt.wire import encode_varint
from highway.storage.segment.records import FLAG_RETAIN, MAX_TOPIC_BYTES

from . import message_expiry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from highway.broker.publishing.routing import Route, Target
    from highway.broker.sessions.reader import Reader, Subscription
    from highway.broker.sessions.session import Session
    from highway.broker.subscriptions.shared import Member
    from highway.storage import Record

    from .feed import LiveRun

__all__ = ["NOTHING", "PENDING", "Chunk", "Plan", "addressed_name", "deliver_live", "encode_records"]

PUBLISH = 0x30
_SUBSCRIPTION_IDENTIFIER = bytes((PropertyId.SUBSCRIPTION_IDENTIFIER,))
_TOPIC_ALIAS = bytes((PropertyId.TOPIC_ALIAS,))


class Plan:
    """How the messages of one topic go to one reader: one copy for all of its subscriptions that match.

    `qos` is the highest granted, -1 where nothing matches: 3.1.1 [MQTT-3.3.5-1], 5.0 [MQTT-3.3.4-2]. `identifiers` are
    the subscription identifiers of all of them as raw properties: 5.0 [MQTT-3.3.4-3], [MQTT-3.3.4-4]; a `$replay` has a
    reader, and so a copy with an identifier, of its own: 5.0 [MQTT-3.3.4-5]. `own` is the plan for what the session's
    own client published (No Local).
    """

    __slots__ = ("_heads", "identifiers", "own", "plain", "qos", "retain_as_published", "topic_name")

    def __init__(self, topic_name: bytes, subscriptions: Iterable[Subscription]) -> None:
        granted = list(subscriptions)
        self.topic_name = topic_name
        self.qos = max((s.qos for s in granted), default=-1)
        self.identifiers = b"".join(
            _SUBSCRIPTION_IDENTIFIER + encode_varint(s.identifier) for s in granted if s.identifier
        )
        self.retain_as_published = any(s.retain_as_published for s in granted)
        others = [s for s in granted if not s.no_local]
        self.own: Plan = self if len(others) == len(granted) else Plan(topic_name, others)
        self.plain: tuple[PublishHeads, ...] | None = None
        self._heads: dict[tuple[int, int, bytes], PublishHeads] = {}

    def plain_heads(self) -> tuple[PublishHeads, ...]:
        """Heads of the plain kind, by QoS: RETAIN 0, before MQTT 5. They are kept as `plain`."""
        name = self.topic_name
        self.plain = tuple(PublishHeads(PUBLISH | qos << 1, name, 2 if qos else 0) for qos in range(3))
        return self.plain

    def heads(self, first_byte: int, tail_length: int, topic_name: bytes) -> PublishHeads:
        """Fixed header and topic by payload length; `topic_name` is the plan's, or empty behind an alias."""
        key = (first_byte, tail_length, topic_name)
        heads = self._heads.get(key)
        if heads is None:
            if len(self._heads) > 16:  # property blocks of many lengths: none of them is worth keeping
                self._heads.clear()
            heads = self._heads[key] = PublishHeads(first_byte, topic_name, tail_length)
        return heads


def addressed_name(offset: int, topic_name: bytes) -> bytes:
    """The name under which a `$log` subscription gets a message: the address of the record."""
    return b"$log/%d/%b" % (offset, topic_name)


# Live.


def deliver_live(run: LiveRun, route: Route, target: Target) -> None:
    """Hand a run that just became visible to one LIVE cursor, or let it fall back to the log."""
    cursor = target.cursor
    if cursor is None or not cursor.live:
        return
    reader = target.reader
    session = reader.session
    if session is None or reader.pulls or reader.notice:
        # A shared subscription, where the group chooses a member, or a reader each of whose messages is looked at.
        cursor.fall_back(run.base_offset)
        return
    publisher = run.publisher
    # By the client id: the session of a SAFE message's publisher may be another one by now. 5.0 [MQTT-3.8.3-3]
    is_own = publisher is session or (publisher is not None and publisher.client_id == session.client_id)
    plan = target.plan.own if is_own else target.plan
    if plan.qos < 0:
        if plan is PENDING:
            cursor.fall_back(run.base_offset)
        return
    link = session.link
    qos = min(run.qos, plan.qos)  # 3.1.1 [MQTT-3.8.4-6], 5.0 [MQTT-3.8.4-8]
    count = len(run.payloads)
    if link is None or link.congested or session.corked or (qos and session.quota < count):
        cursor.fall_back(run.base_offset)
        return
    if run.qos > 1 and is_own:
        # The client waits for PUBREC: what it sent comes back to it in the turn behind that.
        cursor.fall_back(run.base_offset)
        return
    # The packet ids of QoS 2 are journaled before they are used, and sizes are looked at one by one: see Cursor.
    limit = session.max_packet_bytes
    if (qos > 1 and session.persistent) or (limit and run.may_exceed(limit - len(plan.identifiers))):
        cursor.fall_back(run.base_offset)
        return
    # DUP is 0, whatever it was on its way in: [MQTT-3.3.1-3], 3.1.1 [MQTT-4.3.2-1], [MQTT-4.3.3-1], 5.0 [MQTT-4.3.2-2],
    # [MQTT-4.3.3-2]. RETAIN is 0 but where the subscription asks for it as published: 3.1.1 [MQTT-3.3.1-9], 5.0
    # [MQTT-3.3.1-12], [MQTT-3.3.1-13].
    first_byte = PUBLISH | qos << 1 | (run.retain and plan.retain_as_published)
    if not qos:
        session.send(_qos0_wire(run, route, plan, session, first_byte), count, run.payload_bytes or run.measure())
        return
    packet_ids = session.inflight.free_ids(count)
    if len(packet_ids) < count:
        cursor.fall_back(run.base_offset)
        return
    session.inflight.take(packet_ids, cursor, range(run.base_offset, run.end_offset), qos)
    session.dirty = True
    topic_name, block = _live_names(run, plan, session)
    heads = plan.heads(first_byte, 2 + len(block), topic_name)
    data = encode_qos(heads, _id_bytes(packet_ids), run.payloads, block)
    session.send(data, count, run.payload_bytes or run.measure())


def _id_bytes(packet_ids: Sequence[int]) -> list[bytes]:
    if isinstance(packet_ids, range):
        return PACKET_IDS[packet_ids.start : packet_ids.stop]
    return [PACKET_IDS[packet_id] for packet_id in packet_ids]


def _live_names(run: LiveRun, plan: Plan, session: Session) -> tuple[bytes, bytes]:
    """(topic name to send, property block with its length) of a run; b"" for the block before MQTT 5.

    The publisher's properties go out as they came in: 5.0 [MQTT-3.3.2-4], [MQTT-3.3.2-15], [MQTT-3.3.2-16],
    [MQTT-3.3.2-17], [MQTT-3.3.2-20].
    """
    if session.version != V5:
        return run.topic_name, b""
    raw = plan.identifiers + run.properties
    if not session.topic_alias_maximum:  # 5.0 [MQTT-3.1.2-27]
        return run.topic_name, property_block(raw)
    alias, is_new = session.topic_alias(run.topic_name)
    if not alias:
        return run.topic_name, property_block(raw)
    raw = _TOPIC_ALIAS + alias.to_bytes(2, "big") + raw
    return run.topic_name if is_new else b"", property_block(raw)


def _qos0_wire(run: LiveRun, route: Route, plan: Plan, session: Session, first_byte: int) -> bytes:
    is_mqtt_5 = session.version == V5
    if plan.identifiers or (is_mqtt_5 and session.topic_alias_maximum):
        topic_name, block = _live_names(run, plan, session)
        heads = PublishHeads(first_byte, topic_name, 0, block)
        return encode_qos0(heads, run.payloads)
    key = (first_byte, is_mqtt_5)
    wires = run.wires
    if wires is None:
        wires = run.wires = {}
    wire = wires.get(key)
    if wire is None:
        if is_mqtt_5 and run.properties:
            heads = PublishHeads(first_byte, run.topic_name, 0, property_block(run.properties))
        else:
            heads = route.qos0_heads(first_byte, is_mqtt_5)
        wire = wires[key] = encode_qos0(heads, run.payloads)
    return wire


# From the log.


class Chunk:
    """Records on their way to one reader.

    `data` the packets; `count` how many; `payload_bytes` in them; `scanned` how many records were looked at; and of the
    messages with QoS 1 or 2, in the same order, `packet_ids`, `offsets` and `qos`.
    """

    __slots__ = ("count", "data", "offsets", "packet_ids", "payload_bytes", "qos", "scanned")

    def __init__(self) -> None:
        self.data = b""
        self.count = 0
        self.payload_bytes = 0
        self.scanned = 0
        self.packet_ids: Sequence[int] = ()
        self.offsets: list[int] = []
        self.qos: list[int] = []


def encode_records(  # noqa: PLR0915  one loop, in which a call would be one for each message
    reader: Reader, records: Sequence[Record], quota: int, budget: int
) -> Chunk:
    """Encode what `reader` is to get of `records`, in order, until the quota of packet ids or the budget is out."""
    chunk = Chunk()
    session, plans = reader.session, reader.plans
    ids = session.inflight.free_ids(min(quota, len(records))) if quota > 0 else ()
    id_bytes = _id_bytes(ids)
    is_plain = not reader.addressed and session.version != V5 and not session.max_packet_bytes
    now_ms = session.broker.clock.now_ms()
    offsets, granted = chunk.offsets, chunk.qos
    pieces: list[bytes] = []
    append = pieces.append
    sent = 0
    for record in records:
        offset, flags, _, topic_name, properties, payload = record
        plan = plans.get(topic_name)
        if plan is None:
            plan = reader.make_plan(topic_name)
            if plan is PENDING:
                break
        if properties:
            limit = plan.qos
            plan, properties = _look_at_properties(record, plan, session, now_ms)
            if plan is NOTHING and flags & 3 and limit > 0 and not offsets and ids:
                # What expired takes a packet id with it, as in mosquitto, which gives ids when a message is queued.
                session.inflight.pass_over(ids[0])
                ids = session.inflight.free_ids(len(ids))
                id_bytes = _id_bytes(ids)
        limit = plan.qos
        if limit >= 0 and (not reader.since or reader.wants(topic_name, offset)):
            qos = flags & 3
            qos = min(qos, limit)
            used = len(offsets)
            if qos and used == len(id_bytes):
                break
            if is_plain and not plan.retain_as_published:
                size = len(payload)
                append((plan.plain or plan.plain_heads())[qos][size])
                if qos:
                    append(id_bytes[used])
                append(payload)
                budget -= size + len(topic_name) + 8
                sent += size
                chunk.count += 1
            elif packet := encode_packet(reader, plan, record, properties, qos, id_bytes[used] if qos else b""):
                append(packet)
                budget -= len(packet)
                sent += len(payload)
                chunk.count += 1
            else:
                qos = 0  # too large for this client: passed over as if it had been sent, 5.0 [MQTT-3.1.2-25]
            if qos:
                offsets.append(offset)
                granted.append(qos)
        chunk.scanned += 1
        if budget <= 0:
            break
    chunk.data = b"".join(pieces)
    chunk.payload_bytes = sent
    chunk.packet_ids = ids[: len(offsets)]
    return chunk


def _look_at_properties(record: Record, plan: Plan, session: Session, now_ms: int) -> tuple[Plan, bytes]:
    """(plan, property block as it is to be sent) of a record that has properties: who sent it, and whether it lives."""
    properties = record[4]
    if record[1] & FLAG_PUBLISHER:
        publisher, properties = split_publisher(properties)
        if publisher == session.client_id:
            plan = plan.own
    left = message_expiry.remaining(properties, record[2], now_ms)
    return (NOTHING, b"") if left is None else (plan, left)


def encode_packet(
    reader: Reader | Member, plan: Plan, record: Record, properties: bytes, qos: int, id_bytes: bytes
) -> bytes:
    """One PUBLISH that is not of the plain kind; b"" where it exceeds what the client takes. 5.0 [MQTT-3.1.2-24]"""
    session = reader.session
    offset, flags, stored_ms, topic_name, _, payload = record
    if reader.addressed:
        topic_name = addressed_name(offset, topic_name)
        if len(topic_name) > MAX_TOPIC_BYTES:
            session.broker.counters.dropped_too_large += 1
            return b""  # with its address in front it is longer than MQTT can say
    # 3.1.1 [MQTT-3.3.1-9]; 5.0 [MQTT-3.3.1-12], [MQTT-3.3.1-13]
    retain = plan.retain_as_published and bool(flags & FLAG_RETAIN)
    middle = id_bytes
    limit = session.max_packet_bytes
    if session.version == V5:
        raw = plan.identifiers + properties
        if reader.options.with_offset:
            raw += user_property("offset", str(offset)) + user_property("timestamp", str(stored_ms))
        alias = session.topic_aliases.get(topic_name)
        if alias is not None:
            # Only one that the client was told: what is encoded here may leave later than something live.
            raw = _TOPIC_ALIAS + alias.to_bytes(2, "big") + raw
            topic_name = b""
        if reader.notice:
            rest, length = len(topic_name) + len(id_bytes) + len(payload), len(raw)
            if not limit or _packet_bytes(rest, length) <= limit:
                raw += reader.notice.take(
                    session, lambda told: not limit or _packet_bytes(rest, length + told) <= limit
                )
                reader.notice = reader.notice or None
        middle += property_block(raw)
    head = PublishHeads(PUBLISH | qos << 1 | retain, topic_name, len(middle))[len(payload)]
    if limit and len(head) + len(middle) + len(payload) > limit:
        session.broker.counters.dropped_too_large += 1
        return b""
    return b"".join((head, middle, payload))


def _packet_bytes(rest: int, properties: int) -> int:
    """The size of an MQTT 5 PUBLISH: `rest` is the length of topic, packet id and payload together."""
    remaining = 2 + rest + len(encode_varint(properties)) + properties
    return 1 + len(encode_varint(remaining)) + remaining


NOTHING = Plan(b"", ())
# It isn't known yet whether a reader may have the messages of a topic: they wait in the log.
PENDING = Plan(b"", ())
