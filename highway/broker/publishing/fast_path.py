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
    from highway.broker.connections.client import Client
    from highway.broker.publishing.routing import Route
    from highway.mqtt import PublishRun

__all__ = ["FastPath"]

# Heads that are remembered of one client: a device has one topic, or a few, and some lengths.
MAX_HEADS = 64

_ZERO_ID = b"\0\0"


class _Known(NamedTuple):
    """What begins with the same bytes: the whole size, where its payload stands, where it goes, and what it is answered."""

    size: int
    payload_at: int
    route: Route
    qos: int
    ack: bytes  # before the packet id
    reason: bytes  # behind it


class FastPath:
    """What is known of the messages of one client."""

    __slots__ = ("_client", "_heads", "_length", "_rights")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._heads: dict[bytes, _Known] = {}
        self._length = 0  # of the heads: they are all of one length, which the first decides
        self._rights = client.session.rights if client.session is not None else None

    def take(self, data: bytes) -> bool:
        """Gather the message that `data` is; False where it is anything else, and then nothing was done."""
        client, length = self._client, self._length
        found = self._heads.get(data[:length])
        if found is None or len(data) != found.size or not client.takes_fast(self._rights):
            return False
        _, payload_at, route, qos, ack, reason = found
        broker, feed = client.broker, route.feed
        if feed is None or broker.router.route(route.topic_name) is not route:
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

    def learn(self, run: PublishRun) -> None:
        """Know the next message by `run`, which came alone and was taken."""
        client, session = self._client, self._client.session
        if not run.head or run.qos > 1 or run.retain or session is None or session.ack_offsets:
            return
        route = client.broker.router.route(run.topic_name)
        if route.feed is None or route.exceeds or route.may_have_no_local:
            return
        rights, known = session.rights, self._heads.get(run.head)
        if rights is not None and rights.has_judge:
            return
        if known is not None and known.route is route and rights is self._rights:
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
            route,
            run.qos,
            b"\x40\x03" if has_reason else b"\x40\x02",
            bytes((ReasonCode.NO_MATCHING_SUBSCRIBERS,)) if has_reason else b"",
        )
