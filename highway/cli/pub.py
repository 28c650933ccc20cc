"""`highway pub`: publish a message, a file, or every line of standard input."""

from __future__ import annotations

import asyncio
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from highway.cli.client import Connection, check_topic_name, connect, connection_options
from highway.cli.exits import CommandError, Exit
from highway.cli.lines import read_lines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractContextManager

    import aiomqtt

__all__ = ["pub"]

# Messages on their way at once. A broker that syncs its disk before it acknowledges covers all of them with one sync.
_WINDOW = 100


@click.command()
@connection_options
@click.option("-t", "--topic", required=True, help="Topic to publish to.")
@click.option("-q", "--qos", default=1, show_default=True, type=click.IntRange(0, 2), help="Quality of service.")
@click.option("-r", "--retain", is_flag=True, help="Keep the message as the last one of its topic.")
@click.option("-m", "--message", help="Publish this text.")
@click.option("-f", "--file", type=click.Path(path_type=Path, allow_dash=True), help="Publish the bytes of a file.")
@click.option("-l", "--stdin-line", is_flag=True, help="Publish each line of standard input; empty ones are left out.")
@click.option(
    "-n", "--null-message", is_flag=True, help="Publish an empty message; with -r, it clears the retained one."
)
def pub(
    connection: Connection,
    topic: str,
    qos: int,
    message: str | None,
    file: Path | None,
    *,
    retain: bool,
    stdin_line: bool,
    null_message: bool,
) -> int:
    """Publish to a topic, and end when everything is acknowledged.

    With QoS 1 or 2, exit code 0 says that the broker has taken responsibility for every message, in the way that the
    durability of the topic promises. Exactly one of -m, -f, -l and -n says what to publish. That there was no right to
    is heard at QoS 1 only: nothing comes back at QoS 0, and the client library doesn't look at QoS 2.
    """
    check_topic_name(topic)
    sources = [message is not None, file is not None, stdin_line, null_message]
    if sources.count(True) != 1:
        raise click.UsageError("exactly one of -m, -f, -l and -n is wanted")
    if stdin_line:
        payloads = _nonempty(read_lines(sys.stdin.fileno()))
    else:
        payloads = _once(_read(file) if file is not None else (message or "").encode())
    return asyncio.run(_publish(connection, topic, payloads, qos, retain=retain, counted=stdin_line))


def _read(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise CommandError(f"{file} can't be read: {error.strerror or error}") from error


async def _once(payload: bytes) -> AsyncIterator[bytes]:
    yield payload


async def _nonempty(lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for line in lines:
        if line:
            yield line


class _Counter(Protocol):
    """What is told of every acknowledged message."""

    def add(self, count: int) -> None: ...


class _Silent:
    """Counts nothing: a script reads the exit code."""

    def add(self, count: int) -> None:
        pass


def _progress(*, counted: bool) -> AbstractContextManager[_Counter]:
    """A running count on standard error, if somebody is there to see it."""
    if not counted or not sys.stderr.isatty():
        return nullcontext(_Silent())
    from highway.cli.progress import MessageCounter  # noqa: PLC0415  only where there is a terminal

    return MessageCounter("acknowledged")


async def _publish(
    connection: Connection, topic: str, payloads: AsyncIterator[bytes], qos: int, *, retain: bool, counted: bool
) -> int:
    slots = asyncio.Semaphore(_WINDOW)

    async def publish(client: aiomqtt.Client, payload: bytes, counter: _Counter) -> None:
        try:
            await client.publish(topic, payload, qos, retain)
        finally:
            slots.release()
        counter.add(1)

    async with connect(connection, window=_WINDOW, is_v5=True) as client:
        with _progress(counted=counted) as counter:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(_fail_when_closed(client), name="watch the connection")
                async with asyncio.TaskGroup() as publishing:
                    async for payload in payloads:
                        await slots.acquire()
                        publishing.create_task(publish(client, payload, counter), name="publish")
                watch.cancel()
    if client.refusal is not None:
        raise CommandError(f"the broker refuses {topic}: {client.refusal}", Exit.REFUSED)
    return 0


async def _fail_when_closed(client: aiomqtt.Client) -> None:
    """Raise MqttError as soon as the connection is gone; a PUBACK that can't come isn't waited for."""
    async for _ in client.messages:
        pass
