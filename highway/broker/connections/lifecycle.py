"""Connections come and go, sessions stay: CONNECT, takeover, the end of a connection, the end of a session.

    CONNECT           find out who it is, and nothing else before that (`connect`); find or make the session, store what
                      changed, answer (`_attach`), then let messages flow (`online`)
    connection lost   positions and messages in flight are stored, the will is published or waits (`disconnected`)
    expiry            the session and all keys of it go (`expire`)

A session lives as long as its connection, and as long after it as the client asked for and the settings allow:
3.1.1 [MQTT-4.1.0-1], [MQTT-4.1.0-2]; 5.0 [MQTT-4.1.0-1], [MQTT-4.1.0-2].

Owner: the event loop.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from highway.broker.authentication import Login, Refusal, owns
from highway.broker.authorisation import Right, Rights, Undecided, is_reserved, rights_of
from highway.broker.delivery.gap_notices import tell_otherwise
from highway.broker.sessions import session_store
from highway.broker.sessions.session import Session
from highway.broker.subscriptions.shared import groups_held, return_unacknowledged
from highway.broker.token_bucket import TokenBuckets
from highway.log_lines import about
from highway.mqtt import V5, ConnackPacket, Properties, ReasonCode

if TYPE_CHECKING:
    from highway.broker.authentication import Answer, Identity
    from highway.broker.broker import Broker
    from highway.broker.sessions.session_store import Puts
    from highway.broker.settings import BrokerSettings
    from highway.mqtt import ConnectPacket, Will

    from .client import Client

__all__ = ["TOPIC_ALIAS_MAXIMUM", "Lifecycle"]

logger = logging.getLogger("highway.broker")

# Topic aliases that a client may set: a sensor has a handful of topics, and each alias holds a name in memory.
# Ten is also what mosquitto grants, so that devices tuned to it find what they know.
TOPIC_ALIAS_MAXIMUM = 10
# Topic aliases that we set, where a client takes so many: each holds a name in memory for as long as its connection.
MAX_TOPIC_ALIASES = 256
_NEVER = 0xFFFF_FFFF  # a session expiry interval that means for ever


class Lifecycle:
    """The sessions of a broker as they begin, change hands and end."""

    __slots__ = ("_broker", "_reconnects")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._reconnects = TokenBuckets()  # by client id

    def _wait_s(self, client_id: str) -> float:
        """Seconds that a CONNECT with a client id is held off, as there were so many of late; 0 as a rule.

        Before that nothing of its session is looked at: two devices with one id would else take it from one another.
        Who isn't let in counts for nothing, or a stranger could hold off any client whose id he knows.
        """
        if not client_id:
            return 0.0
        broker = self._broker
        settings = broker.settings
        now = broker.clock.monotonic()
        wait_s = self._reconnects.wait_s(client_id, settings.reconnect_rate, now, settings.connect_timeout_s)
        broker.counters.limited["reconnect_rate"] += wait_s > 0
        return wait_s

    def connect(self, client: Client, packet: ConnectPacket) -> None:
        """Attach a client to its session, new or old, and answer it. Only the client id tells which. [MQTT-3.1.3-2]"""
        broker = self._broker
        client.version = packet.protocol_version
        if packet.properties.authentication_method is not None:  # 5.0 [MQTT-4.12.0-1]
            self._refuse(client, packet, ReasonCode.BAD_AUTHENTICATION_METHOD, "no authentication method is served")
            return
        # [MQTT-3.1.3-6] An empty id stands for one that the server makes up; 5.0 [MQTT-3.1.3-7]: and tells.
        client.client_id = packet.client_id or f"auto-{uuid.uuid4()}"
        login = Login(
            client.client_id,
            packet.username,
            packet.password,
            client.link.peer,
            client.link.ssl_object,
            packet.clean_start,
            packet.keep_alive,
        )

        def done(answer: Answer) -> None:
            client.logged_in(login, lambda: self._identified(client, packet, login, answer))

        answer = broker.authenticator.authenticate(login, done)
        if answer is None:
            client.wait_for_login(login)
        else:
            self._identified(client, packet, login, answer)

    def _identified(self, client: Client, packet: ConnectPacket, login: Login, answer: Answer) -> None:
        """It is known who the client is, or that it isn't let in: only now is there anything that it may touch."""
        if isinstance(answer, Refusal):
            self._refuse(client, packet, answer.reason_code, answer.why)
            return
        wait_s = self._wait_s(packet.client_id)
        if not wait_s:
            self._admit(client, packet, login, answer)
            return
        logger.info("held off: limits.reconnect_rate is reached", extra=_about(packet, client))
        client.wait_for_login(login)
        admit = partial(self._admit, client, packet, login, answer)
        self._broker.scheduler.call_later(wait_s, client.logged_in, login, admit)

    def _admit(
        self, client: Client, packet: ConnectPacket, login: Login, answer: Identity, asked: Rights | None = None
    ) -> None:
        """Whether the session that is asked for is the client's to have, and there is room for it.

        `asked` are its rights, once the judge was asked about the will: by then another may have that session, or there
        are other rules.
        """
        broker = self._broker
        if not broker.authenticator.still_knows(answer):  # it was held off, and there was a reload meanwhile
            self._refuse(client, packet, ReasonCode.NOT_AUTHORIZED, f"user {answer.user!r} is not known any more")
            return
        session = broker.sessions.get(client.client_id)
        anonymous = broker.authenticator.lets_anybody_in
        if session is not None and not self._is_over(session) and not owns(session.owner, answer, anonymous=anonymous):
            why = f"user {answer.user!r}: the session of that client id belongs to another user"
            self._refuse(client, packet, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, why)
            return
        if not self._has_room(client, packet):
            return
        client.identity, client.login_shown = answer, login
        if answer.companion is None:
            login.password = None
        rights = self.rights_for(client) if asked is None else asked
        try:
            allowed = packet.will is None or self._may_have_will(client, packet, packet.will, rights)
        except Undecided as undecided:
            assert rights is not None
            client.wait_for_login(login)
            go_on = partial(self._will_judged, client, packet, login, answer, rights, broker.settings)
            rights.ask(undecided.questions, partial(client.logged_in, login, go_on))
            return
        if allowed:
            self._attach(client, packet, rights)

    def _will_judged(
        self,
        client: Client,
        packet: ConnectPacket,
        login: Login,
        answer: Identity,
        rights: Rights,
        settings: BrokerSettings,
    ) -> None:
        """Begin again with what is known now; `settings` are those that the rights come of."""
        self._admit(client, packet, login, answer, rights if self._broker.settings.acl == settings.acl else None)

    def _attach(self, client: Client, packet: ConnectPacket, rights: Rights | None) -> None:
        """Make or take over the session of a client that may have it, and answer the CONNECT."""
        broker = self._broker
        before = broker.clients.get(client.client_id)
        if before is not None:
            # 3.1.1 [MQTT-3.1.4-2], 5.0 [MQTT-3.1.4-3]: the older one goes, its will before the newcomer's answer.
            logger.info("taken over by another connection", extra=about(client=client.client_id, peer=client.link.peer))
            ends = packet.clean_start or (before.session is not None and not before.session.persistent)
            before.end(ReasonCode.SESSION_TAKEN_OVER)
            if ends:
                broker.wills.session_ended(client.client_id)
        session, present, puts = self._session_of(client.client_id, packet)
        will = packet.will
        if will is not None and packet.properties.session_expiry_interval == 0:
            will = replace(
                will, delay_interval=0
            )  # the session is said to end with its connection, and the delay with it
        puts += broker.wills.set_puts(client.client_id, will)
        session.owner = client.identity.owner
        connack = ConnackPacket(present, 0, self._configure(client, session, packet))
        if session.persistent:
            puts.append(session_store.session_put(session))
        elif session.is_stored:
            puts += _forget_stored(session)  # it ends with this connection, also where that ends with a crash
        if puts:
            broker.store(puts)
        session.rights = rights
        client.session = session
        client.will = will
        session.link = client.link
        broker.clients[client.client_id] = client
        self._count()
        broker.counters.connected("accepted")
        if client.identity.companion is not None:
            client.identity.companion.connected()
        client.connected(connack, journaled=bool(puts))

    def rights_for(self, client: Client) -> Rights | None:
        """What a client whose names are known may do, as the settings are now."""
        identity = client.identity
        judge = None if identity.companion is None else identity.companion.judge
        return rights_of(self._broker.settings.acl, identity.user, client.client_id, judge)

    def _may_have_will(self, client: Client, packet: ConnectPacket, will: Will, rights: Rights | None) -> bool:
        """Whether the client may publish its will; if not, the connection is refused, as the will could not be kept."""
        broker = self._broker
        if will.topic_name.startswith(b"$CONTROL/"):
            # Where mosquitto takes orders. Who would give some from beyond gets no answer, there and here.
            logger.warning("refused: a will on $CONTROL", extra=_about(packet, client))
            client.link.close()
            return False
        allowed = rights is None or rights.may(Right.PUBLISH, will.topic_name)
        if not allowed or is_reserved(will.topic_name):
            self._refuse(client, packet, ReasonCode.NOT_AUTHORIZED, f"no right to its will on {will.topic_name!r}")
            return False
        limit = broker.exceeded_by(will.topic_name)
        if limit:
            self._refuse(client, packet, ReasonCode.TOPIC_NAME_INVALID, f"its will's topic is beyond limits.{limit}")
            return False
        return True

    def _has_room(self, client: Client, packet: ConnectPacket) -> bool:
        """Whether there is room for the session; if not, the connection is refused. Those that exist have theirs."""
        broker = self._broker
        is_full = len(broker.sessions) >= broker.settings.max_sessions
        if is_full and packet.session_expiry_interval and client.client_id not in broker.sessions:
            broker.counters.limited["max_sessions"] += 1
            self._refuse(client, packet, ReasonCode.QUOTA_EXCEEDED, "limits.max_sessions is reached")
            return False
        return True

    def _refuse(self, client: Client, packet: ConnectPacket, reason_code: int, why: str) -> None:
        # 3.1.1 [MQTT-3.2.2-5]; 5.0 [MQTT-3.1.4-2], [MQTT-3.2.2-7], [MQTT-4.12.0-4]: a refusal ends the connection.
        logger.warning("refused: %s", why, extra=_about(packet, client))
        self._broker.counters.connected(ReasonCode(reason_code).name.lower())
        client.link.write(ConnackPacket(reason_code=reason_code).encode(packet.protocol_version))
        client.link.close()

    def _session_of(self, client_id: str, packet: ConnectPacket) -> tuple[Session, bool, Puts]:
        """(session, whether it was there, what has to be stored).

        3.1.1 [MQTT-3.1.4-3], [MQTT-3.2.2-1], [MQTT-3.2.2-2], [MQTT-3.2.2-3]; 5.0 [MQTT-3.1.4-4], [MQTT-3.2.2-2],
        [MQTT-3.2.2-3].
        """
        broker = self._broker
        session = broker.sessions.get(client_id)
        puts: Puts = []
        if session is not None and self._is_over(session):
            puts = self.end_session(session)
            session = None
        puts += broker.wills.resumed(client_id)
        if session is not None and packet.clean_start:
            # 3.1.1 [MQTT-3.1.2-6], 5.0 [MQTT-3.1.2-4]: nothing of the old one is left.
            puts += self.end_session(session)
            session = None
        if session is not None:
            self._unpark(session)
            return session, True, puts  # 3.1.1 [MQTT-3.1.2-4], 5.0 [MQTT-3.1.2-5]
        # 3.1.1 [MQTT-3.1.2-4], 5.0 [MQTT-3.1.2-6]
        session = broker.sessions[client_id] = Session(broker, client_id)
        return session, False, puts

    def _configure(self, client: Client, session: Session, packet: ConnectPacket) -> Properties:
        """Take over what the client asks for, within the limits; returns what CONNACK has to say about it."""
        settings = self._broker.settings
        asked = packet.properties
        session.version = packet.protocol_version
        session.max_inflight = min(asked.receive_maximum or 65_535, settings.max_inflight)
        session.max_packet_bytes = asked.maximum_packet_size or 0
        session.topic_alias_maximum = min(asked.topic_alias_maximum or 0, MAX_TOPIC_ALIASES)
        session.topic_aliases.clear()  # 5.0 [MQTT-3.3.2-7]
        session.ack_offsets = asked.first_user_property("ack-offsets") == "1"
        session.wants_reasons = asked.request_problem_information != 0
        session.expires_at_ms = None
        expiry_s = self._limit_expiry(packet.session_expiry_interval)
        self.set_expiry(session, expiry_s)
        client.keep_alive = packet.keep_alive
        if (
            settings.max_keep_alive_s
            and not 0 < packet.keep_alive <= settings.max_keep_alive_s
            and client.version == V5
        ):
            client.keep_alive = settings.max_keep_alive_s
        for reader in session.readers.values():
            reader.changed()  # heads and aliases are of the connection before
        if packet.protocol_version != V5:
            return Properties()
        # No Authentication Method, as the client gave none (5.0 [MQTT-4.12.0-6]), and no Response Information, asked
        # for or not (5.0 [MQTT-3.1.2-28]): topics for answers are the clients' own choice.
        told = Properties()
        told.topic_alias_maximum = TOPIC_ALIAS_MAXIMUM
        if not packet.client_id:
            told.assigned_client_identifier = client.client_id  # 5.0 [MQTT-3.2.2-16]
        told.maximum_packet_size = settings.max_packet_bytes
        told.receive_maximum = settings.receive_maximum
        if client.keep_alive != packet.keep_alive:
            told.server_keep_alive = client.keep_alive  # 5.0 [MQTT-3.2.2-21], [MQTT-3.2.2-22]
        if expiry_s != packet.session_expiry_interval:
            told.session_expiry_interval = expiry_s
        return told

    def _limit_expiry(self, seconds: int) -> int:
        limit_ms = self._broker.settings.session_expiry_ms
        return seconds if limit_ms is None else min(seconds, limit_ms // 1000)

    def set_expiry(self, session: Session, seconds: int) -> None:
        """How long the session outlives its connection; 0 makes it end with it."""
        session.persistent = seconds > 0
        session.expiry_ms = None if seconds == _NEVER else seconds * 1000

    def change_expiry(self, session: Session, seconds: int) -> None:
        """DISCONNECT brought another expiry."""
        self.set_expiry(session, self._limit_expiry(seconds))

    def online(self, session: Session) -> None:
        """Let messages flow to a session whose CONNACK is out."""
        broker = self._broker
        session.place_missing()
        for reader in session.readers.values():
            tell_otherwise(reader)
        for subscription in session.subscriptions():
            broker.router.add(subscription)
        for cursor in session.cursors():
            cursor.feed.cursors.add(cursor)
            cursor.move_to(cursor.next_offset)
        for group, _ in session.groups.values():
            group.came_online(session)
        broker.pump_later(session)

    def disconnected(self, client: Client) -> None:
        """Park the session or end it, and see to the will that is left. Idempotent."""
        session, broker = client.session, self._broker
        if session is None:
            return
        client.session = None
        if client.identity.companion is not None:
            client.identity.companion.disconnected()
        will, client.will = client.will, None
        if broker.clients.get(client.client_id) is client:
            del broker.clients[client.client_id]
        session.link = None
        broker.offline(client, session)
        if session.persistent:  # 3.1.1 [MQTT-3.1.2-4], 5.0 [MQTT-3.1.2-23]
            session.expires_at_ms = None if session.expiry_ms is None else broker.storage.now_ms() + session.expiry_ms
            broker.store(
                [
                    session_store.session_put(session),
                    *session_store.subscription_puts(session, list(session.owed_names)),
                    *session_store.inflight_puts(session),
                    *session_store.position_puts(session),
                    *(put for group, _ in session.groups.values() for put in session_store.group_puts(group)),
                ]
            )
            self.park(session)
        puts = [] if session.persistent else self.end_session(session)
        if will is not None:  # 3.1.1 [MQTT-3.1.2-12]
            broker.wills.connection_lost(client.client_id, will)
        if puts:
            broker.store(puts)  # it was the last of a group
        self._count()

    def park(self, session: Session) -> None:
        """Note what a session that is away subscribes to."""
        session.parked = [subscription.topic_filter for subscription in session.all_subscriptions()]
        self._broker.router.park(session.parked)

    def _unpark(self, session: Session) -> None:
        self._broker.router.unpark(session.parked)
        session.parked = ()

    def end_session(self, session: Session) -> Puts:
        """Forget a session; returns what has to be stored for it. Its will, if one waits, is published."""
        broker = self._broker
        broker.sessions.pop(session.client_id, None)
        self._unpark(session)
        broker.wills.session_ended(session.client_id)
        groups = groups_held(session) if session.is_stored else []
        puts = session_store.drop_puts(session) if session.is_stored else []
        return_unacknowledged(session)
        for name in list(session.groups):
            puts += broker.leave_group(session, name)
        for group in groups:
            puts += session_store.group_puts(group)  # what came back was stored as in flight, and is not any more
        session.let_go()
        return puts

    def _is_over(self, session: Session) -> bool:
        # Not by a clock that has jumped by more than a day, nor right after a stop of that length: see CommitTime.
        storage = self._broker.storage
        return session.expires_at_ms is not None and session.expires_at_ms <= storage.now_ms() and storage.clock_settled

    def expire(self) -> None:
        """End the sessions whose time is over."""
        broker = self._broker
        expired = [session for session in broker.sessions.values() if self._is_over(session)]
        for session in expired:
            logger.info("session expired", extra=about(client=session.client_id))
            broker.store(self.end_session(session))
        broker.counters.clients_expired += len(expired)
        self._count()

    def _count(self) -> None:
        broker = self._broker
        counters = broker.counters
        counters.clients_connected = len(broker.clients)
        counters.clients_disconnected = len(broker.sessions) - len(broker.clients)
        counters.clients_maximum = max(counters.clients_maximum, len(broker.clients))


def _forget_stored(session: Session) -> Puts:
    """The end of what is stored of a session that goes on: what it holds of groups is theirs after a crash."""
    puts = session_store.drop_puts(session)
    for group in groups_held(session):
        puts += session_store.group_puts(group)
    return puts


def _about(packet: ConnectPacket, client: Client) -> dict[str, Any]:
    return about(client=packet.client_id or None, peer=client.link.peer)
