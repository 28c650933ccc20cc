"""`highway log`: look at logs on disk, also beside a running broker; longer commands have files of their own."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from highway.cli.admin import broker_options
from highway.cli.exits import CommandError, Exit
from highway.cli.lazy import LazyGroup
from highway.storage.checking.inspection import LogInspection, SegmentInspection, inspect_log, list_log_directories

if TYPE_CHECKING:
    from pathlib import Path

    from highway.storage.segment.format import FrameHeader

__all__ = ["log"]

_CODECS = {0: "none", 1: "zstd"}


_COMMANDS = {
    "compact": ("highway.cli.log_compact", "compact"),
    "dump": ("highway.cli.log_dump", "dump"),
    "gaps": ("highway.cli.log_check", "gaps"),
    "repair": ("highway.cli.log_check", "repair"),
    "verify": ("highway.cli.log_check", "verify"),
}


@click.group(cls=LazyGroup, places=_COMMANDS, words=("log",))
def log() -> None:
    """Look at logs on disk, also beside a running broker, and mend what is damaged."""


@log.command()
@click.argument("name", metavar="[LOG]", required=False)
@broker_options
@click.option("--verify", is_flag=True, help="Read and check every payload, not only the frame headers.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each log on a line.")
def inspect(name: str | None, data_dir: Path, *, verify: bool, as_json: bool) -> int:
    """List segments and frames of LOG, or of every log: records, offsets, times, bytes, compression.

    Only reads. The newest messages may still be in the broker's memory and journal, and not yet in a segment.
    Exit code 5 when something is damaged.
    """
    folders = list_log_directories(data_dir)
    if not folders:
        raise CommandError(f"{data_dir} holds no logs", Exit.NOT_FOUND)
    if name is not None and name not in folders:
        raise CommandError(f"{data_dir} holds no log {name!r}, but {', '.join(folders)}", Exit.NOT_FOUND)
    damaged = False
    for log_name in [name] if name is not None else list(folders):
        found = inspect_log(log_name, folders[log_name], verify=verify)
        damaged = damaged or found.damaged
        if as_json:
            click.echo(json.dumps(_log_fields(found)))
        else:
            _print_log(found)
    return Exit.DAMAGED if damaged else Exit.SUCCESS


def _print_log(found: LogInspection) -> None:
    click.echo(f"log {found.name}  {found.directory}")
    for segment in found.segments:
        state = "sealed" if segment.sealed else "active"
        click.echo(f"  segment {segment.path.name}  {state}  {segment.file_bytes:,} B")
        if segment.frames:
            click.echo(
                f"    {'position':>12} {'offsets':>21} {'records':>8} {'raw B':>12} {'stored B':>12} {'ratio':>6} "
                f"{'codec':<5} first .. last commit time (UTC)"
            )
        for position, header in segment.frames:
            click.echo(_frame_line(position, header))
        for line in _faults(segment):
            click.echo(f"    {line}")
    raw = sum(segment.raw_bytes for segment in found.segments)
    stored = sum(segment.stored_bytes for segment in found.segments)
    click.echo(
        f"  total: {len(found.segments)} segments, {sum(len(segment.frames) for segment in found.segments):,} frames, "
        f"{sum(segment.records for segment in found.segments):,} records, {raw:,} B raw, {stored:,} B stored, "
        f"ratio {_ratio(raw, stored)}"
    )


def _frame_line(position: int, header: FrameHeader) -> str:
    offsets = f"{header.base_offset}..{header.end_offset - 1}"
    times = f"{_time(header.min_ms)} .. {_time(header.max_ms)}"
    return (
        f"    {position:>12} {offsets:>21} {header.record_count:>8} {header.uncompressed_length:>12,} "
        f"{header.frame_length:>12,} {_ratio(header.uncompressed_length, header.frame_length):>6} "
        f"{_CODECS[header.codec]:<5} {times}"
    )


def _faults(segment: SegmentInspection) -> list[str]:
    lines = [f"unreadable: {segment.fault}"] if segment.fault else []
    for damage in segment.damaged:
        lost = f"{damage.from_offset}..{damage.to_offset - 1}" if damage.to_offset is not None else "unknown"
        lines.append(f"damaged: bytes {damage.position}..{damage.end_position - 1}, offsets {lost}: {damage.reason}")
    if segment.tail is not None:
        size = segment.tail.end_position - segment.tail.position
        lines.append(f"tail: {size:,} B after the last whole frame, at {segment.tail.position}: {segment.tail.reason}")
    return lines


def _log_fields(found: LogInspection) -> dict[str, Any]:
    raw = sum(segment.raw_bytes for segment in found.segments)
    stored = sum(segment.stored_bytes for segment in found.segments)
    return {
        "log": found.name,
        "directory": str(found.directory),
        "records": sum(segment.records for segment in found.segments),
        "raw_bytes": raw,
        "stored_bytes": stored,
        "ratio": round(raw / stored, 2) if stored else None,
        "damaged": found.damaged,
        "segments": [_segment_fields(segment) for segment in found.segments],
    }


def _segment_fields(segment: SegmentInspection) -> dict[str, Any]:
    return {
        "file": segment.path.name,
        "sealed": segment.sealed,
        "file_bytes": segment.file_bytes,
        "faults": _faults(segment),
        "frames": [
            {
                "position": position,
                "base_offset": header.base_offset,
                "records": header.record_count,
                "raw_bytes": header.uncompressed_length,
                "stored_bytes": header.frame_length,
                "codec": _CODECS[header.codec],
                "epoch": header.epoch,
                "min_ms": header.min_ms,
                "max_ms": header.max_ms,
            }
            for position, header in segment.frames
        ],
    }


def _ratio(raw: int, stored: int) -> str:
    return f"{raw / stored:.2f}" if stored else "-"


def _time(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00")
