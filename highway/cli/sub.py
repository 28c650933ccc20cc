"""`highway sub`: print the messages of topics, live or from a place in the past on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

import click

from highway.broker.replay.grammar import parse_from
from highway.cli.client import Connection, check_topic_filter, connect, connection_options, refused_filters
from highway.cli.exits import CommandError, Exit
from highway.cli.messages import message_fields, payload_of
from highway.clock import SystemClock
from highway.errors import MqttError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import aiomqtt

__all__ = ["replay_filter", "sub"]


@click.command()
@connection_options
@click.option("-t", "--topic", "filters", required=True, multiple=True, help="Topic filter; may be given repeatedly.")
@click.option("--from", "start", metavar="FROM", help="Replay from there, then go on live.")
@click.option("-q", "--qos", default=0, show_default=True, type=click.IntRange(0, 2), help="Quality of service.")
@click.option("-c", "--disable-clean-session", is_flag=True, help="Keep the session when the command ends; needs -i.")
@click.option("-C", "--count", type=click.IntRange(min=1), help="End after this many messages.")
@click.option(
    "-W", "--timeout", metavar="SECONDS", type=click.FloatRange(0, min_open=True), help="End after this time."
)
@click.option("-v", "--verbose", is_flag=True, help="Print the topic in front of each message.")
@click.option("--json", "as_json", is_flag=True, help="Print each message as one JSON object on a line.")
def sub(
    connection: Connection,
    filters: tuple[str, ...],
    start: str | None,
    qos: int,
    count: int | None,
    timeout: float | None,
    *,
    disable_clean_session: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Print messages as they come, each on a line.

    FROM is earliest, latest, an offset (1234), the last n messages (-100), a time (@1790000000000,
    @2026-11-29T18:00:00Z) or an age (90s, 15m, 2h, 7d). What was stored comes first, in order, and then what is
    published.

    Exit code 4 when SECONDS are over; 3 when the broker refuses FROM, and 6 when it refuses a topic filter.
    """
    if disable_clean_session and connection.client_id is None:
        raise click.UsageError("-c needs -i: a session is kept under the client id")
    for topic_filter in filters:
        check_topic_filter(topic_filter)
    if start is not None:
        filters = tuple(replay_filter(start, topic_filter) for topic_filter in filters)
    printer = _Printer(verbose=verbose, as_json=as_json)
    session = _receive(connection, list(filters), qos, printer, count, clean=not disable_clean_session)
    with contextlib.suppress(KeyboardInterrupt):  # the way to end a subscription that has no end
        return asyncio.run(_limit(session, timeout, printer))
    return Exit.SUCCESS


def replay_filter(start: str, topic_filter: str) -> str:
    """The filter that replays `topic_filter` from `start` on; UsageError says what `start` may be."""
    try:
        parse_from(start.encode(), SystemClock().now_ms())
    except MqttError as error:
        raise click.BadParameter(error.detail, param_hint="--from") from error
    if topic_filter.startswith("$share/"):
        _, group, rest = (*topic_filter.split("/", 2), "", "")[:3]
        return f"$share/{group}/$replay/{start}/{rest}"
    return f"$replay/{start}/{topic_filter}"


def _refusal(filters: list[str]) -> CommandError:
    """The error for `filters` that the broker refuses. MQTT 3.1.1 has no word for the reason."""
    text = f"the broker refuses {', '.join(filters)}"
    if "$replay/" in filters[0] or "$log/" in filters[0]:
        reason = "the offset is not there yet, or an offset was given for a filter that spans several logs"
        return CommandError(f"{text}: {reason}", Exit.NOT_FOUND)
    return CommandError(text, Exit.REFUSED)


class _Printer:
    """Writes messages to standard output, and counts them."""

    def __init__(self, *, verbose: bool, as_json: bool) -> None:
        self._verbose = verbose
        self._as_json = as_json
        self.count = 0

    def write(self, message: aiomqtt.Message) -> None:
        if self._as_json:
            line = json.dumps(message_fields(message)).encode()
        else:
            line = payload_of(message)
            if self._verbose:
                line = str(message.topic).encode() + b" " + line
        sys.stdout.buffer.write(line + b"\n")
        self.count += 1


async def _limit(session: Coroutine[Any, Any, int], limit_s: float | None, printer: _Printer) -> int:
    try:
        async with asyncio.timeout(limit_s):
            code = await session
    except TimeoutError as error:
        raise CommandError(f"{limit_s:g} s are over, after {printer.count} messages", Exit.TIME_OUT) from error
    finally:
        sys.stdout.buffer.flush()
    return code


async def _receive(
    connection: Connection, filters: list[str], qos: int, printer: _Printer, count: int | None, *, clean: bool
) -> int:
    async with connect(connection, clean_session=clean) as client:
        granted = await client.subscribe([(topic_filter, qos) for topic_filter in filters])
        refused = refused_filters(granted, filters)
        if refused:
            raise _refusal(refused)
        async for message in client.messages:
            printer.write(message)
            if printer.count == count:
                break
            if not len(client.messages):
                sys.stdout.buffer.flush()  # nothing more has come: a pipe should see what has
    return Exit.SUCCESS
