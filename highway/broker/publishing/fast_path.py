"""The short way of a message that comes alone in its chunk: what most devices send, and nothing else, all their lives.

Whatever stands before the packet id of a PUBLISH decides what becomes of it: flags, length and topic. So what was worked
out for one message holds for all that begin with the same bytes, for as long as neither routes nor rights change: it
is found by one look-up, and one more message is gathered for its log. What isn't known, or is special in any way, is left
alone and goes the way of everything else, which teaches this one.

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from highway.mqtt import V5, ReasonCode

if TYPE_CHECKING:
    from highway.broker.authorisation import Rights
    from highway.broker.connections.client import Client
    from highway.mqtt import PublishRun

__all__ = ["FastPath"]

# Heads that are remembered of one client: a device has one topic, or a few, and some lengths. 5 KB at most.
MAX_HEADS = 16

_ZERO_ID = b"\0\0"


class _Known(NamedTuple):
    """What begins with the same bytes: its whole size, where its payload stands, where it goes, what it is answered."""

    size: int
    payload_at: int
    topic_name: bytes
    route: int  # the number of the route: the route itself would outlive the router's table, with all that it leads to
    qos: int
    ack: bytes  # before the packet id
    reason: bytes  # behind it


class FastPath:
    """What is known of the messages of one client."""

    __slots__ = ("_heads", "_length", "_rights")

    def __init__(self) -> None:
        self._heads: dict[bytes, _Known] = {}
        self._length = 0  # of the heads: they are all of one length, which the last that was learned decides
        self._rights: Rights | None = None  # with which they were learned

    def take(self, client: Client, data: bytes) -> bool:
        """Gather the message that `data` is; False where it is anything else, and then nothing was done."""
        length = self._length
        found = self._heads.get(data[:length])
        if found is None or len(data) != found.size or not client.takes_fast(self._rights):
            return False
        _, payload_at, topic_name, number, qos, ack, reason = found
        broker = client.broker
        route = broker.router.route(topic_name)
        feed = route.feed
        if feed is None or route.number != number:
            return False
        packet_id = b""
        if qos:
            packet_id = data[length : length + 2]
            if packet_id == _ZERO_ID or (payload_at > length + 2 and data[payload_at - 1]):
                return False  # against the rules, or with properties
        payload = data[payload_at:]
        if not broker.gathering.add(route, feed, qos, [payload], len(payload)):
            return False
        counters = broker.counters
        counters.messages_received += 1
        counters.publish_received += 1
        counters.publish_bytes_received += len(payload)
        if qos:
            client.acknowledge(ack + packet_id + reason, feed.log.settings.durability)
        return True

    def learn(self, client: Client, run: PublishRun) -> None:
        """Know the next message by `run`, which came alone and was taken."""
        session = client.session
        if not run.head or run.qos > 1 or run.retain or session is None or session.ack_offsets:
            return
        route = client.broker.router.route(run.topic_name)
        if route.feed is None or route.exceeds or route.may_have_no_local:
            return
        rights, known = session.rights, self._heads.get(run.head)
        if rights is not None and rights.has_judge:
            return
        if known is not None and known.route == route.number and rights is self._rights:
            return  # and still it came this way, as everything does while clients are metered
        if len(run.head) != self._length or rights is not self._rights or len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        is_mqtt_5 = client.version == V5
        self._length, self._rights = len(run.head), rights
        payload_at = len(run.head) + (2 + is_mqtt_5 if run.qos else 0)
        has_reason = is_mqtt_5 and not route.has_subscribers
        self._heads[run.head] = _Known(
            payload_at + len(run.payloads[0]),
            payload_at,
            route.topic_name,
            route.number,
            run.qos,
            b"\x40\x03" if has_reason else b"\x40\x02",
            bytes((ReasonCode.NO_MATCHING_SUBSCRIBERS,)) if has_reason else b"",
        )
