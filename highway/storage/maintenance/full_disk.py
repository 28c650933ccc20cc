"""A full disk: who may still write, how space is won back, and when publishing goes on.

Wherever the disk says that it is full, `SpaceGuard.hit` is told, and in this order:

1. Appends and puts are refused (`writable` is False). What the journal couldn't write has been answered with an error
   by then; it stays queued and is written when there is room, because FAST records in it have been seen, and puts in it
   are in Meta already. Its senders send it again: a message that was refused may be stored twice, never lost.
2. The file RESERVE is given up. With that space the journal writes what is queued, in files without zeros ahead of
   them; a checkpoint empties the tails into segments and frees journal files; retention deletes what it may.
3. Every second: is there room for RESERVE and the next journal file? Then RESERVE is made again, and a checkpoint
   proves that writing works. If it does, appends are accepted again; if not, RESERVE is given up again.

Reading needs no space, and nothing of this touches it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from highway.errors import DiskFullError
from highway.storage.settings import MIB

if TYPE_CHECKING:
    from collections.abc import Callable

    from highway.storage.checkpoint.checkpointer import Checkpointer
    from highway.storage.disk.pool import Pool, Scheduler
    from highway.storage.disk.reserve import Reserve
    from highway.storage.journal.commit import Committer
    from highway.storage.journal.files import JournalFiles
    from highway.storage.log.retention import Reaper

__all__ = ["SpaceGuard"]

_PROBE_S = 1.0
_ROUNDS_BETWEEN_TRIES = 5  # without room, retention and a checkpoint are tried again every so many probes

_logger = logging.getLogger(__name__)


class SpaceGuard:
    """See the module's text. The loop thread owns it."""

    def __init__(
        self,
        reserve: Reserve,
        files: JournalFiles,
        committer: Committer,
        checkpointer: Checkpointer,
        reaper: Reaper,
        pool: Pool,
        scheduler: Scheduler,
        prepare_spare: Callable[[], None],
    ) -> None:
        self.full = False
        self._reserve = reserve
        self._files = files
        self._committer = committer
        self._checkpointer = checkpointer
        self._reaper = reaper
        self._pool = pool
        self._scheduler = scheduler
        self._prepare_spare = prepare_spare
        self._hit = False  # since the last proof began
        self._rounds = 0

    def keep_back(self) -> None:
        """Keep the space back, in this thread. A disk without room for it is full, now as at any other time."""
        try:
            made = self._reserve.make(0)
        except OSError as error:
            _logger.warning("RESERVE can't be made: %s", error)
            return
        if not made:
            free = _mib(self._reserve.free_bytes())
            self.hit(DiskFullError(f"{free} are free, and RESERVE needs {_mib(self._reserve.size)}", "free some space"))

    def hit(self, error: DiskFullError) -> None:
        """Take note that something couldn't be written for want of space."""
        self._hit = True
        if self.full or self._committer.fault is not None:
            return
        self.full = True
        self._rounds = 0
        self._committer.refuse(error)
        _logger.error("publishes are refused until %s are free: %s", _mib(self._reserve.size + self._headroom), error)
        self._pool.submit(self._reserve.give_up, self._given_up)

    def relieve(self) -> None:
        """Have everything written that is still queued, with what RESERVE gave."""
        self._committer.journal.lean = True
        self._committer.journal.retry()

    @property
    def _headroom(self) -> int:
        """Bytes that must be free beside RESERVE: the next journal file, or just anything to go on with."""
        return 0 if self._files.has_spare and self._reserve.size else self._files.file_bytes

    def _given_up(self, outcome: object) -> None:
        if isinstance(outcome, Exception):
            _logger.warning("RESERVE can't be given up: %s", outcome)
        self.relieve()
        self._checkpointer.request(lambda _: None)
        self._reaper.run()
        self._scheduler.call_later(_PROBE_S, self._probe)

    def _probe(self) -> None:
        if not self._checkpointer.closed and isinstance(self._committer.fault, DiskFullError):
            headroom = self._headroom
            self._pool.submit(lambda: self._reserve.make(headroom), self._probed)

    def _probed(self, outcome: object) -> None:
        if isinstance(outcome, Exception):
            _logger.warning("RESERVE can't be made: %s", outcome)
        if self._committer.stalled:
            self._committer.journal.retry()
        if outcome is True:
            self._hit = False
            self._checkpointer.request(self._proved)
            return
        self._rounds += 1
        if self._rounds % _ROUNDS_BETWEEN_TRIES == 0:
            self._checkpointer.request(lambda _: None)
            self._reaper.run()
        self._scheduler.call_later(_PROBE_S, self._probe)

    def _proved(self, durable: bool) -> None:  # noqa: FBT001 - a checkpoint's answer
        committer = self._committer
        if not isinstance(committer.fault, DiskFullError) or self._checkpointer.closed:
            return
        if durable and not self._hit and not committer.stalled:
            self.full = False
            committer.journal.lean = False
            committer.resume()
            self._prepare_spare()
            self._reaper.run()  # its checkpoint may have had no room until now
            _logger.warning("there is space again: publishes are accepted")
            return
        if self._hit:
            self._pool.submit(self._reserve.give_up)
        self._scheduler.call_later(_PROBE_S, self._probe)


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"
