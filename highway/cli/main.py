"""`highway`: the group of all commands, and the one place where errors become text and exit codes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from highway import __version__
from highway.cli.exits import Exit, exit_code_of
from highway.cli.lazy import LazyGroup
from highway.errors import ConfigError, HighwayError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["highway", "main", "run"]

_COMMANDS = {
    "acl": ("highway.cli.acl", "acl"),
    "backup": ("highway.cli.backup", "backup"),
    "bench": ("highway.cli.bench", "bench"),
    "config": ("highway.cli.config", "config"),
    "export": ("highway.cli.export", "export"),
    "fetch": ("highway.cli.fetch", "fetch"),
    "log": ("highway.cli.log", "log"),
    "completion": ("highway.cli.completion", "completion"),
    "pub": ("highway.cli.pub", "pub"),
    "reload": ("highway.cli.reload", "reload"),
    "retention": ("highway.cli.retention", "retention"),
    "serve": ("highway.cli.serve", "serve"),
    "sessions": ("highway.cli.sessions", "sessions"),
    "status": ("highway.cli.status", "status"),
    "sub": ("highway.cli.sub", "sub"),
    "tail": ("highway.cli.tail", "tail"),
    "users": ("highway.cli.users", "users"),
    "topics": ("highway.cli.status", "topics"),
}


@click.group(cls=LazyGroup, places=_COMMANDS)
@click.version_option(__version__, prog_name="highway")
def highway() -> None:
    """An MQTT broker that never forgets: every topic pattern is a durable log.

    Exit codes: 0 success, 1 failure, 2 wrong usage or configuration, 3 not found or out of range, 4 time out,
    5 damaged, 6 refused.
    """


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command in `arguments` (default: the process's own) and return its exit code; raises nothing."""
    try:
        result = highway.main(arguments, prog_name="highway", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        click.echo("highway: interrupted", err=True)
        return Exit.FAILURE
    except ConfigError as error:
        click.echo(str(error), err=True)
        count = len(error.problems)
        click.echo(f"highway: {count} problem{'s' if count > 1 else ''} in the configuration", err=True)
        return exit_code_of(error)
    except HighwayError as error:
        click.echo(f"highway: {error}", err=True)
        return exit_code_of(error)
    return result if isinstance(result, int) else Exit.SUCCESS


def main() -> None:
    """The script `highway`."""
    sys.exit(run())
