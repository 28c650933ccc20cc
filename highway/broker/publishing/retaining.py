"""A message with RETAIN on its way into the store of retained messages, at once or when its log's delay is over.

Owner: the event loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from highway.broker.delivery.feed import LiveRun
from highway.broker.message import Message
from highway.broker.sessions import session_store
from highway.log_lines import about

if TYPE_CHECKING:
    from highway.broker.broker import Broker
    from highway.broker.sessions.session import Session
    from highway.broker.sessions.session_store import Puts
    from highway.mqtt import PublishRun

__all__ = ["expect_delayed", "may_retain", "retain", "retained_message"]

logger = logging.getLogger("highway.broker")


def may_retain(broker: Broker, run: PublishRun, publisher: Session | None) -> bool:
    """Whether the last message of a run may be retained; if not, nothing is, as what was there is out of date."""
    before, settings = broker.retained.get(run.topic_name), broker.settings
    if not run.payloads[-1]:
        return True
    count = len(broker.retained) - broker.sys_retained
    grows_by = len(run.payloads[-1]) + len(run.properties)
    grows_by += len(run.topic_name) if before is None else -len(before.payload) - len(before.properties)
    if before is None and count >= settings.max_retained:
        limit = "max_retained"
    elif grows_by > 0 and broker.retained.size_bytes + grows_by > settings.max_retained_bytes:
        limit = "max_retained_bytes"
    else:
        return True
    broker.counters.limited[limit] += 1
    who = None if publisher is None else publisher.client_id
    logger.warning("not retained: limits.%s is reached", limit, extra=about(client=who, topic=run.topic_name))
    if before is not None:
        broker.retained.delete(run.topic_name)
        broker.store([session_store.retained_put(before._replace(payload=b""))])
    return False


def retained_message(broker: Broker, run: PublishRun | LiveRun, publisher: Session | None) -> Message:
    """The last message of a run, as it is retained."""
    client_id = "" if publisher is None else publisher.client_id
    return Message(run.topic_name, run.payloads[-1], run.qos, True, run.properties, broker.clock.now_ms(), client_id)


def retain(broker: Broker, run: PublishRun | LiveRun, publisher: Session | None, *, journal: bool) -> None:
    """Put the last message of a run in its place, or nothing where it has no payload.

    With `journal` it is stored here; otherwise it is in the journal already, with the run.
    """
    message = retained_message(broker, run, publisher)
    if isinstance(run, LiveRun) and (feed := broker.router.route(run.topic_name).feed) is not None:
        message = message._replace(log=feed.log.name, offset=run.end_offset - 1)
    # QoS 0 is kept like the others, and no payload is kept at all: 3.1.1 [MQTT-3.3.1-7], [MQTT-3.3.1-10],
    # [MQTT-3.3.1-11]; 5.0 [MQTT-3.3.1-6], [MQTT-3.3.1-7].
    if message.payload:
        broker.retained.set(run.topic_name, message)
    else:
        broker.retained.delete(run.topic_name)
    if journal:
        puts: Puts = [session_store.retained_put(message)]
        if message.log:  # it has waited for the end of its log's delay
            puts.append(session_store.delayed_drop(message.log, message.offset))
        broker.store(puts)
    broker.counters.retained = len(broker.retained)


def expect_delayed(broker: Broker, log: str, offset: int, message: Message) -> None:
    """Go on waiting with a retained message that a restart met within its log's delay."""
    run = LiveRun(
        message.topic_name, message.qos, [message.payload], offset, retain=True, properties=message.properties
    )
    feed = broker.feeds.get(log)
    if feed is not None and feed.is_delayed:
        feed.pending.append(run)
    else:
        retain(broker, run, None, journal=True)  # its log has no delay any more
        broker.store([session_store.delayed_drop(log, offset)])
