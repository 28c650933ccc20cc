"""Reading everything that a data directory holds, and naming every byte that isn't as it was written.

Nothing is locked or changed, and the directory may belong to a running broker. Checkpoint and journal are judged by the
broker's own recovery, on an overlay (directory_view.py); then every frame of every segment, and every index, is read.
The end of an active segment above its durable length may be torn, or be written just now: the journal has what stands
there, so that is noted and is no damage.

While a broker runs, files change between two looks. So what the first look finds wrong with checkpoint and journal
counts only if a second one finds it too, and what retention has deleted in the meantime doesn't count at all.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from highway.storage.checkpoint.checkpoint import CheckpointSlots, LogState
from highway.storage.disk.descriptors import Descriptors
from highway.storage.disk.filesystem import OsFileSystem
from highway.storage.recovery.overlay import OverlayFileSystem

from .directory_view import DirectoryView, look_at
from .findings import Finding, Verification
from .log_check import LogCheck
from .shared_check import check_shared_files, list_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from highway.storage.disk.filesystem import FileSystem
    from highway.storage.recovery.log_recovery import RecoveredLog

__all__ = ["directory_bytes", "verify"]

_PAUSE_S = 0.25


def directory_bytes(directory: Path, filesystem: FileSystem | None = None) -> int:
    """Return about how many bytes `verify` reads: for a progress bar."""
    return sum(size for _, size in list_files(directory, filesystem or OsFileSystem()))


def verify(
    directory: Path,
    logs: Collection[str] = (),
    *,
    filesystem: FileSystem | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Verification:
    """Return what is in the directory and what is wrong with it; with `logs` only the segments of these are read.

    DataDirectoryError: it can't be read, or is of a newer version. `on_bytes` is told how many more bytes were read.
    """
    started = time.monotonic()
    verifier = _Verifier(directory, filesystem or OsFileSystem(), on_bytes or (lambda _: None))
    with look_at(directory, verifier.filesystem) as view:
        verifier.read_shared(view)
        for name, log in sorted(view.logs.items()):
            if not logs or name in logs:
                verifier.read_log(view, log)
    verifier.forget_what_is_gone()
    verifier.result.seconds = time.monotonic() - started
    return verifier.result


class _Verifier:
    """Collects the findings, in the order of the steps."""

    def __init__(self, directory: Path, filesystem: FileSystem, on_bytes: Callable[[int], None]) -> None:
        self.filesystem = filesystem
        self.result = Verification()
        self._directory = directory
        self._on_bytes = on_bytes
        self._states: dict[str, LogState] = {}  # as the newest checkpoint has them

    def read_shared(self, view: DirectoryView) -> None:
        """Look at everything but the segments."""
        self._states = {state.name: state for checkpoint in view.checkpoints[:1] for state in checkpoint.logs}
        findings = check_shared_files(view, self.filesystem)
        if findings:
            time.sleep(_PAUSE_S)
            with look_at(self._directory, self.filesystem) as again:
                repeated = {_key(finding) for finding in check_shared_files(again, self.filesystem)}
            findings = [finding for finding in findings if _key(finding) in repeated]
        self.result.findings += findings
        for path, size in list_files(self._directory, self.filesystem):
            if path.parent.parent != view.layout.logs:
                self.result.files += 1
                self.result.bytes += size
                self._on_bytes(size)

    def read_log(self, view: DirectoryView, log: RecoveredLog) -> None:
        """Read every segment of a log."""
        state = self._states.get(log.state.name)
        whole = bool(view.checkpoints) and not view.damaged_slots
        files = Descriptors(
            OverlayFileSystem(self.filesystem)
        )  # the files as they are: recovery may have cut the view's
        try:
            check = LogCheck(state or log.state, log, files, self._on_bytes, gaps_are_known=whole)
            check.run(view.layout.log_directory(log.state.name, log.state.uuid))
        finally:
            files.close()
        self.result.logs.append(check.totals)
        self.result.findings += check.findings
        self.result.files += check.files
        self.result.bytes += check.totals.bytes

    def forget_what_is_gone(self) -> None:
        """Drop what was found in segments that retention has deleted since."""
        newest = CheckpointSlots(self.filesystem, self._directory).load()[:1]
        starts = {state.name: state.log_start for checkpoint in newest for state in checkpoint.logs}
        kept = []
        for finding in self.result.findings:
            lost = tuple(
                item._replace(from_offset=max(item.from_offset, starts.get(item.log, 0)))
                for item in finding.lost
                if item.to_offset > starts.get(item.log, 0)
            )
            if lost or not (finding.lost or (finding.log and not self.filesystem.exists(finding.path))):
                kept.append(dataclasses.replace(finding, lost=lost))
        self.result.findings = kept


def _key(finding: Finding) -> tuple[str, Path, int]:
    return finding.kind, finding.path, finding.position
