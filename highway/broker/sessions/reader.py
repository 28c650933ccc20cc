"""A reader of a session: subscriptions that share their positions, where they stand in every log, and what they select.

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from highway.broker.authorisation import right_to_read
from highway.broker.delivery.cursor import Cursor
from highway.broker.delivery.encoding import NOTHING, PENDING, Plan
from highway.broker.delivery.shared_slices import kind_of
from highway.broker.remembered import Remembered
from highway.broker.replay.options import NO_OPTIONS
from highway.broker.replay.pace import Pace
from highway.broker.subscriptions.trie import FilterTrie
from highway.mqtt.topics import concrete_names, matches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from highway.broker.delivery.feed import Feed
    from highway.broker.delivery.gap_notices import GapNotices
    from highway.broker.delivery.shared_slices import Kind
    from highway.broker.replay.options import ReplayOptions
    from highway.broker.subscriptions.shared import Group

    from .session import Session

__all__ = ["ORDINARY", "Reader", "Subscription"]

ORDINARY = b""

# Topics whose plan a reader remembers. A reader of 100,000 topics works plans out again now and then (2 us each)
# rather than hold 40 MB of them.
MAX_PLANS = 4096
# Subscriptions of one reader that are looked at one by one for each new topic (half a microsecond each).
MANY_SUBSCRIPTIONS = 16

# Topic names by which a reader asks the log for what concerns it only. Each is a look-up in every segment that it
# reads, and a reader of more topics finds one of them in most frames anyhow.
MAX_NAMES = 16


class Subscription:
    """One topic filter of a session. `name` is the filter as the client wrote it, `topic_filter` what it selects."""

    __slots__ = ("identifier", "name", "no_local", "qos", "reader", "retain_as_published", "since", "topic_filter")

    def __init__(
        self,
        reader: Reader | Group,
        name: bytes,
        topic_filter: bytes,
        qos: int,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        identifier: int = 0,
    ) -> None:
        self.reader = reader  # or the group of a shared subscription
        self.name = name
        self.topic_filter = topic_filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        self.identifier = identifier  # 0: none
        # Offset by log where the subscription begins, in logs that the reader had not caught up with when it was made.
        self.since: dict[str, int] = {}


class Reader:
    """A set of subscriptions that share their positions: one copy of each message for all of them."""

    __slots__ = (
        "_index",
        "_kind",
        "_names",
        "addressed",
        "cursors",
        "notice",
        "options",
        "pace",
        "plans",
        "pulls",
        "session",
        "since",
        "source",
        "subscriptions",
        "until",
    )

    def __init__(self, session: Session, source: bytes, *, addressed: bool = False) -> None:
        self.session = session
        self.source = source  # ORDINARY, or the name of the $replay or $log subscription
        self.addressed = addressed  # deliver under $log/<offset>/<topic>
        self.subscriptions: dict[bytes, Subscription] = {}
        self._index: FilterTrie[Subscription] | None = None  # of them, where they are many
        self.cursors: dict[Feed, Cursor] = {}
        self.plans: Remembered[Plan] = Remembered(MAX_PLANS)
        self.since: set[Subscription] = set()  # subscriptions that began late
        self._names: frozenset[bytes] | None = None  # None: not worked out
        self.options = NO_OPTIONS
        self.until: dict[str, int] = {}  # offset by log where the reader ends
        self.pace: Pace | None = None
        self.notice: GapNotices | None = None  # what the next delivery of MQTT 5 tells
        self._kind: Kind | bool | None = False  # False: not worked out
        self.pulls = addressed  # never handed live runs: each of its messages is looked at

    def set_options(self, options: ReplayOptions, until: dict[str, int]) -> None:
        """What the client asked for with user properties on SUBSCRIBE."""
        self.options = options
        self.until = until
        self.pace = Pace(options.rate, self.session.broker.clock) if options.rate else None
        self._kind = False
        self.pulls = bool(self.addressed or options.with_offset or options.rate or until)

    @property
    def kind(self) -> Kind | None:
        """What it shares its packets with others by; see `shared_slices`."""
        if self._kind is False:
            self._kind = kind_of(self)
        return self._kind  # type: ignore[return-value]  # mypy doesn't tell False from bool

    @property
    def names(self) -> frozenset[bytes]:
        """The only topics that concern it, so that a log needn't read the others; empty where there may be others."""
        if self._names is None:
            subscriptions = self.subscriptions.values()
            few = len(subscriptions) <= MAX_NAMES
            self._names = concrete_names(s.topic_filter for s in subscriptions) if few else frozenset()
        return self._names

    def add(self, subscription: Subscription) -> Subscription:
        """Add or replace a subscription. [MQTT-3.8.4-3] The same filter again replaces the one before."""
        before = self.subscriptions.get(subscription.name)
        if before is not None:
            subscription.since = before.since
            self.since.discard(before)
        self.subscriptions[subscription.name] = subscription
        if self._index is not None:
            self._index.add(subscription.topic_filter, subscription.name, subscription)
        self.changed()
        if subscription.since:
            self.since.add(subscription)
        return subscription

    def remove(self, name: bytes) -> Subscription | None:
        """Take a subscription out; cursors that nothing needs any more go with it."""
        subscription = self.subscriptions.pop(name, None)
        if subscription is not None:
            if self._index is not None:
                self._index.remove(subscription.topic_filter, name)
            self.changed()
            self.since.discard(subscription)
        return subscription

    def begins_at(self, subscription: Subscription, log: str, offset: int) -> None:
        """A subscription begins at `offset` of a log that the reader has not read as far as that yet."""
        subscription.since[log] = offset
        self._kind = False
        self.since.add(subscription)

    def changed(self) -> None:
        """Forget what was worked out from the subscriptions before they changed."""
        self.plans.clear()
        self._kind = False
        self._names = None

    def start_over(self) -> None:
        """The reader was moved to where an operator said: all of its subscriptions begin there."""
        for subscription in self.subscriptions.values():
            subscription.since.clear()
        self.since.clear()
        self.changed()

    def caught_up(self, log: str) -> None:
        """Every subscription has begun in a log: the reader is at its end."""
        for subscription in self.since:
            subscription.since.pop(log, None)
        self.since = {subscription for subscription in self.since if subscription.since}
        self._kind = False

    def place(self, feed: Feed, next_offset: int) -> Cursor:
        """Stand in a log at `next_offset`, in CATCHUP; nothing moves before the session is pumped."""
        cursor = self.cursors.get(feed)
        if cursor is None:
            cursor = self.cursors[feed] = Cursor(self, feed, next_offset)
        if self.session.link is None:
            cursor.suspend_at(next_offset)
        else:
            feed.cursors.add(cursor)
            cursor.move_to(next_offset)
        return cursor

    def drop(self, feed: Feed) -> Cursor:
        """Leave a log that no subscription reaches any more."""
        cursor = self.cursors.pop(feed)
        cursor.forget_loaded()
        feed.cursors.discard(cursor)
        self.session.behind.pop(cursor, None)
        return cursor

    def reaches(self, feed: Feed) -> bool:
        """Whether it reads a log that its filters match: a replay with an end has one in the logs that there were."""
        return not self.until or feed in self.cursors

    def place_missing(self) -> None:
        """Stand at the beginning of the logs that began since: all that is in them came after the subscription."""
        filters = (subscription.topic_filter for subscription in self.subscriptions.values())
        for feed in self.session.broker.router.feeds_of(filters):
            if feed not in self.cursors and self.reaches(feed):
                self.place(feed, feed.log.log_start_offset)

    def cursor(self, feed: Feed) -> Cursor:
        """The cursor in a log, placed at its visible end where there is none."""
        found = self.cursors.get(feed)
        return found if found is not None else self.place(feed, feed.visible)

    def make_plan(self, topic_name: bytes) -> Plan:
        """Work out, and remember, how messages of a topic go to this reader: where a filter matches. [MQTT-3.3.2-3]

        PENDING, and not remembered, where somebody has to be asked first; the session is pumped when that is known.
        """
        if self.names and topic_name not in self.names:
            return NOTHING  # not remembered: a log of 20,000 topics has too many of them
        granted = self._matching(topic_name)
        allowed = self.may_read(topic_name) if granted else False
        if allowed is None:
            return PENDING
        return self.plans.remember(topic_name, Plan(topic_name, granted if allowed else ()))

    def _matching(self, topic_name: bytes) -> Sequence[Subscription]:
        """The subscriptions whose filters match."""
        if len(self.subscriptions) <= MANY_SUBSCRIPTIONS:
            return [s for s in self.subscriptions.values() if matches(s.topic_filter, topic_name)]
        index = self._index
        if index is None:
            index = self._index = FilterTrie()
            for subscription in self.subscriptions.values():
                index.add(subscription.topic_filter, subscription.name, subscription)
        return [subscription for _, _, subscription in index.match(topic_name)]

    def may_read(self, topic_name: bytes) -> bool | None:
        """Whether the client's rights, now, let this reader have a message of that topic; None: not known yet."""
        return self.session.rights is None or self.session.may_read(right_to_read(self.source), topic_name)

    def plan_for(self, _session: Session, topic_name: bytes) -> Plan:
        """The plan of a topic, as a group has it for one of its sessions."""
        return self.plans.get(topic_name) or self.make_plan(topic_name)

    def allows(self, _session: Session, topic_name: bytes) -> bool | None:
        """`may_read`, as a group has it for one of its sessions."""
        return self.may_read(topic_name)

    def wants(self, topic_name: bytes, offset: int) -> bool:
        """Whether a subscription that matches had begun when `offset` was given; asked only where one began late."""
        log = self.session.broker.router.feed(topic_name)
        name = log.log.name if log is not None else ""
        return any(s.since.get(name, 0) <= offset for s in self._matching(topic_name))
