"""What of sessions and retained messages is durable, and how it is written into the log's key-value store.

    key                                      value
    s/<client id>                            the session: owner, expiry, next packet id (JSON)
    u/<client id> NUL <filter as written>    one subscription, and whether its retained messages are still owed (JSON)
    p/<client id> NUL <log> NUL <source>     position of one cursor, u64: below it everything is acknowledged or in o/
    o/<client id> NUL <packet id, 2 B>       one message in flight: state u8, offset u64, log NUL source; with state
                                             bit 7 one that no log holds: taken at ms u64, topic length u16, properties
                                             length u32, topic, properties, payload (state bit 6: RETAIN)
    g/<share name and filter> NUL <log>      position of a group of a shared subscription, as p/, and u64 each the
                                             offsets below it that are given again all the same
    q/<client id> NUL <packet id, 2 B>       a QoS 2 message that came in and was not released
    w/<client id>                            the will of a connection: see `wills`
    d/<log> NUL <offset u64>                 a message with RETAIN on a delayed log, until subscribers may see it: topic
                                             length u16, topic, and as r/, with no payload where it removes one
    r/<topic>                                the retained message: QoS u8, properties length u16, taken at ms u64, with
                                             QoS bit 7 client id length u16 and client id of the publisher; properties,
                                             payload

The functions that end in `_puts` give the changes, and the caller decides which journal frame they go into: a QoS 2
packet id must stand in the frame of its message. Client ids, log names, filters and sources can't hold a NUL.

Each subscription has a key, so that the cost of a SUBSCRIBE does not grow with those before it. Data directories of an
earlier format have them in `s/`, as `subscriptions`: such a session is `inline` until `Broker` has stored them apart.

Owner: the event loop.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from highway.broker.delivery.cursor import Cursor
from highway.broker.message import Message
from highway.broker.replay.options import NO_OPTIONS, ReplayOptions
from highway.broker.subscriptions.group_cursor import GroupCursor
from highway.broker.subscriptions.shared import Group
from highway.mqtt.topics import SHARE_PREFIX

from .inflight import RELEASED
from .reader import Reader, Subscription
from .session import Session

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from highway.broker.broker import Broker
    from highway.broker.delivery.feed import Feed
    from highway.storage import Meta

    from .inflight import Entry

__all__ = [
    "Puts",
    "acknowledged_puts",
    "cursor_drop",
    "delayed_drop",
    "delayed_put",
    "drop_puts",
    "given_puts",
    "group_drop_puts",
    "group_puts",
    "inflight_puts",
    "load_delayed",
    "load_retained",
    "load_sessions",
    "position_puts",
    "received_put",
    "released_put",
    "retained_put",
    "session_put",
    "stale_group_puts",
    "subscription_puts",
]

Puts = list[tuple[bytes, "bytes | None"]]

_POSITION = struct.Struct(">Q")
_INFLIGHT = struct.Struct(">BQ")
_RETAINED = struct.Struct(">BHQ")
_PUBLISHER = struct.Struct(">H")
_MESSAGE = struct.Struct(">HI")  # subscription identifiers may come on top of what a publisher may send
_FLAG_PUBLISHER = 0x80  # of the QoS byte of a retained message
_FLAG_MESSAGE, _FLAG_RETAIN = 0x80, 0x40  # of the state byte of a message in flight


def session_put(session: Session) -> tuple[bytes, bytes]:
    """The session itself, without subscriptions, positions and messages in flight; notes that it is stored."""
    session.is_stored = True
    value: dict[str, Any] = {
        "owner": session.owner,
        "expiry_ms": session.expiry_ms,
        "expires_at_ms": session.expires_at_ms,
        "next_packet_id": session.inflight.next_id,
    }
    if session.inline:
        value["subscriptions"] = [
            _subscription_row(session, subscription) for subscription in session.all_subscriptions()
        ]
    return b"s/" + session.client_id.encode(), _json(value)


def subscription_puts(session: Session, names: Iterable[bytes]) -> Puts:
    """The subscriptions with these names as they are now, or their end; notes that they are stored so."""
    puts: Puts = []
    for name in names:
        subscription = session.subscription(name)
        key = _subscription_key(session.client_id, name)
        if subscription is not None:
            session.stored_names.add(name)
            puts.append((key, _json(_subscription_row(session, subscription))))
        elif name in session.stored_names:
            session.stored_names.discard(name)
            puts.append((key, None))
        if subscription is not None and name in session.retained:
            session.owed_names.add(name)
        else:
            session.owed_names.discard(name)
    return puts


def _subscription_key(client_id: str, name: bytes) -> bytes:
    return b"u/%b\0%b" % (client_id.encode(), name)


def _subscription_row(session: Session, s: Subscription) -> dict[str, Any]:
    return {
        "name": s.name.decode(),
        "filter": s.topic_filter.decode(),
        "qos": s.qos,
        "source": s.reader.source.decode(),
        "addressed": s.reader.addressed,
        "since": s.since,
        "no_local": s.no_local,
        "retain_as_published": s.retain_as_published,
        "identifier": s.identifier,
        "replay": _replay_options(s.reader),
        "retained_owed": s.name in session.retained,
    }


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _replay_options(reader: Reader | Group) -> dict[str, Any] | None:
    """What a reader was asked for beside its filter, None for nothing."""
    if not isinstance(reader, Reader) or (reader.options is NO_OPTIONS and not reader.until):
        return None
    options = reader.options
    return {
        "start_text": options.start_text.decode(),
        "rate": options.rate,
        "with_offset": options.with_offset,
        "until": reader.until,
    }


def _position_key(cursor: Cursor) -> bytes:
    reader = cursor.reader
    return b"p/%b\0%b\0%b" % (reader.session.client_id.encode(), cursor.feed.log.name.encode(), reader.source)


def position_puts(session: Session, readers: Iterable[Reader] | None = None) -> Puts:
    """The positions (of some readers) that changed since they were stored, and notes that they are stored now."""
    puts: Puts = []
    lowest: dict[Cursor | GroupCursor, int] = {}
    chosen = session.readers.values() if readers is None else readers
    cursors = [cursor for reader in chosen for cursor in reader.cursors.values()]
    for packet_id, (cursor, where, _) in session.unacknowledged():
        if cursor is not None and packet_id not in session.stored_ids and isinstance(where, int):
            before = lowest.get(cursor)
            if before is None or where < before:
                lowest[cursor] = where
            if len(lowest) >= len(cursors) and not session.rewound:
                break  # in the order sent, the first of each cursor is its lowest
    for cursor in cursors:
        position = min(lowest.get(cursor, cursor.next_offset), cursor.next_offset)
        if position != cursor.stored:
            cursor.stored = position
            puts.append((_position_key(cursor), _POSITION.pack(position)))
    return puts


def cursor_drop(cursor: Cursor) -> tuple[bytes, None]:
    """The end of a cursor."""
    return _position_key(cursor), None


def _group_key(group: Group, feed: Feed) -> bytes:
    return b"g/%b\0%b" % (group.source, feed.log.name.encode())


def group_puts(group: Group, cursors: Iterable[GroupCursor] | None = None) -> Puts:
    """The positions (of some cursors) of a group that changed since they were stored; notes that they are stored now.

    Of a group that has ended there are none: who was about to join may have left by now.
    """
    puts: Puts = []
    if not group.is_there:
        return puts
    for cursor in group.cursors.values() if cursors is None else cursors:
        offsets = cursor.to_store()
        if offsets != cursor.stored:
            cursor.stored = offsets
            puts.append((_group_key(group, cursor.feed), b"".join(map(_POSITION.pack, offsets))))
    return puts


def given_puts(sessions: Iterable[Session], cursor: GroupCursor) -> Puts:
    """What a group gave to some of its sessions: their messages in flight, and where the group stands behind them."""
    puts: Puts = []
    for session in sessions:
        puts += inflight_puts(session)
        puts += position_puts(session)
    return puts + group_puts(cursor.reader, [cursor])


def group_drop_puts(group: Group) -> Puts:
    """The end of a group."""
    return [(_group_key(group, feed), None) for feed in group.cursors]


def _packet_key(prefix: bytes, client_id: str, packet_id: int) -> bytes:
    return b"%b/%b\0%b" % (prefix, client_id.encode(), packet_id.to_bytes(2, "big"))


def inflight_puts(session: Session) -> Puts:
    """Every message in flight that is not stored yet, by packet id."""
    puts: Puts = []
    for packet_id, entry in session.unacknowledged():
        if packet_id not in session.stored_ids:
            session.stored_ids.add(packet_id)
            puts.append((_packet_key(b"o", session.client_id, packet_id), _encode_entry(entry)))
    return puts


def _encode_entry(entry: Entry) -> bytes:
    cursor, where, state = entry
    if cursor is not None and isinstance(where, int):
        return _INFLIGHT.pack(state, where) + cursor.feed.log.name.encode() + b"\0" + cursor.reader.source
    assert isinstance(where, Message)
    state |= _FLAG_MESSAGE | (_FLAG_RETAIN if where.retain else 0)
    if entry[2] == RELEASED:
        where = Message(b"", b"", 0, False, b"", where.stored_ms)  # only a packet id any more
    head = _INFLIGHT.pack(state, where.stored_ms) + _MESSAGE.pack(len(where.topic_name), len(where.properties))
    return head + where.topic_name + where.properties + where.payload


def _decode_message(value: bytes) -> Message:
    state, stored_ms = _INFLIGHT.unpack_from(value)
    topic_length, properties_length = _MESSAGE.unpack_from(value, _INFLIGHT.size)
    topic_at = _INFLIGHT.size + _MESSAGE.size
    properties_at = topic_at + topic_length
    payload_at = properties_at + properties_length
    topic_name, properties = value[topic_at:properties_at], value[properties_at:payload_at]
    return Message(topic_name, value[payload_at:], state & 3, bool(state & _FLAG_RETAIN), properties, stored_ms)


def released_put(session: Session, packet_id: int, entry: Entry) -> tuple[bytes, bytes]:
    """A QoS 2 message in flight that moved on to another state."""
    session.stored_ids.add(packet_id)
    return _packet_key(b"o", session.client_id, packet_id), _encode_entry(entry)


def acknowledged_puts(session: Session, packet_ids: Iterable[int]) -> Puts:
    """Stored messages in flight that are acknowledged now."""
    done = session.stored_ids.intersection(packet_ids)
    session.stored_ids -= done
    return [(_packet_key(b"o", session.client_id, packet_id), None) for packet_id in done]


def received_put(session: Session, packet_id: int, *, present: bool) -> tuple[bytes, bytes | None]:
    """A QoS 2 packet id that came in (`present`), or was released."""
    return _packet_key(b"q", session.client_id, packet_id), b"" if present else None


def drop_puts(session: Session) -> Puts:
    """The end of everything that is stored of a session, which is noted; no retained messages: 3.1.1 [MQTT-3.1.2-7].

    What its groups gave it is to be stored as theirs again, in the same frame: `group_puts`.
    """
    client_id = session.client_id
    puts: Puts = [(b"s/" + client_id.encode(), None)]
    puts.extend((_subscription_key(client_id, name), None) for name in session.stored_names)
    puts.extend((_position_key(cursor), None) for cursor in session.cursors())
    puts.extend((_packet_key(b"o", client_id, packet_id), None) for packet_id in session.stored_ids)
    puts.extend((_packet_key(b"q", client_id, packet_id), None) for packet_id in session.received)
    session.is_stored = False
    session.stored_ids.clear()
    session.stored_names.clear()
    return puts


def retained_put(message: Message) -> tuple[bytes, bytes | None]:
    """The retained message of a topic. An empty payload removes it: 3.1.1 [MQTT-3.3.1-10], 5.0 [MQTT-3.3.1-6]."""
    if not message.payload:
        return b"r/" + message.topic_name, None
    return b"r/" + message.topic_name, _encode_retained(message)


def _encode_retained(message: Message) -> bytes:
    publisher = message.publisher.encode()
    head = _RETAINED.pack(message.qos | _FLAG_PUBLISHER, len(message.properties), message.stored_ms)
    head += _PUBLISHER.pack(len(publisher)) + publisher
    return head + message.properties + message.payload


def _delayed_key(log: str, offset: int) -> bytes:
    return b"d/%b\0%b" % (log.encode(), _POSITION.pack(offset))


def delayed_put(message: Message, log: str, offset: int) -> tuple[bytes, bytes]:
    """A message with RETAIN at `offset` of a delayed log, until subscribers may see it."""
    return _delayed_key(log, offset), _PUBLISHER.pack(len(message.topic_name)) + message.topic_name + _encode_retained(
        message
    )


def delayed_drop(log: str, offset: int) -> tuple[bytes, None]:
    """Subscribers may see it: what is retained says so from now on."""
    return _delayed_key(log, offset), None


def load_delayed(meta: Meta) -> Iterator[tuple[str, int, Message]]:
    """(log, offset, message) of what `delayed_put` stored, in the order of the offsets of each log."""
    for key, value in sorted(meta.items(b"d/")):
        log, offset = key[2 : -_POSITION.size - 1], key[-_POSITION.size :]
        (length,) = _PUBLISHER.unpack_from(value)
        start = _PUBLISHER.size + length
        yield log.decode(), _POSITION.unpack(offset)[0], _decode_retained(value[_PUBLISHER.size : start], value[start:])


def load_retained(meta: Meta) -> Iterator[Message]:
    """The stored retained messages."""
    for key, value in meta.items(b"r/"):
        yield _decode_retained(key[2:], value)


def _decode_retained(topic_name: bytes, value: bytes) -> Message:
    qos, length, stored_ms = _RETAINED.unpack_from(value)
    start, publisher = _RETAINED.size, ""
    if qos & _FLAG_PUBLISHER:
        (size,) = _PUBLISHER.unpack_from(value, start)
        start += _PUBLISHER.size + size
        publisher = value[start - size : start].decode()
    at = start + length
    return Message(topic_name, value[at:], qos & 3, True, value[start:at], stored_ms, publisher)


def load_sessions(broker: Broker, meta: Meta, feeds: dict[str, Feed]) -> dict[str, Session]:
    """Every stored session, offline, with its positions; a log that is new to a session starts at its beginning."""
    sessions: dict[str, Session] = {}
    for key, value in meta.items(b"s/"):
        client_id = key[2:].decode()
        sessions[client_id] = _load_session(broker, client_id, json.loads(value))
    for key, value in meta.items(b"u/"):
        client, name = key[2:].split(b"\0", 1)
        owner = sessions.get(client.decode())
        if owner is not None:
            owner.stored_names.add(name)
            _load_subscription(broker, owner, json.loads(value))
    for key, value in meta.items(b"p/"):
        client, log, source = key[2:].split(b"\0", 2)
        session, feed = sessions.get(client.decode()), feeds.get(log.decode())
        reader = session.readers.get(source) if session else None
        if reader is not None and feed is not None:
            (position,) = _POSITION.unpack(value)
            reader.place(feed, position).stored = position
    _load_groups(broker, meta, feeds)
    _load_packet_ids(broker, meta, sessions, feeds)
    for session in sessions.values():
        for reader in session.readers.values():
            reader.place_missing()
    return sessions


def _load_session(broker: Broker, client_id: str, stored: dict[str, Any]) -> Session:
    session = Session(broker, client_id)
    session.persistent = session.is_stored = True
    session.owner = stored.get("owner")  # older versions knew of no users
    session.expiry_ms = stored["expiry_ms"]
    session.expires_at_ms = stored["expires_at_ms"]
    if session.expires_at_ms is None and session.expiry_ms is not None:
        # It was online when the broker died, which is when its connection ended.
        session.expires_at_ms = broker.storage.now_ms() + session.expiry_ms
    session.inflight.next_id = stored["next_packet_id"]
    session.inline = "subscriptions" in stored
    owed = stored.get("snapshots", ())
    for row in stored.get("subscriptions", ()):
        row.setdefault("retained_owed", row["name"] in owed)
        _load_subscription(broker, session, row)
    return session


def _load_subscription(broker: Broker, session: Session, row: dict[str, Any]) -> None:
    source = row["source"].encode()
    if source.startswith(SHARE_PREFIX):
        group = broker.group(source, row["filter"].encode())
        shared = _subscription_of(group, row)
        group.join(session, shared)
        session.groups[shared.name] = (group, shared)
        return
    reader = session.readers.get(source)
    if reader is None:
        reader = session.readers[source] = Reader(session, source, addressed=row["addressed"])
    subscription = _subscription_of(reader, row)
    subscription.since = row["since"]
    reader.add(subscription)
    if (replay := row.get("replay")) is not None:
        options = ReplayOptions(
            start_text=replay["start_text"].encode(), rate=replay["rate"], with_offset=replay["with_offset"]
        )
        reader.set_options(options, replay["until"])
    if row["retained_owed"]:
        session.owed_names.add(subscription.name)
        session.add_snapshot(subscription, {})


def _subscription_of(reader: Reader | Group, row: dict[str, Any]) -> Subscription:
    return Subscription(
        reader,
        row["name"].encode(),
        row["filter"].encode(),
        row["qos"],
        no_local=row["no_local"],
        retain_as_published=row["retain_as_published"],
        identifier=row["identifier"],
    )


def stale_group_puts(broker: Broker, meta: Meta) -> Puts:
    """The end of groups that a crash outlived: whoever was in them has no session any more."""
    return [(key, None) for key, _ in meta.items(b"g/") if key[2:].rsplit(b"\0", 1)[0] not in broker.groups]


def _load_groups(broker: Broker, meta: Meta, feeds: dict[str, Feed]) -> None:
    for key, value in meta.items(b"g/"):
        source, log = key[2:].rsplit(b"\0", 1)
        group, feed = broker.groups.get(source), feeds.get(log.decode())
        if group is not None and feed is not None:
            offsets = [offset for (offset,) in _POSITION.iter_unpack(value)]
            group.place(feed, offsets[0], offsets[1:]).stored = offsets
    for group in broker.groups.values():
        group.place_missing()


def _load_packet_ids(broker: Broker, meta: Meta, sessions: dict[str, Session], feeds: dict[str, Feed]) -> None:
    for key, value in meta.items(b"o/"):
        client, packet_id = key[2:-3], int.from_bytes(key[-2:], "big")
        session = sessions.get(client.decode())
        entry = None if session is None else _load_entry(broker, session, feeds, value)
        if session is not None and entry is not None:
            session.stored_ids.add(packet_id)
            session.inflight.reserve(packet_id)
            session.resend.append((packet_id, entry))
            if isinstance(entry[0], GroupCursor):
                entry[0].reader.note_holder(session)
    for key, _ in meta.items(b"q/"):
        session = sessions.get(key[2:-3].decode())
        if session is not None:
            session.received.add(int.from_bytes(key[-2:], "big"))
    for session in sessions.values():
        # In the order of their logs, which is the order they were sent in where there is one.
        session.resend = type(session.resend)(sorted(session.resend, key=_send_order))


def _load_entry(broker: Broker, session: Session, feeds: dict[str, Feed], value: bytes) -> Entry | None:
    state, offset = _INFLIGHT.unpack_from(value)
    if state & _FLAG_MESSAGE:
        return None, _decode_message(value), state & 3
    log, source = value[_INFLIGHT.size :].split(b"\0", 1)
    feed = feeds.get(log.decode())
    if feed is None:
        return None
    # A cursor of its own where the subscription is gone: what was sent for it is completed, [MQTT-3.10.4-3].
    if source.startswith(SHARE_PREFIX):
        group = broker.groups.get(source) or Group(broker, source, source.split(b"/", 2)[2])
        return group.cursors.get(feed) or GroupCursor(group, feed, offset), offset, state
    reader = session.readers.get(source) or Reader(session, source, addressed=source.startswith(b"$log/"))
    return reader.cursors.get(feed) or Cursor(reader, feed, offset), offset, state


def _send_order(row: tuple[int, Entry]) -> tuple[str, bytes, int]:
    packet_id, (cursor, where, _) = row
    if cursor is None or not isinstance(where, int):
        return "", b"", packet_id
    return cursor.feed.log.name, cursor.reader.source, where
