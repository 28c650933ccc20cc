"""From a backup to a data directory again, and whether a backup is still what was written."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from highway.errors import CorruptionError, DataDirectoryError, StorageError
from highway.storage.checking.directory_view import look_at
from highway.storage.checking.findings import Finding, Verification
from highway.storage.checking.shared_check import list_files
from highway.storage.checking.verification import verify
from highway.storage.disk.copying import Copied, checksum_of, copy_file
from highway.storage.disk.filesystem import FileSystem, OsFileSystem
from highway.storage.disk.layout import Layout

from .backup import require_empty
from .manifest import Manifest, read_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .manifest import BackupFile

__all__ = ["BackupCheck", "Restored", "restore_backup", "verify_backup"]


@dataclass(slots=True)
class BackupCheck:
    """What a backup holds, and what is wrong with it."""

    manifest: Manifest
    findings: list[Finding] = field(default_factory=list)  # files that aren't as the manifest says
    contents: Verification = field(default_factory=Verification)  # what is in them

    @property
    def damaged(self) -> list[Finding]:
        """Return all that is damaged; what the source had damaged already is among it."""
        return [finding for finding in (*self.findings, *self.contents.findings) if finding.damaged]


@dataclass(slots=True)
class Restored:
    """What was restored."""

    manifest: Manifest
    findings: list[Finding]  # files that weren't as the manifest says
    report: str  # what a start will say
    seconds: float


def verify_backup(
    backup: Path, *, filesystem: FileSystem | None = None, on_bytes: Callable[[int], None] | None = None
) -> BackupCheck:
    """Read everything twice: against the manifest, and as a data directory. FileNotFoundError without a manifest."""
    filesystem = filesystem or OsFileSystem()
    advance = on_bytes or (lambda _: None)
    check = BackupCheck(read_manifest(filesystem, backup))
    for file in check.manifest.files:
        try:
            found = checksum_of(filesystem, backup / file.path, advance)
        except FileNotFoundError:
            check.findings.append(Finding("backup", backup / file.path, 0, None, "the file is missing"))
        else:
            check.findings += _compare(backup, file, found)
    known = {backup / file.path for file in check.manifest.files}
    for path, size in list_files(backup, filesystem):
        if path not in known:
            reason = f"{size} B that the manifest doesn't know"
            check.findings.append(Finding("backup", path, 0, None, reason, damaged=False))
    try:
        check.contents = verify(backup, filesystem=filesystem, on_bytes=advance)
    except DataDirectoryError as error:
        check.findings.append(Finding("backup", backup, 0, None, f"no data directory: {error.detail}"))
    return check


def _compare(backup: Path, file: BackupFile, found: Copied) -> list[Finding]:
    if (found.bytes, f"{found.crc:08x}") == (file.bytes, file.crc32c):
        return []
    reason = f"{found.bytes} B with checksum {found.crc:08x}; the manifest says {file.bytes} B, {file.crc32c}"
    return [Finding("backup", backup / file.path, 0, None, reason)]


def restore_backup(
    backup: Path,
    directory: Path,
    *,
    accept_damage: bool = False,
    filesystem: FileSystem | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Restored:
    """Copy a backup to an empty directory, checking every file. TargetNotEmptyError; FileNotFoundError: no manifest.

    FORMAT is copied last, and a broker refuses a directory without it: so an interrupted restore is never taken for a
    data directory, nor one in which a file was damaged (CorruptionError), unless `accept_damage`: then what is damaged
    is for the broker to find.
    """
    started = time.monotonic()
    filesystem = filesystem or OsFileSystem()
    advance = on_bytes or (lambda _: None)
    manifest = read_manifest(filesystem, backup)
    require_empty(filesystem, directory)
    layout = Layout(directory)
    try:
        findings = _copy_all(backup, layout, manifest, filesystem, advance)
        if findings and not accept_damage:
            first = findings[0]
            raise CorruptionError(
                str(first.path),
                0,
                first.reason,
                f"damaged: {len(findings)} of {len(manifest.files)} files; {directory} is incomplete",
            )
        copy_file(filesystem, backup / layout.format.name, layout.format, advance)
        filesystem.sync_dir(directory)
    except OSError as error:
        raise StorageError(f"the restore to {directory} came to no end: {error}") from error
    with look_at(directory, filesystem) as view:
        report = str(view.recovered.report)
    return Restored(manifest, findings, report, time.monotonic() - started)


def _copy_all(
    backup: Path, layout: Layout, manifest: Manifest, filesystem: FileSystem, advance: Callable[[int], None]
) -> list[Finding]:
    """Copy every file but FORMAT; return what isn't as the manifest says."""
    root = layout.directory
    findings = []
    directories = {layout.journal, layout.meta, layout.logs, layout.quarantine}
    directories |= {(root / file.path).parent for file in manifest.files} - {root}
    for path in sorted(directories):
        filesystem.mkdir(path)
    for file in manifest.files:
        if root / file.path == layout.format:
            continue
        try:
            copied = copy_file(filesystem, backup / file.path, root / file.path, advance)
        except FileNotFoundError:
            findings.append(Finding("backup", backup / file.path, 0, None, "the file is missing"))
        else:
            findings += _compare(backup, file, copied)
    for path in (*sorted(directories, reverse=True), root):
        filesystem.sync_dir(path)
    return findings
