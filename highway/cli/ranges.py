"""`--from`, `--until` and `--topic` of the commands that read a log on disk: from words to offsets and records."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import click

from highway.broker.replay.grammar import FromKind, parse_from
from highway.errors import MqttError
from highway.mqtt.topics import concrete_names, matches
from highway.storage.checking.dumping import iterate_records, offset_at, offset_of_last

if TYPE_CHECKING:
    from collections.abc import Callable

    from highway.broker.replay.grammar import From
    from highway.storage.recovery.log_recovery import RecoveredLog
    from highway.storage.segment.records import Record

__all__ = ["first_offset", "offset_of", "parse_place", "topic_names", "topic_test"]


def parse_place(text: str, now_ms: int, option: str) -> From:
    """The place in a log that `text` means; BadParameter for `option` if it means none."""
    try:
        return parse_from(text.encode(), now_ms)
    except MqttError as error:
        raise click.BadParameter(error.detail, param_hint=option) from error


def topic_test(topic_filter: str | None) -> Callable[[Record], bool]:
    """Whether a record's topic falls under the filter; without one, each does."""
    if topic_filter is None:
        return lambda _: True
    encoded = topic_filter.encode()
    known: dict[bytes, bool] = {}

    def test(record: Record) -> bool:
        topic = record[3]
        found = known.get(topic)
        if found is None:
            if len(known) > 100_000:  # a topic for each message
                known.clear()
            found = known[topic] = matches(encoded, topic)
        return found

    return test


def topic_names(topic_filter: str | None) -> frozenset[bytes]:
    """The only topics that can fall under the filter, so that the others needn't be read; empty where it may be any."""
    return frozenset() if topic_filter is None else concrete_names([topic_filter.encode()])


def offset_of(log: RecoveredLog, place: From) -> int:
    """The offset where `place` is, whatever the topics."""
    match place.kind:
        case FromKind.EARLIEST:
            return log.state.log_start
        case FromKind.LATEST:
            return log.end
        case FromKind.OFFSET:
            return place.value
        case FromKind.LAST:
            return offset_of_last(log, place.value)
        case FromKind.TIME:
            return offset_at(log, place.value)


def first_offset(log: RecoveredLog, place: From, topic_filter: str | None, end: int | None) -> int:
    """The offset to begin at: of the last n records below `end` those count that match the filter."""
    if place.kind is not FromKind.LAST or topic_filter is None:
        return offset_of(log, place)
    wanted = topic_test(topic_filter)
    records = iterate_records(log, 0, end, lambda _: None, topic_names(topic_filter))
    offsets = (record[0] for record in records if wanted(record))
    last = deque(offsets, maxlen=place.value)
    return last[0] if last else log.end
