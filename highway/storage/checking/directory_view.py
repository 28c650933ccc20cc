"""A data directory as the next start would find it, without starting: for the tools that look, copy and plan.

The broker's own recovery runs on an overlay, so what is said here is what a start would say, and nothing is changed.
Beside a running broker it sees what a kill at this moment would leave; files that are recycled or deleted while it
looks make it look again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from highway.clock import SystemClock
from highway.errors import DataDirectoryError
from highway.storage.checkpoint.checkpoint import Checkpoint, CheckpointSlots
from highway.storage.disk.descriptors import Descriptors
from highway.storage.disk.filesystem import OsFileSystem
from highway.storage.disk.layout import Layout
from highway.storage.recovery.opening import check_format
from highway.storage.recovery.overlay import OverlayFileSystem
from highway.storage.recovery.recovery import Recovered, recover

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from highway.errors import CorruptionError
    from highway.storage.disk.filesystem import FileSystem
    from highway.storage.recovery.log_recovery import RecoveredLog

__all__ = ["DirectoryView", "is_data_directory", "look_at", "newest_sequence"]

_ATTEMPTS = 20
_PAUSE_S = 0.1


@dataclass(slots=True)
class DirectoryView:
    """What was found. As a context manager it gives its descriptors back."""

    layout: Layout
    checkpoints: list[Checkpoint]  # the valid ones as they are on the disk, newest first
    damaged_slots: list[CorruptionError]
    recovered: Recovered
    files: Descriptors  # over an overlay: nothing that is done with them reaches the disk

    @property
    def logs(self) -> dict[str, RecoveredLog]:
        """Return every log by name, as recovery leaves it."""
        return {log.state.name: log for log in self.recovered.logs.values()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.files.close()


def is_data_directory(directory: Path, filesystem: FileSystem | None = None) -> bool:
    """Return whether a broker ever kept anything there."""
    filesystem = filesystem or OsFileSystem()
    layout = Layout(directory)
    return any(filesystem.exists(path) for path in (layout.format, layout.logs, layout.journal))


def look_at(directory: Path, filesystem: FileSystem | None = None) -> DirectoryView:
    """Return what a start would find; without a readable checkpoint, what a rebuild would.

    DataDirectoryError: a newer version wrote it, or it can't be read.
    """
    below = filesystem or OsFileSystem()
    reason: Exception | str = ""
    for _ in range(_ATTEMPTS):
        try:
            view = _look(directory, below)
        except FileNotFoundError as error:  # recycled, or deleted by retention
            reason = error
            time.sleep(_PAUSE_S)
            continue
        except OSError as error:
            raise DataDirectoryError(f"{directory} can't be read: {error}", "check its owner and mode") from error
        # The journal of a checkpoint is kept until the second one after it is written.
        if newest_sequence(directory, below) <= view.recovered.slots.sequence + 1:
            return view
        view.files.close()
        reason = "checkpoints are written faster than the journal can be read"
    raise DataDirectoryError(f"{directory} changes too fast to be read: {reason}")


def newest_sequence(directory: Path, filesystem: FileSystem) -> int:
    """Return the sequence number of the newest checkpoint now, 0 without one."""
    return max([checkpoint.sequence for checkpoint in CheckpointSlots(filesystem, directory).load()], default=0)


def _look(directory: Path, below: FileSystem) -> DirectoryView:
    layout = Layout(directory)
    slots = CheckpointSlots(below, directory)
    checkpoints = slots.load()
    for rebuild in (False, True):
        overlay = OverlayFileSystem(below)
        files = Descriptors(overlay)
        try:
            check_format(overlay, layout)
            recovered = recover(overlay, layout, (), files, SystemClock().now_ms(), rebuild=rebuild)
        except DataDirectoryError:
            files.close()
            if rebuild or checkpoints:
                raise
        except BaseException:
            files.close()
            raise
        else:
            return DirectoryView(layout, checkpoints, slots.damaged, recovered, files)
    raise AssertionError
