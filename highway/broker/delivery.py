"""From messages to the bytes that a subscriber reads: live runs, and records read back from the log.

A live run at QoS 0 is encoded once for each protocol version and the same bytes object goes to every subscriber; at
QoS 1 two bytes of packet id differ. Both are loops in C (`map`, `zip`, `join`), as is nothing that would run Python
code for each message. Records read back from a log are of mixed topics and are taken one by one.

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from highway.mqtt import PACKET_IDS, PublishHeads, encode_qos, encode_qos0
from highway.mqtt.properties import property_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from highway.storage import Record

    from .feed import LiveRun
    from .routing import Route, Target
    from .session import Reader

__all__ = ["Chunk", "Plan", "addressed_name", "deliver_live", "encode_records"]

MQTT_5 = 5


class Plan:
    """How messages of one topic go to one reader: the granted QoS (-1: not at all), and the bytes around them."""

    __slots__ = ("heads", "qos", "topic_name")

    def __init__(self, topic_name: bytes, qos: int) -> None:
        self.topic_name = topic_name
        self.qos = qos
        self.heads = (
            PublishHeads(0x30, topic_name, 0),
            PublishHeads(0x32, topic_name, 2),
            PublishHeads(0x34, topic_name, 2),
        )


def addressed_name(offset: int, topic_name: bytes) -> bytes:
    """The name under which a `$log` subscription gets a message: the address of the record."""
    return b"$log/%d/%b" % (offset, topic_name)


def deliver_live(run: LiveRun, route: Route, target: Target) -> None:
    """Hand a run that just became visible to one LIVE cursor, or let it fall back to the log."""
    cursor = target.cursor
    if cursor is None or not cursor.live:
        return
    session = cursor.reader.session
    link = session.link
    qos = min(run.qos, target.qos)
    count = len(run.payloads)
    if link is None or link.congested or cursor.reader.addressed or (qos and session.quota < count):
        cursor.fall_back(run.base_offset)
        return
    if not qos:
        session.send(_shared_wire(run, route, session.version), count)
        return
    if qos > 1 and session.persistent:
        cursor.fall_back(run.base_offset)  # its packet ids are journaled before they are used: see Cursor
        return
    packet_ids = session.inflight.free_ids(count)
    if len(packet_ids) < count:
        cursor.fall_back(run.base_offset)
        return
    session.inflight.take(packet_ids, cursor, range(run.base_offset, run.end_offset), qos)
    session.dirty = True
    heads = route.publish_heads(0x30 | qos << 1, 2)
    session.send(encode_qos(heads, _id_bytes(packet_ids), _tails(run, session.version)), count)


def _id_bytes(packet_ids: Sequence[int]) -> list[bytes]:
    if isinstance(packet_ids, range):
        return PACKET_IDS[packet_ids.start : packet_ids.stop]
    return [PACKET_IDS[packet_id] for packet_id in packet_ids]


def _tails(run: LiveRun, version: int) -> list[bytes]:
    """What follows topic and packet id: the payloads, in MQTT 5 behind their properties."""
    if version != MQTT_5:
        return run.payloads
    block = property_block(run.properties)
    return [block + payload for payload in run.payloads]


def _shared_wire(run: LiveRun, route: Route, version: int) -> bytes:
    key = version == MQTT_5
    wire = run.wires.get(key)
    if wire is None:
        wire = run.wires[key] = encode_qos0(route.publish_heads(0x30, 0), _tails(run, version))
    return wire


class Chunk:
    """Records on their way to one reader.

    `data` the packets; `count` how many; `scanned` how many records were looked at; and of the messages with QoS 1
    or 2, in the same order, `packet_ids`, `offsets` and `qos`.
    """

    __slots__ = ("count", "data", "offsets", "packet_ids", "qos", "scanned")

    def __init__(self) -> None:
        self.data = b""
        self.count = 0
        self.scanned = 0
        self.packet_ids: Sequence[int] = ()
        self.offsets: list[int] = []
        self.qos: list[int] = []


def encode_records(reader: Reader, records: Sequence[Record], quota: int, budget: int) -> Chunk:
    """Encode what `reader` is to get of `records`, in order, until the quota of packet ids or the byte budget is out."""
    chunk = Chunk()
    session = reader.session
    plans, is_mqtt_5 = reader.plans, session.version == MQTT_5
    ids = session.inflight.free_ids(min(quota, len(records))) if quota > 0 else ()
    id_bytes = _id_bytes(ids)
    offsets, granted = chunk.offsets, chunk.qos
    pieces: list[bytes] = []
    append = pieces.append
    for offset, flags, _, topic_name, properties, payload in records:
        plan = plans.get(topic_name)
        if plan is None:
            plan = reader.make_plan(topic_name)
        limit = plan.qos
        if limit >= 0 and (not reader.since or reader.wants(topic_name, offset)):
            qos = flags & 3
            if qos > limit:  # noqa: PLR1730  min() is a call for each message
                qos = limit
            tail = property_block(properties) + payload if is_mqtt_5 else payload
            heads = plan.heads if not reader.addressed else Plan(addressed_name(offset, topic_name), 0).heads
            if qos:
                if len(offsets) == len(id_bytes):
                    break
                append(heads[qos][len(tail)])
                append(id_bytes[len(offsets)])
                offsets.append(offset)
                granted.append(qos)
            else:
                append(heads[0][len(tail)])
            append(tail)
            chunk.count += 1
            budget -= len(payload) + len(topic_name) + 8
        chunk.scanned += 1
        if budget <= 0:
            break
    chunk.data = b"".join(pieces)
    chunk.packet_ids = ids[: len(offsets)]
    return chunk
