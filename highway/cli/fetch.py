"""`highway fetch`: one stored message, by its offset."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import click

from highway.cli.client import Connection, check_topic_name, connect, connection_options, refused_filters
from highway.cli.exits import CommandError, Exit
from highway.cli.messages import message_fields, payload_of

if TYPE_CHECKING:
    import aiomqtt

__all__ = ["fetch"]


@click.command()
@connection_options
@click.argument("topic")
@click.argument("offset", type=click.IntRange(min=0))
@click.option(
    "-W",
    "--timeout",
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Wait so long for the answer.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: topic, offset, payload, qos, retain.")
def fetch(connection: Connection, topic: str, offset: int, timeout: float, *, as_json: bool) -> int:
    """Print the message that stands at OFFSET of the log of TOPIC: its exact bytes, and nothing else.

    Exit code 3 when there is none: never was, was deleted by retention, or is of another topic. The error names the
    offsets that are there.
    """
    check_topic_name(topic)
    return asyncio.run(_fetch(connection, topic, offset, timeout, as_json=as_json))


async def _fetch(connection: Connection, topic: str, offset: int, limit_s: float, *, as_json: bool) -> int:
    try:
        async with asyncio.timeout(limit_s), connect(connection) as client:
            message = await _request(client, f"$fetch/{offset}/{topic}")
            if message is None:
                raise CommandError(await _describe_missing(client, topic, offset), Exit.NOT_FOUND)
    except TimeoutError as error:
        raise CommandError(f"no answer within {limit_s:g} s", Exit.TIME_OUT) from error
    if as_json:
        click.echo(json.dumps({**message_fields(message), "topic": topic, "offset": offset}))
    else:
        sys.stdout.buffer.write(payload_of(message))
        sys.stdout.buffer.flush()
    return Exit.SUCCESS


async def _request(client: aiomqtt.Client, topic_filter: str) -> aiomqtt.Message | None:
    """The one message that answers a subscription to `topic_filter`; None if it is refused."""
    if refused_filters(await client.subscribe(topic_filter, qos=1), [topic_filter]):
        return None
    return await anext(aiter(client.messages))


async def _describe_missing(client: aiomqtt.Client, topic: str, offset: int) -> str:
    answer = await _request(client, f"$range/{topic}")
    if answer is None:
        return (
            f"there is no message at offset {offset} of {topic}, and no log that would have it, or no right to fetch it"
        )
    bounds = json.loads(payload_of(answer))
    first, end = bounds["log_start_offset"], bounds["high_watermark"]
    held = f"it holds {first} to {end - 1}" if end > first else "it is empty"
    return f"there is no message of {topic} at offset {offset} of the log {bounds['log']}; {held}"
