"""What a session pulls: messages of an earlier connection first, then retained ones, then what its cursors missed.

Nothing here waits. A pump sends until the receive window is full, the socket does not keep up, the disk has to be
asked, or the session's share of this turn is used; an acknowledgement, a drained socket, a finished read or the next
turn pumps again.

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from highway.broker.authorisation import Right
from highway.broker.delivery.publisher_mark import FLAG_PUBLISHER, split_publisher
from highway.broker.message import Message
from highway.broker.sessions.inflight import RELEASED
from highway.broker.sessions.session_store import acknowledged_puts, group_puts
from highway.broker.subscriptions.group_cursor import GroupCursor
from highway.broker.subscriptions.shared import Group, hand_back
from highway.errors import StorageError
from highway.mqtt import PubrelPacket
from highway.storage import Durability
from highway.storage.segment.records import FLAG_QOS_MASK, FLAG_RETAIN

from . import message_expiry
from .encoding import addressed_name

if TYPE_CHECKING:
    from highway.broker.sessions.session import Session
    from highway.broker.sessions.session_store import Puts
    from highway.storage import RecordBatch

    from .cursor import Cursor

__all__ = ["pump"]

# Bytes that one session may send in one turn of the loop: 64 KiB keep a turn of ten busy sessions near a millisecond.
TURN_BYTES = 64 * 1024
# Retained messages that are looked at for it in one turn: those that the client can't take cost time and no bytes.
TURN_RETAINED = 512


# Stands for a message that the client had a right to on its connection before, and has none to now.
FORBIDDEN = Message(b"", b"", 0, False, b"")
# And for one of which that is being asked.
UNKNOWN = Message(b"", b"", 1, False, b"")


def pump(session: Session) -> bool:
    """Send what can go now; True if there is more that only waits for the next turn."""
    try:
        return _send_what_can_go(session)
    finally:
        for cursor in session.behind:
            cursor.forget_loaded()  # a session that can't send now must not keep others from reading


def _send_what_can_go(session: Session) -> bool:
    if session.is_blocked():
        return False
    if session.resend:
        if session.journaling or not _send_again(session):
            return False  # nothing goes out again under a packet id that a crash could still give to another message
        for group, _ in session.groups.values():
            group.wake()  # it can take new ones from now on
    retained_left = TURN_RETAINED
    while session.retained:
        if session.is_blocked() or session.quota <= 0:
            return False
        if not retained_left:
            return True
        retained_left -= 1
        if not _send_retained(session):
            return False
    more = False
    rate = session.broker.settings.catchup_bytes
    for cursor in list(session.behind):
        if session.is_blocked() or not session.may_catch_up():
            return False
        sent = cursor.advance(TURN_BYTES if rate is None else min(TURN_BYTES, rate.amount))
        session.catches_up_with(sent)
        if sent and cursor in session.behind and not cursor.loading and session.quota > 0:
            more = True
    return more and not session.is_blocked()


def _send_again(session: Session) -> bool:
    """Send what an earlier connection left unacknowledged, in its order; True when all of it is out.

    [MQTT-4.4.0-1], [MQTT-4.6.0-1]; nothing new goes out before that.
    """
    link = session.link
    while session.resend and session.quota > 0 and link is not None and not session.is_blocked():
        packet_id, entry = session.resend[0]
        cursor, where, state = entry
        if state == RELEASED:
            # Its PUBLISH never goes out again: 3.1.1 [MQTT-4.3.3-1], 5.0 [MQTT-4.3.3-6].
            link.write(PubrelPacket(packet_id, 0).encode(session.version))
        elif cursor is None or isinstance(where, Message):
            assert isinstance(where, Message)
            if not _send_repeated(session, packet_id, state, where):
                continue
        else:
            log = cursor.feed.log
            batch = log.read(where) if where >= log.log_start_offset else None
            if batch is None and where >= log.log_start_offset:
                _load(session, cursor, where)
                return False
            message = _stored_message(session, cursor, where, batch) if batch is not None else None
            if message is UNKNOWN:
                return False
            if message is FORBIDDEN:
                _hand_back(session)
                continue
            if message is None:
                _gone(session, cursor, where)
                continue
            if not _send_repeated(session, packet_id, state, message):
                continue
        session.resend.popleft()
        session.inflight.restore(packet_id, entry)
    return not session.resend


def _load(session: Session, cursor: Cursor | GroupCursor, offset: int) -> None:
    def loaded(result: RecordBatch | StorageError) -> None:
        gone = isinstance(result, StorageError) or result.base_offset > offset
        if gone and session.resend and session.resend[0][1][1] == offset:
            _gone(session, cursor, offset)
        session.broker.pump_later(session)

    cursor.feed.log.load(offset, loaded)


def _gone(session: Session, cursor: Cursor | GroupCursor, offset: int) -> None:
    """Retention or damage took the first message to be sent again, and perhaps those behind it: tell the gap."""
    _give_up(session)
    end, start = offset + 1, cursor.feed.log.log_start_offset
    while session.resend and end < start:
        following, where, state = session.resend[0][1]
        if following is not cursor or where != end or state == RELEASED:
            break
        _give_up(session)
        end += 1
    if not isinstance(cursor.reader, Group) and end == cursor.next_offset < start:
        cursor.step_back(offset)  # it meets the rest of the gap in a moment, and tells it as one
    else:
        session.broker.gap(cursor, offset, end)


def _give_up(session: Session) -> None:
    """Forget the first message that was to be sent again: its packet id is free, also after a restart."""
    session.broker.store(_give_up_puts(session), Durability.FAST)


def _give_up_puts(session: Session) -> Puts:
    packet_id, _ = session.resend.popleft()
    session.inflight.release(packet_id)
    session.dirty = True
    return acknowledged_puts(session, [packet_id])


def _hand_back(session: Session) -> None:
    """Forget the first message, as this client can't be sent it again; where a group gave it, another member may."""
    entry = session.resend[0][1]
    puts = _give_up_puts(session)
    hand_back(entry)
    if isinstance(entry[0], GroupCursor):
        puts += group_puts(entry[0].reader, [entry[0]])
    session.broker.store(puts, Durability.FAST)


def _stored_message(session: Session, cursor: Cursor | GroupCursor, offset: int, batch: RecordBatch) -> Message | None:
    """One stored message as the session is to get it; None if it isn't there any more; or
    FORBIDDEN, UNKNOWN.
    """
    record = next((record for record in batch.records() if record[0] == offset), None)
    if record is None:
        return None
    _, flags, stored_ms, topic_name, properties, payload = record
    reader = cursor.reader
    if session.rights is not None and not (allowed := reader.allows(session, topic_name)):
        return UNKNOWN if allowed is None else FORBIDDEN
    plan = reader.plan_for(session, topic_name)
    if flags & FLAG_PUBLISHER:
        properties = split_publisher(properties)[1]
    if reader.addressed:
        topic_name = addressed_name(offset, topic_name)
    retain = plan.retain_as_published and bool(flags & FLAG_RETAIN)
    return Message(topic_name, payload, flags & FLAG_QOS_MASK, retain, plan.identifiers + properties, stored_ms)


def _send_repeated(session: Session, packet_id: int, qos: int, message: Message) -> bool:
    """Send a message again; where it is larger than this connection takes, be done with it. 5.0 [MQTT-3.1.2-25]"""
    left = message.properties
    if left:
        left = message_expiry.remaining_after_send(left, message.stored_ms, session.broker.clock.now_ms())
    # [MQTT-3.3.1-1] DUP says that it may have come before.
    packet = message._replace(properties=left).encode(session.version, qos, packet_id, dup=True)
    if session.max_packet_bytes and len(packet) > session.max_packet_bytes:
        session.broker.counters.dropped_too_large += 1
        _hand_back(session)
        return False
    session.send(packet, 1, len(message.payload))
    return True


def _send_retained(session: Session) -> bool:
    """Send the next retained message that a SUBSCRIBE asked for, as it is now and not as it was then.

    False where it isn't known yet whether the client may have it.
    """
    snapshot = next(iter(session.retained.values()))
    message = snapshot.next(session.broker.retained)
    if message is None:
        session.retained.popitem(last=False)
        return True
    allowed = session.may_read(Right.SUBSCRIBE, message.topic_name)
    if allowed is None:
        snapshot.put_back(message)
        return False
    if allowed:
        session.send_message(message, snapshot.plan)
    return True
