"""What the broker does with the packets of one network connection.

One call of `handle` for each chunk that was read: publishes are appended run by run, or gathered with those of others in
the same turn of the loop, and all acknowledgements of the chunk are sent as one write when the last of them is due.

Owner: the event loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from highway.broker.authentication import Identity
from highway.broker.authorisation import Right, Undecided
from highway.broker.publishing.fast_path import FastPath
from highway.broker.publishing.requests import NO_REQUESTS, requests_of
from highway.broker.replay.fetching import may_fetch
from highway.broker.sessions.session_store import Puts, received_put
from highway.broker.subscriptions.subscribing import SubscribeOperation, open_questions
from highway.broker.subscriptions.unsubscribing import unsubscribe
from highway.errors import ProtocolError, StorageError
from highway.log_lines import about
from highway.mqtt import (
    MAX_PACKET_BYTES,
    PINGRESP,
    V5,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    PingreqPacket,
    PubackRun,
    PubcompPacket,
    PublishRun,
    PubrecPacket,
    PubrelPacket,
    ReasonCode,
    SubscribePacket,
    UnsubscribePacket,
    encode_within,
)
from highway.storage import Durability

from . import acknowledging
from .receive_window import ReceiveWindow
from .receiving import give_back, mqtt_5_acks, plain_acks, reasoned_acks, receive_once, refused_acks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from highway.broker.authentication import Login
    from highway.broker.authorisation import Rights
    from highway.broker.broker import Broker
    from highway.broker.sessions.session import Session
    from highway.mqtt import Event, Will

    from .link import Link

__all__ = ["Client"]

logger = logging.getLogger("highway.broker")

# Filters of one SUBSCRIBE that plugins are asked about, where there are plugins.
MAX_QUESTIONS = 1000


class Client:
    """A connected client: the session that it is attached to, its will, and the acknowledgements that it waits for."""

    __slots__ = (
        "_acks",
        "_acks_mode",
        "_deferred",
        "_early",
        "_is_gone",
        "_waiting",
        "_was_denied",
        "_window",
        "broker",
        "client_id",
        "connack_sent",
        "fast_path",
        "identity",
        "keep_alive",
        "link",
        "login",
        "login_shown",
        "session",
        "version",
        "will",
    )

    def __init__(self, broker: Broker, link: Link) -> None:
        self.broker = broker
        self.link = link
        self.session: Session | None = None
        self.version = 0  # of the protocol, once CONNECT said it
        self.client_id = ""
        self.connack_sent = False  # with success; until then MQTT 5 knows no DISCONNECT for this client
        self.keep_alive = 0  # seconds; 0: the client promised nothing
        self.login: Login | None = None  # while it waits to be told who it is
        self.identity = Identity()
        self.login_shown: Login | None = None  # and was let in with; without a password, where nobody else needs it
        self.will: Will | None = None
        self._acks: list[bytes] = []  # of the chunk at hand
        self._acks_mode = Durability.FAST  # the point at which the acknowledgements being gathered are due
        self._early = 0  # messages handled out of a chunk that was deferred
        self._waiting = 0  # acknowledgements handed to the storage engine and not sent yet
        self._deferred: list[Event] | None = None  # what came behind a packet that waits for an answer from elsewhere
        self._is_gone = False  # the connection went while it waited
        self._was_denied = False  # a publish for want of a right
        self._window: ReceiveWindow | None = None  # of MQTT 5
        self.fast_path: FastPath | None = None  # once a message came alone

    def handle(self, events: Sequence[Event]) -> None:
        """Do what the packets of one chunk ask for."""
        if self._deferred is not None and self._defer(events):
            return
        self.broker.counters.messages_received += len(events)
        index = 0
        try:
            for index, event in enumerate(events):
                if self.session is None and type(event) is not ConnectPacket:
                    # Taken over or refused while the chunk was being worked off: 3.1.1 [MQTT-3.1.4-5], 5.0 [MQTT-3.1.4-6].
                    return
                kind = type(event)
                if kind not in _LEAVE_GATHERED:
                    self.broker.gathering.flush()
                HANDLERS[kind](self, event)
                if kind is ConnectPacket and self._defer(events[index + 1 :]):
                    return
        except Undecided as undecided:
            self._wait_for_verdict(undecided, events[index:])
        if self._acks:
            self._send_acks()
        self.broker.hold_back(self)

    def _defer(self, events: Sequence[Event]) -> bool:
        """Keep events for later, if the packet before them waits: a CONNECT for the journal, or for who the client is."""
        if self._deferred is None:
            return False
        if events:
            self._deferred.extend(events)
            self.link.pause_reading()  # what comes behind waits in the network and not here
        return True

    def _wait_for_verdict(self, undecided: Undecided, events: Sequence[Event]) -> None:
        """Keep a packet that can't be handled before somebody was asked, and what came behind it; read nothing more."""
        assert self.session is not None
        assert self.session.rights is not None
        self.broker.counters.messages_received -= len(events)  # they come again
        self._deferred = [*events]
        self.link.pause_reading()
        self.session.rights.ask(undecided.questions, self._verdict_is_there)

    def _verdict_is_there(self) -> None:
        events, self._deferred = self._deferred, None
        if events is None:
            return  # closed from our side meanwhile
        self.link.resume_reading()
        self._handle_deferred(events)
        if self._is_gone and self._deferred is None:
            self._lost()

    def on_connect(self, packet: ConnectPacket) -> None:
        """Find or make the session; the answer may have to wait for the journal.

        Until it is out, nothing else is sent: [MQTT-3.2.0-1]. It comes once, as CONNECT does: 5.0 [MQTT-3.2.0-2].
        """
        self.broker.lifecycle.connect(self, packet)

    def wait_for_login(self, login: Login) -> None:
        """Take nothing from the client until it is known: what came with its CONNECT waits here, the rest in the network."""
        self.login = login
        self._deferred = []
        self.link.pause_reading()

    def logged_in(self, login: Login, go_on: Callable[[], None]) -> None:
        """The answer to `login` is there: call `go_on` with it, and then take what came behind the CONNECT.

        Nothing happens where the client is gone by now, or its time was over.
        """
        if self.login is not login:
            return
        self.login = None
        events, self._deferred = self._deferred or [], None
        self.link.resume_reading()
        go_on()
        if self._waits_for_login():
            self._deferred = events  # for another answer
        elif self.session is not None:
            self._handle_deferred(events)

    def _waits_for_login(self) -> bool:
        return self.login is not None

    def abandon(self) -> None:
        """Forget a CONNECT that has no answer yet: whatever it comes to, nothing is changed by it."""
        self._is_gone = True
        if self.login is not None:
            self.login.is_abandoned = True
            self.login = None
            self._deferred = None

    def connected(self, connack: ConnackPacket, *, journaled: bool) -> None:
        """Answer CONNECT, after the journal has what it changed, and then let the session's messages flow."""
        if self.version == V5 and self.session is not None:
            self._window = ReceiveWindow(self.broker.settings.receive_maximum, self.session.received)
        if not journaled:
            self._answer_connect(connack)
            return
        self._deferred = []
        self.broker.storage.after(Durability.BALANCED, lambda error: self._connect_journaled(connack, error))

    def _connect_journaled(self, connack: ConnackPacket, error: StorageError | None) -> None:
        events, self._deferred = self._deferred or [], None
        if events:
            self.link.resume_reading()
        if error is not None:
            # Readers and idle sensors are welcome while the disk takes nothing: they lose nothing by it.
            logger.warning("its session could not be stored: %s", error, extra=about(client=self.client_id))
        self._answer_connect(connack)
        self._handle_deferred(events)
        if self._is_gone and self._deferred is None:
            self._lost()

    def _handle_deferred(self, events: list[Event]) -> None:
        received = self.broker.counters.publish_received
        self.handle(events)
        self._early += self.broker.counters.publish_received - received

    def take_early(self) -> int:
        """Messages that came together with CONNECT and had to wait, since the last call."""
        count, self._early = self._early, 0
        return count

    def _answer_connect(self, connack: ConnackPacket) -> None:
        session = self.session
        if session is not None:
            data = encode_within(connack, session.version, session.max_packet_bytes or MAX_PACKET_BYTES)
            if not data:
                self.end(ReasonCode.PACKET_TOO_LARGE)  # it can't take our answer, and so nothing else
                return
            self.link.established(self.keep_alive)
            self.link.write(data)  # 3.1.1 [MQTT-3.1.4-4], 5.0 [MQTT-3.1.4-5]
            self.broker.counters.control_sent += 1
            self.connack_sent = True
            self.broker.lifecycle.online(session)

    # Publishing.

    def on_publish(self, run: PublishRun) -> None:
        """Append a run, and gather its acknowledgements for the end of the chunk. [MQTT-3.3.4-1]

        An acknowledgement has the id of its message (3.1.1 [MQTT-2.3.1-6], 5.0 [MQTT-2.2.1-5]), and whether its life is
        over by then makes no difference (5.0 [MQTT-4.3.3-13]). At QoS 1 every PUBLISH is a new message, DUP or not: 3.1.1
        [MQTT-4.3.2-2], 5.0 [MQTT-4.3.2-5].
        """
        session, broker = self.session, self.broker
        assert session is not None
        # First of all, as it may have to be waited for, and the run comes again then.
        allowed = session.rights is None or self._may_publish(session.rights, run)
        count, counters = len(run.payloads), broker.counters
        counters.publish_received += count
        counters.messages_received += count - 1  # a run is many packets
        counters.publish_bytes_received += run.payload_bytes
        if not allowed:
            self._deny(run)
            return
        puts: Puts = []
        new: list[bytes] = []  # QoS 2 packet ids that were not known before
        acks = b""
        if run.qos:
            acks = plain_acks(run)
            if run.qos == 2:
                new = receive_once(session, run, puts)
        if acks and self._window is not None and not self._window.take(run, len(new), session.received):
            give_back(session, new)
            broker.counters.limited["receive_maximum"] += 1
            logger.warning("closed: it has more than its receive maximum under way", extra=about(client=self.client_id))
            self.end(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)
            return
        try:
            requests = requests_of(run.properties).by(session.owner) if run.properties else NO_REQUESTS
            if run.payloads:
                mode = broker.publish(run, puts, session, requests)
            else:
                mode = broker.entry_durability(run.topic_name)
        except StorageError as error:
            give_back(session, new)
            self._refuse(run, new, ReasonCode.QUOTA_EXCEEDED, error)
            return
        except ProtocolError as error:
            give_back(session, new)
            logger.warning("closed: %s", error, extra=about(client=self.client_id, topic=run.topic_name))
            self.end(error.reason_code)
            return
        if run.head:
            if self.fast_path is None:
                self.fast_path = FastPath()
            self.fast_path.learn(self, run)
        if not acks:
            return
        if self.version == V5:
            acks = mqtt_5_acks(broker, session, run, acks, mode)
        self._answer_run(run, acks)
        # 3.1.1 has no way to refuse but to close: what nothing takes is acknowledged and dropped, and counted. 3.1.1
        # [MQTT-3.3.5-2]
        if mode is not None and mode > self._acks_mode:
            self._acks_mode = mode

    def takes_fast(self, rights: Rights | None) -> bool:
        """Whether the client may go on as it did when it had `rights`."""
        session, window = self.session, self._window
        if session is None or session.rights is not rights:
            return False
        return window is None or window.has_room(session.received)

    def acknowledge(self, data: bytes, mode: Durability) -> None:
        """Send the PUBACK of a message that was gathered, and came alone, when all up to it has reached `mode`."""
        pubacks = 0
        if self._window is not None:
            self._window.take_one()
            pubacks = 1
        self._acks_mode = max(self._acks_mode, mode)
        self._waiting += 1
        broker = self.broker
        broker.counters.control_sent += 1
        broker.gathering.acknowledge(self._acks_mode, self, data, pubacks)

    def rights_changed(self) -> None:
        """The client may have other rights now: a publish without one is told again."""
        self._was_denied = False

    def _may_publish(self, rights: Rights, run: PublishRun) -> bool:
        if not run.topic_name.startswith(b"$fetch/"):
            return rights.may(Right.PUBLISH, run.topic_name)
        if rights.has_judge:
            may_fetch(self.broker, run, rights)  # asks, where that isn't known
        return True  # requests to the log are looked at where they are answered

    def _deny(self, run: PublishRun) -> None:
        """The client has no right to publish there. 3.1.1 [MQTT-3.3.5-2]

        Before MQTT 5 it can't be told: the message is acknowledged and dropped, or the connection closed.
        """
        broker = self.broker
        broker.counters.acl_denied += len(run.payloads)
        if not self._was_denied:  # one line for each connection: a sensor would fill the disk with them
            self._was_denied = True
            logger.warning("no right to publish there", extra=about(client=self.client_id, topic=run.topic_name))
        if self.version != V5 and broker.settings.acl_denied_closes:
            self.end(ReasonCode.NOT_AUTHORIZED)
        elif run.qos and self.version == V5:
            self._answer_run(run, reasoned_acks(run, ReasonCode.NOT_AUTHORIZED))
        elif run.qos:
            self._answer_run(run, plain_acks(run))

    def _refuse(self, run: PublishRun, new: Collection[bytes], reason_code: int, error: StorageError) -> None:
        """Not stored, not acknowledged: MQTT 5 is told so, 3.1.1 has no other way than closing. 3.1.1 [MQTT-4.8.0-2]"""
        if self.version != V5 or not run.qos:
            self.broker.refuse_publish(self, error)
            return
        logger.error("publish refused: %s", error, extra=about(client=self.client_id, topic=run.topic_name))
        self._answer_run(run, refused_acks(run, new, reason_code))

    def _answer_run(self, run: PublishRun, acks: bytes) -> None:
        self._acks.append(acks)
        self.broker.counters.control_sent += len(run.packet_ids) - 1  # they are many packets, and one piece

    def answer(self, data: bytes, mode: Durability = Durability.FAST) -> None:
        """Send a control packet with the acknowledgements of the chunk at hand, and behind `mode`'s point of what was stored."""
        self._acks.append(data)
        self._acks_mode = max(self._acks_mode, mode)

    def _send_acks(self) -> None:
        acks = self._acks
        data = acks[0] if len(acks) == 1 else b"".join(acks)
        self.broker.counters.control_sent += len(acks)
        acks.clear()
        pubacks = 0 if self._window is None else self._window.gathered()
        # [MQTT-4.6.0-2], [MQTT-4.6.0-3], [MQTT-4.6.0-4]: acknowledgements leave in the order of their messages. One that
        # is due at once does not pass those that wait for the disk, so the mode stays up until the last of them is out.
        self._waiting += 1
        self.broker.gathering.acknowledge(self._acks_mode, self, data, pubacks)

    def acks_due(self, data: bytes, pubacks: int, error: StorageError | None) -> None:
        """Send acknowledgements whose messages have reached their point, or close where they never will."""
        self._waiting -= 1
        if not self._waiting:
            self._acks_mode = Durability.FAST
        # Ownership is accepted only now: 3.1.1 [MQTT-4.3.2-2], [MQTT-4.3.3-2]; 5.0 [MQTT-4.3.2-4], [MQTT-4.3.3-8].
        if error is None:
            self.link.write(data)
            if self._window is not None:
                self._window.written(pubacks)
        elif self.session is not None:
            self.broker.refuse_publish(self, error)

    def on_pubrel(self, packet: PubrelPacket) -> None:
        """The client has our PUBREC: forget the id, then PUBCOMP.

        3.1.1 [MQTT-4.3.3-2]; 5.0 [MQTT-4.3.3-11], [MQTT-4.3.3-12]
        """
        session = self.session
        assert session is not None
        known = packet.packet_id in session.received
        session.received.discard(packet.packet_id)
        if self._window is not None:
            self._window.released(packet.packet_id)
        # An id that is unknown is answered too: a client that lost its memory could not finish otherwise.
        pubcomp = PubcompPacket(packet.packet_id).encode(session.version)
        if not session.persistent:
            self.answer(pubcomp)
            return
        # Were PUBCOMP sent first and the removal lost, be it with the power, a new message under this id would be taken
        # for a repetition: acknowledged and not stored. Where the id is gone, its removal may still wait.
        if known:
            self.broker.store([received_put(session, packet.packet_id, present=False)], Durability.SAFE)
        self.answer(pubcomp, Durability.SAFE)

    # The rest.

    def on_subscribe(self, packet: SubscribePacket) -> None:
        """See `subscribing`."""
        session = self.session
        assert session is not None
        if session.rights is not None and session.rights.has_judge:
            questions = open_questions(packet, session.rights, self.broker.clock.now_ms())
            if len(questions) > MAX_QUESTIONS:
                logger.warning("closed: a SUBSCRIBE of %d filters", len(questions), extra=about(client=self.client_id))
                self.end(ReasonCode.QUOTA_EXCEEDED)
                return
            if questions:
                raise Undecided(*questions)
        SubscribeOperation(self, session, packet).run()

    def on_unsubscribe(self, packet: UnsubscribePacket) -> None:
        """See `unsubscribing`."""
        assert self.session is not None
        unsubscribe(self, self.session, packet)

    def on_pingreq(self, _: PingreqPacket) -> None:
        """[MQTT-3.12.4-1]; behind the acknowledgements of what came before it, as many clients take it for a barrier."""
        self.answer(PINGRESP)

    def on_disconnect(self, packet: DisconnectPacket) -> None:
        """The client's own end of the connection.

        The will goes with it: 3.1.1 [MQTT-3.1.2-10], [MQTT-3.14.4-3]; in 5.0 with reason code 0 only, so that a client
        that leaves for a fault of ours is announced too: 5.0 [MQTT-3.1.2-10], [MQTT-3.14.4-3].
        """
        if packet.reason_code == ReasonCode.SUCCESS:
            self.broker.wills.forget(self.client_id, self.will)
            self.will = None
        expiry = packet.properties.session_expiry_interval
        if expiry is not None and self.session is not None:
            self.broker.lifecycle.change_expiry(self.session, expiry)
        self.link.close()
        self.lost()

    def end(self, reason_code: int) -> None:
        """Close the connection from our side; MQTT 5 is told why, and nothing else.

        5.0 [MQTT-3.14.0-1], [MQTT-3.14.2-2], [MQTT-3.14.4-2], [MQTT-4.13.2-1]
        """
        is_told = self.version == V5 and self.connack_sent
        self.link.close(DisconnectPacket(reason_code).encode(V5) if is_told else b"")
        self._deferred = None
        self._lost()

    def lost(self) -> None:
        """The network connection is gone, or about to be: end or park the session. Idempotent.

        A client need not wait for its CONNACK: one that says all it has to say and leaves is heard out.
        """
        self.abandon()
        if self._deferred is not None:
            self._is_gone = True
            return
        self._lost()

    def _lost(self) -> None:
        self.broker.lifecycle.disconnected(self)

    def violated(self) -> None:
        """The client broke the protocol: what the rules say of its session, as if the connection had been lost."""
        self.broker.counters.malformed_packets += 1
        self.lost()


# What neither asks a log for anything nor writes to one by itself: what is gathered may wait behind it.
_LEAVE_GATHERED = frozenset({PublishRun, PubackRun, PingreqPacket})

HANDLERS: dict[type, Callable[[Client, Any], None]] = {
    ConnectPacket: Client.on_connect,
    PublishRun: Client.on_publish,
    PubackRun: acknowledging.on_pubacks,
    PubrecPacket: acknowledging.on_pubrec,
    PubrelPacket: Client.on_pubrel,
    PubcompPacket: acknowledging.on_pubcomp,
    SubscribePacket: Client.on_subscribe,
    UnsubscribePacket: Client.on_unsubscribe,
    PingreqPacket: Client.on_pingreq,
    DisconnectPacket: Client.on_disconnect,
}
