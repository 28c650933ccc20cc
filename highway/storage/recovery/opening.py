"""Recovery as an open of the storage runs it: after a failed sync from the medium, and on a full disk with RESERVE."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from highway.storage.disk.filesystem import FULL_ERRNOS
from highway.storage.disk.reserve import Reserve

from .poison import WatchedFileSystem, copy_journal
from .recovery import Recovered, recover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from highway.clock import Clock
    from highway.storage.disk.descriptors import Descriptors
    from highway.storage.disk.layout import Layout
    from highway.storage.settings import LogSettings, StorageSettings

__all__ = ["recover_with_room"]

_logger = logging.getLogger("highway.storage.engine")


def recover_with_room(
    filesystem: WatchedFileSystem,
    layout: Layout,
    logs: Sequence[LogSettings],
    files: Descriptors,
    clock: Clock,
    settings: StorageSettings,
    *,
    rebuild: bool,
) -> Recovered:
    """Return what recovery found; after a failed sync from the medium itself, and with the journal's tail copied.

    Where the disk has no room for it, RESERVE is given up and it is tried once more.
    """

    def attempt() -> Recovered:
        distrust = filesystem.direct
        recovered = recover(filesystem, layout, logs, files, clock.now_ms(), rebuild=rebuild, distrust=distrust)
        if distrust:
            copy_journal(filesystem, layout, recovered, settings.journal_file_bytes, clock)
        return recovered

    try:
        return attempt()
    except OSError as error:
        if error.errno not in FULL_ERRNOS or not Reserve(filesystem, layout.reserve, 0).give_up():
            raise
        _logger.warning("recovery: %s; RESERVE is given up", error)
        return attempt()
