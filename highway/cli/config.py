"""`highway config`: look at a configuration without serving it."""

from __future__ import annotations

import json
from pathlib import Path

import click

from highway.cli.admin import DEFAULT_DATA_DIR, ask
from highway.cli.exits import CommandError, Exit
from highway.cli.reload import print_plan
from highway.config import load_settings
from highway.config.loading import find_data_dir, load_document, shipped_text
from highway.config.origins import annotated_yaml, origins
from highway.config.plan import make_plan
from highway.config.problems import render_path
from highway.config.rendering import to_tree, to_yaml
from highway.config.schema import json_schema, topics_json_schema
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

    The files that it names are looked at as well: topic entries, conf.d/, passwords, certificates. Warnings are about
    what is allowed and probably not meant, such as a topic entry that can never decide.

    \b
    Exit codes: 0 valid, also with warnings, 2 wrong.

    \b
    Examples:
      highway config check highway.yaml
      highway config check --json highway.yaml
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
@click.option("--effective", is_flag=True, help="Say of each value where it came from.")
@_json
def show(file: Path | None, *, effective: bool, as_json: bool) -> None:
    """Print the configuration that FILE, its conf.d/ and the environment come to, with every default said.

    The output is a valid configuration file, also with --effective: then a comment behind each value has its origin,
    which is a place in a file (file:line:column), a variable of the environment, or the default.

    \b
    Exit codes: 0, or 2 when the configuration is wrong.

    \b
    Examples:
      highway config show highway.yaml > whole.yaml
      highway config show --effective /etc/highway/highway.yaml
    """
    settings, document = load_document(file)
    if effective:
        if not as_json:
            click.echo(annotated_yaml(settings, document), nl=False)
            return
        found = [(render_path(path), value, origin) for path, value, origin in origins(settings, document)]
        click.echo(json.dumps({key: {"value": value, "origin": origin} for key, value, origin in found}, indent=2))
        return
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
            data_dir = DEFAULT_DATA_DIR if file is None else find_data_dir(file)
        query = {} if file is None else {"file": str(file.absolute())}
        plan = ask(data_dir, "POST", "config/plan", **query)
    if as_json:
        click.echo(json.dumps(plan))
    else:
        print_plan(plan, nothing="nothing would change")


@config.command()
@click.option("--topics", is_flag=True, help="The schema of a file that holds the list of topic entries.")
def schema(*, topics: bool) -> None:
    """Print the JSON schema of the configuration file, for editors.

    The shipped files name it in their first line (yaml-language-server), so that editors complete and check the keys as
    they are typed. It knows single values; `highway config check` also sees what they mean together.

    \b
    Examples:
      highway config schema > highway.schema.json
      highway config schema --topics > topics.schema.json
    """
    click.echo(json.dumps(topics_json_schema() if topics else json_schema(), indent=2))


@config.command()
@click.argument("directory", default=".", type=click.Path(path_type=Path, file_okay=False))
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
def init(directory: Path, *, force: bool) -> None:
    """Write highway.yaml and topics.yaml, with every key explained, and their schemas for editors to DIRECTORY.

    \b
    Exit codes: 0, 1 when a file can't be written, 6 when one is there already, which --force overwrites.
    """
    texts = {name: shipped_text(name) for name in ("highway.yaml", "topics.yaml")}
    texts["highway.schema.json"] = json.dumps(json_schema(), indent=2) + "\n"
    texts["topics.schema.json"] = json.dumps(topics_json_schema(), indent=2) + "\n"
    present = [name for name in texts if (directory / name).exists()]
    if present and not force:
        text = f"{', '.join(present)} would be overwritten in {directory}; --force does that"
        raise CommandError(text, Exit.REFUSED)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"can't write to {directory}: {error.strerror or error}") from error
    click.echo(f"wrote {', '.join(texts)} to {directory}; start with: highway serve -c {directory / 'highway.yaml'}")
