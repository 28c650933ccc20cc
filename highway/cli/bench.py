"""`highway bench`: what this machine and its disk can do, in figures and in a sentence."""

from __future__ import annotations

import functools
import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from highway.cli.client import Connection, check_topic_filter, check_topic_name, connection_options
from highway.cli.directory import count_bar
from highway.cli.exits import CommandError
from highway.cli.load.disk import measure_disk
from highway.cli.load.publishing import Ingest, ingest, quantile
from highway.cli.load.reading import fanout as measure_fanout, replay as measure_replay
from highway.cli.tables import size as shown_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from highway.cli.load.disk import Disk
    from highway.cli.load.publishing import Published
    from highway.cli.load.reading import Delivered

__all__ = ["bench"]

# Syncs that are quicker than any medium can be: memory, a cache with a battery, or a disk that lies.
_IMPLAUSIBLE_MS = 0.05
_SLOW_P99 = 10  # times the median
# What the protocol side takes of a message at window 1, whatever the disk: the estimate is never above.
_MAX_ACKS_PER_SECOND = 100_000


@click.group()
def bench() -> None:
    """Measure what this machine can do: the disk alone, or a running broker.

    Each ends by itself within seconds. Load is generated on this machine too, and shares its processors with the
    broker.
    """


def _json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


def _load_options(publishers: int, window: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Options of the commands that publish; they come as one argument `load`."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("-t", "--topic", default="highway-bench", show_default=True, help="Publish to TOPIC/0 and so on.")
        @click.option(
            "--publishers", type=click.IntRange(1, 10_000), default=publishers, show_default=True, help="How many."
        )
        @click.option(
            "--window",
            type=click.IntRange(1, 60_000),
            default=window,
            show_default=True,
            help="Messages of each that wait for their acknowledgement.",
        )
        @click.option(
            "-n",
            "--messages",
            type=click.IntRange(min=1),
            default=200_000,
            show_default=True,
            help="Messages of all publishers together.",
        )
        @click.option(
            "--size", type=click.IntRange(1, 256 << 20), help="Bytes of a payload; without it, readings of 110 bytes."
        )
        @functools.wraps(command)
        def with_load(
            *args: Any, topic: str, publishers: int, window: int, messages: int, size: int | None, **options: Any
        ) -> Any:
            check_topic_name(f"{topic}/0")
            each = max(1, messages // publishers)
            load = Ingest(publishers, min(window, each), each, topics=min(publishers, 8), topic=f"{topic}/{{}}")
            if size is not None:
                load = replace(load, payloads=(b"x" * size,))
            return command(*args, load=load, **options)

        return with_load

    return add


@contextmanager
def _reached(connection: Connection) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f"{connection.host}:{connection.port}"
        raise CommandError(
            f"no connection to {where}: {error.strerror or error}; is a broker running there?"
        ) from error


def _print(fields: dict[str, Any], lines: list[str], verdict: str, *, as_json: bool) -> int:
    if as_json:
        click.echo(json.dumps({**fields, "verdict": verdict}))
    else:
        for line in lines:
            click.echo(line)
        click.echo(verdict)
    return 0


@bench.command()
@connection_options
@_load_options(publishers=8, window=100)
@click.option("-q", "--qos", type=click.IntRange(0, 2), default=1, show_default=True, help="QoS to publish at.")
@click.option(
    "--seconds", type=click.FloatRange(0.1, 3600), default=10.0, show_default=True, help="End after that long."
)
@_json_option
def publish(connection: Connection, load: Ingest, qos: int, seconds: float, *, as_json: bool) -> int:
    """Publish to a running broker as fast as it acknowledges.

    The messages are real ones: they are stored in the log that TOPIC/0, TOPIC/1, ... belong to.
    """
    load = replace(load, qos=qos)
    with _reached(connection), count_bar("publishing", load.total) as on_progress:
        done = ingest(connection, load, on_progress=on_progress, max_seconds=seconds)
    fields = {
        "messages": done.messages,
        "seconds": round(done.seconds, 3),
        "messages_per_second": round(done.rate),
        "publishers": load.publishers,
        "window": load.window,
        "qos": qos,
        "window_ms": {
            "p50": round(quantile(done.times_ms, 0.5), 3),
            "p99": round(quantile(done.times_ms, 0.99), 3),
            "max": round(quantile(done.times_ms, 1), 3),
        },
    }
    line = f"{done.messages:,} messages at QoS {qos} in {done.seconds:.1f} s: {done.rate:,.0f}/s"
    return _print(fields, [line], _publish_verdict(load, done), as_json=as_json)


def _ms(value: float) -> str:
    """Two digits of a time: `0.58 ms`, `7.0 ms`, `150 ms`."""
    return f"{value:.2g} ms" if value < 99.5 else f"{value:.0f} ms"


def _publish_verdict(load: Ingest, done: Published) -> str:
    if load.qos == 0:
        return f"this broker reads {done.rate:,.0f} messages a second at QoS 0, which promises nothing."
    each = "a message" if load.window == 1 else f"{load.window} messages"
    return (
        f"{load.publishers} publishers with {load.window} on the way are acknowledged {done.rate:,.0f} messages a second; "
        f"{each} took {_ms(quantile(done.times_ms, 0.5))}, one in a hundred {_ms(quantile(done.times_ms, 0.99))}."
    )


@bench.command()
@connection_options
@_load_options(publishers=2, window=100)
@click.option("--subscribers", type=click.IntRange(1, 10_000), default=10, show_default=True, help="How many.")
@click.option("-q", "--qos", type=click.IntRange(0, 1), default=0, show_default=True, help="QoS to subscribe at.")
@_json_option
def fanout(connection: Connection, load: Ingest, subscribers: int, qos: int, *, as_json: bool) -> int:
    """Publish to a running broker with many subscribers, and wait until each has every message."""
    with _reached(connection), count_bar("publishing", load.total) as on_progress:
        topic_filter = load.topic.replace("{}", "+")
        done = measure_fanout(
            connection, load, subscribers, qos=qos, topic_filter=topic_filter, on_progress=on_progress
        )
    fields = {
        "messages": load.total,
        "delivered": done.messages,
        "seconds": round(done.seconds, 3),
        "delivered_per_second": round(done.rate),
        "publishers": load.publishers,
        "subscribers": subscribers,
        "qos": qos,
    }
    line = f"{load.total:,} messages to {subscribers} subscribers in {done.seconds:.1f} s: {done.rate:,.0f} delivered/s"
    verdict = (
        f"this broker delivers {done.rate:,.0f} messages a second: every one of {subscribers} subscribers can follow "
        f"{done.rate / subscribers:,.0f} messages a second, and whoever is slower catches up from the log."
    )
    return _print(fields, [line], verdict, as_json=as_json)


@bench.command()
@connection_options
@click.option("-t", "--topic", default="#", show_default=True, help="Topic filter to replay.")
@click.option("--from", "start", default="earliest", show_default=True, help="Where to begin: as for `highway sub`.")
@click.option(
    "-n", "--messages", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="End after so many."
)
@click.option(
    "--seconds", type=click.FloatRange(0.1, 3600), default=10.0, show_default=True, help="End after that long."
)
@_json_option
def replay(connection: Connection, topic: str, start: str, messages: int, seconds: float, *, as_json: bool) -> int:
    """Read what a running broker has stored, as fast as it comes."""
    check_topic_filter(topic)
    with _reached(connection), count_bar("replaying", messages) as on_progress:
        done = measure_replay(
            connection, topic, start=start, limit=messages, max_seconds=seconds, on_progress=on_progress
        )
    fields = {
        "messages": done.messages,
        "bytes": done.bytes,
        "seconds": round(done.seconds, 3),
        "messages_per_second": round(done.rate),
        "bytes_per_second": round(done.bytes / done.seconds) if done.seconds else 0,
    }
    line = f"{done.messages:,} messages, {shown_size(done.bytes)}, in {done.seconds:.1f} s: {done.rate:,.0f}/s"
    return _print(fields, [line], _replay_verdict(done), as_json=as_json)


def _replay_verdict(done: Delivered) -> str:
    if not done.messages:
        return "nothing is stored that matches: publish something first (`highway bench publish`)."
    day = 86_400 * 100
    return (
        f"a subscriber that missed a day of 100 messages a second ({day:,}) has them "
        f"{day / done.rate:,.0f} s after it is back."
    )


@bench.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False, exists=True), default=".")
@click.option(
    "--seconds", type=click.FloatRange(0.1, 600), default=3.0, show_default=True, help="Measure for that long."
)
@_json_option
def disk(directory: Path, seconds: float, *, as_json: bool) -> int:
    """Measure how fast the disk under DIRECTORY syncs, without a broker: what SAFE costs there.

    Writes to a file of 64 MiB in it, which is deleted at the end.
    """
    with count_bar("syncing", int(seconds * 1000)) as on_progress:
        found = measure_disk(directory, seconds, on_progress)
    fields = {
        "directory": str(directory.resolve()),
        "file_system": found.file_system,
        "syncs": len(found.sync_ms),
        "sync_ms": {
            "p50": round(found.p50_ms, 3),
            "p90": round(quantile(found.sync_ms, 0.9), 3),
            "p99": round(found.p99_ms, 3),
            "max": round(found.sync_ms[-1], 3),
        },
        "stream_bytes_per_second": round(found.stream_bytes_per_second),
        "safe_acks_per_second": {str(count): round(_acks(found, count)) for count in (1, 10, 100)},
    }
    line = (
        f"{len(found.sync_ms):,} syncs of 4 KiB on {found.file_system}: p50 {found.p50_ms:.3g} ms, p99 {found.p99_ms:.3g} ms, "
        f"longest {found.sync_ms[-1]:.3g} ms; {shown_size(found.stream_bytes_per_second)}/s in one piece"
    )
    return _print(fields, [line], _disk_verdict(found), as_json=as_json)


def _acks(found: Disk, publishers: int) -> float:
    return min(found.acks_per_second(publishers), _MAX_ACKS_PER_SECOND)


def _disk_verdict(found: Disk) -> str:
    verdict = (
        f"this disk syncs in {_ms(found.p50_ms)}: SAFE will ack one publisher {_acks(found, 1):,.0f} times a second, "
        f"100 publishers {_acks(found, 100):,.0f}."
    )
    if found.file_system in ("tmpfs", "ramfs"):
        return f"this is memory and no disk: nothing here survives a power cut, whatever the durability. ({verdict})"
    if found.p50_ms < _IMPLAUSIBLE_MS:
        return (
            f"{verdict} No medium is that quick: there is a cache in between, and SAFE is only as good as its battery."
        )
    if found.p99_ms > _SLOW_P99 * found.p50_ms:
        return f"{verdict} One sync in a hundred takes {_ms(found.p99_ms)} and more: expect such pauses."
    return verdict
