"""`highway log compact`: the newest record of each topic stays, in a directory that no broker has open."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from highway.cli.admin import broker_options
from highway.cli.directory import check_directory, check_logs, count_bar, silence_storage
from highway.cli.exits import CommandError, Exit
from highway.errors import DirectoryInUseError
from highway.storage.checking import compacting

if TYPE_CHECKING:
    from pathlib import Path

    from highway.storage.checking.compacting import Compaction

__all__ = ["compact"]


@click.command()
@click.argument("names", metavar="LOG...", nargs=-1, required=True)
@broker_options
@click.option("--apply", "apply_it", is_flag=True, help="Do it; without this it is only said what would be done.")
@click.option("--json", "as_json", is_flag=True, help="Print each log as one JSON object on a line.")
def compact(names: tuple[str, ...], data_dir: Path, *, apply_it: bool, as_json: bool) -> int:
    """Delete the records of LOG that a newer one of the same topic replaces; offsets keep their values.

    A record without payload says that its topic is gone; it goes too when it is older than a day. A broker does the
    same by itself for entries with `cleanup: compact`.

    Without --apply nothing is changed, also beside a running broker. With --apply, exit code 6 when a broker has the
    directory open.
    """
    silence_storage()
    check_directory(data_dir)
    check_logs(data_dir, names)
    unique = list(dict.fromkeys(names))
    if not apply_it:
        found = compacting.plan(data_dir, unique)
    else:
        try:
            with count_bar("compacted", len(unique)) as advance:
                found = compacting.compact(data_dir, unique, on_log=advance)
        except DirectoryInUseError as error:
            raise CommandError(str(error), Exit.REFUSED) from error
    for one in found:
        click.echo(json.dumps(one._asdict() | {"applied": apply_it}) if as_json else _line(one))
    if not apply_it and not as_json:
        click.echo("nothing was changed; --apply compacts")
    return Exit.SUCCESS


def _line(found: Compaction) -> str:
    gone = found.records - found.records_left
    text = f"log {found.log}: {found.records:,} records of {found.topics:,} topics, {found.bytes:,} B; "
    if found.bytes_left is None:
        return text + f"{gone:,} records would go, {found.records_left:,} stay"
    return text + f"{gone:,} records are gone, {found.records_left:,} stay in {found.bytes_left:,} B"
