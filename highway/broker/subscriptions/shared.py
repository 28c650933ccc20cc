"""Shared subscriptions: a group of sessions that reads a log together, each message going to one of them.

A group has one position in each log, kept for as long as any session, online or not, subscribes to it. Its members
take turns, and only those that can take a message now: online, the window open, the socket keeping up. What a member
leaves unacknowledged when its session ends goes to the others, QoS 2 excepted: 5.0 [MQTT-4.8.2-5]. As long as its
session lives, it is completed with that member: 5.0 [MQTT-4.8.2-4].

    $share/<name>/<filter>                   the group starts now
    $share/<name>/$replay/<from>/<filter>    the group starts there; who joins later does not rewind it

What goes to a persistent session at QoS 2 is journaled before it is sent, with its packet id and the group's position
behind it: after a crash it is sent again under the same id, or not at all, and to nobody else.

Groups read from the log in every state, so that a slow group costs no memory either. What of the log is gone is told
to the first member that can be told and takes a message behind it.

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from highway.broker.authorisation import Right, right_to_read
from highway.broker.delivery import encoding, message_expiry
from highway.broker.delivery.gap_notices import GapNotices
from highway.broker.delivery.publisher_mark import FLAG_PUBLISHER, split_publisher
from highway.broker.remembered import Remembered
from highway.broker.replay.options import NO_OPTIONS
from highway.broker.sessions.inflight import SENT_1
from highway.broker.sessions.reader import Subscription
from highway.mqtt import PACKET_IDS, V5
from highway.mqtt.topics import matches

from .group_cursor import GroupCursor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from highway.broker.broker import Broker
    from highway.broker.delivery.feed import Feed
    from highway.broker.message import Message
    from highway.broker.sessions.inflight import Entry
    from highway.broker.sessions.session import Session
    from highway.storage import Gap, Record

__all__ = ["Group", "Member", "groups_held", "hand_back", "return_unacknowledged"]

# Records that a group hands out in one turn of the loop.
TURN_RECORDS = 1024
MAX_PLANS = 4096
MAX_GAPS = 20  # that wait for a member who can be told; each was logged when it was met


class Member:
    """One session in a group, with its own QoS and options; it stands in for a reader where packets are encoded.

    `$share/g/a` and `$share/g/$replay/earliest/a` are one group: `names` has the subscriptions of both, the last to
    join last.
    """

    __slots__ = (
        "addressed",
        "journaled",
        "names",
        "notice",
        "options",
        "payload_bytes",
        "pieces",
        "plans",
        "session",
        "subscription",
    )

    def __init__(self, session: Session, subscription: Subscription, names: dict[bytes, Subscription]) -> None:
        self.session = session
        self.names = names
        self.subscription = subscription
        self.addressed = False
        self.options = NO_OPTIONS
        self.notice: GapNotices | None = None  # the group's, where it is to be told
        self.plans: Remembered[encoding.Plan] = Remembered(MAX_PLANS)
        self.pieces: list[bytes] = []  # of the turn at hand
        self.payload_bytes = 0  # in them
        self.journaled = False  # among the pieces is one that the journal must know before it is sent

    def plan(self, topic_name: bytes) -> encoding.Plan:
        """How a message of a topic goes to this member."""
        plan = self.plans.get(topic_name)
        if plan is None:
            allowed = self.may_read(topic_name)
            if allowed is None:
                return encoding.PENDING
            granted = [self.subscription] if allowed else []
            plan = self.plans.remember(topic_name, encoding.Plan(topic_name, granted))
        return plan

    def may_read(self, topic_name: bytes) -> bool | None:
        """Whether the client's rights, now, let it have a message of that topic; None: not known yet."""
        return self.session.may_read(right_to_read(self.subscription.name), topic_name)

    def can_take(self) -> bool:
        """Whether a message of any QoS can go to it now, behind what it left unacknowledged on another connection."""
        session = self.session
        return not session.is_blocked() and not session.resend and session.quota > 0


class Group:
    """A share name and a topic filter. `source` is the name that positions and packet ids are stored under."""

    # `Router` and `deliver_live` take a group for a reader without a session.
    session = None
    addressed = False
    pulls = True
    notice = None

    def __init__(self, broker: Broker, source: bytes, topic_filter: bytes) -> None:
        self.broker = broker
        self.source = source
        self.topic_filter = topic_filter
        self.members: dict[Session, Member] = {}  # every session that subscribes, online or not
        self._left: set[Session] = set()  # that don't any more, and complete what they hold
        self.cursors: dict[Feed, GroupCursor] = {}
        self.dirty = False
        self.routed = Subscription(self, source, topic_filter, 2)  # the group's one entry in the router
        self._logs_seen = -1  # of `Logs.begun`: later ones may be missing among the cursors
        self._turn = 0  # index of the member that comes next: the first that joined, then one after the other
        self._online: list[Member] = []
        self._matching: Remembered[bool] = Remembered(MAX_PLANS)
        self._gaps = GapNotices()

    def __repr__(self) -> str:
        return f"<Group {self.source!r} {len(self._online)} of {len(self.members)} online>"

    @property
    def is_there(self) -> bool:
        """Whether any session subscribes; a group that ended is known to what it gave, and to nobody else."""
        return self.broker.groups.get(self.source) is self

    def cursor(self, feed: Feed) -> GroupCursor:
        """The group's cursor in a log, placed at the visible end where there is none."""
        found = self.cursors.get(feed)
        return found if found is not None else self.place(feed, feed.visible)

    def place(self, feed: Feed, next_offset: int, returned: Sequence[int] = ()) -> GroupCursor:
        """Stand in a log at `next_offset`; what is `returned` is given before that."""
        cursor = self.cursors[feed] = GroupCursor(self, feed, next_offset, returned)
        feed.cursors.add(cursor)
        return cursor

    def reaches(self, _feed: Feed) -> bool:
        """It reads every log that its filter matches."""
        return True

    def place_missing(self) -> None:
        """Stand at the beginning of the logs that began since: all that is in them came after the subscription."""
        if self._logs_seen != self.broker.logs.begun:
            self._logs_seen = self.broker.logs.begun
            for feed in self.broker.router.feeds_of([self.topic_filter]):
                if feed not in self.cursors:
                    self.place(feed, feed.log.log_start_offset)

    def step_back(self) -> None:
        """Stand where there is something to read: what was to become visible did not, as the disk is full."""
        for cursor in self.cursors.values():
            cursor.step_back()

    def close(self) -> None:
        """The last member is gone for good."""
        for feed, cursor in self.cursors.items():
            feed.cursors.discard(cursor)

    # Members.

    def join(self, session: Session, subscription: Subscription) -> None:
        """Add a session, or give it new options."""
        before = self.members.get(session)
        names = {} if before is None else before.names
        names.pop(subscription.name, None)
        names[subscription.name] = subscription
        member = self.members[session] = Member(session, subscription, names)
        if before is not None and before in self._online:
            self._online[self._online.index(before)] = member

    def leave(self, session: Session, name: bytes) -> bool:
        """The session unsubscribed, or ended; False if it stays, by another name."""
        names = self.members[session].names
        del names[name]
        if names:
            self.join(session, names[next(reversed(names))])
            return False
        self.went_offline(session)
        del self.members[session]
        self.note_holder(session)
        return True

    def note_holder(self, session: Session) -> None:
        """A session has messages of the group in flight, if it has any, and is no member."""
        if session not in self.members and self._is_held_by(session):
            self._left.add(session)

    def _is_held_by(self, session: Session) -> bool:
        return any(cursor is not None and cursor.reader is self for _, (cursor, _, _) in session.unacknowledged())

    def holders(self) -> Iterable[Session]:
        """Every session that may have messages of the group in flight."""
        if not self._left:
            return self.members
        self._left = {session for session in self._left if session not in self.members and self._is_held_by(session)}
        return [*self.members, *self._left]

    def came_online(self, session: Session) -> None:
        """A member can be given messages."""
        member = self.members[session]
        member.plans.clear()
        if member not in self._online:
            if not self._online:
                self.place_missing()
                for cursor in self.cursors.values():
                    cursor.note_behind()
                self.broker.router.add(self.routed)
            self._online.append(member)
        self.wake()

    def went_offline(self, session: Session) -> None:
        """A member can't be given messages for now."""
        member = self.members.get(session)
        if member is not None and member in self._online:
            index = self._online.index(member)
            del self._online[index]
            self._turn -= index < self._turn
            if not self._online:
                self.broker.router.remove(self.routed)
                for cursor in self.cursors.values():
                    cursor.suspend()

    def plan_for(self, session: Session, topic_name: bytes) -> encoding.Plan:
        """How a message of a topic goes to one of the group's sessions, or to one that left with it in flight."""
        member = self.members.get(session)
        return encoding.NOTHING if member is None else member.plan(topic_name)

    def may_read(self, _topic_name: bytes) -> bool:
        """The group reads everything, and its members are asked."""
        return True

    def allows(self, session: Session, topic_name: bytes) -> bool | None:
        """Whether one of the sessions may have a message of that topic; it may have left the group."""
        member = self.members.get(session)
        if member is not None:
            return member.may_read(topic_name)
        return session.may_read(Right.SUBSCRIBE, topic_name)

    def _next_member(self, topic_name: bytes, *, is_behind: bool = False) -> Member | None:
        """The member whose turn it is, of those that may and can take a message now."""
        online = self._online
        for step in range(len(online)):
            index = (self._turn + step) % len(online)
            member = online[index]
            if not member.can_take() or member.plan(topic_name).qos < 0:
                continue
            if not is_behind or member.session.may_catch_up():
                self._turn = (index + 1) % len(online)
                return member
        return None

    def deliver_unlogged(self, message: Message) -> bool:
        """Give a message that no log holds to one member; False where none can take it."""
        member = self._next_member(message.topic_name)
        return member is not None and member.session.send_message(message, member.plan(message.topic_name))

    # Reading.

    def wake(self) -> None:
        """Something may go on: a member is there, acknowledged or drained, or a log moved on."""
        if self._online:
            self.broker.pump_later(self)

    def pump(self) -> bool:
        """Hand out what can go now; True if there is more that only waits for the next turn."""
        if not self._online:
            return False  # the last one went since it was woken
        budget = TURN_RECORDS
        for cursor in self.cursors.values():
            budget -= cursor.advance(budget)
            if budget <= 0:
                return True
        return False

    def matches(self, topic_name: bytes) -> bool:
        """Whether the group's filter selects a topic."""
        verdict = self._matching.get(topic_name)
        if verdict is None:
            verdict = self._matching.remember(topic_name, matches(self.topic_filter, topic_name))
        return verdict

    def note_gap(self, log: str, gap: Gap) -> None:
        """Tell a member of messages that are gone, when one takes what comes behind them."""
        self._gaps.add(log, gap)
        if len(self._gaps) > MAX_GAPS:
            self._gaps.forget_first()

    def _tell_gaps(self, member: Member) -> None:
        session = member.session
        if session.version == V5:
            member.notice = self._gaps
        elif b"/$replay/" in member.subscription.name:
            self._gaps.send_packets(session)

    def give(self, cursor: GroupCursor, record: Record) -> bool:
        """Give a record to the member whose turn it is; False where none can take it now."""
        offset, flags, stored_ms, topic_name, properties, _ = record
        is_behind = offset < cursor.behind_until
        member = self._next_member(topic_name, is_behind=is_behind)
        if member is None:
            # What nobody who is there may read is passed over: it would hold up all that the others may.
            plans = [other.plan(topic_name) for other in self._online]
            if all(plan.qos < 0 and plan is not encoding.PENDING for plan in plans):
                return True
            cursor.note_behind()
            return False
        plan = member.plan(topic_name)
        if properties:
            if flags & FLAG_PUBLISHER:
                properties = split_publisher(properties)[1]
            left = message_expiry.remaining(properties, stored_ms, self.broker.clock.now_ms())
            if left is None:
                return True  # its time is over
            properties = left
        qos = min(flags & 3, plan.qos)  # 5.0 [MQTT-4.8.2-3]
        inflight = member.session.inflight
        ids: Sequence[int] = inflight.free_ids(1) if qos else ()
        if self._gaps:
            self._tell_gaps(member)
        packet = encoding.encode_packet(member, plan, record, properties, qos, PACKET_IDS[ids[0]] if qos else b"")
        if packet:
            if qos:
                inflight.take(ids, cursor, [offset], qos)
                self.dirty = True
                member.journaled |= qos == 2 and member.session.persistent
            member.pieces.append(packet)
            member.payload_bytes += len(record[5])
            if is_behind:
                member.session.catches_up_with(len(packet))
        return True

    def flush(self, cursor: GroupCursor) -> None:
        """Write what this turn gave to each member; of what must be journaled before, one frame says all or nothing."""
        journaled = [member.session for member in self._online if member.journaled]
        if journaled:
            cursor.exact_until = cursor.next_offset
            self.broker.store_given(journaled, cursor)
        for member in self._online:
            if member.pieces:
                send = member.session.send_when_stored if member.journaled else member.session.send
                send(b"".join(member.pieces), len(member.pieces), member.payload_bytes)
                member.pieces.clear()
                member.payload_bytes = 0
                member.journaled = False


def return_unacknowledged(session: Session) -> None:
    """A session ends: what groups gave it, and it did not acknowledge, goes to other members."""
    while session.resend:
        hand_back(session.resend.popleft()[1])


def groups_held(session: Session) -> list[Group]:
    """The groups that a session is a member of, or has messages of in flight, and that are still there."""
    found = dict.fromkeys(group for group, _ in session.groups.values())
    for _, (cursor, _, _) in session.unacknowledged():
        if isinstance(cursor, GroupCursor):
            found[cursor.reader] = None
    return [group for group in found if group.is_there]


def hand_back(entry: Entry) -> None:
    """A session won't acknowledge this: a message that a group gave it goes to another member, QoS 2 excepted."""
    cursor, where, state = entry
    if isinstance(cursor, GroupCursor) and isinstance(where, int):
        cursor.reader.dirty = True  # it stands behind a message that is held no more
        if state == SENT_1:
            cursor.take_back(where)
