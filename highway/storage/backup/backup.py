"""A copy of a data directory that is consistent, taken while the broker runs and without asking it.

A checkpoint says which bytes of the segments are durable and from where the journal has to be read; sealed segments
never change, and both segments and journal are only appended to. So a copy of one checkpoint, of the journal from its
position on, of the snapshot it names and of the segments up to the lengths in it is what a crash could have left:
everything that was acknowledged as written before the copy began is in it. In this order:

1. The journal, frame by frame as far as every frame is whole. It is recycled only after two more checkpoints; if that
   many were written meanwhile, all begins again with the newest one.
2. The snapshot. Gone: again with the newest checkpoint.
3. Sealed segments and their indexes, hard-linked where the backup is on the same file system, else copied; of active
   segments the durable part.
4. If retention moved a log start meanwhile, again; what is copied already isn't copied twice.
5. The manifest, with the size and checksum of every file. Without it there is no backup.

The copy's checkpoint never has the clean flag: a restored directory begins a new epoch, because clients may have seen
what came after the backup.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from highway.clock import SystemClock
from highway.errors import DataDirectoryError, StorageError, TargetNotEmptyError
from highway.storage.checking.directory_view import look_at
from highway.storage.checkpoint.checkpoint import (
    NO_SEGMENT,
    Checkpoint,
    CheckpointSlots,
    LogState,
    encode_checkpoint,
    encode_log_state,
)
from highway.storage.checkpoint.meta import COPY_SUFFIX, SNAPSHOT_SUFFIX
from highway.storage.disk.copying import Copied, checksum_of, copy_file, link_file
from highway.storage.disk.filesystem import FileSystem, OsFileSystem
from highway.storage.disk.layout import Layout, encode_format
from highway.storage.disk.small_files import replace_file
from highway.storage.journal.files import journal_path
from highway.storage.journal.format import split_position
from highway.storage.journal.reader import JournalScan, scan_journal
from highway.storage.recovery.log_recovery import list_segments
from highway.storage.segment.segment import INDEX_SUFFIX, segment_path

from .manifest import BackupFile, BackupLog, Manifest, write_manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Backup", "create_backup", "require_empty"]

_ATTEMPTS = 20
_PAUSE_S = 0.1


@dataclass(slots=True)
class Backup:
    """What was made."""

    manifest: Manifest
    linked: int  # files that have a second name now; the others were copied
    seconds: float
    damaged: list[str]  # what the source had damaged already


class _MovedError(Exception):
    """The broker has gone on, and what the checkpoint refers to is going away."""


def require_empty(filesystem: FileSystem, directory: Path) -> None:
    """Create a directory, or return if it is empty; TargetNotEmptyError if it isn't."""
    if filesystem.exists(directory):
        if filesystem.listdir(directory):
            raise TargetNotEmptyError(f"{directory} isn't empty", "choose a directory that is empty or doesn't exist")
        return
    for path in (*reversed(directory.parents), directory):
        if not filesystem.exists(path):
            filesystem.mkdir(path)
            filesystem.sync_dir(path.parent)


def create_backup(
    directory: Path,
    backup: Path,
    *,
    link: bool = True,
    filesystem: FileSystem | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Backup:
    """Make a backup in an empty directory. TargetNotEmptyError; DataDirectoryError if there is no readable checkpoint.

    Without `link` every file is copied.
    """
    started = time.monotonic()
    filesystem = filesystem or OsFileSystem()
    if backup.resolve().is_relative_to(directory.resolve()):
        raise TargetNotEmptyError(f"{backup} is inside of {directory}")
    require_empty(filesystem, backup)
    copier = _Copier(filesystem, Layout(directory), Layout(backup), on_bytes or (lambda _: None), link=link)
    try:
        manifest = copier.run()
        with look_at(backup, filesystem) as view:
            damaged = [str(error) for error in view.recovered.report.damaged]
            manifest.logs = [BackupLog(name, log.state.log_start, log.end) for name, log in sorted(view.logs.items())]
        write_manifest(filesystem, backup, manifest)
    except OSError as error:
        raise StorageError(f"the backup in {backup} came to no end: {error}") from error
    return Backup(manifest, copier.linked, time.monotonic() - started, damaged)


class _Copier:
    """Copies until what is copied belongs together."""

    def __init__(
        self, filesystem: FileSystem, source: Layout, target: Layout, on_bytes: Callable[[int], None], *, link: bool
    ) -> None:
        self.linked = 0
        self._filesystem = filesystem
        self._source = source
        self._target = target
        self._on_bytes = on_bytes
        self._link = link
        self._may_miss = False  # files that aren't there are left out
        self._sealed: dict[Path, Copied] = {}  # never change: copied once
        self._files: dict[Path, Copied] = {}  # of this attempt

    def run(self) -> Manifest:
        """Return the manifest of the files that are there now."""
        for path in (self._target.journal, self._target.meta, self._target.logs):
            self._filesystem.mkdir(path)
        for _ in range(_ATTEMPTS):
            checkpoint = self._newest()
            self._files = {}
            try:
                self._copy(checkpoint)
            except _MovedError:
                continue
            except FileNotFoundError:
                time.sleep(_PAUSE_S)
                # Nobody took it away: it is missing. What is there is worth a backup all the same.
                self._may_miss = self._newest().sequence == checkpoint.sequence
                continue
            self._finish()
            return self._manifest(checkpoint)
        raise DataDirectoryError(f"{self._source.directory} changes too fast for a backup")

    def _newest(self) -> Checkpoint:
        found = CheckpointSlots(self._filesystem, self._source.directory).load()
        if not found:
            raise DataDirectoryError(
                f"{self._source.directory} has no readable checkpoint", "highway log verify says more"
            )
        return found[0]

    def _copy(self, checkpoint: Checkpoint) -> None:
        """Copy what belongs to a checkpoint; _MovedError or FileNotFoundError if the broker was faster."""
        self._copy_journal(checkpoint)
        if self._newest().sequence > checkpoint.sequence + 1:
            raise _MovedError
        if checkpoint.meta_entry > 1:
            path = self._source.meta / f"{checkpoint.meta_entry:020}{SNAPSHOT_SUFFIX}"
            self._copy_file(path)
            if self._filesystem.exists(path.with_suffix(COPY_SUFFIX)):
                self._copy_file(path.with_suffix(COPY_SUFFIX))
        for state in checkpoint.logs:
            self._copy_log(state)
        starts = {state.name: state.log_start for state in self._newest().logs}
        if any(starts.get(state.name, state.log_start) != state.log_start for state in checkpoint.logs):
            raise _MovedError
        logs = [encode_log_state(state) for state in checkpoint.logs]
        data = encode_checkpoint(replace(checkpoint, clean=False), logs)
        for slot in "ab":  # one would do; but a backup shouldn't hang on it
            self._write(self._target.directory / f"CHECKPOINT.{slot}", data)
        self._write(self._target.format, encode_format())

    def _copy_journal(self, checkpoint: Checkpoint) -> None:
        """Copy the frames from the checkpoint's position on, up to the first that isn't whole."""
        scan = self._scan(checkpoint)
        if scan.damaged:
            time.sleep(_PAUSE_S)  # perhaps a frame was being written behind which others could be read already
            scan = self._scan(checkpoint)
        ends: dict[int, int | None] = {}
        if scan.damaged:  # copied as it is: whoever restores it is told what a start of the source would say
            first = split_position(checkpoint.journal_position)[0]
            ends = {sequence: None for sequence, _ in scan.files if sequence >= first}
        else:
            ends = {split_position(frame.position)[0]: split_position(frame.end)[1] for frame in scan.frames}
        for sequence, end in ends.items():
            self._copy_file(journal_path(self._source.journal, sequence), end)

    def _scan(self, checkpoint: Checkpoint) -> JournalScan:
        return scan_journal(
            self._filesystem,
            self._source.journal,
            checkpoint.journal_position,
            checkpoint.journal_frame,
            checkpoint.next_entry,
            checkpoint.durable_frame,
        )

    def _copy_log(self, state: LogState) -> None:
        directory = self._source.log_directory(state.name, state.uuid)
        if not self._filesystem.exists(directory):
            return
        target = self._place(directory)
        self._filesystem.mkdir(target)
        bases = [base for base in list_segments(self._filesystem.listdir(directory)) if base < state.active_base]
        for base, following in pairwise([*bases, state.active_base]):
            if following > state.log_start:
                path = segment_path(directory, base)
                self._take_sealed(path)
                if self._filesystem.exists(path.with_suffix(INDEX_SUFFIX)):
                    self._take_sealed(path.with_suffix(INDEX_SUFFIX))
        if state.active_base != NO_SEGMENT:
            self._copy_file(segment_path(directory, state.active_base), state.durable_length)

    def _take_sealed(self, path: Path) -> None:
        target = self._place(path)
        if target not in self._sealed:
            if self._filesystem.exists(target):
                self._filesystem.unlink(target)  # it was the active one at an earlier attempt
            if self._link and link_file(self._filesystem, path, target):
                self.linked += 1
                self._sealed[target] = checksum_of(self._filesystem, target, self._on_bytes)
            else:
                self._sealed[target] = copy_file(self._filesystem, path, target, self._on_bytes)
        self._files[target] = self._sealed[target]

    def _copy_file(self, path: Path, length: int | None = None) -> None:
        target = self._place(path)
        try:
            self._files[target] = copy_file(self._filesystem, path, target, self._on_bytes, length)
        except FileNotFoundError:
            if not self._may_miss:
                raise

    def _place(self, path: Path) -> Path:
        return self._target.directory / path.relative_to(self._source.directory)

    def _write(self, path: Path, data: bytes) -> None:
        replace_file(self._filesystem, path, data)
        self._files[path] = checksum_of(self._filesystem, path, self._on_bytes)

    def _finish(self) -> None:
        """Remove what an earlier attempt left over, and sync every directory."""
        filesystem = self._filesystem
        directories = [self._target.journal, self._target.meta, self._target.logs]
        directories += [self._target.logs / name for name in filesystem.listdir(self._target.logs)]
        for directory in directories:
            for path in [directory / name for name in filesystem.listdir(directory)]:
                if path not in self._files and path not in directories:
                    filesystem.unlink(path)
            filesystem.sync_dir(directory)
        filesystem.sync_dir(self._target.directory)

    def _manifest(self, checkpoint: Checkpoint) -> Manifest:
        root = self._target.directory
        files = [
            BackupFile(str(path.relative_to(root)), copied.bytes, f"{copied.crc:08x}")
            for path, copied in sorted(self._files.items())
        ]
        source = str(self._source.directory.resolve())
        return Manifest(SystemClock().now_ms(), source, checkpoint.sequence, [], files)
