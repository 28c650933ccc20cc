"""Records read back from a log, encoded once for all readers of one kind.

Readers with the same filters at the same QoS get the same packets, packet ids aside: the session that comes back to a
million messages in windows of a thousand, and the thousand sessions that come back to the same thousand. So a slice of
a batch is looked at record by record once for each kind, and is then turned into packets by loops in C.

What has to be looked at for each reader is not shared: rights, properties of a message (expiry, No Local), subscription
identifiers, a limit on the packet's size. Such readers and slices go through `delivery.encode_records`.

Owner: the event loop.
"""

from __future__ import annotations

from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING, TypeAlias

from highway.mqtt import PACKET_IDS, V5

if TYPE_CHECKING:
    from collections.abc import Sequence

    from highway.broker.sessions.reader import Reader
    from highway.storage import Record, RecordBatch

__all__ = ["Kind", "Slice", "find_slice", "kind_of"]

# Records of one slice: a batch may have 65,536, and nobody may wait for all of them to be looked at.
SLICE_RECORDS = 2048
# Smaller batches, as the newest end of a log has them, are not worth the lists.
MIN_RECORDS = 16
# Kinds whose slices a batch keeps; the cache counts 32 bytes a record for each of them.
MAX_KINDS = 4

PUBLISH = 0x30
_NO_PROPERTIES = b"\0"

# Whether it is MQTT 5, and (topic filter, QoS) of the subscriptions.
Kind: TypeAlias = "tuple[bool, frozenset[tuple[bytes, int]]]"


class Slice:
    """What readers of one kind get of consecutive records. `end` is the index in the batch behind the last of them."""

    __slots__ = ("_heads", "_is_mqtt_5", "_payloads", "_sizes", "bytes_each", "end", "offsets", "qos")

    def __init__(self, end: int, *, is_mqtt_5: bool) -> None:
        self.end = end
        self.qos = 0  # of every message
        self.offsets: list[int] = []
        self.bytes_each = 1  # of a packet, on the average
        self._is_mqtt_5 = is_mqtt_5
        self._heads: list[bytes] = []
        self._payloads: list[bytes] = []
        self._sizes: list[int] = []  # of the payloads before each, and of all

    def encode(self, first: int, last: int, packet_ids: Sequence[int]) -> bytes:
        """The packets of the messages [first, last); `packet_ids` are as many, or none at QoS 0."""
        columns = [self._heads[first:last]]
        if self.qos:
            columns.append(
                PACKET_IDS[packet_ids.start : packet_ids.stop]
                if isinstance(packet_ids, range)
                else [PACKET_IDS[packet_id] for packet_id in packet_ids]
            )
        payloads = self._payloads[first:last]
        if self._is_mqtt_5:
            return b"".join(chain.from_iterable(zip(*columns, repeat(_NO_PROPERTIES), payloads, strict=False)))
        return b"".join(chain.from_iterable(zip(*columns, payloads, strict=True)))

    def payload_bytes(self, first: int, last: int) -> int:
        """The size of the payloads of the messages [first, last)."""
        return self._sizes[last] - self._sizes[first] if last > first else 0

    def fill(self, reader: Reader, records: Sequence[Record]) -> bool:
        """Take what of `records` is for a reader of this kind; False if it can't be shared."""
        plans, is_mqtt_5 = reader.plans, self._is_mqtt_5
        granted = -1
        last_name = None
        last_flags = -1
        heads = None
        for offset, flags, _, topic_name, properties, payload in records:
            if topic_name is not last_name or flags != last_flags:
                last_name, last_flags = topic_name, flags
                plan = plans.get(topic_name) or reader.make_plan(topic_name)
                if plan.qos < 0:
                    heads = None
                else:
                    qos = min(flags & 3, plan.qos)
                    if granted not in (-1, qos):
                        return False
                    granted = qos
                    heads = plan.heads(PUBLISH | qos << 1, (2 if qos else 0) + is_mqtt_5, topic_name)
            if heads is None:
                continue
            if properties:
                return False
            self.offsets.append(offset)
            self._heads.append(heads[len(payload)])
            self._payloads.append(payload)
        if self.offsets:
            self.qos = granted
            self._sizes = list(accumulate(map(len, self._payloads), initial=0))
            size = sum(map(len, self._heads)) + self._sizes[-1]
            self.bytes_each = size // len(self.offsets) + 4
        return True


def kind_of(reader: Reader) -> Kind | None:
    """The kind of a reader, worked out when its subscriptions or its connection change; None for one of its own."""
    session, subscriptions = reader.session, reader.subscriptions.values()
    if reader.addressed or reader.pace is not None or reader.options.with_offset or reader.since:
        return None
    if session.rights is not None or session.max_packet_bytes:
        return None
    if any(s.identifier or s.retain_as_published for s in subscriptions):
        return None
    return session.version == V5, frozenset((s.topic_filter, s.qos) for s in subscriptions)


def find_slice(batch: RecordBatch, reader: Reader, kind: Kind, start: int) -> Slice | None:
    """The slice of a batch that the record at index `start` is in; None where it can't be shared."""
    if batch.count < MIN_RECORDS or reader.notice or reader.session.topic_aliases:
        return None
    first = start - start % SLICE_RECORDS
    kept, key = batch.encodings, (kind, first)
    if key in kept:
        found: Slice | None = kept[key]
        return found
    if len(kept) >= MAX_KINDS * (batch.count // SLICE_RECORDS + 1):
        kept.clear()
    records = batch.records()
    made = Slice(min(first + SLICE_RECORDS, len(records)), is_mqtt_5=kind[0])
    shared = made if made.fill(reader, records[first : made.end]) else None
    kept[key] = shared
    return shared
