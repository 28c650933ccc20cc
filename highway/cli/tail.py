"""`highway tail`: the last records of a log, and those that follow."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from highway.cli.admin import ask, broker_options, json_option
from highway.cli.client import check_topic_filter
from highway.log_lines import printable
from highway.storage.exporting.columns import rfc3339

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["tail"]

# How often the log is asked for more, when it had no more.
INTERVAL_S = 0.2
# Records in one answer: a log that grows quickly is followed in steps.
STEP = 1000


@click.command()
@click.argument("log")
@click.option("-n", "--lines", default=10, show_default=True, type=click.IntRange(min=0), help="Begin with the last N.")
@click.option("--from", "start", metavar="FROM", help="Begin there instead: an offset, @TIME, an age (15m), earliest.")
@click.option("-t", "--topic", metavar="FILTER", help="Only records whose topic matches.")
@click.option("-C", "--count", type=click.IntRange(min=1), help="End after this many records.")
@broker_options
@json_option
def tail(
    data_dir: Path, log: str, lines: int, start: str | None, topic: str | None, count: int | None, *, as_json: bool
) -> None:
    """Print the last records of LOG in the running broker, then each that follows, until it is interrupted.

    Each on a line: offset, time, topic, payload. Unlike `highway sub` it asks the broker's socket and not MQTT: it
    needs no listener, no password and no rights, and sees what is delayed only when subscribers do.

    \b
    Exit codes: 0 COUNT is reached or it was interrupted, 1 no broker runs, 3 there is no such log.

    \b
    Examples:
      highway tail telemetry
      highway tail control -n 0 -t 'highway/A1/#' --json
    """
    if topic is not None:
        check_topic_filter(topic)
    known = ask(data_dir, "GET", f"logs/{quote(log, safe='')}")
    query = {} if topic is None else {"topic": topic}
    place = start or (f"-{lines}" if lines else "latest")
    left = count
    with contextlib.suppress(KeyboardInterrupt):  # the way to end what has no end
        while left is None or left > 0:
            limit = STEP if left is None else min(left, STEP)
            known = ask(data_dir, "GET", f"logs/{quote(log, safe='')}")
            found = _records(data_dir, log, place, limit, known["high_watermark"], query)
            for record in found:
                _print(record, as_json=as_json)
            sys.stdout.flush()
            if left is not None:
                left -= len(found)
            place = str(found[-1]["offset"] + 1 if len(found) == limit else known["high_watermark"])
            if len(found) < limit:
                time.sleep(INTERVAL_S)


def _records(data_dir: Path, log: str, place: str, limit: int, end: int, query: dict[str, str]) -> list[dict[str, Any]]:
    """What stands from `place` on below `end`, at most `limit`."""
    if place == str(end):
        return []
    lines = ask(
        data_dir,
        "GET",
        f"logs/{quote(log, safe='')}/records",
        **query,
        limit=str(limit),
        until=str(end),
        **{"from": place},
    )
    records: list[dict[str, Any]] = lines
    return records


def _print(record: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(record))
        return
    payload = record.get("payload", f"base64:{record.get('payload_base64')}")
    when = rfc3339(record["timestamp"])
    click.echo(f"{record['offset']} {when} {printable(record['topic'])} {printable(payload)}")
