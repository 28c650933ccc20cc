"""The files of the journal: the next one is ready before it is needed, and old ones are used again.

A journal file that is written for the first time makes every fdatasync commit metadata as well. So files are filled
with zeros once and then recycled for ever. A file gets its sequence number in its name and in its header, and both are
durable, before a frame is written to it:

1. write header (new salt) to an old or new file, fdatasync; 2. rename it to `<sequence>.wal`; 3. sync the directory.

A crash after 1 leaves a file whose header and name disagree, which recovery takes for an unused one; after 2 one that
holds no frame yet. Frames of its former life never validate, because the salt has changed.

Owners: `prepare` and `recycle` run in the pool, `take` in the journal thread; the lock makes a `take` wait for the
`prepare` that is under way. Everything else is called before the threads start or after they have ended.
"""

from __future__ import annotations

import secrets
import threading
from typing import TYPE_CHECKING, NamedTuple

from highway.storage.journal_format import FILE_HEADER_BYTES, FileHeader, encode_file_header

if TYPE_CHECKING:
    from pathlib import Path

    from highway.clock import Clock
    from highway.storage.filesystem import FileSystem

__all__ = ["JournalFile", "JournalFiles", "journal_path", "list_journal"]

_MAX_SPARE_FILES = 2  # unused files kept for recycling; more are deleted


class JournalFile(NamedTuple):
    """A file that is ready for frames."""

    sequence: int
    path: Path
    fd: int
    salt: int


def journal_path(directory: Path, sequence: int) -> Path:
    """Return the path of the journal file `sequence`."""
    return directory / f"{sequence:020}.wal"


def list_journal(filesystem: FileSystem, directory: Path) -> list[tuple[int, Path]]:
    """Return (sequence, path) of the journal files in order; names of another form are left alone."""
    return sorted(
        (int(name[:20]), directory / name)
        for name in filesystem.listdir(directory)
        if len(name) == 24 and name.endswith(".wal") and name[:20].isdecimal()
    )


class JournalFiles:
    """Makes journal files ready, one ahead."""

    __slots__ = ("_clock", "_directory", "_file_bytes", "_filesystem", "_free", "_lock", "_ready", "_taken")

    def __init__(self, filesystem: FileSystem, directory: Path, file_bytes: int, clock: Clock) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self._file_bytes = file_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._free: list[Path] = []
        self._ready: JournalFile | None = None
        self._taken = 0  # sequence of the file that the journal writes to

    def recycle(self, below: int) -> None:
        """Take the files with a sequence below `below`: nobody needs their frames. All but a few are deleted."""
        with self._lock:
            files = list_journal(self._filesystem, self._directory)
            old = [path for sequence, path in files if sequence < below and path not in self._free]
            self._free += old
            surplus, self._free = self._free[:-_MAX_SPARE_FILES], self._free[-_MAX_SPARE_FILES:]
            for path in surplus:
                self._filesystem.unlink(path)

    def adopt(self, unused: list[Path]) -> None:
        """Take files that were made ready in a former life and never written to; delete those that were half made.

        A broker that is killed as soon as it starts, again and again, would else leave one behind each time.
        """
        with self._lock:
            for name in self._filesystem.listdir(self._directory):
                if len(name) == 24 and name.endswith(".tmp") and name[:20].isdecimal():
                    self._filesystem.unlink(self._directory / name)
            self._free += unused

    def prepare(self, sequence: int) -> None:
        """Make the file `sequence` ready; OSError leaves everything as it was.

        A busy pool may come to this only when the journal has made and filled that file itself: then nothing is done,
        because making it again would replace it.
        """
        with self._lock:
            if self._ready is None and sequence > self._taken:
                self._ready = self._make(sequence)

    def take(self, sequence: int) -> JournalFile:
        """Return the file `sequence`, made now if nobody made it before; OSError leaves everything as it was."""
        with self._lock:
            ready, self._ready = self._ready, None
            self._taken = sequence
            if ready is not None and ready.sequence == sequence:
                return ready
            if ready is not None:
                self._filesystem.close(ready.fd)
            return self._make(sequence)

    def close(self) -> None:
        """Close the spare file; it stays in the directory, where the next open recycles it."""
        with self._lock:
            if self._ready is not None:
                self._filesystem.close(self._ready.fd)
                self._ready = None

    def _make(self, sequence: int) -> JournalFile:
        path = journal_path(self._directory, sequence)
        if self._free:
            source = self._free[-1]
            fd = self._filesystem.open(source, write=True)
        else:
            source = self._directory / f"{sequence:020}.tmp"
            if self._filesystem.exists(source):
                self._filesystem.unlink(source)
            fd = self._filesystem.open(source, create=True)
        try:
            salt = self._write_header(fd, sequence)
            self._filesystem.rename(source, path)
            if self._free:
                self._free.pop()
            self._filesystem.sync_dir(self._directory)
        except BaseException:
            self._filesystem.close(fd)
            raise
        return JournalFile(sequence, path, fd, salt)

    def _write_header(self, fd: int, sequence: int) -> int:
        salt = secrets.randbits(32)
        size = self._filesystem.size(fd)
        if size > 2 * self._file_bytes:
            self._filesystem.truncate(fd, self._file_bytes)  # one huge record made it grow
        header = encode_file_header(FileHeader(sequence, salt, self._clock.now_ms()))
        self._filesystem.pwrite(fd, header, 0)
        if size < self._file_bytes:
            self._filesystem.allocate(fd, max(self._file_bytes, FILE_HEADER_BYTES))
        self._filesystem.fdatasync(fd)
        return salt
