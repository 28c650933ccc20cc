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

import contextlib
import errno
import os
import secrets
import threading
from typing import TYPE_CHECKING, NamedTuple

from .format import FILE_HEADER_BYTES, FileHeader, encode_file_header

if TYPE_CHECKING:
    from pathlib import Path

    from highway.clock import Clock
    from highway.storage.disk.filesystem import FileSystem

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

    __slots__ = (
        "_clock",
        "_filesystem",
        "_free",
        "_lock",
        "_ready",
        "_taken",
        "directory",
        "distrusted_below",
        "file_bytes",
    )

    def __init__(self, filesystem: FileSystem, directory: Path, file_bytes: int, clock: Clock) -> None:
        self._filesystem = filesystem
        self.directory = directory
        self.file_bytes = file_bytes
        self.distrusted_below = 0  # files with a sequence below it are never written again
        self._clock = clock
        self._lock = threading.Lock()
        self._free: list[Path] = []
        self._ready: JournalFile | None = None
        self._taken = 0  # sequence of the file that the journal writes to

    def recycle(self, below: int) -> None:
        """Take the files with a sequence below `below`: nobody needs their frames. All but a few are deleted."""
        with self._lock:
            files = [file for file in list_journal(self._filesystem, self.directory) if file[0] < below]
            distrusted = [path for sequence, path in files if sequence < self.distrusted_below]
            self._free += [path for _, path in files[len(distrusted) :] if path not in self._free]
            surplus, self._free = self._free[:-_MAX_SPARE_FILES], self._free[-_MAX_SPARE_FILES:]
            for path in distrusted + surplus:
                self._filesystem.unlink(path)

    def adopt(self, unused: list[Path]) -> None:
        """Take files that were made ready in a former life and never written to; delete those that were half made.

        A broker that is killed as soon as it starts, again and again, would else leave one behind each time.
        """
        with self._lock:
            for name in self._filesystem.listdir(self.directory):
                if len(name) == 24 and name.endswith(".tmp") and name[:20].isdecimal():
                    self._filesystem.unlink(self.directory / name)
            self._free += unused

    @property
    def has_spare(self) -> bool:
        """Return whether the next file needs no space of its own."""
        return self._ready is not None or bool(self._free)

    def path(self, sequence: int) -> Path:
        """Return where the file `sequence` is."""
        return journal_path(self.directory, sequence)

    def prepare(self, sequence: int) -> None:
        """Make the file `sequence` ready. OSError: there is none, and the file that couldn't be made ready is gone.

        A busy pool may come to this only when the journal has made and filled that file itself: then nothing is done,
        because making it again would replace it.
        """
        with self._lock:
            if self._ready is None and sequence > self._taken:
                self._ready = self._make(sequence)

    def take(self, sequence: int, *, lean: bool = False) -> JournalFile:
        """Return the file `sequence`, made now if nobody made it before; OSError as in `prepare`.

        A `lean` one that is made now isn't filled with zeros: it takes the space of its frames, as they come.
        """
        with self._lock:
            taken, self._ready = self._ready, None
            if taken is not None and taken.sequence != sequence:
                self._filesystem.close(taken.fd)
                taken = None
            if taken is None:
                taken = self._make(sequence, lean=lean)
            self._taken = sequence
            return taken

    def close(self) -> None:
        """Close the spare file; it stays in the directory, where the next open recycles it."""
        with self._lock:
            if self._ready is not None:
                self._filesystem.close(self._ready.fd)
                self._ready = None

    def _make(self, sequence: int, *, lean: bool = False) -> JournalFile:
        path = self.path(sequence)
        if self._free:
            source = self._free.pop()
            fd = self._filesystem.open(source, write=True)
        else:
            source = self.directory / f"{sequence:020}.tmp"
            if self._filesystem.exists(source):
                self._filesystem.unlink(source)
            fd = self._filesystem.open(source, create=True)
        try:
            salt = self._write_header(fd, sequence, lean=lean)
            self._filesystem.rename(source, path)
            source = path
            self._filesystem.sync_dir(self.directory)
        except BaseException:
            self._filesystem.close(fd)
            # Half a file takes space that others need, and one whose sync has failed must not be synced again.
            with contextlib.suppress(OSError):
                self._filesystem.unlink(source)
            raise
        return JournalFile(sequence, path, fd, salt)

    def _write_header(self, fd: int, sequence: int, *, lean: bool) -> int:
        salt = secrets.randbits(32)
        size = self._filesystem.size(fd)
        if size > 2 * self.file_bytes:
            self._filesystem.truncate(fd, self.file_bytes)  # one huge record made it grow
        header = encode_file_header(FileHeader(sequence, salt, self._clock.now_ms()))
        self._filesystem.pwrite(fd, header, 0)
        missing = max(self.file_bytes, FILE_HEADER_BYTES) - max(size, FILE_HEADER_BYTES)
        if missing > 0 and not lean:
            if self._filesystem.free_bytes(self.directory) < missing:
                # Filling the disk to the brim first would make everybody else's writes fail as well.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path(sequence)))
            self._filesystem.allocate(fd, self.file_bytes)
        self._filesystem.fdatasync(fd)
        return salt
