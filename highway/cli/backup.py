"""`highway backup`: copies of a data directory, also while the broker runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from highway.cli.admin import broker_options
from highway.cli.directory import (
    byte_bar,
    check_directory,
    finding_fields,
    print_findings,
    silence_storage,
    verification_fields,
)
from highway.cli.exits import CommandError, Exit
from highway.errors import CorruptionError, TargetNotEmptyError
from highway.storage.backup.backup import create_backup
from highway.storage.backup.restoring import BackupCheck, restore_backup, verify_backup
from highway.storage.checking.verification import directory_bytes

if TYPE_CHECKING:
    from highway.storage.backup.manifest import Manifest

__all__ = ["backup"]

_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
_path = click.Path(path_type=Path)


@click.group()
def backup() -> None:
    """Make, check and restore copies of a data directory."""
    silence_storage()


@backup.command()
@click.argument("destination", metavar="DEST", type=_path)
@broker_options
@click.option("--copy", "copy_all", is_flag=True, help="Copy every file, also where a hard link would do.")
@_json
def create(destination: Path, data_dir: Path, *, copy_all: bool, as_json: bool) -> int:
    """Copy a data directory to DEST, also while the broker runs: what was acknowledged before is in it.

    Sealed segments never change; on the same file system they get a second name and take no more space, elsewhere and
    with --copy they are copied. MANIFEST.json lists every file with its size and checksum, and is written last.

    Exit code 5 when the data directory is damaged (what is there is copied all the same), 6 when DEST isn't empty.
    """
    check_directory(data_dir)
    try:
        with byte_bar("backed up", lambda: directory_bytes(data_dir)) as advance:
            made = create_backup(data_dir, destination, link=not copy_all, on_bytes=advance)
    except TargetNotEmptyError as error:
        raise CommandError(str(error), Exit.REFUSED) from error
    if as_json:
        fields = {**_manifest_fields(made.manifest), "linked": made.linked, "seconds": round(made.seconds, 3)}
        click.echo(json.dumps({"backup": str(destination), **fields, "damaged": made.damaged}))
    else:
        _print_logs(made.manifest)
        count = len(made.manifest.files)
        click.echo(f"{destination}: {count:,} files, {made.manifest.bytes:,} B, {made.linked:,} of them hard-linked")
        for line in made.damaged:
            click.echo(f"damaged in {data_dir}: {line}")
    return Exit.DAMAGED if made.damaged else Exit.SUCCESS


@backup.command()
@click.argument("source", metavar="SRC", type=_path)
@broker_options
@click.option("--accept-damage", is_flag=True, help="Restore what is there, though files aren't as the manifest says.")
@_json
def restore(source: Path, data_dir: Path, *, accept_damage: bool, as_json: bool) -> int:
    """Copy the backup in SRC to a new data directory, checking every file against the manifest.

    The broker then starts as after a crash at the time of the backup. A restore that is interrupted, or in which a file
    is damaged, leaves a directory that no broker starts with.

    Exit code 3 when SRC is no backup, 5 when a file is damaged, 6 when the data directory isn't empty.
    """
    try:
        with byte_bar("restored", lambda: directory_bytes(source)) as advance:
            restored = restore_backup(source, data_dir, accept_damage=accept_damage, on_bytes=advance)
    except FileNotFoundError as error:
        raise _no_backup(source) from error
    except TargetNotEmptyError as error:
        raise CommandError(str(error), Exit.REFUSED) from error
    if as_json:
        fields: dict[str, Any] = {
            "data_dir": str(data_dir),
            **_manifest_fields(restored.manifest),
            "seconds": round(restored.seconds, 3),
            "recovery": restored.report,
            "findings": [finding_fields(finding) for finding in restored.findings],
        }
        click.echo(json.dumps(fields))
    else:
        _print_logs(restored.manifest)
        print_findings(restored.findings)
        click.echo(f"{data_dir}: {len(restored.manifest.files):,} files, {restored.manifest.bytes:,} B")
    return Exit.DAMAGED if restored.findings else Exit.SUCCESS


@backup.command()
@click.argument("source", metavar="SRC", type=_path)
@_json
def verify(source: Path, *, as_json: bool) -> int:
    """Read every byte of the backup in SRC: against its manifest, then every frame as `highway log verify` does.

    Exit code 3 when SRC is no backup, 5 when something is damaged.
    """
    try:
        with byte_bar("verified", lambda: 2 * directory_bytes(source)) as advance:
            check = verify_backup(source, on_bytes=advance)
    except FileNotFoundError as error:
        raise _no_backup(source) from error
    except CorruptionError as error:
        raise CommandError(str(error), Exit.DAMAGED) from error
    if as_json:
        click.echo(json.dumps(_check_fields(source, check)))
    else:
        _print_logs(check.manifest)
        print_findings([*check.findings, *check.contents.findings])
        verdict = f"{len(check.damaged)} damaged" if check.damaged else "intact"
        click.echo(f"{source}: {len(check.manifest.files):,} files, {check.manifest.bytes:,} B: {verdict}")
    return Exit.DAMAGED if check.damaged else Exit.SUCCESS


def _no_backup(source: Path) -> CommandError:
    return CommandError(f"{source} is no backup, or one that came to no end: it has no manifest", Exit.NOT_FOUND)


def _print_logs(manifest: Manifest) -> None:
    for log in manifest.logs:
        held = (
            f"{log.log_start_offset}..{log.log_end_offset - 1}" if log.log_end_offset > log.log_start_offset else "none"
        )
        click.echo(f"log {log.name}: offsets {held}")


def _manifest_fields(manifest: Manifest) -> dict[str, Any]:
    return {
        "created_ms": manifest.created_ms,
        "source": manifest.source,
        "files": len(manifest.files),
        "bytes": manifest.bytes,
        "logs": [asdict(log) for log in manifest.logs],
    }


def _check_fields(source: Path, check: BackupCheck) -> dict[str, Any]:
    return {
        "backup": str(source),
        **_manifest_fields(check.manifest),
        "damaged": bool(check.damaged),
        "findings": [finding_fields(finding) for finding in check.findings],
        "contents": verification_fields(check.contents),
    }
