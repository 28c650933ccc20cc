"""What is wrong with the files that all logs share: FORMAT, checkpoints, snapshots, journal."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from highway.errors import CorruptionError
from highway.storage.checkpoint.checkpoint import Checkpoint
from highway.storage.checkpoint.meta import parse_snapshot
from highway.storage.disk.layout import parse_format
from highway.storage.disk.small_files import read_file
from highway.storage.gaps import CORRUPTION
from highway.storage.journal.format import FILE_HEADER_BYTES, damaged_header_copy, make_position, split_position
from highway.storage.journal.reader import scan_journal

from .directory_view import DirectoryView, newest_sequence
from .findings import Finding, LostOffsets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from highway.storage.disk.filesystem import FileSystem

__all__ = ["check_shared_files", "list_files"]


def list_files(directory: Path, filesystem: FileSystem) -> list[tuple[Path, int]]:
    """Return (path, bytes) of the files of a data directory that hold something: not LOCK and quarantine."""
    names = [name for name in filesystem.listdir(directory) if name == "FORMAT" or name.startswith("CHECKPOINT.")]
    folders = [directory / "journal", directory / "meta"]
    if filesystem.exists(directory / "logs"):
        folders += [directory / "logs" / name for name in filesystem.listdir(directory / "logs")]
    paths = [directory / name for name in names]
    for folder in folders:
        with contextlib.suppress(OSError):  # a file, or gone
            paths += [folder / name for name in filesystem.listdir(folder)]
    return [(path, size) for path in sorted(paths) if (size := _size(filesystem, path)) >= 0]


def _size(filesystem: FileSystem, path: Path) -> int:
    try:
        fd = filesystem.open(path)
    except OSError:
        return -1
    try:
        return filesystem.size(fd)
    finally:
        filesystem.close(fd)


def check_shared_files(view: DirectoryView, filesystem: FileSystem) -> list[Finding]:
    """Return what is wrong with them now; files may change while a broker runs, so that it takes two looks."""
    findings = [*_format(view, filesystem), *_checkpoints(view), *_snapshots(view, filesystem)]
    findings += _journal(view, filesystem)
    return findings


def _format(view: DirectoryView, filesystem: FileSystem) -> Iterator[Finding]:
    path = view.layout.format
    try:
        parse_format(read_file(filesystem, path), str(path))
    except CorruptionError as error:
        yield Finding("format", path, error.position, None, error.reason, remedy="it is written again")
    except FileNotFoundError:
        yield Finding("format", path, 0, None, "FORMAT is missing")


def _checkpoints(view: DirectoryView) -> Iterator[Finding]:
    for error in view.damaged_slots:
        if view.checkpoints:
            reason = f"{error.reason}; the other checkpoint counts"
            remedy = "the next checkpoint is written over it"
        else:
            reason = f"{error.reason}; there is no other checkpoint, so that a broker refuses to start"
            remedy = "everything is scanned instead, and a new one written"
        yield Finding("checkpoint", Path(error.path), error.position, None, reason, remedy=remedy)
    if not view.checkpoints and not view.damaged_slots and not view.recovered.report.new:
        path = view.layout.directory / "CHECKPOINT.a"
        yield Finding(
            "checkpoint", path, 0, None, "both checkpoints are missing", remedy="everything is scanned instead"
        )


def _snapshots(view: DirectoryView, filesystem: FileSystem) -> Iterator[Finding]:
    gone = {error.path for error in view.recovered.report.damaged}
    directory = view.layout.meta
    names = filesystem.listdir(directory) if filesystem.exists(directory) else []
    for path in [directory / name for name in names if name.endswith((".snap", ".copy"))]:
        try:
            parse_snapshot(read_file(filesystem, path), str(path))
        except CorruptionError as error:
            lost = "sessions and retained messages since the one before are lost"
            reason = f"{error.reason}; {lost if str(path) in gone else 'another one has what it had'}"
            yield Finding("snapshot", path, error.position, None, reason, remedy="the next snapshot replaces it")
        except FileNotFoundError:
            continue
    if str(directory) in gone:
        yield Finding("snapshot", directory, 0, None, "the snapshot is gone: sessions and retained messages are lost")


def _journal(view: DirectoryView, filesystem: FileSystem) -> list[Finding]:
    """Return the damage that a start would find, with the offsets, and what only the older checkpoint would need."""
    directory = view.layout.journal
    needed = {
        (Path(error.path), error.position): error.reason
        for error in view.recovered.report.damaged
        if Path(error.path).is_relative_to(directory)
    }
    findings: list[Finding] = []
    for finding in _scan_unless_recycled(view, filesystem):
        place = finding.path, finding.position
        if finding.kind == "journal" and needed.pop(place, None) is None:
            reason = f"{finding.reason}; the newest checkpoint needs nothing of it"
            findings.append(dataclasses.replace(finding, reason=reason))
        else:
            findings.append(finding)
    findings += [Finding("journal", path, position, None, reason) for (path, position), reason in needed.items()]
    lost = _lost_records(view)
    if not lost:
        return findings
    for index, finding in enumerate(findings):
        if finding.kind == "journal" and (finding.path, finding.position) in _places(view):
            findings[index] = dataclasses.replace(finding, lost=lost, remedy="its offsets are recorded as a gap")
            return findings
    return [*findings, Finding("journal", directory, 0, None, "records are missing from the journal", lost=lost)]


def _places(view: DirectoryView) -> set[tuple[Path, int]]:
    return {(Path(error.path), error.position) for error in view.recovered.report.damaged}


def _lost_records(view: DirectoryView) -> tuple[LostOffsets, ...]:
    """Return what a start would record as lost, without what damaged segments lost: these are read on their own."""
    elsewhere = {path.parent for path, _ in _places(view)}
    return tuple(
        LostOffsets(name, gap.from_offset, gap.to_offset)
        for name, gap in view.recovered.report.gaps
        if gap.reason == CORRUPTION and view.layout.log_directory(name, view.logs[name].state.uuid) not in elsewhere
    )


def _scan_unless_recycled(view: DirectoryView, filesystem: FileSystem) -> list[Finding]:
    """Return what `_scan` finds; nothing if a new checkpoint has let go of what the older one needed meanwhile."""
    try:
        found = list(_scan(view, filesystem))
    except FileNotFoundError:
        return []
    used = max((checkpoint.sequence for checkpoint in view.checkpoints), default=0)
    return found if newest_sequence(view.layout.directory, filesystem) <= used else []


def _scan(view: DirectoryView, filesystem: FileSystem) -> Iterator[Finding]:
    """Yield what is wrong in the files that a checkpoint refers to; those before them wait to be recycled."""
    oldest = view.checkpoints[-1] if view.checkpoints else Checkpoint()
    durable_frame = max((checkpoint.durable_frame for checkpoint in view.checkpoints), default=0)
    first = split_position(oldest.journal_position)[0]
    start = make_position(first, FILE_HEADER_BYTES)
    scan = scan_journal(filesystem, view.layout.journal, start, -1, 1, durable_frame)
    if not scan.frames:  # then what is expected counts, and that is known from the checkpoint's position on
        start = max(start, oldest.journal_position)
        scan = scan_journal(filesystem, view.layout.journal, start, oldest.journal_frame, 1, durable_frame)
    for sequence, path in scan.files:
        position = damaged_header_copy(_head(filesystem, path)) if sequence >= first else -1
        if position >= 0:
            end = position + FILE_HEADER_BYTES // 2
            yield Finding("header", path, position, end, "one of two copies of the header; the other one counts")
    ends = {(lost.path, lost.offset): lost.offset + lost.length for lost in scan.lost if lost.length >= 0}
    for error in scan.damaged:
        place = Path(error.path), error.position
        yield Finding("journal", *place, ends.get(place), error.reason)
    if scan.torn is not None:
        end = scan.torn.offset + scan.torn.length
        reason = "torn, or being written; nothing of it was ever known to be durable"
        remedy = "it is cut, with the bytes in quarantine/"
        yield Finding("torn", scan.torn.path, scan.torn.offset, end, reason, damaged=False, remedy=remedy)


def _head(filesystem: FileSystem, path: Path) -> bytes:
    fd = filesystem.open(path)
    try:
        return filesystem.pread(fd, FILE_HEADER_BYTES, 0)
    finally:
        filesystem.close(fd)
