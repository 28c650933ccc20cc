"""What a data directory stands on: which file systems are refused or warned of, and what a small disk makes smaller."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from highway.errors import DataDirectoryError
from highway.storage.settings import MIB

if TYPE_CHECKING:
    from pathlib import Path

    from highway.storage.settings import StorageSettings

    from .filesystem import FileSystem

__all__ = ["can_sync_whole", "check_medium", "fit_to_disk"]

# Locks and syncs of these depend on a server and on mount options that nobody here can see.
_REFUSED = {"nfs", "smb"}
_WARNINGS = {
    "tmpfs": "it is memory, and everything in it goes with the machine",
    "ramfs": "it is memory, and everything in it goes with the machine",
    "overlayfs": "it is a container's own layer, and goes with the container unless a volume is mounted there",
    "9p": "what a sync means there depends on its server",
    "fuse": "what a sync means there depends on its server",
}

# Of a small disk no part takes more than this share, so that journal, reserve and segments fit beside one another.
_SHARE = 16

_logger = logging.getLogger(__name__)


def check_medium(filesystem: FileSystem, directory: Path) -> None:
    """Refuse a network file system (DataDirectoryError) and warn of one that forgets; the directory need not exist."""
    existing = next((path for path in (directory, *directory.parents) if filesystem.exists(path)), directory)
    kind = filesystem.kind(existing)
    if kind in _REFUSED:
        raise DataDirectoryError(
            f"{directory} is on {kind}: a network file system keeps neither locks nor syncs as a log needs them",
            "choose a directory on a local disk",
        )
    if kind in _WARNINGS:
        _logger.warning("%s is on %s: %s", directory, kind, _WARNINGS[kind])


def can_sync_whole(filesystem: FileSystem, directory: Path) -> bool:
    """Return whether one `syncfs` is worth as much as a sync of each file: on a local disk, of a kernel that tells."""
    return filesystem.syncfs_tells and filesystem.kind(directory) == ""


def fit_to_disk(settings: StorageSettings, total_bytes: int) -> StorageSettings:
    """Return the settings with what would be too large for a disk of that size made smaller."""
    share = max(total_bytes // _SHARE, 1)
    return replace(
        settings,
        journal_file_bytes=min(settings.journal_file_bytes, max(share, MIB)),
        checkpoint_bytes=min(settings.checkpoint_bytes, max(share, MIB)),
        reserve_bytes=min(settings.reserve_bytes, share),
    )
