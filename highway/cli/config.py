"""`highway config`: look at a configuration without serving it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from highway.cli.admin import DEFAULT_DATA_DIR, ask
from highway.cli.exits import CommandError, Exit
from highway.cli.reload import print_plan
from highway.config import load_settings
from highway.config.loading import shipped_text
from highway.config.plan import make_plan
from highway.config.rendering import to_tree, to_yaml
from highway.config.schema import json_schema
from highway.errors import ConfigError

__all__ = ["config"]

_file = click.argument("file", required=False, type=click.Path(path_type=Path))
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")


@click.group()
def config() -> None:
    """Look at a configuration without serving it.

    Where FILE is left out, the built-in configuration is meant, which `highway serve` uses without -c. Variables
    HIGHWAY__* of the environment count as they do for `highway serve`.
    """


@config.command()
@_file
@_json
def check(file: Path | None, *, as_json: bool) -> int:
    """Say whether FILE is valid; every problem as `file:line:column: key: what is wrong`.

    Exit code 2 when it is not. Warnings are about what is allowed and probably not meant.
    """
    try:
        settings = load_settings(file)
    except ConfigError as error:
        if not as_json:
            raise
        click.echo(json.dumps({"valid": False, "problems": error.problems, "warnings": []}))
        return Exit.USAGE
    if as_json:
        click.echo(json.dumps({"valid": True, "problems": [], "warnings": settings.warnings}))
        return Exit.SUCCESS
    for warning in settings.warnings:
        click.echo(f"warning: {warning}", err=True)
    addresses = ", ".join(str(listener) for listener in settings.listeners)
    logs = ", ".join(log.name for log in settings.logs)
    click.echo(f"{file or 'built-in configuration'}: valid; listens on {addresses}; logs: {logs or 'none'}")
    return Exit.SUCCESS


@config.command()
@_file
@_json
def show(file: Path | None, *, as_json: bool) -> None:
    """Print the configuration that FILE and the environment come to, with every default said.

    The output is a valid configuration file.
    """
    settings = load_settings(file)
    click.echo(json.dumps(to_tree(settings), indent=2) if as_json else to_yaml(settings), nl=as_json)


@config.command()
@_file
@click.option(
    "--against", type=click.Path(path_type=Path), help="Compare with this file instead of with the running broker."
)
@click.option("--data-dir", type=click.Path(path_type=Path), help="The broker's data directory, instead of FILE's.")
@_json
def diff(file: Path | None, against: Path | None, data_dir: Path | None, *, as_json: bool) -> None:
    """Print what `highway reload` would change: the plan, a line for each key, and nothing is done.

    The running broker is asked, as only it knows which offsets a shorter retention would delete. FILE is looked at in
    place of the broker's own file; without it, the broker reads the one it was started with.

    \b
    Exit codes: 0 there is a plan, also an empty one, 1 no broker runs, 2 the configuration is wrong.

    \b
    Examples:
      highway config diff
      highway config diff new.yaml --data-dir /var/lib/highway
      highway config diff new.yaml --against old.yaml
    """
    if against is not None:
        plan = make_plan(load_settings(against), load_settings(file)).to_json()
    else:
        if data_dir is None:
            data_dir = DEFAULT_DATA_DIR if file is None else load_settings(file).data_dir
        query = {} if file is None else {"file": str(file.absolute())}
        plan = ask(data_dir, "POST", "config/plan", **query)
    if as_json:
        click.echo(json.dumps(plan))
    else:
        print_plan(plan, nothing="nothing would change")


@config.command()
def schema() -> None:
    """Print the JSON schema of the configuration file, for editors."""
    click.echo(json.dumps(json_schema(), indent=2))


@config.command()
@click.argument("directory", default=".", type=click.Path(path_type=Path, file_okay=False))
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
def init(directory: Path, *, force: bool) -> None:
    """Write highway.yaml, topics.yaml and highway.schema.json, with every key explained, to DIRECTORY."""
    texts = {name: shipped_text(name) for name in ("highway.yaml", "topics.yaml")}
    texts["highway.schema.json"] = json.dumps(json_schema(), indent=2) + "\n"
    present = [name for name in texts if (directory / name).exists()]
    if present and not force:
        raise CommandError(f"{', '.join(present)} would be overwritten in {directory}; --force does that")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"can't write to {directory}: {error.strerror or error}") from error
    click.echo(f"wrote {', '.join(texts)} to {directory}; start with: highway serve -c {directory / 'highway.yaml'}")
