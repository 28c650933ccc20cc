"""`highway reload`: put the changed configuration in force, without disconnecting anybody."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from highway.cli.admin import ask, broker_options, json_option

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["print_plan", "reload"]


@click.command()
@click.option("--allow-trim", is_flag=True, help="Also if stored messages are deleted by it, as the plan says.")
@broker_options
@json_option
def reload(data_dir: Path, *, allow_trim: bool, as_json: bool) -> None:
    """Put the configuration files of the running broker in force, as they are now.

    The broker reads its files, says what is wrong with them or plans what changes, and does that: all of it or nothing.
    Nobody is disconnected but those whose listener or user is gone. `highway config diff` prints the plan and does
    nothing; SIGHUP and `systemctl reload` do the same as this command.

    A plan that deletes stored messages, as a shorter retention does, is refused without --allow-trim.

    \b
    Exit codes: 0 the configuration is in force, 1 no broker runs or something can't be had (a port, say),
    2 the configuration is wrong, 6 refused. In all but the first nothing has changed.

    \b
    Examples:
      highway reload
      highway reload --allow-trim -c /etc/highway/highway.yaml
    """
    plan = ask(data_dir, "POST", "reload", allow_trim="true" if allow_trim else "false")
    if as_json:
        click.echo(json.dumps(plan))
        return
    print_plan(plan, nothing="nothing has changed")
    if plan["changes"]:
        click.echo("in force", err=True)


def print_plan(plan: dict[str, Any], *, nothing: str) -> None:
    """The plan on standard output, a line for each change, and its warnings on standard error."""
    for warning in plan["warnings"]:
        click.echo(f"warning: {warning}", err=True)
    for change in plan["changes"]:
        click.echo(f"{change['key']}: {change['change']}")
    if not plan["changes"]:
        click.echo(nothing, err=True)
