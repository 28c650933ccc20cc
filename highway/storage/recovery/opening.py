"""Recovery as an open of the storage runs it.

The format is looked at first; then it reads from the medium after a failed sync, and gives up RESERVE on a full disk.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from highway.errors import CorruptionError, DataDirectoryError
from highway.storage.checkpoint.checkpoint import CheckpointSlots
from highway.storage.disk.filesystem import FULL_ERRNOS
from highway.storage.disk.layout import DATA_FORMAT, encode_format, parse_format
from highway.storage.disk.reserve import Reserve
from highway.storage.disk.small_files import read_file, replace_file

from .poison import WatchedFileSystem, copy_journal
from .quarantine import Quarantine
from .recovery import Recovered, recover

if TYPE_CHECKING:
    from collections.abc import Sequence

    from highway.clock import Clock
    from highway.storage.disk.descriptors import Descriptors
    from highway.storage.disk.filesystem import FileSystem
    from highway.storage.disk.layout import Layout
    from highway.storage.settings import LogSettings, StorageSettings

__all__ = ["check_format", "recover_with_room"]

_logger = logging.getLogger("highway.storage.engine")


def check_format(filesystem: FileSystem, layout: Layout) -> None:
    """Create what a new data directory needs; DataDirectoryError if a newer version made this one.

    A damaged FORMAT is written again, with a copy in quarantine, if a checkpoint tells that this version can go on.
    """
    for path in (layout.journal, layout.meta, layout.logs, layout.quarantine):
        if not filesystem.exists(path):
            filesystem.mkdir(path)
    if not filesystem.exists(layout.format):
        for path in (layout.journal, layout.logs):
            if filesystem.listdir(path):
                raise DataDirectoryError(f"{layout.directory}: FORMAT is missing and {path.name}/ isn't empty")
        replace_file(filesystem, layout.format, encode_format())
    filesystem.sync_dir(layout.directory)
    data = b""
    try:
        data = read_file(filesystem, layout.format)
        written, needed = parse_format(data, str(layout.format))
    except CorruptionError as error:
        if not CheckpointSlots(filesystem, layout.directory).load():
            raise DataDirectoryError(f"{error}; it holds {data[:80]!r}, and there is no readable checkpoint") from None
        _logger.error("%s; the checkpoint's format counts, and it is written again", error)
        Quarantine(filesystem, layout.quarantine).keep(layout.format, 0, data)
        replace_file(filesystem, layout.format, encode_format())
        return
    if needed > DATA_FORMAT:
        raise DataDirectoryError(
            f"{layout.directory} has format {written}, readable from version {needed}; this Highway reads {DATA_FORMAT}",
            "start the newer version that wrote it",
        )


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
