"""`highway log dump`: the records of one log, without a broker."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections import deque
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from highway.broker.replay.grammar import FromKind, parse_from
from highway.cli.client import check_topic_filter
from highway.cli.directory import check_directory, check_logs, data_dir_option, silence_storage
from highway.cli.exits import Exit
from highway.clock import SystemClock
from highway.errors import MqttError
from highway.mqtt.topics import matches
from highway.storage.checking.directory_view import look_at
from highway.storage.checking.dumping import iterate_records, offset_at, offset_of_last
from highway.storage.segment.records import FLAG_QOS_MASK, FLAG_RETAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from highway.broker.replay.grammar import From
    from highway.storage.log.reader import Lost
    from highway.storage.recovery.log_recovery import RecoveredLog
    from highway.storage.segment.records import Record

__all__ = ["dump"]


@click.command()
@click.argument("name", metavar="LOG")
@data_dir_option
@click.option("--from", "start", metavar="FROM", default="earliest", help="Where to begin: as for `highway sub`.")
@click.option("--until", metavar="FROM", help="Where to end, exclusive: an offset, a time or an age.")
@click.option("--limit", type=click.IntRange(min=1), help="End after this many records.")
@click.option("--topic", metavar="FILTER", help="Only records whose topic matches.")
@click.option("--json", "as_json", is_flag=True, help="Print each record as one JSON object on a line.")
def dump(
    name: str, data_dir: Path, start: str, until: str | None, limit: int | None, topic: str | None, *, as_json: bool
) -> int:
    """Print the records of LOG: offset, time, QoS, topic and payload, one on a line.

    FROM is earliest, latest, an offset (1234), the last n records (-100), a time (@1790000000000,
    @2026-11-29T18:00:00Z) or an age (90s, 15m, 2h, 7d). Only reads, also beside a running broker; what the broker has
    in memory only isn't seen. Ranges that can't be read are named on standard error, and the rest is printed.

    Exit code 5 when something couldn't be read.
    """
    silence_storage()
    now_ms = SystemClock().now_ms()
    first = _parse(start, now_ms, "--from")
    last = None if until is None else _parse(until, now_ms, "--until")
    if topic is not None:
        check_topic_filter(topic)
    check_directory(data_dir)
    check_logs(data_dir, [name])
    losses: list[Lost] = []
    with look_at(data_dir) as view:
        log = view.logs[name]
        end = None if last is None else _offset(log, last)
        records: Iterable[Record]
        if first.kind is FromKind.LAST and topic is not None:
            everything = _matching(iterate_records(log, 0, end, losses.append), topic)
            records = deque(everything, maxlen=first.value)
        else:
            records = _matching(iterate_records(log, _offset(log, first), end, losses.append), topic)
        _print_all(islice(records, limit), as_json=as_json)
    for lost in losses:
        click.echo(f"highway: offsets {lost.from_offset}..{lost.to_offset - 1} can't be read: {lost.error}", err=True)
    return Exit.DAMAGED if losses else Exit.SUCCESS


def _parse(text: str, now_ms: int, option: str) -> From:
    try:
        return parse_from(text.encode(), now_ms)
    except MqttError as error:
        raise click.BadParameter(error.detail, param_hint=option) from error


def _offset(log: RecoveredLog, start: From) -> int:
    match start.kind:
        case FromKind.EARLIEST:
            return log.state.log_start
        case FromKind.LATEST:
            return log.end
        case FromKind.OFFSET:
            return start.value
        case FromKind.LAST:
            return offset_of_last(log, start.value)
        case FromKind.TIME:
            return offset_at(log, start.value)


def _matching(records: Iterator[Record], topic_filter: str | None) -> Iterator[Record]:
    if topic_filter is None:
        return records
    encoded = topic_filter.encode()
    return (record for record in records if matches(encoded, record[3]))


def _print_all(records: Iterable[Record], *, as_json: bool) -> None:
    out = sys.stdout.buffer
    try:
        for record in records:
            out.write(json.dumps(_fields(record)).encode() + b"\n" if as_json else _line(record))
        out.flush()
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _line(record: Record) -> bytes:
    offset, flags, timestamp_ms, topic, _, payload = record
    retain = "r" if flags & FLAG_RETAIN else "-"
    return b"%d %s %d%s %s %s\n" % (
        offset,
        _time(timestamp_ms).encode(),
        flags & FLAG_QOS_MASK,
        retain.encode(),
        topic,
        payload,
    )


def _fields(record: Record) -> dict[str, Any]:
    offset, flags, timestamp_ms, topic, properties, payload = record
    fields: dict[str, Any] = {
        "offset": offset,
        "time": _time(timestamp_ms),
        "time_ms": timestamp_ms,
        "topic": topic.decode(errors="replace"),
        "qos": flags & FLAG_QOS_MASK,
        "retain": bool(flags & FLAG_RETAIN),
    }
    try:
        fields["payload"] = payload.decode()
    except UnicodeDecodeError:
        fields["payload_base64"] = base64.b64encode(payload).decode()
    if properties:
        fields["properties_base64"] = base64.b64encode(properties).decode()
    return fields


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
