"""`highway log dump`: the records of one log, without a broker."""

from __future__ import annotations

import base64
import json
import os
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from highway.cli.admin import broker_options
from highway.cli.client import check_topic_filter
from highway.cli.directory import check_directory, check_logs, silence_storage
from highway.cli.exits import Exit
from highway.cli.ranges import first_offset, offset_of, parse_place, topic_names, topic_test
from highway.clock import SystemClock
from highway.storage.checking.directory_view import look_at
from highway.storage.checking.dumping import iterate_records
from highway.storage.exporting.columns import record_fields, rfc3339
from highway.storage.segment.records import FLAG_QOS_MASK, FLAG_RETAIN

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from highway.storage.log.reader import Lost
    from highway.storage.segment.records import Record

__all__ = ["dump"]


@click.command()
@click.argument("name", metavar="LOG")
@broker_options
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
    first = parse_place(start, now_ms, "--from")
    last = None if until is None else parse_place(until, now_ms, "--until")
    if topic is not None:
        check_topic_filter(topic)
    check_directory(data_dir)
    check_logs(data_dir, [name])
    losses: list[Lost] = []
    with look_at(data_dir) as view:
        log = view.logs[name]
        end = None if last is None else offset_of(log, last)
        begin = first_offset(log, first, topic, end)
        records = iterate_records(log, begin, end, losses.append, topic_names(topic))
        _print_all(islice(filter(topic_test(topic), records), limit), as_json=as_json)
    for lost in losses:
        click.echo(f"highway: offsets {lost.from_offset}..{lost.to_offset - 1} can't be read: {lost.error}", err=True)
    return Exit.DAMAGED if losses else Exit.SUCCESS


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
        rfc3339(timestamp_ms).encode(),
        flags & FLAG_QOS_MASK,
        retain.encode(),
        topic,
        payload,
    )


def _fields(record: Record) -> dict[str, Any]:
    fields = record_fields(record)
    _, _, _, _, properties, payload = record
    try:
        fields["payload"] = payload.decode()
    except UnicodeDecodeError:
        fields["payload_base64"] = base64.b64encode(payload).decode()
    if properties:
        fields["properties_base64"] = base64.b64encode(properties).decode()
    return fields
