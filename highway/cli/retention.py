"""`highway retention`: see what is going to be deleted, and delete by hand."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from highway.cli.admin import ask, broker_options, json_option
from highway.cli.exits import CommandError, Exit
from highway.cli.tables import number, print_table, size

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["retention"]


@click.group()
def retention() -> None:
    """See what the running broker is going to delete, and delete by hand.

    Whole segments are deleted, the oldest first, and never the one that is written to.
    """


@retention.command("plan")
@click.argument("log", required=False)
@click.option("--before", metavar="FROM", help="What a trim up to here would delete: an offset, @TIME, or an age (7d).")
@broker_options
@json_option
def show_plan(data_dir: Path, log: str | None, before: str | None, *, as_json: bool) -> None:
    """Print what would be deleted now, of LOG or of all logs: segments, records, bytes and offsets.

    Without --before, by the rules of the configuration (retention, retention_bytes): what this prints goes with the
    next round, at most storage.reaper_interval away.

    \b
    Exit codes: 0 also where nothing would be deleted, 1 no broker runs, 3 there is no such log or offset.

    \b
    Examples:
      highway retention plan
      highway retention plan telemetry --before 7d
    """
    if before is not None and log is None:
        raise click.UsageError("--before needs a LOG: offsets and times are of one log")
    query = {"log": log, "before": before}
    _print(ask(data_dir, "GET", "retention", **{key: value for key, value in query.items() if value}), as_json=as_json)


@retention.command()
@click.argument("log")
@click.option("--before", metavar="FROM", required=True, help="Up to here: an offset, @TIME, or an age such as 7d.")
@click.option("--apply", "is_applied", is_flag=True, help="Delete without asking.")
@broker_options
@json_option
def trim(data_dir: Path, log: str, before: str, *, is_applied: bool, as_json: bool) -> None:
    """Delete the segments of LOG that lie wholly before FROM. For good: there is no way back.

    Prints what it is going to delete and asks, unless --apply says so. In a script, without --apply, it only prints.
    The offsets stay used: who reads there is told of the gap.

    \b
    Exit codes: 0 deleted, or nothing was to be deleted; 1 no broker runs, or the disk fails; 3 there is no such log or
    offset; 6 not confirmed.

    \b
    Examples:
      highway retention trim telemetry --before 30d
      highway retention trim telemetry --before 81234 --apply
    """
    query = {"log": log, "before": before}
    doomed = ask(data_dir, "GET", "retention", **query)
    if not doomed or is_applied:
        done = ask(data_dir, "POST", "retention/trim", **query) if doomed else []
        _print(done, f": no whole segment lies before {before}, and parts of one aren't deleted", as_json=as_json)
        return
    _print(doomed, as_json=as_json)
    if not sys.stdin.isatty() or not click.confirm("delete that?", err=True):
        raise CommandError("nothing was deleted; --apply does it", Exit.REFUSED)
    ask(data_dir, "POST", "retention/trim", **query)
    click.echo("deleted", err=True)


def _print(deletions: list[dict[str, Any]], why: str = "", *, as_json: bool) -> None:
    if as_json:
        for deletion in deletions:
            click.echo(json.dumps(deletion))
        return
    if not deletions:
        click.echo(f"nothing to delete{why}", err=True)
        return
    headers = ["LOG", "SEGMENTS", "RECORDS", "BYTES", "OFFSETS"]
    print_table(headers, [_row(deletion) for deletion in deletions], right=headers[1:])


def _row(deletion: dict[str, Any]) -> list[str]:
    return [
        deletion["log"],
        number(deletion["segments"]),
        number(deletion["records"]),
        size(deletion["bytes"]),
        f"{deletion['from_offset']}..{deletion['to_offset'] - 1}",
    ]
