"""What the commands that work on a data directory share: options, checks, a progress bar, findings as JSON."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from highway.cli.exits import CommandError, Exit
from highway.storage.checking.directory_view import is_data_directory, look_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from highway.storage.checking.findings import Finding, Verification

__all__ = [
    "byte_bar",
    "check_directory",
    "check_logs",
    "count_bar",
    "finding_fields",
    "print_findings",
    "silence_storage",
    "verification_fields",
]


def silence_storage() -> None:
    """Keep the storage's log lines off standard error: what they say is in the results."""
    logging.getLogger("highway.storage").addHandler(logging.NullHandler())


def check_directory(directory: Path) -> None:
    """Return if `directory` is a data directory; CommandError otherwise."""
    if not is_data_directory(directory):
        raise CommandError(f"{directory} is no data directory", Exit.NOT_FOUND)


def check_logs(directory: Path, names: Sequence[str]) -> None:
    """Return if there are logs of all these names; CommandError with those that there are."""
    if not names:
        return
    with look_at(directory) as view:
        known = sorted(view.logs)
    missing = [name for name in names if name not in known]
    if missing:
        held = f"but {', '.join(known)}" if known else "and no other"
        raise CommandError(f"{directory} holds no log {', '.join(map(repr, missing))}, {held}", Exit.NOT_FOUND)


@contextmanager
def byte_bar(what: str, total: Callable[[], int]) -> Iterator[Callable[[int], None]]:
    """A bar of bytes on standard error, if somebody is there to see it; yields what is to be told of progress."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from highway.cli.progress import ByteBar  # noqa: PLC0415  only where there is a terminal

    with ByteBar(what, total()) as bar:
        yield bar.add


@contextmanager
def count_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """The same, of things that are counted."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from highway.cli.progress import CountBar  # noqa: PLC0415  only where there is a terminal

    with CountBar(what, total) as bar:
        yield bar.add


def print_findings(findings: Sequence[Finding]) -> None:
    """Print each finding on a line."""
    for finding in findings:
        click.echo(f"{'damaged' if finding.damaged else 'note'}: {finding}")


def finding_fields(finding: Finding) -> dict[str, Any]:
    """A finding as JSON values; `to_offset` and `end_position` are exclusive."""
    return {
        "kind": finding.kind,
        "damaged": finding.damaged,
        "file": str(finding.path),
        "position": finding.position,
        "end_position": finding.end_position,
        "log": finding.log or None,
        "reason": finding.reason,
        "lost": [
            {
                "log": lost.log,
                "from_offset": lost.from_offset,
                "to_offset": lost.to_offset,
                "recorded": lost.recorded,
            }
            for lost in finding.lost
        ],
        "repair": finding.remedy or None,
    }


def verification_fields(found: Verification) -> dict[str, Any]:
    """A whole verification as JSON values."""
    return {
        "damaged": bool(found.damaged),
        "lost_offsets": found.lost_offsets,
        "files": found.files,
        "bytes": found.bytes,
        "seconds": round(found.seconds, 3),
        "logs": [
            {
                "log": log.name,
                "segments": log.segments,
                "frames": log.frames,
                "records": log.records,
                "records_in_journal": log.in_journal,
                "bytes": log.bytes,
                "log_start_offset": log.log_start_offset,
                "log_end_offset": log.log_end_offset,
            }
            for log in found.logs
        ],
        "findings": [finding_fields(finding) for finding in found.findings],
    }
