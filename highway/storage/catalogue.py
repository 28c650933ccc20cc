"""Which logs a data directory has, and by which settings each of them is kept.

Owner: the loop.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from highway.storage.checkpoint.checkpoint import LogState
from highway.storage.journal.format import encode_log
from highway.storage.journal.journal import VERIFY_CACHE, VERIFY_DIRECT, VERIFY_OFF, Journal
from highway.storage.log.log import Log
from highway.storage.log.writer import LogWriter
from highway.storage.recovery.log_recovery import RecoveredLog
from highway.storage.settings import Durability, LogSettings, find_settings, unconfigured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from highway.errors import StorageError
    from highway.storage.disk.descriptors import Descriptors
    from highway.storage.disk.layout import Layout
    from highway.storage.disk.pool import Pool
    from highway.storage.journal.commit import Committer
    from highway.storage.log.cache import BatchCache
    from highway.storage.log.commit_time import CommitTime
    from highway.storage.recovery.recovery import Recovered

__all__ = ["Catalogue"]

_VERIFY = {"off": VERIFY_OFF, "cache": VERIFY_CACHE, "direct": VERIFY_DIRECT}


class Catalogue:
    """The logs by name. What its methods promise is said in `Storage`, at those of the same name."""

    __slots__ = (
        "_cache",
        "_committer",
        "_configured",
        "_files",
        "_journal",
        "_layout",
        "_next_log_id",
        "_on_damage",
        "_pool",
        "_time",
        "logs",
    )

    def __init__(
        self,
        recovered: Recovered,
        configured: Sequence[LogSettings],
        layout: Layout,
        files: Descriptors,
        pool: Pool,
        cache: BatchCache,
        time: CommitTime,
        committer: Committer,
        journal: Journal,
        on_damage: Callable[[StorageError], None],
    ) -> None:
        """Take the logs that recovery found, and begin those that are configured and aren't there."""
        self.logs: dict[str, Log] = {}
        self._configured = {settings.name: settings for settings in configured}
        self._next_log_id = recovered.highest_log_id + 1
        self._layout = layout
        self._files = files
        self._pool = pool
        self._cache = cache
        self._time = time
        self._committer = committer
        self._journal = journal
        self._on_damage = on_damage
        for log in recovered.logs.values():
            self._add(log, self._settings_of(log.state.name))
        for settings in self._missing():
            self._add(self._new_log(settings.name), settings)
        self._update_bounds()

    def add_topic_log(self, entry: str, name: str) -> Log:
        return self.logs.get(name) or self._create(name, self._configured[entry])

    def change_logs(self, changed: Sequence[LogSettings], released: Iterable[str]) -> None:
        self._configured.update({settings.name: settings for settings in changed})
        for name in released:
            self._configured.pop(name, None)
        for settings in self._missing():
            self._create(settings.name, settings)
        for name, log in self.logs.items():  # one look at each, however many there are
            settings = self._settings_of(name)
            if log.settings != settings:
                log.change(settings)
        self._update_bounds()

    def _settings_of(self, name: str) -> LogSettings:
        return find_settings(self._configured, name) or unconfigured(name)

    def _missing(self) -> list[LogSettings]:
        found = self._configured.values()
        return [settings for settings in found if not settings.per_topic and settings.name not in self.logs]

    def _create(self, name: str, settings: LogSettings) -> Log:
        """Return a new log while the storage is open; it is durable with the first SAFE entry."""
        log = self._add(self._new_log(name), settings)
        self._committer.hand_over([encode_log(log.log_id, log.uuid, log.name)])
        return log

    def _new_log(self, name: str) -> RecoveredLog:
        log_id = self._next_log_id
        self._next_log_id += 1
        # The id opens the uuid, so that a directory's name tells it when everything else is lost.
        return RecoveredLog(LogState(log_id, name, log_id.to_bytes(4, "big") + uuid.uuid4().bytes[4:]))

    def _add(self, recovered: RecoveredLog, settings: LogSettings) -> Log:
        state = recovered.state
        directory = self._layout.log_directory(state.name, state.uuid)
        writer = LogWriter(directory, self._files, self._pool, settings, state.uuid, state.epoch)
        writer.adopt(recovered.segments)
        log = Log(state, settings, writer, self._committer, self._pool, self._cache, self._time)
        log.restore_tail(recovered.tail)
        log.on_damage = self._on_damage
        self.logs[state.name] = log
        return log

    def _update_bounds(self) -> None:
        """Serve the strictest log: a frame of the journal is shared by all, also with those that begin later."""
        all_settings = [*(log.settings for log in self.logs.values()), *self._configured.values()]
        settings = {id(item): item for item in all_settings}.values()  # topics of a `per_topic` entry share theirs
        modes = [_VERIFY[item.verify] for item in settings if item.durability == Durability.SAFE]
        self._journal.verify = max(modes, default=VERIFY_CACHE)
        if settings:
            self._journal.sync_bytes = min(item.sync_bytes for item in settings)
            self._committer.flush_bytes = min(item.flush_bytes for item in settings)
