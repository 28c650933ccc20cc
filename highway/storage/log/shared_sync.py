"""One sync for the segments of many logs, where a checkpoint has hundreds to sync.

`fdatasync` of each takes a flush of the disk each; `syncfs` writes all of them with one. It tells of every write that
has failed since its descriptor was opened, once, whatever file that was in, and not which: so if it fails, every
segment with unsynced frames is suspect, whether it took part or not, and is written anew out of the journal. Its
descriptor is as old as the storage, so that a failure on the way to the disk long before isn't missed.

While a log takes part nothing else is done with its segments: what `syncfs` has made durable is what they held when it
began. The loop thread owns this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .writer import Synced

if TYPE_CHECKING:
    from collections.abc import Callable

    from highway.storage.disk.filesystem import FileSystem
    from highway.storage.disk.pool import Pool

    from .writer import LogWriter

__all__ = ["SharedSync"]


class SharedSync:
    """The logs that wait for the next `run`. `fd` is a directory of the file system, opened before the first write."""

    __slots__ = ("_fd", "_filesystem", "_pool", "_waiting", "on_add", "on_failed", "running")

    def __init__(self, filesystem: FileSystem, pool: Pool, fd: int) -> None:
        self._filesystem = filesystem
        self._pool = pool
        self._fd = fd
        self._waiting: list[tuple[LogWriter, Callable[[Synced | Exception], None]]] = []
        self.running = False
        self.on_add: Callable[[], None] = lambda: None  # one more waits
        self.on_failed: Callable[[], None] = lambda: None  # nothing unsynced is to be trusted

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, writer: LogWriter, done: Callable[[Synced | Exception], None]) -> None:
        """Have the active segment of a log synced by the next `run`; the log is busy until then."""
        writer.busy = True
        self._waiting.append((writer, done))
        self.on_add()

    def run(self) -> None:
        """Sync the segments that wait, and call back for each of them."""
        taken, self._waiting = self._waiting, []
        marks = [writer.mark_to_sync() for writer, _ in taken]
        self.running = True

        def work() -> None:
            self._filesystem.syncfs(self._fd)
            for mark in marks:
                mark.segment.mark_durable(mark.length, mark.next_offset)

        def finished(outcome: Exception | None) -> None:
            self.running = False
            if outcome is not None:
                self.on_failed()
            for (writer, done), mark in zip(taken, marks, strict=True):
                writer.busy = False
                done(outcome if outcome is not None else Synced(mark.segment, mark.length))

        self._pool.submit(work, finished)
