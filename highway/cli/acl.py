"""`highway acl`: which rule decides about what, and mosquitto's rules in our words."""

from __future__ import annotations

import json
from pathlib import Path

import click

from highway.cli.admin import json_option
from highway.cli.exits import CommandError, Exit

__all__ = ["acl"]

ACTIONS = ("publish", "subscribe", "replay", "fetch")


@click.group()
def acl() -> None:
    """Ask which access rule decides, and read mosquitto's."""


@acl.command()
@click.argument("user")
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("topic")
@click.option("-c", "--config", "config_file", type=click.Path(path_type=Path), help="The broker's configuration.")
@click.option("-i", "--id", "client", default="", help="Client id, for rules about one and for %c.  [default: none]")
@json_option
def test(user: str, action: str, topic: str, config_file: Path | None, client: str, *, as_json: bool) -> int:
    """Say whether USER may do ACTION with TOPIC, and which rule decides: file and line. "" is a client without a name.

    A TOPIC with + or # in it is a filter to subscribe to: one rule has to allow all of it. Plugins are not asked. Exit
    code 6 when it is denied.
    """
    from highway.broker.authorisation import Right, deciding_rule  # noqa: PLC0415  --help shouldn't wait for it
    from highway.config import load_settings  # noqa: PLC0415  see above
    from highway.errors import MqttError  # noqa: PLC0415  see above
    from highway.mqtt import validate_topic_filter  # noqa: PLC0415  see above

    try:
        validate_topic_filter(topic.encode())
    except (MqttError, UnicodeEncodeError) as error:
        raise click.BadParameter(f"{topic!r} is no topic: {error}", param_hint="TOPIC") from error
    rules = load_settings(config_file).broker.acl
    if rules is None:
        allowed, where, why = True, None, "there are no rules"
    else:
        rule = deciding_rule(rules, user or None, client, Right[action.upper()], topic.encode())
        allowed, where = rule is not None and rule.allow, None if rule is None else rule.where
        why = (
            "no rule matches"
            if rule is None
            else f"{rule.where}: {'allow' if rule.allow else 'deny'} {rule.topic_filter.decode()}"
        )
    if as_json:
        click.echo(json.dumps({"user": user, "action": action, "topic": topic, "allowed": allowed, "rule": where}))
    else:
        click.echo(f"{'allowed' if allowed else 'denied'}: {why}")
    return Exit.SUCCESS if allowed else Exit.REFUSED


@acl.command("import")
@click.argument("file", type=click.Path(path_type=Path))
def import_(file: Path) -> None:
    """Print the rules of FILE, an ACL file of mosquitto's, as an `auth:` section; what can't be carried over is said.

    mosquitto allows what any rule allows and none denies; the rules that deny come first here, which is the same.
    """
    from highway.config.mosquitto_acl import import_acl  # noqa: PLC0415  --help shouldn't wait for it

    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{file} can't be read: {error}") from error
    rules, faults = import_acl(text)
    for line, fault in faults:
        click.echo(f"{file}:{line}: {fault}", err=True)
    click.echo("auth:\n  acl:")
    for rule in rules:
        click.echo(f"    - {json.dumps(rule, ensure_ascii=False)}")
