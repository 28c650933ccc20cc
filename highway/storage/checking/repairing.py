"""Mending a data directory that no broker has open: what verification found becomes what a start can live with.

Nothing that was written is thrown away: what is cut, replaced or overwritten is in `quarantine/` first. What is lost
stays lost; repairing records it, so that a start finds nothing that it doesn't know. In this order:

1. What is going to be replaced, cut or recycled is copied to quarantine, and damaged segment headers are written again.
2. The broker's own recovery opens the directory: torn tails are cut, the journal is replayed, what it has lost becomes
   gaps. Without a readable checkpoint everything is scanned.
3. Every damaged range of a segment is read once, which makes it a gap of its log.
4. Indexes are built from what the frames say, and a damaged snapshot is replaced by its copy.
5. The directory is closed as after a clean stop: both checkpoints are new.
"""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from highway.clock import SystemClock
from highway.errors import CorruptionError, StorageError
from highway.storage.checkpoint.checkpoint import CheckpointSlots
from highway.storage.checkpoint.meta import COPY_SUFFIX, SNAPSHOT_SUFFIX, parse_snapshot
from highway.storage.disk.copying import copy_file
from highway.storage.disk.descriptors import Descriptors
from highway.storage.disk.filesystem import FileSystem, OsFileSystem
from highway.storage.disk.layout import Layout, lock_directory
from highway.storage.disk.small_files import read_file, replace_file
from highway.storage.engine import Storage
from highway.storage.journal.files import list_journal
from highway.storage.recovery.quarantine import Quarantine
from highway.storage.segment.format import SEGMENT_HEADER_BYTES
from highway.storage.segment.segment import SEGMENT_SUFFIX, Segment
from highway.storage.settings import StorageSettings

from .verification import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from highway.storage.log.log import Log
    from highway.storage.recovery.report import RecoveryReport
    from highway.storage.segment.records import RecordBatch

    from .findings import Finding, Verification

__all__ = ["RepairResult", "open_quietly", "repair", "to_repair"]

# Kinds of findings whose bytes go away: the whole file is replaced, or a range of it is cut or going to be recycled.
_REPLACED = ("checkpoint", "snapshot", "index")
_CUT = ("journal", "header", "torn")
_MIN_JOURNAL_BYTES = 4096  # no file is there: what repairing writes to one is small
_NO_KEY = b"\0repair"  # deleting what isn't there is a change, and a change makes a snapshot


@dataclass(frozen=True, slots=True)
class RepairResult:
    """What was wrong, and what is wrong now: only ranges whose loss is recorded."""

    before: Verification
    after: Verification
    report: RecoveryReport | None  # of the recovery; None: nothing had to be done


def to_repair(found: Verification) -> list[Finding]:
    """Return the findings that `repair` would do something about."""
    return [finding for finding in found.findings if not _is_settled(finding)]


def _is_settled(finding: Finding) -> bool:
    """Return whether the bytes are lost, the loss is recorded, and there is nothing else to do."""
    return finding.kind in ("segment", "hole") and bool(finding.lost) and all(lost.recorded for lost in finding.lost)


def repair(
    directory: Path, *, filesystem: FileSystem | None = None, on_bytes: Callable[[int], None] | None = None
) -> RepairResult:
    """Mend what can be mended. DirectoryInUseError, and nothing done, while a broker has it open."""
    filesystem = filesystem or OsFileSystem()
    layout = Layout(directory)
    lock = lock_directory(filesystem, layout, SystemClock())
    try:
        before = verify(directory, filesystem=filesystem, on_bytes=on_bytes)
        todo = to_repair(before)
        if not todo:
            return RepairResult(before, before, None)
        _prepare(layout, todo, filesystem)
    finally:
        filesystem.close(lock)
    storage = open_quietly(layout, filesystem, rebuild=len([found for found in todo if found.kind == "checkpoint"]) > 1)
    try:
        _mend(storage, todo, filesystem)
    finally:
        storage.close()
    # Once more, so that neither checkpoint refers to a journal file that was written before: they wait to be recycled.
    open_quietly(layout, filesystem, rebuild=False).close()
    return RepairResult(before, verify(directory, filesystem=filesystem, on_bytes=on_bytes), storage.report)


def _prepare(layout: Layout, todo: list[Finding], filesystem: FileSystem) -> None:
    """Copy to quarantine what is to be changed, then write damaged segment headers again: everything needs them."""
    quarantine = Quarantine(filesystem, layout.quarantine)
    headers = [found for found in todo if found.kind == "segment" and found.end_position == SEGMENT_HEADER_BYTES]
    for finding in todo:
        if finding.kind in (*_REPLACED, *_CUT) or finding in headers:
            _keep(finding, filesystem, quarantine)
    checkpoints = CheckpointSlots(filesystem, layout.directory).load()
    uuids = {state.name: state.uuid for checkpoint in checkpoints for state in checkpoint.logs}
    files = Descriptors(filesystem)
    try:
        for finding in headers:
            _write_header(finding.path, files, uuids.get(finding.log))
    finally:
        files.close()


class _NoTimers:
    """A scheduler for a storage that only does what it is told."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> object:  # noqa: ARG002
        raise AssertionError("without threads nothing is posted")

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> _NoTimers:  # noqa: ARG002
        return self

    def cancel(self) -> object:
        return None


def open_quietly(layout: Layout, filesystem: FileSystem, *, rebuild: bool) -> Storage:
    """Return the opened storage, in which nothing happens by itself: no log has settings, so none has a retention."""
    sizes = [_MIN_JOURNAL_BYTES]
    for _, path in list_journal(filesystem, layout.journal):
        fd = filesystem.open(path)
        sizes.append(filesystem.size(fd))
        filesystem.close(fd)
    settings = StorageSettings(journal_file_bytes=min(max(sizes), StorageSettings().journal_file_bytes))
    return Storage.open(
        layout.directory,
        (),
        scheduler=_NoTimers(),
        clock=SystemClock(),
        filesystem=filesystem,
        settings=settings,
        rebuild=rebuild,
        threads=False,
    )


def _keep(finding: Finding, filesystem: FileSystem, quarantine: Quarantine) -> None:
    """Copy what is to be replaced, or recycled, to quarantine; StorageError, and nothing changed, if it is full."""
    path = finding.path
    if not filesystem.exists(path):
        return
    fd = filesystem.open(path)
    try:
        start, end = 0, filesystem.size(fd)
        if finding.kind not in _REPLACED:
            start, end = finding.position, end if finding.end_position is None else finding.end_position
        data = filesystem.pread(fd, end - start, start)
    finally:
        filesystem.close(fd)
    if not quarantine.keep(path, start, data):
        raise StorageError(f"no room for a copy of {path} in quarantine/", "move its files to another disk first")


def _write_header(path: Path, files: Descriptors, log_uuid: bytes | None) -> None:
    """Write a segment's header again, from its index or first frame; in a new file, as a backup may share it."""
    filesystem = files.filesystem
    header = Segment.open_sealed(path, files).header
    if log_uuid is not None:
        header = dataclasses.replace(header, log_uuid=log_uuid)
    temporary = path.with_suffix(".tmp")
    copy_file(filesystem, path, temporary, lambda _: None)
    fd = filesystem.open(temporary, write=True)
    try:
        filesystem.pwrite(fd, header.encode(), 0)
        filesystem.fsync(fd)
    finally:
        filesystem.close(fd)
    filesystem.rename(temporary, path)
    filesystem.sync_dir(path.parent)


def _mend(storage: Storage, todo: list[Finding], filesystem: FileSystem) -> None:
    for lost in [lost for finding in todo for lost in finding.lost]:
        if lost.log in storage.logs:
            _record(storage, storage.logs[lost.log], lost.from_offset, lost.to_offset)
    files = Descriptors(filesystem)
    try:
        for finding in todo:
            if finding.kind == "index":
                _build_index(finding.path, files)
    finally:
        files.close()
    for finding in todo:
        if finding.kind == "snapshot":
            _replace_snapshot(storage, finding.path, filesystem)


def _record(storage: Storage, log: Log, from_offset: int, to_offset: int) -> None:
    """Read a range, so that what can't be read of it becomes a gap."""
    offset = max(from_offset, log.log_start_offset)
    while offset < min(to_offset, log.high_watermark):
        found: list[RecordBatch | StorageError] = []
        log.load(offset, found.append)
        storage.settle()
        batch = found[0]
        if isinstance(batch, StorageError):
            return
        offset = max(batch.end_offset, offset + 1)


def _build_index(index: Path, files: Descriptors) -> None:
    """Replace an index by what the segment's frames say; without a readable frame there is none."""
    if files.filesystem.exists(index):
        files.filesystem.unlink(index)
    with contextlib.suppress(CorruptionError, FileNotFoundError):
        Segment.open_sealed(index.with_suffix(SEGMENT_SUFFIX), files).write_index()


def _replace_snapshot(storage: Storage, path: Path, filesystem: FileSystem) -> None:
    """Replace a damaged snapshot by its copy, or a copy by its snapshot; else have a new one written at the close."""
    twin = path.with_suffix(COPY_SUFFIX if path.suffix == SNAPSHOT_SUFFIX else SNAPSHOT_SUFFIX)
    if filesystem.exists(twin):
        data = read_file(filesystem, twin)
        with contextlib.suppress(CorruptionError):
            parse_snapshot(data, str(twin))
            replace_file(filesystem, path, data)
            return
    if filesystem.exists(path):
        filesystem.unlink(path)
    storage.put([(_NO_KEY, None)])
