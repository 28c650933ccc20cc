"""`highway sessions`: where every client stands, and the means to put it elsewhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from highway.cli.admin import ask, broker_options, json_option
from highway.cli.tables import age, number, print_table, span
from highway.clock import SystemClock
from highway.errors import ProtocolError
from highway.log_lines import printable

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["sessions"]


class _ListFirst(click.Group):
    """A group that lists where no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = bool(args) and (not args[0].startswith("-") or args[0] == "--help")
        return super().parse_args(ctx, args if is_named else ["list", *args])


@click.group(cls=_ListFirst)
def sessions() -> None:
    """See where the sessions of the running broker stand, move them and end them. Without a command: list.

    Exit code 1 when no broker runs on the data directory, 3 when it has no such session.
    """


@sessions.command("list")
@broker_options
@json_option
def list_(data_dir: Path, *, as_json: bool) -> None:
    """List every session: state, messages behind, unacknowledged messages, since when its window is full."""
    found = ask(data_dir, "GET", "sessions")
    if as_json:
        for session in found:
            click.echo(json.dumps(session))
        return
    headers = ["CLIENT", "STATE", "FROM", "SUBSCRIPTIONS", "LAG", "UNACKED", "OLDEST UNACKED", "WINDOW FULL", "EXPIRES"]
    print_table(headers, [_row(session) for session in found], right=["SUBSCRIPTIONS", "LAG", "UNACKED"])


def _row(session: dict[str, Any]) -> list[str]:
    return [
        session["client"],
        session["state"],
        session["peer"] or "-",
        number(session["subscriptions"]),
        number(session["lag"]),
        number(session["inflight"]),
        _where(session["oldest_unacked"]),
        age(session["window_full_since_ms"]),
        _expiry(session),
    ]


def _where(unacked: dict[str, Any] | None) -> str:
    if unacked is None:
        return "-"
    return f"{unacked['log']} {unacked['offset']}" if "log" in unacked else str(unacked["topic"])


def _expiry(session: dict[str, Any]) -> str:
    if session["expires_at_ms"] is not None:
        return "in " + span(max(0.0, session["expires_at_ms"] / 1000 - SystemClock().now_ms() / 1000))
    if session["online"]:
        return "-" if session["persistent"] else "with its connection"
    return "never"


@sessions.command()
@click.argument("client")
@broker_options
@json_option
def show(client: str, data_dir: Path, *, as_json: bool) -> None:
    """Show the session of CLIENT: what it subscribes to, where it stands in each log, and what it missed for good."""
    found = ask(data_dir, "GET", f"sessions/{quote(client, safe='')}")
    if as_json:
        click.echo(json.dumps(found))
        return
    unacked = f"{number(found['inflight'])}, the oldest {_where(found['oldest_unacked'])}" if found["inflight"] else "0"
    lines = [
        ("client", f"{found['client']} (MQTT {_VERSIONS.get(found['protocol'], found['protocol'])})"),
        ("state", found["state"] + (f", from {found['peer']}" if found["online"] else f", expires {_expiry(found)}")),
        ("lag", f"{number(found['lag'])} messages, {span(found['lag_seconds'])}"),
        ("unacked", unacked),
        ("window full", "no" if (since := found["window_full_since_ms"]) is None else f"for {age(since)}"),
    ]
    lines += [("subscription", f"{item['filter']} (QoS {item['qos']})") for item in found["filters"]]
    lines += [
        ("missed", f"{gap['log']} {gap['from']} to {gap['to']}: {_WHY_MISSED.get(gap['reason'], gap['reason'])}")
        for gap in found["missed"]
    ]
    for label, text in lines:
        click.echo(f"{label:<14} {printable(text)}")
    if found["positions"] or found["groups"]:
        click.echo()
        headers = ["LOG", "SUBSCRIPTION", "STATE", "NEXT", "END", "LAG"]
        rows = [_position(item) for item in found["positions"]]
        rows += [_position({**item, "source": item["name"], "state": "SHARED"}) for item in found["groups"]]
        print_table(headers, rows, right=["NEXT", "END", "LAG"])


_WHY_MISSED = {
    "retention": "gone, by retention",
    "corruption": "gone, by corruption",
    "unclean-stop": "empty since an unclean-stop; held at most what the durability of the log may lose",
}
_VERSIONS = {3: "3.1", 4: "3.1.1", 5: "5.0"}


def _position(item: dict[str, Any]) -> list[str]:
    return [
        item["log"],
        item["source"] or "ordinary",
        item["state"],
        str(item["next_offset"]),
        str(item["high_watermark"]),
        number(item["lag"]),
    ]


@sessions.command()
@click.argument("client")
@click.option("--to", "to", metavar="FROM", required=True, help="Where it is to go on: as --from of `highway sub`.")
@broker_options
@json_option
def reset(client: str, to: str, data_dir: Path, *, as_json: bool) -> None:
    """Move the ordinary subscriptions of CLIENT to FROM, whether it is connected or not.

    FROM is earliest, latest, an offset (1234), the last n messages (-100), a time (@1790000000000,
    @2026-11-29T18:00:00Z) or an age (90s, 15m, 2h, 7d). What was sent to it and is not acknowledged comes again all the
    same. Exit code 3 also when the log has no such offset, or the offset could be that of several logs.
    """
    from highway.broker.replay.grammar import parse_from  # noqa: PLC0415  the broker's package is slow to load

    try:
        parse_from(to.encode(), SystemClock().now_ms())
    except (ProtocolError, UnicodeEncodeError) as error:
        raise click.BadParameter(str(error), param_hint="--to") from error
    found = ask(data_dir, "POST", f"sessions/{quote(client, safe='')}/reset", to=to)
    if as_json:
        click.echo(json.dumps(found))
        return
    for log, offset in found["positions"].items():
        click.echo(f"{log}: goes on at {offset}")


@sessions.command()
@click.argument("client")
@broker_options
@json_option
def drop(client: str, data_dir: Path, *, as_json: bool) -> None:
    """End the session of CLIENT for good: its subscriptions, positions and unacknowledged messages.

    A client that is connected is disconnected; one that comes back begins anew.
    """
    ask(data_dir, "DELETE", f"sessions/{quote(client, safe='')}")
    click.echo(json.dumps({"client": client, "dropped": True}) if as_json else f"{printable(client)}: dropped")
