"""What is wrong with the files that all logs share: FORMAT, checkpoints, snapshots, journal."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from highway.errors import CorruptionError
from highway.storage.findings import Finding, LostOffsets
from highway.storage.gaps import CORRUPTION
from highway.storage.journal_format import FILE_HEADER_BYTES, damaged_header_copy, make_position
from highway.storage.journal_reader import scan_journal
from highway.storage.layout import parse_format
from highway.storage.meta import parse_snapshot, read_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from highway.storage.directory_view import DirectoryView
    from highway.storage.filesystem import FileSystem

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
    """Return the damage that a start would find, with the offsets, and what only an older checkpoint would need."""
    directory = view.layout.journal
    report = view.recovered.report
    needed = [error for error in report.damaged if Path(error.path).is_relative_to(directory)]
    elsewhere = {Path(error.path).parent for error in report.damaged}
    lost = tuple(
        LostOffsets(name, gap.from_offset, gap.to_offset)
        for name, gap in report.gaps
        if gap.reason == CORRUPTION and view.layout.log_directory(name, view.logs[name].state.uuid) not in elsewhere
    )
    findings = [
        Finding("journal", Path(error.path), error.position, None, error.reason, lost=lost if index == 0 else ())
        for index, error in enumerate(needed)
    ]
    if lost and not needed:
        findings.append(Finding("journal", directory, 0, None, "records are missing from the journal", lost=lost))
    known = {(finding.path, finding.position) for finding in findings}
    with contextlib.suppress(FileNotFoundError):  # recycled by a running broker
        findings += [found for found in _whole_journal(view, filesystem) if (found.path, found.position) not in known]
    return findings


def _whole_journal(view: DirectoryView, filesystem: FileSystem) -> Iterator[Finding]:
    """Yield what is wrong anywhere in the journal: before the newest checkpoint's position nothing is needed any more."""
    durable_frame = max((checkpoint.durable_frame for checkpoint in view.checkpoints), default=0)
    scan = scan_journal(filesystem, view.layout.journal, make_position(0, FILE_HEADER_BYTES), -1, 1, durable_frame)
    for _, path in scan.files:
        position = damaged_header_copy(_head(filesystem, path))
        if position >= 0:
            reason = "one of the two copies of the file's header is damaged; the other counts"
            yield Finding("journal", path, position, position + FILE_HEADER_BYTES // 2, reason)
    for error in scan.damaged:
        reason = f"{error.reason}; the newest checkpoint needs nothing of it"
        yield Finding("journal", Path(error.path), error.position, None, reason)
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
