"""SUBSCRIBE: ordinary filters, and those that are requests to the log.

Some filters need a look at the log before they can be granted, and a persistent session's subscriptions must be in
the journal first [never a granted code for a filter that is not stored]. So one SUBSCRIBE is one operation: it
gathers a return code for each filter, in order, then sends the SUBACK, and only then lets messages flow. Until then
the session is corked: its new cursors stand in CATCHUP where the subscription began.

Owner: the event loop.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from highway.broker.authorisation import Right, Undecided, right_to_read
from highway.broker.message import Message
from highway.broker.replay.grammar import (
    FetchRequest,
    From,
    RangeRequest,
    ReplayRequest,
    Special,
    parse_special,
    source_of,
)
from highway.broker.replay.options import NO_OPTIONS, options_of
from highway.broker.replay.starting import Answer, find_starts, range_of
from highway.broker.sessions.reader import ORDINARY, Reader, Subscription
from highway.broker.sessions.session_store import (
    Puts,
    cursor_drop,
    group_puts,
    position_puts,
    session_put,
    subscription_puts,
)
from highway.errors import OffsetError, OffsetNotFoundError, ProtocolError, StorageError
from highway.mqtt import MAX_PACKET_BYTES, V5, ReasonCode, SubackPacket, parse_shared
from highway.mqtt.packets import encode_within
from highway.mqtt.reason_codes import REASON_CODES, PacketType
from highway.storage import Durability

if TYPE_CHECKING:
    from collections.abc import Callable

    from highway.broker.authorisation import Question, Rights
    from highway.broker.connections.client import Client
    from highway.broker.delivery.feed import Feed
    from highway.broker.sessions.session import Session
    from highway.mqtt import SharedFilter, SubscribePacket, Subscription as Request
    from highway.storage import Record, RecordBatch

    from .shared import Group

__all__ = ["SubscribeOperation", "open_questions"]

REFUSED = 0x80


class SubscribeOperation:
    """One SUBSCRIBE on its way to its SUBACK, which it always gets. [MQTT-3.8.4-1]

    Its filters are taken one after the other, and answered in one SUBACK in their order: 3.1.1 [MQTT-3.8.4-4], 5.0
    [MQTT-3.8.4-5]; [MQTT-3.9.3-1].
    """

    def __init__(self, client: Client, session: Session, packet: SubscribePacket) -> None:
        self._client = client
        self._session = session
        self._broker = client.broker
        self._packet = packet
        self._codes: list[int | None] = [None] * len(packet.subscriptions)
        self._options = NO_OPTIONS
        # One PUBLISH for each granted $fetch or $range: index of the filter, message, QoS.
        self._replies: list[tuple[int, Message, int]] = []
        self._joined: list[Group] = []
        self._puts: Puts = []  # beside the session, what changed of its subscriptions, and their positions
        self._changed: dict[bytes, None] = {}  # names of subscriptions
        self._complete = False
        self._awaited: dict[bytes, None] = {}  # names that stand in `Session.subscribing`
        self._withdrawn: set[int] = set()
        # What was published before is visible, and its retained messages are there, before the SUBACK goes out.
        self._due = Durability.BALANCED if session.persistent else Durability.FAST
        self._reason = ""  # of the first filter that was refused

    def run(self) -> None:
        """Start it; the SUBACK follows in this turn of the loop where nothing has to be waited for."""
        self._session.corked += 1
        try:
            self._options = options_of(self._packet.properties, self._broker.clock.now_ms())
        except ProtocolError as error:
            for index in range(len(self._codes)):
                self._refuse(index, error)
            self._finish_when_complete()
            return
        for index, request in enumerate(self._packet.subscriptions):
            try:
                self._request(index, request)
            except ProtocolError as error:
                self._refuse(index, error)
        self._wait()
        self._finish_when_complete()

    def _wait(self) -> None:
        """Note the filters of which is being found out where they start, so that UNSUBSCRIBE meets them."""
        subscribing = self._session.subscribing
        for index, request in enumerate(self._packet.subscriptions):
            if self._codes[index] is None:
                subscribing.setdefault(request.topic_filter, []).append((self, index))
                self._awaited[request.topic_filter] = None

    def _wait_no_more(self) -> None:
        subscribing = self._session.subscribing
        for name in self._awaited:
            others = [waiting for waiting in subscribing.pop(name, ()) if waiting[0] is not self]
            if others:
                subscribing[name] = others

    def withdraw(self, index: int) -> None:
        """UNSUBSCRIBE came before it was known where a filter starts: it is granted, and never does."""
        self._withdrawn.add(index)

    def _request(self, index: int, request: Request) -> None:
        name = request.topic_filter
        if exceeded := self._broker.exceeded_by(name):
            self._broker.counters.limited[exceeded] += 1
            raise ProtocolError(f"a topic filter beyond limits.{exceeded}", ReasonCode.TOPIC_FILTER_INVALID)
        shared = parse_shared(name)
        if shared is not None:
            self._share(index, request, shared)
            return
        special = parse_special(name, self._broker.clock.now_ms())
        if special is None and self._options is not NO_OPTIONS and not name.startswith(b"$"):
            special = ReplayRequest(self._options.start, self._options.start_text, name, with_offset=False)
        if special is None:
            self._ordinary(index, request)
        else:
            self._special(index, request, special)

    def _check_right(self, right: Right, topic_filter: bytes) -> None:
        rights = self._session.rights
        if rights is not None and not rights.may_select(right, topic_filter):
            raise ProtocolError(
                f"no right to {right.name.lower()} {topic_filter.decode()!r}", ReasonCode.NOT_AUTHORIZED
            )

    def _check_count(self, name: bytes) -> None:
        limit = self._broker.settings.max_subscriptions
        session = self._session
        is_new = name not in session.groups and session.reader_of(name) is None
        if is_new and session.subscription_count >= limit:
            self._broker.counters.limited["max_subscriptions"] += 1
            raise ProtocolError(f"a session may have {limit} subscriptions", ReasonCode.QUOTA_EXCEEDED)

    def _if_there_is_room(self, index: int, request: Request, start: Callable[[], None]) -> None:
        """Start what was looked up; others may have taken the room that there was for it."""
        try:
            self._check_count(request.topic_filter)
        except ProtocolError as error:
            self._refuse(index, error)
        else:
            start()
            self._codes[index] = request.qos

    def _ordinary(self, index: int, request: Request) -> None:
        name = request.topic_filter
        self._check_right(Right.SUBSCRIBE, name)
        self._check_count(name)
        session, router = self._session, self._broker.router
        self._end_replay(name)
        reader = session.readers[ORDINARY]
        is_new = name not in reader.subscriptions
        subscription = reader.add(self._make(reader, request, name))
        starts = {}
        for feed in router.feeds_of([name]):
            start = starts[feed.log.name] = self._begin(feed)
            cursor = reader.cursors.get(feed)
            if cursor is None or (is_new and cursor.live and start > feed.visible):
                cursor = reader.place(feed, feed.visible)
            if is_new and not cursor.live and start > cursor.next_offset:
                # The reader still has messages to read here that this subscription is not about.
                reader.begins_at(subscription, feed.log.name, start)
        self._changed[name] = None
        router.add(subscription)  # in place of one of that name: 5.0 [MQTT-3.8.4-4]
        # 3.1.1 [MQTT-3.3.1-6]; 5.0 [MQTT-3.3.1-9], [MQTT-3.3.1-10], [MQTT-3.3.1-11]. They wait behind the cork.
        if request.retain_handling == 0 or (request.retain_handling == 1 and is_new):
            session.add_snapshot(subscription, starts if is_new else {})
        self._codes[index] = request.qos

    def _end_replay(self, name: bytes) -> None:
        """An ordinary subscription replaces one to the same filter that was given a `replay-from`."""
        session = self._session
        reader = session.readers.get(source_of(name))
        if reader is None or name not in reader.subscriptions:
            return
        self._broker.router.remove(reader.subscriptions[name])
        self._puts += [cursor_drop(reader.drop(feed)) for feed in list(reader.cursors)]
        del session.readers[reader.source]

    def _begin(self, feed: Feed) -> int:
        """Where a subscription that is made now begins in a log: behind all that was published before."""
        if feed.accepted > feed.visible:
            self._due = max(self._due, feed.log.acknowledge_at)
        return feed.accepted

    # Shared subscriptions: 3.1.1 clients may use them too.

    def _share(self, index: int, request: Request, shared: SharedFilter) -> None:
        self._check_count(request.topic_filter)
        special = parse_special(shared.topic_filter, self._broker.clock.now_ms())
        if special is not None and (not isinstance(special, ReplayRequest) or special.with_offset):
            raise ProtocolError("only $replay/<from>/<filter> can be shared", ReasonCode.TOPIC_FILTER_INVALID)
        topic_filter = shared.topic_filter if special is None else special.topic_filter
        self._check_right(right_to_read(request.topic_filter), topic_filter)
        source = b"$share/%b/%b" % (shared.share_name, topic_filter)
        feeds = self._broker.router.feeds_of([topic_filter])
        if source in self._broker.groups or special is None:
            is_new = source not in self._broker.groups
            group = self._broker.group(source, topic_filter)
            self._join(index, request, group, {feed: self._begin(feed) for feed in feeds} if is_new else {})
            return

        def join(starts: dict[Feed, int]) -> None:
            is_new = source not in self._broker.groups
            self._join(index, request, self._broker.group(source, topic_filter), starts if is_new else {})

        def found(starts: Answer) -> None:
            if isinstance(starts, ProtocolError | StorageError):
                self._refuse(index, starts if isinstance(starts, ProtocolError) else ProtocolError(starts.detail))
            elif index in self._withdrawn:
                self._codes[index] = request.qos
            elif self._alive():
                self._if_there_is_room(index, request, partial(join, starts))
            else:
                self._codes[index] = REFUSED  # nobody is there to be told
            self._finish_when_complete()

        find_starts(special.start, [topic_filter], feeds, self._broker.scheduler, found)

    def _join(self, index: int, request: Request, group: Group, starts: dict[Feed, int]) -> None:
        """Become a member of a group; one that is new begins at `starts`."""
        for feed, offset in starts.items():
            group.place(feed, offset)
        subscription = self._make(group, request, group.topic_filter)
        self._session.groups[request.topic_filter] = (group, subscription)
        self._changed[request.topic_filter] = None
        group.join(self._session, subscription)
        self._joined.append(group)
        self._codes[index] = request.qos

    def _make(self, reader: Reader | Group, request: Request, topic_filter: bytes) -> Subscription:
        identifiers = self._packet.properties.subscription_identifiers
        return Subscription(
            reader,
            request.topic_filter,
            topic_filter,
            request.qos,
            no_local=request.no_local,
            retain_as_published=request.retain_as_published,
            identifier=identifiers[0] if identifiers else 0,
        )

    def _special(self, index: int, request: Request, special: Special) -> None:
        if isinstance(special, ReplayRequest):
            self._replay(index, request, special)
            return
        self._check_right(Right.FETCH, special.topic_name)
        feed = self._broker.router.feed(special.topic_name)
        if feed is None:
            raise ProtocolError(f"no log holds {special.topic_name.decode()!r}", ReasonCode.TOPIC_FILTER_INVALID)
        if isinstance(special, RangeRequest):
            self._range(index, request, feed)
        else:
            self._fetch(index, request, special, feed)

    def _range(self, index: int, request: Request, feed: Feed) -> None:
        def answer(oldest: int | None, newest: int | None) -> None:
            value = {
                "log": feed.log.name,
                "log_start_offset": feed.log.log_start_offset,
                "high_watermark": feed.visible,
                "oldest": oldest,
                "newest": newest,
            }
            self._grant_reply(index, request, json.dumps(value).encode(), request.qos)

        def newest_found(oldest: int | None, found: RecordBatch | StorageError) -> None:
            times = [] if isinstance(found, StorageError) else [r[2] for r in found.records() if r[0] < feed.visible]
            answer(oldest, times[-1] if times else None)

        def oldest_found(found: RecordBatch | StorageError) -> None:
            start = feed.log.log_start_offset
            times = [] if isinstance(found, StorageError) else [r[2] for r in found.records() if r[0] >= start]
            feed.log.load_before(feed.visible, partial(newest_found, times[0] if times else None))

        if feed.log.log_start_offset >= feed.visible:
            answer(None, None)
        else:
            feed.log.load(feed.log.log_start_offset, oldest_found)

    def _fetch(self, index: int, request: Request, special: FetchRequest, feed: Feed) -> None:
        def found(record: Record | StorageError) -> None:
            if isinstance(record, StorageError):
                status = record.status if isinstance(record, OffsetError) else "UNREADABLE"
                self._refuse(
                    index,
                    ProtocolError(
                        f"{status}: log {feed.log.name!r} has no offset {special.offset}; {range_of(feed)}",
                        ReasonCode.TOPIC_FILTER_INVALID,
                    ),
                )
            elif record[3] != special.topic_name:
                error = f"offset {special.offset} of log {feed.log.name!r} is a message of another topic"
                self._refuse(index, ProtocolError(error, ReasonCode.TOPIC_FILTER_INVALID))
            else:
                self._grant_reply(index, request, record[5], min(request.qos, record[1] & 3), record[4])
            self._finish_when_complete()

        if special.offset >= feed.visible:
            raise ProtocolError(
                f"{OffsetNotFoundError.status}: log {feed.log.name!r} has no offset {special.offset}; {range_of(feed)}",
                ReasonCode.TOPIC_FILTER_INVALID,
            )
        feed.log.fetch(special.offset, found)

    def _grant_reply(self, index: int, request: Request, payload: bytes, qos: int, properties: bytes = b"") -> None:
        self._replies.append((index, Message(request.topic_filter, payload, qos, False, properties), qos))
        self._codes[index] = request.qos
        self._finish_when_complete()

    def _replay(self, index: int, request: Request, special: ReplayRequest) -> None:
        self._check_right(Right.REPLAY, special.topic_filter)
        self._check_count(request.topic_filter)
        session = self._session
        source = source_of(request.topic_filter)
        reader = session.readers.get(source)
        if (
            reader is not None
            and request.topic_filter in reader.subscriptions
            and reader.options.start_text == self._options.start_text
        ):
            # The same string again does not rewind; only its options may change.
            self._router_add(reader, request, special)
            self._codes[index] = request.qos
            return
        feeds = self._broker.router.feeds_of([special.topic_filter])
        until = self._options.until

        def ready(starts: dict[Feed, int], ends: dict[Feed, int]) -> None:
            if self._alive() and index not in self._withdrawn:
                start = partial(self._start_replay, request, special, source, starts, ends)
                self._if_there_is_room(index, request, start)
            else:
                self._codes[index] = request.qos
            self._finish_when_complete()

        def started(starts: dict[Feed, int]) -> None:
            if until is None:
                ready(starts, {})
            else:
                self._find(index, until, special.topic_filter, feeds, partial(ready, starts))

        self._find(index, special.start, special.topic_filter, feeds, started)

    def _find(
        self, index: int, where: From, topic_filter: bytes, feeds: set[Feed], done: Callable[[dict[Feed, int]], None]
    ) -> None:
        """Turn a `<from>` into offsets, or refuse the filter at `index`."""

        def found(answer: Answer) -> None:
            if isinstance(answer, ProtocolError):
                self._refuse(index, answer)
            elif isinstance(answer, StorageError):
                self._refuse(index, ProtocolError(answer.detail, REFUSED))
            else:
                done(answer)
                return
            self._finish_when_complete()

        find_starts(where, [topic_filter], feeds, self._broker.scheduler, found)

    def _start_replay(
        self,
        request: Request,
        special: ReplayRequest,
        source: bytes,
        starts: dict[Feed, int],
        ends: dict[Feed, int],
    ) -> None:
        """Begin at `starts`; a subscription to the same filter with another <from> moves, it doesn't double."""
        session, router = self._session, self._broker.router
        ordinary = session.readers[ORDINARY].remove(request.topic_filter)
        if ordinary is not None:
            router.remove(ordinary)
        reader = session.readers.get(source)
        if reader is None:
            reader = session.readers[source] = Reader(session, source, addressed=special.with_offset)
        for name in list(reader.subscriptions):
            old = reader.remove(name)
            self._changed[name] = None
            if old is not None:
                router.remove(old)
        reader.set_options(self._options, {feed.log.name: offset for feed, offset in ends.items()})
        for feed, offset in starts.items():
            reader.place(feed, offset)
        self._router_add(reader, request, special)

    def _router_add(self, reader: Reader, request: Request, special: ReplayRequest) -> None:
        self._changed[request.topic_filter] = None
        before = reader.subscriptions.get(request.topic_filter)
        if before is not None:
            self._broker.router.remove(before)
        self._broker.router.add(reader.add(self._make(reader, request, special.topic_filter)))

    def _refuse(self, index: int, error: ProtocolError) -> None:
        known = error.reason_code in REASON_CODES[PacketType.SUBACK]
        self._codes[index] = error.reason_code if known and self._session.version == V5 else REFUSED
        self._reason = self._reason or error.detail
        self._broker.log_refusal(self._client, error.detail, self._packet.subscriptions[index].topic_filter)

    def _alive(self) -> bool:
        return self._session.link is self._client.link and self._client.session is self._session

    def _finish_when_complete(self) -> None:
        # Asked after each answer, and once more when all were asked for: the answers may have come at once.
        if None in self._codes or self._complete:
            return
        self._complete = True
        self._wait_no_more()
        session, broker = self._session, self._broker
        if not self._alive():
            # Positions were stored when the connection ended. Of a session that is gone for good, nothing is.
            if session.persistent and broker.sessions.get(session.client_id) is session:
                broker.store([*self._puts, *subscription_puts(session, self._changed)])
            return
        if session.persistent:
            puts = [*self._puts, session_put(session), *subscription_puts(session, self._changed)]
            found = (session.subscription(name) for name in self._changed)
            readers = {s.reader: None for s in found if s is not None and isinstance(s.reader, Reader)}
            puts += position_puts(session, readers)
            for group in self._joined:
                puts += group_puts(group)
            self._broker.store(puts)
        self._broker.storage.after(self._due, self._finish)

    def _finish(self, error: StorageError | None) -> None:
        session, client = self._session, self._client
        if not self._alive():
            return  # the connection went, and the cork with it
        session.corked -= 1
        replies = self._replies_that_fit()
        # A session that nothing is stored of needs no disk.
        granted = error is None or not session.persistent
        # One code for each filter, the QoS granted or why not: 3.1.1 [MQTT-3.8.4-5], 5.0 [MQTT-3.8.4-6],
        # [MQTT-3.8.4-7], [MQTT-3.9.3-2]; under the packet id of the SUBSCRIBE: [MQTT-3.8.4-2], 3.1.1 [MQTT-2.3.1-7],
        # 5.0 [MQTT-2.2.1-6].
        codes = [code if granted and code is not None else REFUSED for code in self._codes]
        suback = SubackPacket(self._packet.packet_id, codes)
        if self._reason and session.wants_reasons and session.version == V5:  # 5.0 [MQTT-3.1.2-29]
            suback.properties.reason_string = self._reason
        client.broker.counters.control_sent += 1
        client.link.write(encode_within(suback, session.version, session.max_packet_bytes or MAX_PACKET_BYTES))
        companion = client.identity.companion
        if companion is not None:
            for request, code in zip(self._packet.subscriptions, codes, strict=True):
                if code < REFUSED:
                    companion.subscribed(request.topic_filter, code)
        for message, qos in replies:
            packet_id = session.inflight.take_message(message, qos) if qos else 0
            session.send(message.encode(session.version, qos, packet_id), 1, len(message.payload))
        for group in self._joined:
            if session in group.members:  # or else it has unsubscribed since
                group.step_back()
                group.came_online(session)
        self._broker.pump_later(session)

    def _replies_that_fit(self) -> list[tuple[Message, int]]:
        """The replies that can be sent; the filters of the others are refused.

        A request of 20 bytes may ask for a megabyte: who does not read what it asked for gets no more of it, and what
        it does not acknowledge is no more than its window.
        """
        session = self._session
        room = 0 if self._client.link.congested else self._broker.settings.write_buffer_bytes
        quota = session.quota
        found = []
        for index, message, qos in self._replies:
            if room <= 0:
                self._refuse(index, ProtocolError("more was asked for than is being read", ReasonCode.QUOTA_EXCEEDED))
                continue
            room -= len(message.topic_name) + len(message.properties) + len(message.payload)
            if qos and quota <= 0:
                self._codes[index] = 0  # granted is what can be given
                found.append((message, 0))
                continue
            quota -= qos > 0
            found.append((message, qos))
        return found


def open_questions(packet: SubscribePacket, rights: Rights, now_ms: int) -> list[Question]:
    """What has to be known before a SUBSCRIBE can be granted or refused, and isn't."""
    questions: list[Question] = []
    try:
        replays = options_of(packet.properties, now_ms) is not NO_OPTIONS
    except ProtocolError:
        return []  # all of it is refused
    for request in packet.subscriptions:
        try:
            rights.may_select(*_needed_right(request.topic_filter, now_ms, replays=replays))
        except ProtocolError:
            continue
        except Undecided as undecided:
            questions += undecided.questions
    return questions


def _needed_right(name: bytes, now_ms: int, *, replays: bool) -> tuple[Right, bytes]:
    """(right, topic filter) that a subscription needs; ProtocolError where it is no valid one."""
    shared = parse_shared(name)
    inner = name if shared is None else shared.topic_filter
    special = parse_special(inner, now_ms)
    if isinstance(special, FetchRequest | RangeRequest):
        return Right.FETCH, special.topic_name
    if special is not None:
        return Right.REPLAY, special.topic_filter
    is_replay = replays and shared is None and not name.startswith(b"$")
    return (Right.REPLAY if is_replay else Right.SUBSCRIBE), inner
