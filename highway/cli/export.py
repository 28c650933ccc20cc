"""`highway export`: the records of a log as JSON Lines, CSV or Parquet, without a broker or beside one."""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from highway.cli.admin import broker_options
from highway.cli.client import check_topic_filter
from highway.cli.directory import check_directory, check_logs, count_bar, silence_storage
from highway.cli.exits import CommandError, Exit
from highway.cli.ranges import first_offset, offset_of, parse_place, topic_test
from highway.clock import SystemClock
from highway.errors import HighwayError
from highway.storage.checking.directory_view import look_at
from highway.storage.exporting.columns import parse_columns
from highway.storage.exporting.export import Export, Exported
from highway.storage.exporting.progress_file import ProgressFile, Reached, partial_of
from highway.storage.exporting.text_sinks import FileSink, StreamSink, csv_encoder, csv_header, jsonl_encoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from highway.storage.exporting.columns import Column
    from highway.storage.exporting.text_sinks import Sink
    from highway.storage.recovery.log_recovery import RecoveredLog

__all__ = ["export"]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a command line asks for, but the format and the file."""

    log: str
    data_dir: Path
    start: str
    until: str | None
    topic: str | None
    fields: tuple[str, ...]
    payload: bool
    restart: bool
    overwrite: bool
    as_json: bool

    def as_state(self, kind: str) -> dict[str, Any]:
        """What has to be asked again to go on with it."""
        return {
            "format": kind,
            "log": self.log,
            "from": self.start,
            "until": self.until,
            "topic": self.topic,
            "fields": list(self.fields),
            "payload": self.payload,
        }


_START_HELP = "Where to begin: earliest, latest, 1234, -100, @time or an age like 2h."


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` what the three formats share, and pass it as one argument `asked`."""

    @click.argument("log", metavar="LOG")
    @broker_options
    @click.option("--from", "start", metavar="FROM", default="earliest", show_default=True, help=_START_HELP)
    @click.option("--until", metavar="FROM", help="Where to end, exclusive; without it, at the end of the log now.")
    @click.option("--topic", metavar="FILTER", help="Only records whose topic matches.")
    @click.option(
        "--field",
        "fields",
        metavar="[NAME=]FIELD",
        multiple=True,
        help="A field of the JSON payload as a column: speed_kmh, gps.lat, axles.0. May be given often.",
    )
    @click.option("--no-payload", is_flag=True, help="Leave the payload itself out.")
    @click.option("--restart", is_flag=True, help="Begin again instead of going on where an export was cut off.")
    @click.option("--overwrite", is_flag=True, help="Replace FILE if it is there.")
    @click.option("--json", "as_json", is_flag=True, help="Print what was exported as one JSON object.")
    @functools.wraps(command)
    def with_options(output: Path | None, *, no_payload: bool, **options: Any) -> Any:
        if options["as_json"] and output is None:
            raise click.UsageError("--json tells of the file that -o names")
        if options["topic"] is not None:
            check_topic_filter(options["topic"])
        return command(output, _Asked(payload=not no_payload, **options))

    return with_options


_output_option = click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file to write; without it, stdout."
)


@click.group()
def export() -> None:
    """Write the records of a log to a file that other programs read.

    Each record is a row: offset, time (UTC), time_ms, topic, qos, retain, the fields of a JSON payload that --field
    names, and the payload. Works on a data directory and only reads, also beside a running broker; what the broker has
    in memory only isn't there.

    An export to a file that was interrupted, or killed, goes on where it was when the same command is given again:
    until it is complete it is FILE.partial, with FILE.partial.state beside it.

    Exit code 5 when something couldn't be read; the rest is exported.
    """


@export.command()
@_output_option
@_options
def jsonl(output: Path | None, asked: _Asked) -> int:
    """Export LOG as JSON Lines: one object on a line.

    A payload that is no text is in payload_base64, MQTT 5 properties are in properties_base64.
    """

    def sink(columns: list[Column]) -> Sink:
        encode = jsonl_encoder(columns, payload=asked.payload)
        return StreamSink(sys.stdout.buffer, encode) if output is None else FileSink(partial_of(output), encode)

    return _run("jsonl", output, asked, sink)


@export.command()
@_output_option
@_options
def csv(output: Path | None, asked: _Asked) -> int:
    """Export LOG as CSV with a line of column names.

    A payload that is no text is in the column payload_base64. Missing values are empty, lists and objects are JSON.
    """

    def sink(columns: list[Column]) -> Sink:
        encode, header = csv_encoder(columns, payload=asked.payload), csv_header(columns, payload=asked.payload)
        if output is None:
            return StreamSink(sys.stdout.buffer, encode, header)
        return FileSink(partial_of(output), encode, header)

    return _run("csv", output, asked, sink)


@export.command()
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The file to write."
)
@_options
def parquet(output: Path, asked: _Asked) -> int:
    """Export LOG as one Parquet file (needs the Python package pyarrow).

    A field has the type that all its values have: integer, float, boolean, or else text. A payload that is no text is
    in the column payload_bytes.
    """
    try:
        from highway.storage.exporting.parquet_sink import ParquetSink  # noqa: PLC0415  an extra, and slow to import
    except ImportError as error:
        raise CommandError(f"Parquet needs pyarrow: {sys.executable} -m pip install 'pyarrow>=18' ({error})") from error
    return _run(
        "parquet", output, asked, lambda columns: ParquetSink(partial_of(output), columns, payload=asked.payload)
    )


def _run(kind: str, output: Path | None, asked: _Asked, make_sink: Callable[[list[Column]], Sink]) -> int:
    silence_storage()
    try:
        columns = parse_columns(asked.fields)
    except HighwayError as error:
        raise click.BadParameter(str(error), param_hint="--field") from error
    if output is not None and output.exists() and not asked.overwrite:
        raise CommandError(f"{output} is there already; --overwrite replaces it", Exit.REFUSED)
    check_directory(asked.data_dir)
    check_logs(asked.data_dir, [asked.log])
    progress_file = None if output is None else ProgressFile(output, asked.as_state(kind))
    if output is not None and progress_file is not None and asked.restart:
        _discard(output, progress_file)
    started = time.monotonic()
    with look_at(asked.data_dir) as view:
        log = view.logs[asked.log]
        reached = (progress_file.load() if progress_file is not None else None) or _range(log, asked)
        if reached.records or reached.next_offset > reached.from_offset:
            click.echo(
                f"highway: going on at offset {reached.next_offset}, {reached.records:,} records are there", err=True
            )
        with count_bar(f"exporting {asked.log}", max(0, reached.until_offset - reached.next_offset)) as on_progress:
            running = Export(
                asked.data_dir,
                asked.log,
                reached,
                make_sink(columns),
                progress_file,
                wanted=topic_test(asked.topic),
                on_progress=on_progress,
            )
            try:
                done = running.run(log, output or Path(os.devnull))
            except BrokenPipeError:  # `| head` has seen enough
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                return Exit.SUCCESS
            except OSError as error:
                raise CommandError(f"{output or 'standard output'} can't be written: {error}") from error
    _tell(asked, output, reached, done, time.monotonic() - started)
    return Exit.DAMAGED if done.lost else Exit.SUCCESS


def _discard(output: Path, progress_file: ProgressFile) -> None:
    progress_file.remove()
    partial = partial_of(output)
    if partial.is_dir():
        shutil.rmtree(partial)
    else:
        partial.unlink(missing_ok=True)


def _range(log: RecoveredLog, asked: _Asked) -> Reached:
    """The range of a new export: its end is where the log ends now, however long it takes."""
    now_ms = SystemClock().now_ms()
    first = parse_place(asked.start, now_ms, "--from")
    end = log.end if asked.until is None else min(offset_of(log, parse_place(asked.until, now_ms, "--until")), log.end)
    begin = max(first_offset(log, first, asked.topic, end), log.state.log_start)
    return Reached(min(begin, end), end, min(begin, end))


def _tell(asked: _Asked, output: Path | None, reached: Reached, done: Exported, seconds: float) -> None:
    if asked.as_json:
        fields = {
            "log": asked.log,
            "file": str(output),
            "records": done.records,
            "from_offset": reached.from_offset,
            "until_offset": reached.until_offset,
            "lost": [{"from_offset": start, "to_offset": end} for start, end, _ in done.lost],
            "trimmed": [{"from_offset": start, "to_offset": end} for start, end, _ in done.trimmed],
            "seconds": round(seconds, 3),
        }
        click.echo(json.dumps(fields))
    elif output is not None:
        click.echo(
            f"highway: {done.records:,} records of {asked.log} in {output}, of offsets {reached.from_offset} to "
            f"{reached.until_offset} (exclusive); what comes later: --from {reached.until_offset}",
            err=True,
        )
    for start, end, _ in done.trimmed:
        click.echo(f"highway: offsets {start}..{end - 1} were deleted by retention meanwhile", err=True)
    for start, end, reason in done.lost:
        click.echo(f"highway: offsets {start}..{end - 1} can't be read: {reason}", err=True)
