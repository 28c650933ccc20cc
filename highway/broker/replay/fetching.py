"""`$fetch/<offset>/<topic>` as an MQTT 5 request: PUBLISH with a Response Topic, and one message comes back there.

The reply has the stored payload and properties, the request's Correlation Data, and user properties `status` (OK,
OFFSET_NOT_FOUND, OFFSET_GAP, OFFSET_CORRUPT), `offset`, `timestamp`, `log-start` and `high-watermark`. It is not
stored: it is nobody's history.

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from highway.broker.authorisation import Right, is_reserved
from highway.broker.message import Message
from highway.errors import OffsetError, OffsetNotFoundError, ProtocolError, StorageError
from highway.mqtt import PacketType, encode_properties, publish_properties

from .grammar import FetchRequest, parse_special

if TYPE_CHECKING:
    from highway.broker.authorisation import Rights
    from highway.broker.broker import Broker
    from highway.broker.delivery.feed import Feed
    from highway.mqtt import Properties, PublishRun
    from highway.storage import Record

__all__ = ["answer_fetch", "may_fetch"]

OK = "OK"


def _request_of(broker: Broker, run: PublishRun) -> tuple[FetchRequest, Properties, bytes] | None:
    """(what is asked for, properties, Response Topic) of a PUBLISH to `$fetch/...`; None for one that isn't a request.

    Nor is one whose answer would be a message that no client may publish: `$SYS` is the broker's word.
    """
    asked = publish_properties(run.properties) if run.properties else None
    if asked is None or asked.response_topic is None:
        return None
    if is_reserved(asked.response_topic) or broker.exceeded_by(asked.response_topic):
        return None
    try:
        special = parse_special(run.topic_name, broker.clock.now_ms())
    except ProtocolError:
        return None
    return (special, asked, asked.response_topic) if isinstance(special, FetchRequest) else None


def may_fetch(broker: Broker, run: PublishRun, rights: Rights) -> bool:
    """Whether a client has a right to the answer of a run. Raises Undecided as `Rights.may` does."""
    request = _request_of(broker, run)
    if request is None:
        return False
    # A reply is a message that the client causes, as if it had sent it itself.
    return rights.may(Right.FETCH, request[0].topic_name) and rights.may(Right.PUBLISH, request[2])


def answer_fetch(broker: Broker, run: PublishRun, rights: Rights | None) -> bool:
    """Answer the requests of a run; False for a PUBLISH to `$fetch/...` that is none, or may not be sent."""
    request = _request_of(broker, run)
    if request is None or (rights is not None and not may_fetch(broker, run, rights)):
        return False
    special, asked, _ = request
    broker.gathering.flush()  # what came before in this turn is there to be fetched
    feed = broker.router.feed(special.topic_name)
    for _ in run.payloads:
        if feed is None:
            _reply(broker, asked, run.qos, OffsetNotFoundError.status, special.offset, None, None)
        else:
            _fetch(broker, asked, run.qos, special, feed)
    return True


def _fetch(broker: Broker, asked: Properties, qos: int, special: FetchRequest, feed: Feed) -> None:
    def found(record: Record | StorageError) -> None:
        if isinstance(record, OffsetError):
            _reply(broker, asked, qos, record.status, special.offset, feed, None)
        elif isinstance(record, StorageError) or record[3] != special.topic_name:
            _reply(broker, asked, qos, OffsetNotFoundError.status, special.offset, feed, None)
        else:
            _reply(broker, asked, qos, OK, special.offset, feed, record)

    if special.offset >= feed.visible:
        _reply(broker, asked, qos, OffsetNotFoundError.status, special.offset, feed, None)
    else:
        feed.log.fetch(special.offset, found)


def _reply(
    broker: Broker, asked: Properties, qos: int, status: str, offset: int, feed: Feed | None, record: Record | None
) -> None:
    properties = publish_properties(b"" if record is None else record[4])
    properties.correlation_data = asked.correlation_data
    properties.response_topic = None
    told = {"status": status, "offset": str(offset)}
    if status != OK:
        broker.counters.offset_not_found += 1
    if record is not None:
        told["timestamp"] = str(record[2])
    if feed is not None:
        told["log-start"] = str(feed.log.log_start_offset)
        told["high-watermark"] = str(feed.visible)
    for name, value in told.items():
        properties.add_user_property(name, value)
    payload = b"" if record is None else record[5]
    topic_name = asked.response_topic
    if topic_name is not None:
        raw = encode_properties(properties, PacketType.PUBLISH)
        message = Message(topic_name, payload, qos, False, raw, broker.clock.now_ms())
        broker.deliver_unlogged(message, broker.router.route(topic_name))
