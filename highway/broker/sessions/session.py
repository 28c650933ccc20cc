"""A session: what a client subscribed to, where it stands in every log, and what it has not acknowledged.

It outlives the network connection where the client asked for that, and holds positions, never copies of messages:
its size depends on what is in flight and not on what was missed.

    Session 1 ── n Reader        the ordinary subscriptions share one reader; each $replay/$log has its own
    Reader  1 ── n Subscription
    Reader  1 ── n Cursor        one for each log that its subscriptions can reach

Owner: the event loop.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from highway.broker.authorisation import Question
from highway.broker.delivery import message_expiry
from highway.broker.delivery.snapshot import Snapshot
from highway.broker.replay.grammar import source_of

from .inflight import Inflight
from .reader import ORDINARY, Reader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from highway.broker.authorisation import Right, Rights
    from highway.broker.broker import Broker
    from highway.broker.connections.link import Link
    from highway.broker.delivery.cursor import Cursor
    from highway.broker.delivery.encoding import Plan
    from highway.broker.message import Message
    from highway.broker.subscriptions.shared import Group
    from highway.broker.subscriptions.subscribing import SubscribeOperation
    from highway.storage import Gap

    from .inflight import Entry
    from .reader import Subscription

__all__ = ["Session"]

# Gaps that a session remembers for whoever asks; each was logged when it was met.
MAX_MISSED = 20


class Session:
    """The state between a client and the broker that MQTT calls session state."""

    __slots__ = (
        "ack_offsets",
        "behind",
        "broker",
        "client_id",
        "corked",
        "dirty",
        "expires_at_ms",
        "expiry_ms",
        "groups",
        "inflight",
        "inline",
        "is_paced",
        "is_stored",
        "journaling",
        "link",
        "logs_seen",
        "max_inflight",
        "max_packet_bytes",
        "missed",
        "owed_names",
        "owner",
        "parked",
        "persistent",
        "readers",
        "received",
        "resend",
        "retained",
        "rewound",
        "rights",
        "stored_ids",
        "stored_names",
        "subscribing",
        "topic_alias_maximum",
        "topic_aliases",
        "version",
        "wants_reasons",
        "window_full_since_ms",
    )

    def __init__(self, broker: Broker, client_id: str) -> None:
        self.broker = broker
        self.client_id = client_id
        self.owner: str | None = None  # the user whose it is, None where nobody was asked; see `authentication`
        self.persistent = False
        self.is_stored = False  # the journal has keys of it, which a session that ends with its connection has none of
        self.expiry_ms: int | None = None  # None: never
        self.expires_at_ms: int | None = None  # set while offline
        self.link: Link | None = None
        self.version = 4
        self.max_inflight = broker.settings.max_inflight
        self.max_packet_bytes = 0  # the largest packet that the client takes; 0: any
        self.missed: deque[tuple[str, Gap]] | None = None  # the last gaps that it met, with their logs; for operators
        self.window_full_since_ms: int | None = None  # when the client last owed so many acknowledgements that we wait
        self.rights: Rights | None = None  # of the client on this connection; None: everything is allowed
        self.ack_offsets = False  # PUBACK and PUBREC say where the message is
        self.wants_reasons = True  # reason strings and user properties on acknowledgements
        self.topic_alias_maximum = 0
        self.topic_aliases: dict[bytes, int] = {}  # of this connection
        self.readers: dict[bytes, Reader] = {ORDINARY: Reader(self, ORDINARY)}
        self.parked: Sequence[bytes] = ()  # topic filters that the router knows while the session is away
        self.groups: dict[bytes, tuple[Group, Subscription]] = {}  # shared subscriptions, by the name as written
        self.behind: dict[Cursor, None] = {}  # cursors in CATCHUP, in the order of their turns
        self.inflight = Inflight()
        self.resend: deque[tuple[int, Entry]] = deque()  # of an earlier connection, not sent again yet
        self.retained: OrderedDict[bytes, Snapshot] = OrderedDict()  # still to be sent, by subscription
        self.rewound = False  # a cursor was moved back: what is in flight may not be in the order of the offsets
        self.owed_names: set[bytes] = set()  # subscriptions of which the journal says that retained messages are owed
        self.stored_names: set[bytes] = set()  # subscriptions that the journal has keys of
        self.inline = False  # their subscriptions stand in the session's own key: see `session_store`
        self.received: set[int] = set()  # QoS 2 packet ids that came in and were not released
        self.stored_ids: set[int] = set()  # in-flight packet ids that the journal knows
        self.is_paced = False  # a timer is set that goes on catching up
        self.corked = 0  # SUBACKs on their way; nothing goes out before them
        self.dirty = False  # positions moved since they were stored
        self.logs_seen = 0  # of `Logs.begun`: later ones may be missing among the cursors
        # By their names, those of which is being found out where they start: (SUBSCRIBE, index of the filter).
        self.subscribing: dict[bytes, list[tuple[SubscribeOperation, int]]] = {}
        self.journaling = 0  # `store_first`s under way

    def __repr__(self) -> str:
        return f"<Session {self.client_id!r} online={self.link is not None} inflight={len(self.inflight)}>"

    def may_read(self, right: Right, topic_name: bytes) -> bool | None:
        """Whether the client may have a message of that topic; None where that is being asked: it is pumped then."""
        rights = self.rights
        if rights is None:
            return True
        verdict = rights.verdict(right, topic_name)
        if verdict is None:
            rights.ask_once(Question(right, topic_name), partial(self._learnt, topic_name))
        return verdict

    def _learnt(self, topic_name: bytes) -> None:
        """It is known whether the client may have messages of a topic: go on where that was missing."""
        self.broker.router.forget(topic_name)
        if self.link is not None:
            self.broker.pump_later(self)
        for group, _ in self.groups.values():
            group.wake()

    def let_go(self) -> None:
        """The session is over: take apart what holds one another, so that the collector has nothing to do."""
        for reader in self.readers.values():
            reader.cursors.clear()
            reader.subscriptions.clear()
            reader.changed()
        for held in (self.readers, self.behind, self.retained, self.groups):
            held.clear()

    def topic_alias(self, topic_name: bytes) -> tuple[int, bool]:
        """(alias, whether the client has to be told first); alias 0 when all are taken: the first topics keep theirs.

        5.0 [MQTT-3.1.2-26], [MQTT-3.3.2-11]
        """
        alias = self.topic_aliases.get(topic_name)
        if alias is not None:
            return alias, False
        if len(self.topic_aliases) >= self.topic_alias_maximum:
            return 0, False
        alias = self.topic_aliases[topic_name] = len(self.topic_aliases) + 1
        return alias, True

    @property
    def quota(self) -> int:
        """How many more messages may be in flight: 5.0 [MQTT-3.3.4-9], [MQTT-4.9.0-1], [MQTT-4.9.0-2].

        Nobody asks before sending anything else than a PUBLISH: 5.0 [MQTT-3.3.4-10], [MQTT-4.9.0-3].
        """
        return self.max_inflight - len(self.inflight)

    def place_missing(self) -> None:
        """Stand in the logs that began while it was away."""
        if self.logs_seen != self.broker.logs.begun:
            self.logs_seen = self.broker.logs.begun
            for reader in self.readers.values():
                reader.place_missing()

    def note_full_window(self) -> None:
        """The client owes so many acknowledgements that what comes next waits in the log."""
        if self.window_full_since_ms is None:
            self.window_full_since_ms = self.broker.clock.now_ms()
            self.broker.counters.limited["max_inflight"] += 1

    def is_blocked(self) -> bool:
        """Whether nothing can be sent now: offline, before a SUBACK, or the socket does not keep up."""
        return self.link is None or bool(self.corked) or self.link.congested

    def may_catch_up(self) -> bool:
        """Whether the client may have more of what is stored by now; where not, a timer goes on with it when it may."""
        broker, rate = self.broker, self.broker.settings.catchup_bytes
        if rate is None:
            return True
        wait_s = broker.catchup.of(self.client_id, rate, now := broker.clock.monotonic()).take(0, now)
        if wait_s and not self.is_paced:
            self.is_paced = True
            broker.counters.limited["catchup_bytes"] += 1
            broker.scheduler.call_later(wait_s, self._go_on)
        return not wait_s

    def _go_on(self) -> None:
        self.is_paced = False
        self.broker.pump_later(self)
        for group, _ in self.groups.values():
            group.wake()

    def catches_up_with(self, sent: int) -> None:
        """Note that the client was sent so many bytes of what is stored."""
        broker, rate = self.broker, self.broker.settings.catchup_bytes
        if rate is not None and sent:
            broker.catchup.of(self.client_id, rate, now := broker.clock.monotonic()).take(sent, now)

    def send(self, data: bytes, count: int, payload_bytes: int) -> None:
        """Write `count` PUBLISH packets, and so much payload in them, to the connection, which must be there."""
        if data and self.link is not None:
            self.link.write(data)
            counters = self.broker.counters
            counters.publish_sent += count
            counters.publish_bytes_sent += payload_bytes

    def send_message(self, message: Message, plan: Plan) -> bool:
        """Send a message that no log holds; False where it can't be sent now, or at all."""
        left = message.properties
        if left:
            found = message_expiry.remaining(left, message.stored_ms, self.broker.clock.now_ms())
            if found is None:
                return False
            left = found
        if message.publisher == self.client_id and message.publisher:
            plan = plan.own  # 5.0 [MQTT-3.8.3-3]
        if plan.qos < 0:
            return False
        qos = min(message.qos, plan.qos)
        retain = message.retain and plan.retain_as_published
        # What is kept until the acknowledgement has its whole life in it: it counts from `stored_ms` when sent again.
        kept = message._replace(properties=plan.identifiers + message.properties, retain=retain)
        outgoing = kept._replace(properties=plan.identifiers + left)
        if self.max_packet_bytes and len(outgoing.encode(self.version, qos, 1)) > self.max_packet_bytes:
            return False
        packet_id = 0
        if qos:
            packet_id = self.inflight.take_message(kept, qos) if self.quota > 0 else 0
            if not packet_id:
                return False
        packet = outgoing.encode(self.version, qos, packet_id)
        if qos == 2 and self.persistent:
            self.broker.store_inflight(self)
            self.send_when_stored(packet, 1, len(message.payload))
        else:
            self.send(packet, 1, len(message.payload))
        return True

    def send_when_stored(self, data: bytes, count: int, payload_bytes: int) -> None:
        """`send` QoS 2 messages once the journal has their packet ids, and nothing else before; see `Cursor`."""
        link = self.link
        self.corked += 1

        def written() -> None:
            if self.link is link:  # or else the connection went, and the cork with it
                self.corked -= 1
                self.send(data, count, payload_bytes)
            self.broker.pump_later(self)

        self.broker.when_stored(self, written)

    def note_missed(self, log: str, gap: Gap) -> None:
        """Remember a range that the session was entitled to and will never get."""
        if self.missed is None:
            self.missed = deque(maxlen=MAX_MISSED)
        self.missed.append((log, gap))

    def add_snapshot(self, subscription: Subscription, starts: dict[str, int]) -> None:
        """Send the retained messages that a subscription selects, from the beginning."""
        self.retained[subscription.name] = Snapshot(subscription, starts)
        self.retained.move_to_end(subscription.name)

    def drop_snapshot(self, name: bytes) -> None:
        """Send no more retained messages for a subscription."""
        self.retained.pop(name, None)

    def unacknowledged(self) -> Iterator[tuple[int, Entry]]:
        """Every message that was sent and not acknowledged, by packet id, on this connection or an earlier one."""
        return chain(self.inflight, self.resend)

    def has_snapshot_in_flight(self) -> bool:
        """Whether retained messages are still to be sent, or to be acknowledged."""
        return bool(self.retained) or any(cursor is None for _, (cursor, _, _) in self.unacknowledged())

    def subscriptions(self) -> Iterator[Subscription]:
        """Every subscription of every reader; shared ones are in `groups`."""
        for reader in self.readers.values():
            yield from reader.subscriptions.values()

    def all_subscriptions(self) -> list[Subscription]:
        """Every subscription, shared ones included."""
        return [*self.subscriptions(), *(shared for _, shared in self.groups.values())]

    def subscription(self, name: bytes) -> Subscription | None:
        """The subscription with that name, shared or not."""
        if name in self.groups:
            return self.groups[name][1]
        reader = self.reader_of(name)
        return None if reader is None else reader.subscriptions[name]

    @property
    def subscription_count(self) -> int:
        """Subscriptions of every kind."""
        # Each $replay and $log has a reader of its own.
        ordinary = self.readers.get(ORDINARY)  # None: it is over
        return 0 if ordinary is None else len(self.groups) + len(ordinary.subscriptions) + len(self.readers) - 1

    def cursors(self) -> Iterator[Cursor]:
        """Every cursor of every reader."""
        for reader in self.readers.values():
            yield from reader.cursors.values()

    def reader_of(self, name: bytes) -> Reader | None:
        """The reader that holds the subscription with that name."""
        for source in (ORDINARY, source_of(name)):
            reader = self.readers.get(source)
            if reader is not None and name in reader.subscriptions:
                return reader
        return None
