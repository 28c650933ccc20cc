"""One TCP connection: bytes in, bytes out, and the clocks that watch it.

Thin on purpose: `ServerProtocol` knows the packets, `Client` knows what they mean; this reads a chunk, hands it on,
and implements `Link`. What carries it, TCP, TLS or WebSocket, keeps bytes and order (3.1.1 [MQTT-7.1.1-1], 5.0
[MQTT-4.2.0-1]). It is a callback protocol and not a stream with a task, as a task, a future or an await for
each message would cost more than everything else that is done with it.

Owner: the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

from highway.broker.connections.client import Client
from highway.broker.connections.lifecycle import TOPIC_ALIAS_MAXIMUM
from highway.log_lines import about
from highway.mqtt import ReasonCode, ServerProtocol

from .admission import Admission
from .metering import Accounts

if TYPE_CHECKING:
    from highway.broker import Broker
    from highway.broker.publishing.fast_path import FastPath
    from highway.errors import MqttError

    from .admission import Place

__all__ = ["LINGER_S", "TURN_BYTES", "Connection", "Connections"]

logger = logging.getLogger("highway.server")

# A peer that does not read may keep its last bytes this long after we closed, then they are thrown away.
LINGER_S = 5.0
# Messages wait in the log when the write buffer is full; answers can't. From a peer that lets them grow to this many
# times the buffer's limit no more requests are taken until it reads. Blocking clients that send for a while and read
# afterwards stay far below it.
UNREAD_FACTOR = 4
# A process that stood still (a debugger, a paused virtual machine) finds timers due and bytes unread: those come first.
GRACE_S = 0.1

# Packets, or runs of PUBLISH or PUBACK, that are taken from a peer in one turn of the loop: a flood of the smallest has
# 130,000 of them in one read, and everybody else waits for as long as that takes.
TURN_EVENTS = 1024

# With more that was read and waits for the end of the turn, it ends early. Who sends so much at once is a batch by itself,
# and may have to be stopped before the next read.
TURN_BYTES = 64 * 1024

# Why nothing is read from the peer.
_ASKED, _UNREAD, _BUSY, _OWES = 1, 2, 4, 8


class Connections:
    """What all connections of the process share: the broker, the loop, places, accounts, and the turn.

    A turn of the loop reads from every peer that has sent something. What was read is handled together at its end, so
    that a thousand devices with a message each cost one append to the log and not a thousand.
    """

    __slots__ = ("_turn", "_turn_bytes", "accounts", "admission", "broker", "loop", "open")

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self.broker = broker
        self.loop = loop
        self.admission = Admission(broker)
        self.accounts = Accounts(broker)
        self.open: set[Connection] = set()
        self._turn: list[tuple[Connection, bytes]] = []
        self._turn_bytes = 0

    def at_turn_end(self, connection: Connection, data: bytes) -> None:
        """Have `connection` take what was read from its peer at the end of this turn."""
        if not self._turn:
            self.loop.call_soon(self.end_turn)
        self._turn.append((connection, data))
        self._turn_bytes += len(data)
        if self._turn_bytes > TURN_BYTES:
            self.end_turn()

    def end_turn(self) -> None:
        """Take all that was read by now, in the order in which it was; does nothing while it is being taken."""
        turn = self._turn
        if not turn:
            return
        self.broker.counters.bytes_received += self._turn_bytes
        self._turn, self._turn_bytes = [], 0
        gathering = self.broker.gathering
        is_fast = self.broker.takes_fast()
        now = self.loop.time()
        gathering.begin()
        try:
            for connection, data in turn:
                connection.heard_at = now
                try:
                    fast_path = connection.fast_path if is_fast else None
                    if fast_path is None or not fast_path.take(connection.client, data):
                        connection.take(data)
                except Exception:
                    # A fault of ours that one peer brings out must not reach the others.
                    logger.exception("%s can't be served", connection.peer)
                    connection.turn_out()
        finally:
            gathering.end()


class Connection(asyncio.Protocol):
    """The asyncio side of one network connection, and the broker's `Link` to it.

    `place` and `accepted_at`, the time of the loop, are those of a peer with which something was done before.
    """

    __slots__ = (
        "_accepted_at",
        "_counters",
        "_debt",
        "_early",
        "_is_overdue",
        "_is_stranger",
        "_keep_alive_s",
        "_paused",
        "_place",
        "_protocol",
        "_shared",
        "_time",
        "_timer",
        "_transport",
        "_unread_bytes",
        "client",
        "congested",
        "fast_path",
        "heard_at",
        "listener",
        "peer",
    )

    def __init__(
        self, shared: Connections, place: Place | None = None, accepted_at: float | None = None, listener: str = ""
    ) -> None:
        self._shared = shared
        self.listener = listener  # the name of the one that it came in at
        self._place = place
        self._is_stranger = True  # until the client is logged in
        self._early = b""  # what came although the peer is to wait
        self._debt: asyncio.TimerHandle | None = None  # while something is owed
        self._time = shared.loop.time
        self._counters = shared.broker.counters
        self._accepted_at = accepted_at
        settings = shared.broker.settings
        self._protocol = ServerProtocol(
            max_packet_bytes=settings.max_packet_bytes,
            max_connect_bytes=settings.max_connect_packet_bytes,
            topic_alias_maximum=TOPIC_ALIAS_MAXIMUM,
            max_events=TURN_EVENTS,
        )
        self.client = Client(shared.broker, self)
        self.peer = "?" if place is None else place.peer
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.heard_at = 0.0
        self._keep_alive_s = 0.0
        self._is_overdue = False  # silent for too long when last looked at
        self._paused = 0  # reasons
        self._unread_bytes = 0  # in the write buffer when the keep alive was last looked at
        self.congested = False
        self.fast_path: FastPath | None = None  # while what comes next begins with a packet, and may be done in any way

    # asyncio calls these.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        shared, settings = self._shared, self._shared.broker.settings
        self._transport = cast("asyncio.Transport", transport)
        if self._place is None:
            address = transport.get_extra_info("peername")
            self._place = shared.admission.enter(address, self.turn_out)
            if self._place is None:
                self._transport.abort()
                return
            self.peer = self._place.peer
            wait_s = shared.admission.wait_s(self._place, self._time())
            if wait_s:
                self._owe(wait_s, "connect_rate_per_address")
                shared.loop.call_soon(self._pause_again)  # a transport begins to read behind this call, paused or not
        self._place.turn_out = self.turn_out
        shared.open.add(self)
        self._counters.connections += 1
        self._counters.connections_open = len(shared.open)
        self._transport.set_write_buffer_limits(high=settings.write_buffer_bytes)
        begin = shared.loop.time() if self._accepted_at is None else self._accepted_at
        due = begin + shared.admission.patience_s(self._place)
        self._timer = shared.loop.call_at(due, self._connect_timed_out)

    def data_received(self, data: bytes) -> None:
        if not self._is_stranger:
            self._shared.at_turn_end(self, data)  # where all that costs something is done for the turn
            return
        self.heard_at = self._time()
        self._counters.bytes_received += len(data)
        if self._debt is not None:
            self._early += data
            self.holds(len(self._early))
        else:
            self._shared.end_turn()  # who is taken over is heard out first
            self.take(data)

    def eof_received(self) -> None:
        self._shared.end_turn()

    def take(self, data: bytes) -> None:
        """Do what the packets in `data` ask for."""
        if self._transport is None:
            return
        self._handle(data)
        protocol = self._protocol
        self.fast_path = None if self.congested or not protocol.is_between_packets else self.client.fast_path
        if protocol.error is not None:
            self._violated(protocol.error)
        elif protocol.has_more:
            self._pause(_BUSY)
            if not self._paused & _OWES:
                self._shared.loop.call_soon(self._take_more)
        elif self._paused & _BUSY:
            self._resume(_BUSY)
        if self._is_stranger:
            self.holds(protocol.pending_bytes)
        if self.congested:
            self._shared.broker.gathering.flush()  # and with it the answers that are due
            self.mind_unread()

    def _handle(self, data: bytes) -> None:
        broker = self._shared.broker
        events = self._protocol.receive_data(data)
        if events:
            received = self._counters.publish_received
            self.client.handle(events)
            if broker.settings.is_metered or broker.router.new_topics != self._shared.accounts.new_topics:
                self._charge(self._counters.publish_received - received, len(data))

    def _charge(self, messages: int, size: int) -> None:
        """Count what came against the rates of the client, and read no more from it until nothing is owed."""
        accounts, client_id = self._shared.accounts, self.client.client_id
        topics = accounts.take_new_topics()
        if self._is_stranger:
            return
        messages += self.client.take_early()
        self._owe(*accounts.charge(client_id, messages, size, topics, self._time()))

    def _owe(self, wait_s: float, limit: str) -> None:
        if wait_s and self._transport is not None and not self._paused & _OWES:
            self._counters.limited[limit] += 1
            logger.info("not read from for a while: limits.%s is reached", limit, extra=self._about())
            self._pause(_OWES)
            self._debt = self._shared.loop.call_later(wait_s, self._paid)

    def _pause_again(self) -> None:
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _paid(self) -> None:
        self._debt = None
        self._resume(_OWES)
        early, self._early = self._early, b""
        if early or self._paused & _BUSY:
            self._take_more(early)

    def _take_more(self, data: bytes = b"") -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.take(data)

    def pause_writing(self) -> None:
        self.congested = True
        self.fast_path = None

    def resume_writing(self) -> None:
        self.congested = False
        self._resume(_UNREAD)
        self._shared.broker.drained(self.client)

    def mind_unread(self) -> None:
        """Take no more requests from a peer that doesn't read the answers to those before."""
        transport = self._transport
        limit = UNREAD_FACTOR * self._shared.broker.settings.write_buffer_bytes
        if transport is not None and not transport.is_closing() and transport.get_write_buffer_size() > limit:
            self._unread_bytes = transport.get_write_buffer_size()
            self._pause(_UNREAD)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        self._shared.end_turn()
        if self._timer is not None:
            self._timer.cancel()
        self._shared.open.discard(self)
        self._counters.connections_open = len(self._shared.open)
        if self._debt is not None:
            self._debt.cancel()
        if self._place is not None:
            self._shared.admission.leave(self._place)
        self._transport = self.fast_path = None
        self._timer = self._debt = None
        self._hear_out()

    def _hear_out(self) -> None:
        """Take what the peer sent before it went, part by part as ever, and let the client go then."""
        if self._protocol.has_more:
            self._handle(b"")
            self._shared.loop.call_soon(self._hear_out)
            return
        self._protocol.receive_eof()
        self.client.lost()
        # Each holds the other, and the collector looks at what has lived for long once in ten million objects.
        del self.client

    # A transport that has a protocol of its own calls these, too.

    @property
    def ssl_object(self) -> Any:
        """What the ssl module knows of a TLS connection; None for others."""
        return None if self._transport is None else self._transport.get_extra_info("ssl_object")

    @property
    def has_connect(self) -> bool:
        """Whether a CONNECT has come, and with it the end of the small limit."""
        return self._protocol.version != 0

    def holds(self, size: int) -> None:
        """The peer makes us hold so many bytes of what is not complete, or somebody below does."""
        if self._is_stranger and self._place is not None:
            self._shared.admission.holds(self._place, size)

    def turn_out(self) -> None:
        """Make room for others."""
        if self._transport is not None:
            self._transport.abort()

    def fail(self, fault: str) -> None:
        """Close, because the peer broke the rules: those of MQTT or of what carries it."""
        self._shared.end_turn()  # what came before counts
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        logger.warning("closed: %s", fault, extra=self._about())
        self.close()
        self.client.violated()

    def end(self) -> None:
        """Close, because the listener that it came in at is gone."""
        self.client.end(ReasonCode.ADMINISTRATIVE_ACTION)

    # The broker calls these: Link.

    def established(self, keep_alive_s: int) -> None:
        """The client is in: from now on its keep alive is what ends a silent connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_stranger = False
        if self._place is not None:
            self._shared.admission.logged_in(self._place)
        self._keep_alive_s = keep_alive_s * 1.5
        if keep_alive_s and self._transport is not None:
            self._timer = self._shared.loop.call_later(self._keep_alive_s, self._check_keep_alive)

    def write(self, data: bytes) -> None:
        transport = self._transport
        # Nothing follows a DISCONNECT, also not what the disk had to be waited for: 5.0 [MQTT-3.14.4-1].
        if transport is not None and not transport.is_closing():
            self._counters.bytes_sent += len(data)
            transport.write(data)

    def close(self, last: bytes = b"") -> None:
        self._shared.end_turn()
        self._shared.broker.gathering.flush()  # what is due by now comes before the end
        self.fast_path = None
        transport = self._transport
        if transport is None:
            return
        if last:
            self.write(last)
        transport.close()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._shared.loop.call_later(LINGER_S, transport.abort)

    def pause_reading(self) -> None:
        self._pause(_ASKED)

    def resume_reading(self) -> None:
        self._resume(_ASKED)

    def _pause(self, reason: int) -> None:
        transport = self._transport
        if not self._paused and transport is not None and not transport.is_closing():
            transport.pause_reading()
        self._paused |= reason

    def _resume(self, reason: int) -> None:
        was_paused, transport = self._paused, self._transport
        self._paused &= ~reason
        if was_paused and not self._paused and transport is not None and not transport.is_closing():
            self.heard_at = self._shared.loop.time()  # it could not be heard before
            transport.resume_reading()

    # Timers and faults.

    def _about(self) -> dict[str, Any]:
        return about(client=self.client.client_id or None, peer=self.peer)

    def _connect_timed_out(self) -> None:
        self._counters.limited["connect_timeout"] += 1
        what = "not logged in" if self.has_connect else "no CONNECT"
        logger.info("closed: %s in time", what, extra=self._about())
        self.close()
        self.client.abandon()

    def _check_keep_alive(self) -> None:
        # One timer a connection that is moved on when it fires, so that a packet costs it nothing.
        self._shared.end_turn()  # it may have been read from by now
        left = self.heard_at + self._keep_alive_s - self._shared.loop.time()
        was_overdue, self._is_overdue = self._is_overdue, left <= 0
        if self._is_overdue:
            left = self._keep_alive_s if self._is_excused() else 0 if was_overdue else GRACE_S
        if left > 0:
            self._timer = self._shared.loop.call_later(left, self._check_keep_alive)
            return
        # Silent for one and a half times the keep alive: 3.1.1 [MQTT-3.1.2-24], 5.0 [MQTT-3.1.2-22].
        logger.info("closed: silent for %g s", self._keep_alive_s, extra=self._about())
        self.client.end(ReasonCode.KEEP_ALIVE_TIMEOUT)

    def _is_excused(self) -> bool:
        """Whether the peer is silent because nothing is read from it, and reads what it is sent."""
        transport = self._transport
        if not self._paused or transport is None:
            return False
        before, self._unread_bytes = self._unread_bytes, transport.get_write_buffer_size()
        return not self._paused & _UNREAD or self._unread_bytes < before

    def _violated(self, error: MqttError) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if error.reason_code == ReasonCode.PACKET_TOO_LARGE:
            self._counters.limited["max_connect_packet" if self._is_stranger else "max_packet"] += 1
        logger.warning("closed: %s", error.detail, extra=self._about())
        self.close(self._protocol.error_reply(connack_sent=self.client.connack_sent))
        self.client.violated()
