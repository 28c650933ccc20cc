"""From a topic name to everything that a PUBLISH needs: its log, who gets it, and the bytes around its payload.

A `Route` is worked out once for each topic name and then found by one dict look-up on the bytes of the packet. The
table is thrown away, whole or for one name, when subscriptions change; nothing on the hot path asks the trie.

Owner: the event loop.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from highway.broker.delivery.encoding import PENDING, Plan
from highway.broker.publishing.topic_logs import TopicLogs
from highway.broker.remembered import Remembered
from highway.broker.subscriptions.trie import FilterTrie
from highway.mqtt import PublishHeads
from highway.mqtt.topics import filters_intersect, levels_cover, matches, split_levels
from highway.storage.segment.records import RecordHeads, encode_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from highway.broker.delivery.cursor import Cursor
    from highway.broker.delivery.feed import Feed
    from highway.broker.sessions.reader import Reader, Subscription
    from highway.broker.sessions.session import Session
    from highway.broker.subscriptions.group_cursor import GroupCursor
    from highway.broker.subscriptions.shared import Group

__all__ = ["Route", "Router", "Target"]

# A publisher that names a new topic with every message must not grow the table without end. 262,144 routes take
# about 100 MB; past that it starts afresh, which costs each live topic one trie look-up. Where there are more topics than
# that in use, a message of each in turn finds none: twice the cost of one that does.
MAX_ROUTES = 262_144
# Names that are known not to be new, in use or not: they must be more than the routes, or publishers of that many topics
# would be held up as ones that make up names. 70 MB.
MAX_KNOWN = 1_048_576
# Targets of all routes: topics that each go to many subscribers must not grow the table either, at half a kilobyte a target.
MAX_TARGETS = 262_144

NO_PROPERTIES = b"\0"
# Stays empty: most topics of a large fleet never go to anybody live.
NO_HEADS: dict[tuple[int, bool], PublishHeads] = {}


class Target:
    """One reader of a topic, its cursor in the log (None where the topic is not logged), and what it is to get."""

    __slots__ = ("cursor", "plan", "reader")

    def __init__(self, reader: Reader | Group, cursor: Cursor | GroupCursor | None, plan: Plan) -> None:
        self.reader = reader
        self.cursor = cursor
        self.plan = plan


class Route:
    """What is known of one topic name. `feed` is None where the messages of the topic are not logged."""

    __slots__ = (
        "_delta_ms",
        "_flags",
        "_publish_heads",
        "_record_heads",
        "exceeds",
        "feed",
        "has_subscribers",
        "may_have_no_local",
        "number",
        "targets",
        "topic_name",
        "topics",
    )

    def __init__(
        self,
        topic_name: bytes,
        feed: Feed | None,
        targets: list[Target],
        *,
        has_subscribers: bool,
        exceeds: str = "",
        number: int = 0,
    ) -> None:
        self.number = number  # no other route of the process has it
        self.has_subscribers = has_subscribers  # online or away
        self.may_have_no_local = any(target.plan.own is not target.plan for target in targets)
        self.topic_name = topic_name
        self.topics = (topic_name,)  # what an append is told
        self.exceeds = exceeds  # the limit that the topic name is beyond, "" for none
        self.feed = feed
        self.targets = targets
        self._publish_heads = NO_HEADS
        self._record_heads: RecordHeads | None = None
        self._flags = self._delta_ms = -1

    def encode_records(self, payloads: Sequence[bytes], flags: int, delta_ms: int, properties: bytes = b"") -> bytes:
        """The records of `payloads`, joined, as the log stores them."""
        heads = self._record_heads
        if properties:
            heads = RecordHeads(self.topic_name, flags, delta_ms, properties)
        elif delta_ms != self._delta_ms or flags != self._flags:
            self._delta_ms, self._flags = delta_ms, flags
            if len(payloads) == 1:  # of many topics, each has its next message some other millisecond: nothing is kept
                self._record_heads = None
                return encode_record(self.topic_name, flags, delta_ms, b"", payloads[0])
            heads = self._record_heads = RecordHeads(self.topic_name, flags, delta_ms)
        elif heads is None:
            heads = self._record_heads = RecordHeads(self.topic_name, flags, delta_ms)
        if len(payloads) == 1:  # what a client with one message in flight sends
            return heads[len(payloads[0])] + payloads[0]
        # Nothing here runs Python code for each message but a new payload length: map, zip and join are loops in C.
        return b"".join(chain.from_iterable(zip(map(heads.__getitem__, map(len, payloads)), payloads, strict=True)))

    def qos0_heads(self, first_byte: int, is_mqtt_5: bool) -> PublishHeads:  # noqa: FBT001  a key, not a switch
        """Everything before the payload of an outgoing QoS 0 PUBLISH without properties, by payload length."""
        key = (first_byte, is_mqtt_5)
        heads = self._publish_heads.get(key)
        if heads is None:
            if self._publish_heads is NO_HEADS:
                self._publish_heads = {}
            suffix = NO_PROPERTIES if is_mqtt_5 else b""
            heads = self._publish_heads[key] = PublishHeads(first_byte, self.topic_name, 0, suffix)
        return heads

    def has_no_local(self, session: Session) -> bool:
        """Whether the session subscribes to the topic with No Local."""
        return any(target.plan.own is not target.plan for target in self.targets if target.reader.session is session)


class Router:
    """Topic name to `Route`; knows the configured entries and the subscriptions of every online session."""

    __slots__ = (
        "_entries",
        "_exceeded_by",
        "_known",
        "_last_number",
        "_parked",
        "_parked_counts",
        "_routes",
        "_subscriptions",
        "_target_count",
        "new_topics",
    )

    def __init__(
        self, entries: Sequence[tuple[bytes, Feed | TopicLogs]], exceeded_by: Callable[[bytes], str] = lambda _: ""
    ) -> None:
        """`exceeded_by` says which limit a topic name is beyond, "" for none."""
        self._entries = list(entries)
        self._exceeded_by = exceeded_by
        self._last_number = 0  # of a route
        self._routes: Remembered[Route] = Remembered(MAX_ROUTES)
        self._known: set[bytes] = set()  # names that had a route before the table was thrown away
        self.new_topics = 0  # names that came up and had none, lately
        self._target_count = 0  # of routes worked out since the table was empty
        self._subscriptions: FilterTrie[Subscription] = FilterTrie()
        self._parked: FilterTrie[None] = FilterTrie()  # filters of sessions that are away, once each
        self._parked_counts: dict[bytes, int] = {}

    def reroute(self, entries: Sequence[tuple[bytes, Feed | TopicLogs]]) -> None:
        """Let other entries decide, from the next message on."""
        self._entries = list(entries)
        self._clear()

    def forget_all(self) -> None:
        """Work every route out again: what readers may have has changed."""
        self._clear()

    def forget(self, topic_name: bytes) -> None:
        """Work the route of one topic out again: a reader of it may have it, or not, and that is known now."""
        self._forget(topic_name)

    def route(self, topic_name: bytes) -> Route:
        """The route of a valid topic name."""
        found = self._routes.get(topic_name)
        return found if found is not None else self._work_out(topic_name)

    def feed(self, topic_name: bytes) -> Feed | None:
        """The feed of the log that holds a topic.

        None for `$...` names, where no entry matches, and where the topic's own log begins with its first message.
        """
        found = self._find(topic_name)
        return None if isinstance(found, TopicLogs) else found

    def log_to_begin(self, topic_name: bytes) -> TopicLogs | None:
        """The entry that will have a log for the topic once something is published there."""
        found = self._find(topic_name)
        return found if isinstance(found, TopicLogs) else None

    def _find(self, topic_name: bytes, *, count: bool = False) -> Feed | TopicLogs | None:
        """What the first entry that matches and has room for a topic gives it; `count` those without room."""
        if topic_name.startswith(b"$"):
            return None
        for topic_filter, target in self._entries:
            if not matches(topic_filter, topic_name):
                continue
            if not isinstance(target, TopicLogs):
                return target
            feed = target.feeds.get(topic_name)
            if feed is not None:
                return feed
            if target.takes(topic_name):
                return target
            if count:
                target.pass_on(topic_name)
        return None

    def begin(self, topic_name: bytes) -> list[Subscription]:
        """Forget what was worked out of a topic, as it has a log now; the online subscriptions that it goes to."""
        self._forget(topic_name)
        return [subscription for _, _, subscription in self._subscriptions.match(topic_name)]

    def feeds_of(self, topic_filters: Iterable[bytes]) -> set[Feed]:
        """The feeds whose topics any of the filters can match."""
        found: set[Feed] = set()
        for topic_filter in topic_filters:
            if not topic_filter.startswith(b"$"):
                self._add_feeds_of(topic_filter, found)
        return found

    def _add_feeds_of(self, topic_filter: bytes, found: set[Feed]) -> None:
        is_topic = b"+" not in topic_filter and b"#" not in topic_filter
        for entry_filter, target in self._entries:
            if not isinstance(target, TopicLogs):
                if filters_intersect(entry_filter, topic_filter):
                    found.add(target)
                if levels_cover(split_levels(entry_filter), split_levels(topic_filter)):
                    return  # no topic of the filter comes as far as the entries below
            elif not is_topic:
                # Any topic may have come to the entries below: there was no room, or its name is long.
                found.update(feed for topic_name, feed in target.feeds.items() if matches(topic_filter, topic_name))
            elif topic_filter in target.feeds:
                found.add(target.feeds[topic_filter])
                return
            elif matches(entry_filter, topic_filter) and target.takes(topic_filter):
                return  # nothing has been published there

    def _work_out(self, topic_name: bytes) -> Route:
        if topic_name not in self._known:
            self.new_topics += 1
        found = self._find(topic_name, count=True)
        feed = None if isinstance(found, TopicLogs) else found
        targets = self._targets(topic_name, feed)
        has_subscribers = bool(targets or self._parked.match(topic_name))
        self._last_number += 1
        route = Route(
            topic_name,
            feed,
            targets,
            has_subscribers=has_subscribers,
            exceeds=self._exceeded_by(topic_name),
            number=self._last_number,
        )
        self._target_count += len(targets)
        if self._target_count > MAX_TARGETS or len(self._routes) >= MAX_ROUTES:
            self._clear()
        return self._routes.remember(topic_name, route)

    def _targets(self, topic_name: bytes, feed: Feed | None) -> list[Target]:
        by_reader: dict[Reader | Group, list[Subscription]] = {}
        for _, _, subscription in self._subscriptions.match(topic_name):
            by_reader.setdefault(subscription.reader, []).append(subscription)
        targets = []
        for reader, subscriptions in by_reader.items():
            if feed is not None and not reader.reaches(feed):
                continue
            allowed = reader.may_read(topic_name)
            plan = PENDING if allowed is None else Plan(topic_name, subscriptions if allowed else ())
            targets.append(Target(reader, None if feed is None else reader.cursor(feed), plan))
        return targets

    def park(self, topic_filters: Iterable[bytes]) -> None:
        """Note the filters of a session that is away: a message may be for it, though nothing delivers it now."""
        for topic_filter in topic_filters:
            count = self._parked_counts.get(topic_filter, 0)
            self._parked_counts[topic_filter] = count + 1
            if not count:
                self._parked.add(topic_filter, None, None)
                self._forget(topic_filter)

    def unpark(self, topic_filters: Iterable[bytes]) -> None:
        """Undo `park`."""
        for topic_filter in topic_filters:
            self._parked_counts[topic_filter] -= 1
            if not self._parked_counts[topic_filter]:
                del self._parked_counts[topic_filter]
                self._parked.remove(topic_filter, None)
                self._forget(topic_filter)

    def add(self, subscription: Subscription) -> None:
        """Let messages reach a subscription of an online session."""
        self._subscriptions.add(subscription.topic_filter, (subscription.reader, subscription.name), subscription)
        self._forget(subscription.topic_filter)

    def remove(self, subscription: Subscription) -> None:
        """Take a subscription out: it ended, or its session went offline."""
        self._subscriptions.remove(subscription.topic_filter, (subscription.reader, subscription.name))
        self._forget(subscription.topic_filter)

    def _forget(self, topic_filter: bytes) -> None:
        if b"+" in topic_filter or b"#" in topic_filter:
            self._clear()
        elif self._routes.pop(topic_filter, None) is not None:
            self._known.add(topic_filter)

    def _clear(self) -> None:
        if len(self._known) > MAX_KNOWN:
            self._known.clear()
        self._known.update(self._routes)
        self._routes.clear()
        self._target_count = 0

    @property
    def subscription_count(self) -> int:
        """Subscriptions of online sessions."""
        return len(self._subscriptions)
