"""The broker: sessions, their connections and the logs, tied together. It knows no socket and no file.

Data flows one way: `Client.handle` appends to a log; the log calls back when messages become visible; the feed hands
them to LIVE cursors; everything else that a session is to get, it pulls by itself in `pump`.

Owner: the event loop.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING

from highway.errors import DiskFullError, StorageError
from highway.mqtt import ConnackPacket, PublishRun, publish_first_byte
from highway.storage import Durability

from . import delivery, pumping, session_store
from .delayed_feed import DelayedFeed
from .feed import Feed, LiveRun
from .inflight import Message
from .replay import gaps_between
from .retained import RetainedStore
from .routing import Route, Router
from .session import Session
from .sys_topics import Counters, sys_messages
from .wills import load_wills, will_drop, will_put

if TYPE_CHECKING:
    from collections.abc import Callable

    from highway.clock import Clock
    from highway.mqtt import ConnectPacket, Will
    from highway.storage import Storage

    from .client import Client
    from .cursor import Cursor
    from .link import Scheduler
    from .session_store import Puts
    from .settings import BrokerSettings, TopicEntry

__all__ = ["Broker"]

logger = logging.getLogger("highway.broker")

# Positions that moved are stored this often: what a crash repeats to a QoS 1 subscriber is at most this much.
POSITIONS_INTERVAL_S = 1.0
EXPIRY_INTERVAL_S = 30.0

CLIENT_IDENTIFIER_NOT_VALID = 0x85
NOT_AUTHORIZED = 0x87
SERVER_BUSY = 0x89


class Broker:
    """One broker over one storage engine."""

    def __init__(self, settings: BrokerSettings, storage: Storage, scheduler: Scheduler, clock: Clock) -> None:
        self.settings = settings
        self.storage = storage
        self.scheduler = scheduler
        self.clock = clock
        self.counters = Counters()
        self.started = clock.monotonic()
        self.feeds = {entry.log: self._make_feed(entry) for entry in settings.entries}
        self.router = Router(
            [(entry.topic_filter, self.feeds[entry.log]) for entry in settings.entries],
        )
        self.retained: RetainedStore[Message] = RetainedStore(lambda m: len(m.payload) + len(m.properties))
        self.clients: dict[str, Client] = {}  # by client id, online
        self._pumps: dict[Session, None] = {}
        self._held: set[Client] = set()
        for message in session_store.load_retained(storage.meta):
            self.retained.set(message.topic_name, message)
        self.sessions = session_store.load_sessions(self, storage.meta, self.feeds)
        self._timers = [
            scheduler.call_later(POSITIONS_INTERVAL_S, self._store_positions),
            scheduler.call_later(EXPIRY_INTERVAL_S, self._expire_sessions),
            scheduler.call_later(0, self._publish_sys),
        ]
        # [MQTT-3.1.2-8] Their connections ended with the process that is gone.
        for client_id, will in list(load_wills(storage.meta)):
            self._publish_will(client_id, will)

    def _make_feed(self, entry: TopicEntry) -> Feed:
        log = self.storage.logs[entry.log]
        if entry.delay_ms:
            return DelayedFeed(log, self._deliver, entry.delay_ms, self.scheduler, self.clock)
        return Feed(log, self._deliver)

    # Connections.

    def connect(self, client: Client, packet: ConnectPacket) -> None:
        """Attach a client to its session, new or old, and answer it."""
        client_id = packet.client_id
        if not client_id:
            if not packet.clean_start and packet.protocol_version < 5:
                # [MQTT-3.1.3-8] Nobody could ever come back to a persistent session without a name.
                self._refuse_connect(
                    client, packet, CLIENT_IDENTIFIER_NOT_VALID, "empty client id without clean session"
                )
                return
            client_id = f"auto-{uuid.uuid4().hex}"
        if not self.settings.anonymous:
            self._refuse_connect(client, packet, NOT_AUTHORIZED, "anonymous clients are not let in")
            return
        client.client_id = client_id
        client.keep_alive = packet.keep_alive
        puts: Puts = []
        before = self.clients.get(client_id)
        if before is not None:
            # [MQTT-3.1.4-2] The older connection goes, and its will is out before the newcomer is answered.
            logger.info("client %s: taken over by a connection from %s", client_id, client.link.peer)
            before.link.close()
            self.disconnected(before)
        session = self.sessions.get(client_id)
        present = session is not None and not packet.clean_start
        if session is not None and packet.clean_start:
            puts = self._end_session(session)
            session = None
        if session is None:
            session = Session(self, client_id, persistent=not packet.clean_start)
            self.sessions[client_id] = session
        session.version = packet.protocol_version
        session.expires_at_ms = None
        session.expiry_ms = self.settings.session_expiry_ms
        if session.persistent:
            puts.append(session_store.session_put(session))
        if packet.will is not None:
            puts.append(will_put(client_id, packet.will))
        if puts:
            self.store(puts)
        client.session = session
        client.will = packet.will
        session.link = client.link
        self.clients[client_id] = client
        self._count_clients()
        client.connected(ConnackPacket(session_present=present, reason_code=0), journaled=bool(puts))

    def _refuse_connect(self, client: Client, packet: ConnectPacket, reason_code: int, why: str) -> None:
        logger.warning("client %r from %s: refused: %s", packet.client_id, client.link.peer, why)
        client.link.write(ConnackPacket(session_present=False, reason_code=reason_code).encode(packet.protocol_version))
        client.link.close()

    def online(self, session: Session) -> None:
        """Let messages flow to a session whose CONNACK is out."""
        for subscription in session.subscriptions():
            self.router.add(subscription)
        for cursor in session.cursors():
            cursor.feed.cursors.add(cursor)
            cursor.move_to(cursor.next_offset)
        self.pump(session)

    def disconnected(self, client: Client) -> None:
        """Publish the will that is left, then end the session or park it. Idempotent."""
        session = client.session
        if session is None:
            return
        client.session = None
        self._held.discard(client)
        will, client.will = client.will, None
        if self.clients.get(client.client_id) is client:
            del self.clients[client.client_id]
        session.link = None
        self._offline(session)
        if session.persistent:
            session.expires_at_ms = None if session.expiry_ms is None else self.clock.now_ms() + session.expiry_ms
            self.store(
                [
                    session_store.session_put(session),
                    *session_store.inflight_puts(session),
                    *session_store.position_puts(session),
                ]
            )
        else:
            self._end_session(session)
        self._count_clients()
        if will is not None:
            self._publish_will(client.client_id, will)

    def _offline(self, session: Session) -> None:
        for subscription in session.subscriptions():
            self.router.remove(subscription)
        for cursor in session.cursors():
            cursor.suspend()
            cursor.feed.cursors.discard(cursor)
        session.behind.clear()
        session.retained.clear()
        session.corked = 0
        session.resend.extendleft(reversed(session.inflight.drain()))
        self._pumps.pop(session, None)

    def _end_session(self, session: Session) -> Puts:
        self.sessions.pop(session.client_id, None)
        return session_store.drop_puts(session) if session.persistent else []

    def take_back_will(self, client: Client) -> None:
        """The client said goodbye: its will is void."""
        if client.will is not None:
            client.will = None
            self.store([will_drop(client.client_id)])

    def _publish_will(self, client_id: str, will: Will) -> None:
        first_byte = publish_first_byte(will.qos, retain=will.retain)
        run = PublishRun(will.topic_name, first_byte, [will.payload], [], will.properties)
        drop = will_drop(client_id)
        try:
            self.publish(run, [drop])
            if self.router.route(will.topic_name).feed is None:
                self.store([drop])
        except StorageError as error:
            logger.error("client %s: its will could not be stored: %s", client_id, error)

    def _count_clients(self) -> None:
        counters = self.counters
        counters.clients_connected = len(self.clients)
        counters.clients_disconnected = len(self.sessions) - len(self.clients)
        counters.clients_maximum = max(counters.clients_maximum, len(self.clients))

    # Publishing.

    def publish(self, run: PublishRun, puts: Puts) -> Durability:
        """Take a run of messages; returns the point at which they may be acknowledged.

        `puts` go into the same journal frame. Raises StorageError where the messages can't be accepted now.
        """
        route = self.router.route(run.topic_name)
        feed = route.feed
        if feed is None:
            self._publish_unlogged(run, route)
            return Durability.FAST
        if not self.storage.writable:
            raise DiskFullError(f"log {feed.log.name!r}: the data directory takes no writes now")
        log = feed.log
        flags = run.qos | 4 if run.retain else run.qos
        data = route.encode_records(run.payloads, flags, log.delta_ms(), run.properties)
        if run.retain and not feed.is_delayed:
            # [MQTT-3.3.1-5] The last message of a run is the one that stays.
            message = Message(run.topic_name, run.payloads[-1], run.qos, True, run.properties)
            puts = [*puts, session_store.retained_put(message)]
        feed.expect(run)
        try:
            log.append(data, len(run.payloads), None, puts)
        except StorageError:
            feed.forget()
            raise
        return log.acknowledge_at

    def entry_durability(self, topic_name: bytes) -> Durability:
        """The point at which a repetition of a message on that topic is acknowledged."""
        feed = self.router.route(topic_name).feed
        return Durability.FAST if feed is None else feed.log.settings.durability

    def _publish_unlogged(self, run: PublishRun, route: Route) -> None:
        """Deliver a message on a `$...` topic to whoever is there; drop one that no entry takes."""
        topic_name = run.topic_name
        if not topic_name.startswith(b"$") or topic_name.startswith(OWN_TOPICS):
            self.counters.publish_dropped += len(run.payloads)
            return
        for payload in run.payloads:
            self._deliver_unlogged(Message(topic_name, payload, run.qos, False, run.properties), route)

    def _deliver_unlogged(self, message: Message, route: Route) -> None:
        for target in route.targets:
            session = target.reader.session
            qos = min(message.qos, target.qos)
            if session.link is None or session.link.congested or session.corked or (qos and session.quota <= 0):
                self.counters.publish_dropped += 1
                continue
            packet_id = session.inflight.take_message(message, qos) if qos else 0
            session.send(message.encode(session.version, qos, packet_id), 1)

    def _deliver(self, run: LiveRun) -> None:
        """A run became visible."""
        route = self.router.route(run.topic_name)
        if run.retain:
            self._retain(run, journal=route.feed is not None and route.feed.is_delayed)
        if route.feed is None or not route.feed.is_delayed:
            for target in route.targets:
                delivery.deliver_live(run, route, target)

    def _retain(self, run: LiveRun, *, journal: bool) -> None:
        message = Message(run.topic_name, run.payloads[-1], run.qos, True, run.properties)
        if message.payload:
            self.retained.set(run.topic_name, message)
        else:
            self.retained.delete(run.topic_name)
        if journal:
            self.store([session_store.retained_put(message)])
        self.counters.retained = len(self.retained)

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
        logger.error("client %s: publish refused, connection closed: %s", client.client_id, error)
        client.link.close()
        client.lost()

    # Delivering what is not live.

    def pump(self, session: Session) -> None:
        """Send what the session may get now; see `pumping`."""
        if pumping.pump(session):
            self.pump_later(session)

    def pump_later(self, session: Session) -> None:
        """Pump the session in the next turn of the loop."""
        if not self._pumps:
            self.scheduler.call_soon(self._run_pumps)
        self._pumps[session] = None

    def _run_pumps(self) -> None:
        sessions, self._pumps = self._pumps, {}
        for session in sessions:
            self.pump(session)

    def drained(self, client: Client) -> None:
        """The connection's write buffer is below its low water mark again."""
        if client.session is not None:
            self.pump_later(client.session)

    def gap(self, cursor: Cursor, from_offset: int, to_offset: int) -> None:
        """A cursor met offsets that are gone; what of them was ever a message is counted and reported."""
        session, log = cursor.reader.session, cursor.feed.log
        for gap in gaps_between(log, from_offset, to_offset):
            self.counters.gap_messages += gap.to_offset - gap.from_offset
            logger.warning(
                "client %s: log %s: offsets %d to %d are gone (%s)",
                *(session.client_id, log.name, gap.from_offset, gap.to_offset - 1, gap.reason),
            )
            pumping.send_gap_notice(cursor, gap)

    def read_failed(self, cursor: Cursor, error: StorageError) -> None:
        """A read from disk failed for a reason that the log could not step over."""
        client_id, log = cursor.reader.session.client_id, cursor.feed.log
        logger.error("client %s: log %s: can't read on from %d: %s", client_id, log.name, cursor.next_offset, error)
        self.scheduler.call_later(READ_RETRY_S, self.pump_later, cursor.reader.session)

    # What is stored by and by.

    def store(self, puts: Puts, durability: Durability = Durability.BALANCED) -> None:
        """Put session state into the journal; while the disk takes nothing, the state in memory is all there is."""
        try:
            self.storage.put(puts, durability)
        except StorageError as error:
            logger.error("session state could not be stored: %s", error)

    def store_inflight(self, session: Session, written: Callable[[StorageError | None], None]) -> None:
        """Store the session's messages in flight and its positions, then call `written`."""
        puts = [*session_store.inflight_puts(session), *session_store.position_puts(session)]
        self.store(puts)
        self.storage.after(Durability.BALANCED, written)

    def _store_positions(self) -> None:
        puts: Puts = []
        moved = [feed for feed in self.feeds.values() if feed.moved]
        for feed in moved:
            feed.moved = False
            for cursor in feed.cursors:
                cursor.reader.session.dirty = True
        for client in self.clients.values():
            session = client.session
            if session is not None and session.dirty:
                session.dirty = False
                if session.persistent:
                    puts += session_store.position_puts(session)
        if puts and self.storage.writable:
            self.store(puts, Durability.FAST)
        self._timers[0] = self.scheduler.call_later(POSITIONS_INTERVAL_S, self._store_positions)

    def _expire_sessions(self) -> None:
        now_ms = self.clock.now_ms()
        expired = [s for s in self.sessions.values() if s.expires_at_ms is not None and s.expires_at_ms <= now_ms]
        for session in expired:
            logger.info("client %s: session expired", session.client_id)
            self.store(self._end_session(session))
        self.counters.clients_expired += len(expired)
        self._count_clients()
        self._timers[1] = self.scheduler.call_later(EXPIRY_INTERVAL_S, self._expire_sessions)

    def _publish_sys(self) -> None:
        counters = self.counters
        counters.subscriptions = sum(1 for session in self.sessions.values() for _ in session.subscriptions())
        counters.retained = len(self.retained)
        for topic_name, payload in sys_messages(counters, self.clock, self.started):
            message = Message(topic_name, payload, 0, True, b"")
            if self.retained.get(topic_name) != message:
                self.retained.set(topic_name, message)
                self._deliver_unlogged(message._replace(retain=False), self.router.route(topic_name))
        self._timers[2] = self.scheduler.call_later(self.settings.sys_interval_s, self._publish_sys)

    def log_refusal(self, client: Client, why: str) -> None:
        """One line for a request that was refused with a reason that the client may not be able to read."""
        logger.warning("client %s: %s", client.client_id, why)

    def close(self) -> None:
        """Park every session; the storage engine is closed by whoever opened it."""
        for timer in self._timers:
            timer.cancel()
        for client in list(self.clients.values()):
            # Stored as it is: the next start publishes it, unless the data directory never sees one.
            client.will = None
            client.link.close()
            self.disconnected(client)


READ_RETRY_S = 1.0
OWN_TOPICS = (b"$SYS/", b"$replay/", b"$log/", b"$fetch/", b"$range/", b"$gap/", b"$share/")
