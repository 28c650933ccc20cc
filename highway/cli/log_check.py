"""`highway log verify`, `gaps` and `repair`: what is damaged or missing, and what can be done about it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from highway.cli.admin import broker_options
from highway.cli.directory import (
    byte_bar,
    check_directory,
    check_logs,
    finding_fields,
    print_findings,
    silence_storage,
    verification_fields,
)
from highway.cli.exits import CommandError, Exit
from highway.errors import DirectoryInUseError
from highway.storage.checking import repairing, verification
from highway.storage.checking.repairing import to_repair
from highway.storage.checking.verification import directory_bytes
from highway.storage.checkpoint.checkpoint import CheckpointSlots
from highway.storage.disk.filesystem import OsFileSystem

if TYPE_CHECKING:
    from pathlib import Path

    from highway.storage.checking.findings import Finding, Verification
    from highway.storage.checking.repairing import RepairResult
    from highway.storage.gaps import Gap

__all__ = ["gaps", "repair", "verify"]


@click.command()
@click.argument("names", metavar="[LOG]...", nargs=-1)
@broker_options
@click.option("--only-new", is_flag=True, help="Exit code 5 only for damage whose loss no gap records yet.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(names: tuple[str, ...], data_dir: Path, *, only_new: bool, as_json: bool) -> int:
    """Read every byte of a data directory, and name what is damaged.

    Of each damaged range: the file, the bytes, the log, and the offsets that are lost. With LOG only the segments of
    these logs are read. Only reads, also beside a running broker; the torn end of a file that is open for appends is no
    damage, because the journal has what stands there.

    Exit code 5 when something is damaged.
    """
    silence_storage()
    check_directory(data_dir)
    check_logs(data_dir, names)
    with byte_bar("verified", lambda: directory_bytes(data_dir)) as advance:
        found = verification.verify(data_dir, names, on_bytes=advance)
    if as_json:
        click.echo(json.dumps(verification_fields(found)))
    else:
        _print_verification(found)
    counted = [finding for finding in found.damaged if not (only_new and _is_recorded(finding))]
    return Exit.DAMAGED if counted else Exit.SUCCESS


def _is_recorded(finding: Finding) -> bool:
    return bool(finding.lost) and all(lost.recorded for lost in finding.lost)


def _print_verification(found: Verification) -> None:
    for log in found.logs:
        journal = f" and {log.in_journal:,} in the journal" if log.in_journal else ""
        click.echo(
            f"log {log.name}: {log.records:,} records in {log.segments:,} segments{journal}, offsets {log.offsets}, "
            f"{log.bytes:,} B"
        )
    print_findings(found.findings)
    click.echo(f"{found.files:,} files, {found.bytes:,} B: {_verdict(found)}")


def _verdict(found: Verification) -> str:
    count = len(found.damaged)
    if not count:
        return "intact"
    return f"{count} damaged range{'s' if count > 1 else ''}, {found.lost_offsets:,} offsets lost"


@click.command()
@click.argument("name", metavar="[LOG]", required=False)
@broker_options
@click.option("--json", "as_json", is_flag=True, help="Print each gap as one JSON object on a line.")
def gaps(name: str | None, data_dir: Path, *, as_json: bool) -> int:
    """List the ranges of offsets that hold nothing, and why.

    Reasons: corruption (bytes that were durable are damaged), unclean-stop (offsets that were reserved and may have
    been seen when the process or the power went). They are as the newest checkpoint has them, which is written every
    few seconds. Only reads, also beside a running broker.
    """
    check_directory(data_dir)
    checkpoints = CheckpointSlots(OsFileSystem(), data_dir).load()
    if not checkpoints:
        raise CommandError(f"{data_dir} has no readable checkpoint; highway log verify says more", Exit.DAMAGED)
    states = {state.name: state for state in checkpoints[0].logs}
    if name is not None and name not in states:
        raise CommandError(f"{data_dir} holds no log {name!r}, but {', '.join(sorted(states))}", Exit.NOT_FOUND)
    found = [
        (log_name, gap)
        for log_name in ([name] if name is not None else sorted(states))
        for gap in states[log_name].gaps
    ]
    for log_name, gap in found:
        click.echo(_gap_json(log_name, gap) if as_json else _gap_line(log_name, gap))
    if not found:
        click.echo("no gaps", err=True)
    return Exit.SUCCESS


def _gap_line(name: str, gap: Gap) -> str:
    size = gap.to_offset - gap.from_offset
    return f"{name}  {gap.from_offset}..{gap.to_offset - 1}  {size:,} offsets  {gap.reason}  {_time(gap.when_ms)}"


def _gap_json(name: str, gap: Gap) -> str:
    fields = {
        "log": name,
        "from_offset": gap.from_offset,
        "to_offset": gap.to_offset,
        "reason": gap.reason,
        "when_ms": gap.when_ms,
    }
    return json.dumps(fields)


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@click.command()
@broker_options
@click.option("--apply", "apply_it", is_flag=True, help="Do it; without this it is only said what would be done.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def repair(data_dir: Path, *, apply_it: bool, as_json: bool) -> int:
    """Mend a data directory that no broker has open, so that a broker starts without finding damage.

    Torn tails are cut, indexes are built again, damaged headers, checkpoints and snapshots are written again, and the
    offsets of damaged ranges are recorded as gaps. Damaged bytes of segments stay where they are; whatever else is cut
    or replaced is in quarantine/ first. Lost messages don't come back.

    Without --apply nothing is changed, and exit code 5 says that there is damage to repair. With --apply, exit code 6
    when a broker has the directory open.
    """
    silence_storage()
    check_directory(data_dir)
    if not apply_it:
        with byte_bar("verified", lambda: directory_bytes(data_dir)) as advance:
            todo = to_repair(verification.verify(data_dir, on_bytes=advance))
        _print_plan(todo, as_json=as_json)
        return Exit.DAMAGED if any(finding.damaged for finding in todo) else Exit.SUCCESS
    try:
        with byte_bar("verified", lambda: 2 * directory_bytes(data_dir)) as advance:
            result = repairing.repair(data_dir, on_bytes=advance)
    except DirectoryInUseError as error:
        raise CommandError(str(error), Exit.REFUSED) from error
    _print_result(result, as_json=as_json)
    return Exit.DAMAGED if to_repair(result.after) else Exit.SUCCESS


def _print_plan(todo: list[Finding], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"applied": False, "findings": [finding_fields(finding) for finding in todo]}))
        return
    print_findings(todo)
    for finding in todo:
        if finding.remedy:
            click.echo(f"would repair {finding.path}: {finding.remedy}")
    click.echo("nothing was changed; --apply repairs" if todo else "nothing to repair")


def _print_result(result: RepairResult, *, as_json: bool) -> None:
    done, left = to_repair(result.before), to_repair(result.after)
    if as_json:
        fields = {
            "applied": True,
            "findings": [finding_fields(finding) for finding in done],
            "recovery": None if result.report is None else str(result.report),
            "left": [finding_fields(finding) for finding in left],
        }
        click.echo(json.dumps(fields))
        return
    for finding in done:
        click.echo(f"repaired {finding}" + (f": {finding.remedy}" if finding.remedy else ""))
    print_findings(left)
    click.echo(f"recovery: {result.report}" if result.report is not None else "nothing to repair")
