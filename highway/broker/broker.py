"""The broker: sessions, their connections and the logs, tied together. It knows no socket and no file.

Data flows one way: `Client.handle` appends to a log, together with what others sent in the same turn of the loop; the
log calls back when messages become visible; the feed hands them to LIVE cursors; everything else that a session is to
get, it pulls by itself in `pump`.

Owner: the event loop.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

from highway.broker.connections.lifecycle import Lifecycle
from highway.broker.connections.wills import Wills
from highway.broker.delivery import encoding, pumping
from highway.broker.delivery.gap_notices import send_gap_notice
from highway.broker.delivery.publisher_mark import FLAG_PUBLISHER, mark_publisher
from highway.broker.delivery.reads import Reads
from highway.broker.message import Message
from highway.broker.publishing.gathering import Gathering
from highway.broker.publishing.requests import NO_REQUESTS, Producers, Requests
from highway.broker.publishing.retained import RetainedStore
from highway.broker.publishing.retaining import expect_delayed, may_retain, retain, retained_message
from highway.broker.publishing.routing import Route, Router
from highway.broker.publishing.topic_logs import Logs
from highway.broker.replay.fetching import answer_fetch
from highway.broker.replay.starting import gaps_between
from highway.broker.sessions import session_store
from highway.broker.subscriptions.shared import Group
from highway.errors import DiskFullError, ProtocolError, StorageError
from highway.log_lines import about
from highway.mqtt import PublishRun, ReasonCode
from highway.storage import Durability
from highway.storage.segment.records import FLAG_RETAIN, MAX_PROPERTIES_BYTES

from .authentication import TrustEverybody
from .authorisation import is_reserved
from .sys_topics import Counters, sys_messages
from .token_bucket import TokenBuckets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from highway.broker.connections.client import Client
    from highway.broker.connections.link import Scheduler
    from highway.broker.delivery.cursor import Cursor
    from highway.broker.delivery.feed import Feed, LiveRun
    from highway.broker.sessions.session import Session
    from highway.broker.sessions.session_store import Puts
    from highway.broker.subscriptions.group_cursor import GroupCursor
    from highway.clock import Clock
    from highway.storage import Log, Storage

    from .authentication import Authenticator
    from .settings import BrokerSettings

__all__ = ["Broker"]

logger = logging.getLogger("highway.broker")

# Positions that moved are stored this often: what a crash repeats to a QoS 1 subscriber is at most this much.
POSITIONS_INTERVAL_S = 1.0
REFUSAL_LINE_S = 1.0
EXPIRY_INTERVAL_S = 30.0
READ_RETRY_S = 1.0
STORE_RETRY_S = 1.0
# What catching up may take of a turn of the loop; one session's share of it is one or two milliseconds at most. Live
# messages wait for a turn, so that this is what they pay for the others.
TURN_S = 0.002


class Broker:
    """One broker over one storage engine."""

    def __init__(
        self,
        settings: BrokerSettings,
        storage: Storage,
        scheduler: Scheduler,
        clock: Clock,
        authenticator: Authenticator | None = None,
    ) -> None:
        """Without an `authenticator`, clients are let in as they come, or not at all: as the settings say."""
        self.settings = settings
        self.authenticator = authenticator or TrustEverybody(anonymous=settings.anonymous)
        self.storage = storage
        self.scheduler = scheduler
        self.clock = clock
        self.counters = Counters()
        self.started = clock.monotonic()
        self.logs = Logs(self, self._deliver)
        self.feeds = self.logs.feeds
        self.router = Router(self.logs.entries, self.exceeded_by)
        self.sys_retained = 0  # retained messages of our own
        self.retained: RetainedStore[Message] = RetainedStore(lambda m: len(m.payload) + len(m.properties))
        self.clients: dict[str, Client] = {}  # by client id, online
        self.groups: dict[bytes, Group] = {}  # by share name and filter
        self._pumps: OrderedDict[Session | Group, None] = OrderedDict()  # in the order of their turns
        self._pump_due = False
        self.turn_ends = 0.0  # monotonic: when those who catch up in this turn have had their time
        self.reads = Reads()
        self.gathering = Gathering(storage)
        self._held: set[Client] = set()
        self.catchup = TokenBuckets()  # of bytes, by client id
        self._refusals = 0  # publishes refused since the log said so the last time
        self._refusal_told_at = -REFUSAL_LINE_S
        for message in session_store.load_retained(storage.meta):
            self.retained.set(message.topic_name, message)
        for log, offset, message in session_store.load_delayed(storage.meta):
            expect_delayed(self, log, offset, message)
        self.sessions = session_store.load_sessions(self, storage.meta, self.feeds)
        self._store_apart()
        self.store(session_store.stale_group_puts(self, storage.meta), Durability.FAST)
        self.producers = Producers(storage.meta)
        self.lifecycle = Lifecycle(self)
        for session in self.sessions.values():
            self.lifecycle.park(session)
        self.wills = Wills(self)
        self._timers = [
            scheduler.call_later(POSITIONS_INTERVAL_S, self._store_positions),
            scheduler.call_later(EXPIRY_INTERVAL_S, self._expire_sessions),
            scheduler.call_later(0, self._publish_sys),
        ]
        self.wills.start()

    def offline(self, client: Client, session: Session) -> None:
        """Take a session out of everything that delivers."""
        self._held.discard(client)
        for subscription in session.subscriptions():
            self.router.remove(subscription)
        for cursor in session.cursors():
            cursor.suspend()
            cursor.feed.cursors.discard(cursor)
        for group, _ in session.groups.values():
            group.went_offline(session)
        session.behind.clear()
        session.corked = 0
        session.resend.extendleft(reversed(session.inflight.drain()))
        self._pumps.pop(session, None)

    def exceeded_by(self, topic: bytes) -> str:
        """The limit that a topic name or filter is beyond; "" for none."""
        settings = self.settings
        if len(topic) > settings.max_topic_bytes:
            return "max_topic_bytes"
        return "max_topic_levels" if topic.count(b"/") >= settings.max_topic_levels else ""

    # Publishing.

    def publish(
        self, run: PublishRun, puts: Puts, publisher: Session | None = None, requests: Requests = NO_REQUESTS
    ) -> Durability | None:
        """Take a run of messages; returns the point at which they may be acknowledged, None where nothing takes them.

        `puts` go into the same journal frame. Raises StorageError where the messages can't be accepted now.
        """
        route = self.router.route(run.topic_name)
        if route.exceeds:
            self.counters.limited[route.exceeds] += 1
            raise ProtocolError(f"a topic name beyond limits.{route.exceeds}", ReasonCode.TOPIC_NAME_INVALID)
        if run.retain and not may_retain(self, run, publisher):
            run.retain = False
        feed = route.feed
        if feed is None:
            _check_size(run.properties)
            logs = self.router.log_to_begin(run.topic_name)
            if logs is None:
                return self._publish_unlogged(run, route, puts, publisher)
            self.logs.begin(logs, run.topic_name)
            route = self.router.route(run.topic_name)
            feed = route.feed
            assert feed is not None
        if not self.storage.writable:
            raise DiskFullError(f"log {feed.log.name!r}: the data directory takes no writes now")
        if self.gathering.is_open and self.gathering.take(route, feed, run, puts):
            return feed.log.settings.durability
        return self._append(run, route, feed, puts, publisher, requests)

    def _append(
        self, run: PublishRun, route: Route, feed: Feed, puts: Puts, publisher: Session | None, requests: Requests
    ) -> Durability:
        """Append a run by itself."""
        log, properties = feed.log, run.properties
        flags = run.qos | FLAG_RETAIN if run.retain else run.qos
        if route.may_have_no_local and publisher is not None and route.has_no_local(publisher):
            flags |= FLAG_PUBLISHER
            properties = mark_publisher(publisher.client_id, properties)
        if properties:
            _check_size(properties)
        before = None
        if requests.producer:
            if self.producers.is_repetition(log.name, requests):
                run.payloads = []
                return max(log.acknowledge_at, requests.durability)
            before = self.producers.last(log.name, requests)
            run.payloads = run.payloads[:1]  # more of the same sequence in one run are repetitions of it
            puts = [*puts, *self.producers.take(log.name, requests)]
        data = route.encode_records(run.payloads, flags, log.delta_ms(), properties)
        if run.retain and feed.is_delayed:
            end = log.log_end_offset + len(run.payloads)
            puts = [*puts, session_store.delayed_put(retained_message(self, run, publisher), log.name, end - 1)]
        elif run.retain:
            # [MQTT-3.3.1-5] The last message of a run is the one that stays. Without RETAIN, what was there stays:
            # 3.1.1 [MQTT-3.3.1-12], 5.0 [MQTT-3.3.1-8].
            puts = [*puts, session_store.retained_put(retained_message(self, run, publisher))]
        feed.expect(run, publisher)
        try:
            log.append(data, len(run.payloads), requests.durability, puts, route.topics)
        except StorageError:
            feed.forget()
            if requests.producer:
                self.producers.take_back(log.name, requests, before)
            raise
        return log.acknowledge_at if requests is NO_REQUESTS else max(log.acknowledge_at, requests.durability)

    def entry_durability(self, topic_name: bytes) -> Durability:
        """The point at which a repetition of a message on that topic is acknowledged."""
        feed = self.router.route(topic_name).feed
        return Durability.FAST if feed is None else feed.log.settings.durability

    def _publish_unlogged(
        self, run: PublishRun, route: Route, puts: Puts, publisher: Session | None
    ) -> Durability | None:
        """Deliver a message on a `$...` topic to who is there; None for one that nobody may send or no entry takes."""
        topic_name = run.topic_name
        rights = None if publisher is None else publisher.rights
        if topic_name.startswith(b"$fetch/") and answer_fetch(self, run, rights):
            return Durability.FAST
        if not topic_name.startswith(b"$") or is_reserved(topic_name):
            self.counters.dropped_unmatched += len(run.payloads)
            return None
        if run.retain:
            retain(self, run, publisher, journal=True)
        now_ms = self.clock.now_ms()
        for payload in run.payloads:
            message = Message(topic_name, payload, run.qos, run.retain, run.properties, now_ms)
            self.deliver_unlogged(message, route, publisher)
        if puts:
            self.store(puts)
        return Durability.BALANCED if puts or run.retain else Durability.FAST

    def deliver_unlogged(self, message: Message, route: Route, publisher: Session | None = None) -> None:
        """Hand a message that no log holds to those who are there and can take it now."""
        for target in route.targets:
            reader = target.reader
            if isinstance(reader, Group):
                self.counters.dropped_slow += not reader.deliver_unlogged(message)
                continue
            session = reader.session
            plan = target.plan.own if session is publisher else target.plan
            if plan.qos >= 0 and (session.is_blocked() or not session.send_message(message, plan)):
                self.counters.dropped_slow += 1

    def _deliver(self, run: LiveRun) -> None:
        """A run became visible."""
        route = self.router.route(run.topic_name)
        if run.retain:
            retain(self, run, run.publisher, journal=route.feed is not None and route.feed.is_delayed)
        if route.feed is None or not route.feed.is_delayed:
            for target in route.targets:
                encoding.deliver_live(run, route, target)

    def takes_fast(self) -> bool:
        """Whether messages are taken now without a look at each client's account, or at how far the journal is behind."""
        storage = self.storage
        return (
            storage.writable
            and not self.settings.is_metered
            and storage.backlog_bytes <= storage.settings.max_backlog_bytes
        )

    def hold_back(self, client: Client) -> None:
        """Stop reading from a publisher while the journal is behind by more than its limit."""
        storage = self.storage
        if storage.backlog_bytes > storage.settings.max_backlog_bytes and client not in self._held:
            if not self._held:
                storage.after(Durability.BALANCED, self._let_go)
            self._held.add(client)
            client.link.pause_reading()

    def _let_go(self, _: StorageError | None) -> None:
        for client in self._held:
            client.link.resume_reading()
        self._held.clear()

    def refuse_publish(self, client: Client, error: StorageError) -> None:
        """A publish could not be stored, so it isn't acknowledged: close the connection."""
        now = self.clock.monotonic()
        if now - self._refusal_told_at < REFUSAL_LINE_S:
            self._refusals += 1  # a full disk and a thousand sensors that come back at once: not a line for each
        else:
            more = f" (and {self._refusals} more since the last such line)" if self._refusals else ""
            logger.error("publish refused, connection closed: %s%s", error, more, extra=about(client=client.client_id))
            self._refusals, self._refusal_told_at = 0, now
        client.end(ReasonCode.QUOTA_EXCEEDED)

    # Delivering what is not live.

    def pump_later(self, target: Session | Group) -> None:
        """Pump a session or a group in the next turn of the loop, or in one soon after it if many want to be."""
        self._pumps[target] = None
        if not self._pump_due:
            self._pump_due = True
            self.scheduler.call_soon(self._run_pumps)

    def _run_pumps(self) -> None:
        """Pump those who asked, in the order in which they asked, until the time of this turn is used.

        Who still has something to send asks again, and stands behind all others then. So a thousand sessions that catch
        up share what the loop has to give, and what is live goes in between.
        """
        pumps, monotonic = self._pumps, self.clock.monotonic
        end = self.turn_ends = monotonic() + TURN_S
        try:
            for _ in range(len(pumps)):
                target, _ = pumps.popitem(last=False)
                try:
                    if target.pump() if isinstance(target, Group) else pumping.pump(target):
                        pumps[target] = None
                except Exception:
                    # A fault of ours that one reader brings out must not reach the others.
                    logger.exception("%r can't be served", target)
                if monotonic() >= end:
                    break
        finally:
            self._pump_due = bool(pumps)
            if pumps:
                self.scheduler.call_soon(self._run_pumps)

    def drained(self, client: Client) -> None:
        """The connection's write buffer is below its low water mark again."""
        session = client.session
        if session is not None:
            self.pump_later(session)
            for group, _ in session.groups.values():
                group.wake()

    # Shared subscriptions.

    def group(self, source: bytes, topic_filter: bytes) -> Group:
        """The group of a share name and filter, without cursors where it is new."""
        group = self.groups.get(source)
        if group is None:
            group = self.groups[source] = Group(self, source, topic_filter)
        return group

    def leave_group(self, session: Session, name: bytes) -> Puts:
        """End a shared subscription; returns what has to be stored where the group ends with it."""
        group, _ = session.groups.pop(name)
        if not group.leave(session, name):
            return []
        if group.members:
            group.wake()
            return []
        group.close()
        del self.groups[group.source]
        return session_store.group_drop_puts(group)

    def gap(self, cursor: Cursor | GroupCursor, from_offset: int, to_offset: int) -> None:
        """A cursor met offsets that are gone; what of them was ever a message is counted and reported."""
        reader, log = cursor.reader, cursor.feed.log
        who = reader.source.decode() if isinstance(reader, Group) else reader.session.client_id
        for gap in gaps_between(log, from_offset, to_offset):
            self.counters.gap_messages += gap.to_offset - gap.from_offset
            logger.warning(
                "log %s: offsets %d to %d are gone (%s)",
                *(log.name, gap.from_offset, gap.to_offset - 1, gap.reason),
                extra=about(client=who),
            )
            if isinstance(reader, Group):
                reader.note_gap(log.name, gap)
            else:
                reader.session.note_missed(log.name, gap)
                send_gap_notice(reader, log.name, gap)

    def replay_ended(self, cursor: Cursor) -> None:
        """A replay came to its `replay-until` in one log: a marker, and with the last log the subscription is gone."""
        reader, session, log = cursor.reader, cursor.reader.session, cursor.feed.log
        marker = Message(b"$end/" + log.name.encode(), b'{"until":%d}' % reader.until[log.name], 0, False, b"")
        session.send(marker.encode(session.version, 0), 1, len(marker.payload))
        puts: Puts = [session_store.cursor_drop(reader.drop(cursor.feed))]
        if not reader.cursors:
            for subscription in reader.subscriptions.values():
                self.router.remove(subscription)
            session.readers.pop(reader.source, None)
            if session.persistent:
                puts += session_store.subscription_puts(session, reader.subscriptions)
                puts.append(session_store.session_put(session))
        if session.persistent:
            self.store(puts)

    def read_failed(self, cursor: Cursor | GroupCursor, error: StorageError) -> None:
        """A read from disk failed for a reason that the log could not step over: it is asked again, but not at once."""
        session, log = cursor.reader.session, cursor.feed.log
        who = session.client_id if session is not None else cursor.reader.source.decode()
        logger.error("log %s: can't read on from %d: %s", log.name, cursor.next_offset, error, extra=about(client=who))
        cursor.loading = True

        def go_on() -> None:
            cursor.loading = False
            self.pump_later(cursor.reader if isinstance(cursor.reader, Group) else cursor.reader.session)

        self.scheduler.call_later(READ_RETRY_S, go_on)

    # What is stored by and by.

    def store(self, puts: Puts, durability: Durability = Durability.BALANCED) -> None:
        """Put session state into the journal; once the disk has failed, the state in memory is all there is."""
        try:
            self.storage.put(puts, durability)
        except StorageError as error:
            logger.error("session state could not be stored: %s", error)

    def _store_apart(self) -> None:
        """Give each subscription its key where an earlier format of the data directory has them in their session's."""
        for session in self.sessions.values():
            if not session.inline:
                continue
            session.inline = False
            names = [subscription.name for subscription in session.all_subscriptions()]
            puts = [session_store.session_put(session), *session_store.subscription_puts(session, names)]
            try:
                self.storage.put(puts, Durability.BALANCED)
            except StorageError as error:
                session.inline = True  # as it was; the next start tries again
                logger.warning("the subscriptions of an earlier format stay where they are for now: %s", error)
                return

    def store_inflight(self, session: Session) -> None:
        """Store the session's messages in flight and its positions; see `when_stored`."""
        self.store([*session_store.inflight_puts(session), *session_store.position_puts(session)], Durability.SAFE)

    def store_given(self, sessions: Sequence[Session], cursor: GroupCursor) -> None:
        """Store what a group gave to some of its sessions; see `when_stored`."""
        self.store(session_store.given_puts(sessions, cursor), Durability.SAFE)

    def store_first(self, session: Session, puts: Puts) -> None:
        """Store what must be durable before the session sends anything that rests on it; see `when_stored`."""
        self.store(puts, Durability.SAFE)
        self.when_stored(session, lambda: None)

    def when_stored(self, session: Session, stored: Callable[[], None]) -> None:
        """Call `stored` when all that was stored until now is durable: the session sends something that rests on it.

        On a full disk that may take long; when the disk has failed, it never comes. So who waits for it keeps its
        place, and nothing that follows goes out before.
        """
        session.journaling += 1

        def synced(error: StorageError | None) -> None:
            if error is None:
                session.journaling -= 1
                stored()
                if session.resend:
                    self.pump_later(session)  # it has waited for this
            elif isinstance(error, DiskFullError):
                self.scheduler.call_later(STORE_RETRY_S, self.storage.after, Durability.SAFE, synced)

        self.storage.after(Durability.SAFE, synced)

    def _store_positions(self) -> None:
        moved = [feed for feed in self.feeds.values() if feed.moved]
        for feed in moved:
            feed.moved = False
            for cursor in feed.cursors:
                cursor.mark_dirty()
        self._store_some(iter([*self.clients.values(), *self.groups.values()]))

    def _store_some(self, owners: Iterator[Client | Group]) -> None:
        """Store the positions of as many sessions and groups as a turn has time for; then the timer is set again."""
        puts: Puts = []
        end = self.clock.monotonic() + TURN_S
        writable = self.storage.writable
        delay_s = POSITIONS_INTERVAL_S
        for owner in owners if writable else ():
            if isinstance(owner, Group):
                if not owner.dirty or self.groups.get(owner.source) is not owner:
                    continue
                owner.dirty = False
                puts += session_store.group_puts(owner)
            else:
                session = owner.session
                if session is None or not session.dirty:
                    continue  # ten thousand idle ones take a millisecond together, without a look at the clock
                session.dirty = False
                if session.persistent:
                    puts += session_store.position_puts(session)
                    if session.owed_names and not session.has_snapshot_in_flight():
                        puts += session_store.subscription_puts(session, list(session.owed_names))
            if self.clock.monotonic() >= end:
                delay_s = 0.0
                break
        if puts:
            self.store(puts, Durability.FAST)
        if delay_s:
            self._timers[0] = self.scheduler.call_later(delay_s, self._store_positions)
        else:
            self._timers[0] = self.scheduler.call_later(0, self._store_some, owners)

    def _expire_sessions(self) -> None:
        self.lifecycle.expire()
        self._timers[1] = self.scheduler.call_later(EXPIRY_INTERVAL_S, self._expire_sessions)

    def _publish_sys(self) -> None:
        counters = self.counters
        counters.subscriptions = sum(session.subscription_count for session in self.sessions.values())
        counters.shared_subscriptions = sum(len(session.groups) for session in self.sessions.values())
        counters.retained = len(self.retained)
        logs = [feed.log for feed in self.feeds.values()]
        counters.stored_messages = sum(map(_stored, logs))
        counters.stored_bytes = sum(log.stored_bytes for log in logs)
        now = self.clock.monotonic()
        for feed in self.feeds.values():
            feed.sample(now)
        messages = sys_messages(counters, self.clock, self.started)
        self.sys_retained = len(messages)
        for topic_name, payload in messages:
            message = Message(topic_name, payload, 0, True, b"", 0)
            if self.retained.get(topic_name) != message:
                self.retained.set(topic_name, message)
                self.deliver_unlogged(message._replace(retain=False), self.router.route(topic_name))
        self._timers[2] = self.scheduler.call_later(self.settings.sys_interval_s, self._publish_sys)

    def log_refusal(self, client: Client, why: str, topic: bytes) -> None:
        """One line for a request that was refused with a reason that the client may not be able to read."""
        logger.warning("%s", why, extra=about(client=client.client_id, topic=topic))

    def close(self) -> None:
        """Park every session; the storage engine is closed by whoever opened it."""
        for timer in self._timers:
            timer.cancel()
        for client in list(self.clients.values()):
            client.will = None  # it is stored: the next start publishes it, unless the client is back by then
            client.end(ReasonCode.SERVER_SHUTTING_DOWN)
        self.wills.close()


def _check_size(properties: bytes) -> None:
    if len(properties) > MAX_PROPERTIES_BYTES:
        why = f"{len(properties)} bytes of properties, {MAX_PROPERTIES_BYTES} is the limit"
        raise ProtocolError(why, ReasonCode.PACKET_TOO_LARGE)


def _stored(log: Log) -> int:
    """Messages that a log holds: offsets less the recorded gaps."""
    start, end = log.log_start_offset, log.high_watermark
    if not log.gaps:
        return end - start
    return end - start - sum(gap.to_offset - gap.from_offset for gap in gaps_between(log, start, end))
