"""`highway status` and `highway topics`: the running broker and its logs, at a glance."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from highway.cli.admin import ask, broker_options, json_option
from highway.cli.tables import age, number, print_table, size, span
from highway.log_lines import printable

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["status", "topics"]


@click.command()
@broker_options
@json_option
def status(data_dir: Path, *, as_json: bool) -> None:
    """Say how the running broker is: clients, messages, and what a power cut would take now.

    Exit code 1 when no broker runs on the data directory.
    """
    found = ask(data_dir, "GET", "status")
    if as_json:
        click.echo(json.dumps(found))
        return
    writes = "takes messages" if found["writable"] else f"READ-ONLY: {found['fault']}"
    for label, text in (
        ("broker", f"up {span(found['uptime_seconds'])}, {writes}"),
        ("start", found["recovery"]),
        ("clients", f"{number(found['clients_connected'])} connected, {number(found['sessions'])} sessions"),
        ("subscriptions", f"{number(found['subscriptions'])}, {number(found['groups'])} shared groups"),
        ("messages", _messages(found)),
        ("retained", f"{number(found['retained'])}, with those of $SYS"),
        ("at risk", f"{size(found['unsynced_bytes'])} not synced, {size(found['backlog_bytes'])} not written yet"),
        ("configuration", _configuration(found["configuration"])),
    ):
        click.echo(f"{label:<14} {text}")


def _configuration(found: dict[str, Any]) -> str:
    text = printable(str(found["source"]))
    if found["reload_error"] is not None:
        text += f"; RELOAD FAILED {age(found['reload_failed_ms'])} ago: {printable(found['reload_error'])}"
    if found["needs_restart"]:
        text += f"; waiting for a restart: {', '.join(found['needs_restart'])}"
    return text


def _messages(found: dict[str, Any]) -> str:
    return ", ".join(f"{number(found[f'publish_{what}'])} {what}" for what in ("received", "sent", "dropped"))


@click.command()
@broker_options
@json_option
def topics(data_dir: Path, *, as_json: bool) -> None:
    """List the logs of the running broker: topics, offsets, bytes, compression, rate, age.

    The rate is that of the last ten seconds. Exit code 1 when no broker runs on the data directory.
    """
    found = ask(data_dir, "GET", "topics")
    if as_json:
        for log in found:
            click.echo(json.dumps(log))
        return
    text, numbers = ["LOG", "TOPICS", "DURABILITY"], ["START", "END", "RECORDS", "BYTES", "RATIO", "RATE"]
    numbers += ["OLDEST", "NEWEST"]
    print_table([*text, *numbers], [_row(log) for log in found], right=numbers)


def _row(log: dict[str, Any]) -> list[str]:
    return [
        log["log"],
        " ".join(log["topics"]),
        log["durability"],
        str(log["log_start_offset"]),
        str(log["high_watermark"]),
        number(log["records"]),
        size(log["bytes"]),
        "-" if log["ratio"] is None else f"{log['ratio']:.1f}",
        f"{log['rate']:,.0f}/s",
        age(log["oldest_ms"]),
        age(log["newest_ms"]),
    ]
