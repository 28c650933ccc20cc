"""What operators see and move: the state of the broker, of its logs and of its sessions.

Everything is returned as plain values under the names that the HTTP API and `--json` promise; nothing here prints.

Owner: the event loop.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

from highway.broker.replay.grammar import parse_from
from highway.broker.replay.starting import Answer, find_starts
from highway.broker.sessions import session_store
from highway.broker.subscriptions.group_cursor import GroupCursor
from highway.errors import CorruptionError, HighwayError, ProtocolError, StorageError
from highway.mqtt import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from highway.broker.delivery.cursor import Cursor
    from highway.broker.sessions.session import Session
    from highway.storage.segment.segment import Segment

    from .broker import Broker

__all__ = [
    "SegmentTotals",
    "drop_session",
    "log_of",
    "positions",
    "reset_session",
    "segment_totals",
    "session_detail",
    "session_of",
    "sessions",
    "status",
    "unread_batches",
]


MAX_SESSIONS_SHOWN = 2000


def status(broker: Broker) -> dict[str, Any]:
    """The broker as a whole."""
    storage, counters = broker.storage, broker.counters
    fault = storage.fault
    return {
        "uptime_seconds": round(broker.clock.monotonic() - broker.started, 3),
        "writable": storage.writable,
        "fault": None if fault is None else str(fault),
        "recovery": str(storage.report),
        "clients_connected": counters.clients_connected,
        "sessions": len(broker.sessions),
        "groups": len(broker.groups),
        "subscriptions": sum(session.subscription_count for session in broker.sessions.values()),
        "retained": len(broker.retained),
        "publish_received": counters.publish_received,
        "publish_sent": counters.publish_sent,
        "publish_dropped": counters.publish_dropped,
        "topics_without_log": broker.logs.passed_on,
        "unsynced_bytes": storage.unsynced_bytes,
        "backlog_bytes": storage.backlog_bytes,
    }


class SegmentTotals(NamedTuple):
    """What the segments of a log hold; the newest records, in memory and in the journal, are not among them."""

    records: int
    raw_bytes: int
    stored_bytes: int
    oldest_ms: int | None
    end_offset: int  # behind the last record that was added up


def segment_totals(segments: Iterable[Segment]) -> SegmentTotals:
    """Add up the indexes of segments. May read them from disk, so this is not for the thread of the event loop."""
    records = raw_bytes = stored_bytes = 0
    oldest_ms = None
    end_offset = 0
    for segment in segments:
        try:
            index = segment.index
        except (CorruptionError, FileNotFoundError):
            continue  # damaged, or deleted while we look: whoever reads there is told
        end_offset = segment.next_offset
        records += index.records
        raw_bytes += index.raw_bytes
        stored_bytes += segment.length
        if oldest_ms is None and index.frames:
            oldest_ms = index.min_ms
    return SegmentTotals(records, raw_bytes, stored_bytes, oldest_ms, end_offset)


def log_of(broker: Broker, name: str, totals: SegmentTotals) -> dict[str, Any]:
    """One log; KeyError where there is none of that name."""
    feed = broker.feeds[name]
    log = feed.log
    segments = log.writer.segments
    counted = max(totals.end_offset, log.log_start_offset)
    # What a crash left empty behind the segments never was a record.
    holes = sum(max(0, gap.to_offset - max(gap.from_offset, counted)) for gap in log.gaps)
    records = totals.records + log.log_end_offset - counted - holes
    return {
        "log": name,
        "topics": broker.logs.topics_of(name),
        "durability": log.settings.durability.name,
        "log_start_offset": log.log_start_offset,
        "high_watermark": feed.visible,
        "log_end_offset": log.log_end_offset,
        "records": max(0, min(records, feed.visible - log.log_start_offset)),
        "bytes": log.stored_bytes,
        "raw_bytes": totals.raw_bytes,
        "ratio": round(totals.raw_bytes / totals.stored_bytes, 2) if totals.raw_bytes else None,
        "rate": round(feed.rate, 1),
        "segments": len(segments),
        "gaps": [
            {"from": gap.from_offset, "to": gap.to_offset - 1, "reason": gap.reason, "when_ms": gap.when_ms}
            for gap in log.gaps
        ],
        "oldest_ms": (totals.oldest_ms or log.last_ms or None) if records else None,
        "newest_ms": (log.last_ms or None) if records else None,
        "readers": len(feed.cursors),
    }


def session_of(broker: Broker, client_id: str) -> Session:
    """The session of a client; HighwayError where there is none."""
    session = broker.sessions.get(client_id)
    if session is None:
        raise HighwayError(f"there is no session of client {client_id!r}")
    return session


def sessions(broker: Broker) -> list[dict[str, Any]]:
    """Every session, in one line each."""
    return [_summary(session) for session in broker.sessions.values()]


def _summary(session: Session) -> dict[str, Any]:
    cursors = list(session.cursors())
    catching_up = any(not cursor.live for cursor in cursors)
    oldest = next(iter(session.inflight), None)
    return {
        "client": session.client_id,
        "online": session.link is not None,
        "peer": None if session.link is None else session.link.peer,
        "protocol": session.version,
        "persistent": session.persistent,
        "state": "OFFLINE" if session.link is None else "CATCHUP" if catching_up else "LIVE",
        "subscriptions": session.subscription_count,
        "lag": sum(_lag(cursor) for cursor in cursors),
        "inflight": len(session.inflight),
        "window_full_since_ms": session.window_full_since_ms,
        "oldest_unacked": None if oldest is None else _where(oldest[0], oldest[1]),
        "expires_at_ms": session.expires_at_ms,
    }


def _where(packet_id: int, entry: Any) -> dict[str, Any]:
    cursor, where, _ = entry
    if cursor is None:
        return {"packet_id": packet_id, "topic": where.topic_name.decode()}
    return {"packet_id": packet_id, "log": cursor.feed.log.name, "offset": where}


def _lag(cursor: Cursor | GroupCursor) -> int:
    return max(0, cursor.feed.visible - cursor.next_offset)


def positions(broker: Broker, limit: int) -> list[dict[str, Any]]:
    """Where readers stand in their logs: at most `limit` of them, those that are furthest behind first.

    Where there are many sessions only those that catch up are looked at: it is asked for once a second.
    """
    cursors: list[Cursor | GroupCursor] = []
    if len(broker.sessions) > MAX_SESSIONS_SHOWN:
        cursors.extend(cursor for feed in broker.feeds.values() for cursor in feed.cursors if not cursor.live)
    else:
        for session in broker.sessions.values():
            cursors.extend(session.cursors())
        for group in broker.groups.values():
            cursors.extend(group.cursors.values())
    return [_position(cursor) for cursor in heapq.nlargest(limit, cursors, key=_lag)]


def _position(cursor: Cursor | GroupCursor) -> dict[str, Any]:
    session, log = cursor.reader.session, cursor.feed.log
    online = bool(cursor.reader.members) if isinstance(cursor, GroupCursor) else cursor.reader.session.link is not None
    return {
        "reader": cursor.reader.source.decode() if session is None else session.client_id,
        "log": log.name,
        "state": "OFFLINE" if not online else "LIVE" if cursor.live else "CATCHUP",
        "next_offset": cursor.next_offset,
        "log_start_offset": log.log_start_offset,
        "high_watermark": cursor.feed.visible,
        "lag": _lag(cursor),
    }


def session_detail(session: Session) -> dict[str, Any]:
    """One session with its subscriptions and its position in every log."""
    detail = _summary(session)
    detail["filters"] = [{"filter": s.name.decode(), "qos": s.qos} for s in session.all_subscriptions()]
    detail["positions"] = [
        {
            "log": cursor.feed.log.name,
            "source": cursor.reader.source.decode() or None,
            "next_offset": cursor.next_offset,
            "high_watermark": cursor.feed.visible,
            "lag": _lag(cursor),
            "state": "OFFLINE" if session.link is None else "LIVE" if cursor.live else "CATCHUP",
        }
        for cursor in session.cursors()
    ]
    detail["groups"] = [
        {
            "name": name.decode(),
            "members": len(group.members),
            "log": cursor.feed.log.name,
            "next_offset": cursor.next_offset,
            "high_watermark": cursor.feed.visible,
            "lag": max(0, cursor.feed.visible - cursor.next_offset),
        }
        for name, (group, _) in session.groups.items()
        for cursor in group.cursors.values()
    ]
    detail["missed"] = [
        {"log": log, "from": gap.from_offset, "to": gap.to_offset - 1, "reason": gap.reason}
        for log, gap in session.missed or ()
    ]
    return detail


def unread_batches(session: Session) -> list[tuple[Cursor, int]]:
    """Cursors that lag, with the offset whose commit time says by how long."""
    return [(cursor, cursor.next_offset) for cursor in session.cursors() if _lag(cursor)]


def reset_session(
    broker: Broker, client_id: str, text: str, done: Callable[[dict[str, int] | HighwayError], None]
) -> None:
    """Move the ordinary subscriptions of a session to `<from>`; `done` gets the new offset by log, or why not."""
    session = session_of(broker, client_id)
    (reader,) = (reader for reader in session.readers.values() if not reader.source)
    try:
        start = parse_from(text.encode(), broker.clock.now_ms())
    except ProtocolError as error:
        done(error)
        return

    def found(answer: Answer) -> None:
        if isinstance(answer, ProtocolError | StorageError):
            done(answer)
            return
        if broker.sessions.get(client_id) is not session:
            done(HighwayError(f"the session of client {client_id!r} ended meanwhile"))
            return
        for feed, offset in answer.items():
            if feed in reader.cursors:  # a subscription may have gone meanwhile
                _move(reader.cursors[feed], max(offset, feed.log.log_start_offset))
        reader.start_over()
        if session.persistent:
            broker.store(
                [
                    session_store.session_put(session),
                    *session_store.subscription_puts(session, reader.subscriptions),
                    *session_store.position_puts(session),
                ]
            )
        broker.pump_later(session)
        done({feed.log.name: offset for feed, offset in answer.items()})

    def _move(cursor: Cursor, offset: int) -> None:
        if session.link is None:
            cursor.suspend_at(offset)
        else:
            cursor.move_to(offset)

    if not reader.cursors:
        done(HighwayError(f"client {client_id!r} has no ordinary subscription to a logged topic"))
        return
    filters = [subscription.topic_filter for subscription in reader.subscriptions.values()]
    find_starts(start, filters, list(reader.cursors), broker.scheduler, found)


def drop_session(broker: Broker, client_id: str) -> None:
    """End a session for good, and its connection if it has one."""
    session = session_of(broker, client_id)
    client = broker.clients.get(client_id)
    if client is not None:
        client.end(ReasonCode.ADMINISTRATIVE_ACTION)
    if client_id in broker.sessions:
        broker.store(broker.lifecycle.end_session(session))
