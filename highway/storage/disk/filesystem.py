"""The seam: every touch of a disk goes through a `FileSystem`, so that a test can crash, fail or watch any of them.

Errors are plain `OSError`s; the layer above knows whether an ENOSPC means "no ack" or "stop the broker". What the
seam promises beyond the system calls: `pwrite` and `pwritev` write all or raise, `pread` is short only at the end of
the file, and every descriptor is close-on-exec. Nothing here locks; the kernel's calls are safe from any thread.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import re
import sys
from typing import TYPE_CHECKING, Protocol

from highway.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

__all__ = ["DIRECTORY_MODE", "FILE_MODE", "FULL_ERRNOS", "FileSystem", "OsFileSystem", "read_or_report", "write_all"]

DIRECTORY_MODE = 0o700  # payloads and client ids are nobody else's business
FILE_MODE = 0o600
# What there isn't enough of now may be there later: space, descriptors, memory. Nothing has been written then. After
# any other error of a write nothing can be trusted.
FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM})

_ZEROS = bytes(1024 * 1024)
# By the number that statfs(2) has for them (linux/magic.h).
_KINDS = {
    0x6969: "nfs",
    0x517B: "smb",
    0xFE53_4D42: "smb",
    0xFF53_4D42: "smb",
    0x0102_1994: "tmpfs",
    0x8584_58F6: "ramfs",
    0x794C_7630: "overlayfs",
    0x0102_1997: "9p",
    0x6573_5546: "fuse",
}

_SYNCFS_TELLS = (5, 8)  # Linux: before that, syncfs(2) said nothing of a write-back that had failed
_DIRECT_ALIGNMENT = 4096  # O_DIRECT wants buffer, position and length aligned to the logical block; 4 KiB covers all


class FileSystem(Protocol):
    """What storage needs of a disk; `tests/storage/simulated_filesystem.py` is the other implementation."""

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        """Return a descriptor. `create` implies `write` and refuses an existing file (FileExistsError)."""

    def close(self, fd: int) -> None:
        """Give the descriptor back."""

    def pread(self, fd: int, length: int, position: int) -> bytes:
        """Return `length` bytes from `position`; fewer only where the file ends."""

    def pwrite(self, fd: int, data: bytes, position: int) -> None:
        """Write all of `data` at `position`; after an error any part of it may be in the file."""

    def pwritev(self, fd: int, parts: Sequence[bytes], position: int) -> None:
        """Write all `parts`, one behind the other, with one call where the kernel takes them at once."""

    def fdatasync(self, fd: int) -> None:
        """Make data and length durable. After an error never retry: the page cache no longer tells the truth."""

    def fsync(self, fd: int) -> None:
        """Make data and all metadata durable; the same rule after an error."""

    def size(self, fd: int) -> int:
        """Return the file's length in bytes."""

    def truncate(self, fd: int, length: int) -> None:
        """Cut, or extend with zeros that take no space."""

    def allocate(self, fd: int, length: int) -> None:
        """Write real zeros from the end of the file up to `length`, so that later writes there change no metadata."""

    def preallocate(self, fd: int, length: int) -> None:
        """Make the file `length` bytes long and the space its own, without writing it where the kernel can do that."""

    def read_direct(self, path: Path, length: int, position: int) -> bytes:
        """Return bytes from the medium and not from the page cache, as far as this file system can tell them apart."""

    def drop_cache(self, path: Path) -> None:
        """Have the kernel forget what it holds of a file and the medium is said to have: later reads ask the medium."""

    def rename(self, source: Path, target: Path) -> None:
        """Replace `target` atomically; durable only after `sync_dir` of the directory."""

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; refuses an existing target."""

    def unlink(self, path: Path) -> None:
        """Remove a name; durable only after `sync_dir` of the directory."""

    def mkdir(self, path: Path) -> None:
        """Create one directory; one that exists is fine. The parent is the caller's to sync."""

    def sync_dir(self, path: Path) -> None:
        """Make the entries of a directory durable: creations, renames and removals."""

    def open_directory(self, path: Path) -> int:
        """Return a descriptor for `syncfs`."""

    def syncfs(self, fd: int) -> None:
        """Sync the whole file system that `fd` is on: cheaper than hundreds of fdatasyncs.

        OSError if any write to it has failed since `fd` was opened, where `syncfs_tells`.
        """

    @property
    def syncfs_tells(self) -> bool:
        """Return whether `syncfs` tells of writes that have failed."""

    def listdir(self, path: Path) -> list[str]:
        """Return the names in a directory, sorted."""

    def exists(self, path: Path) -> bool:
        """Return whether there is a file or directory of that name."""

    def lock(self, path: Path) -> int:
        """Return a descriptor that holds an exclusive lock until it is closed; BlockingIOError if another has it."""

    def free_bytes(self, path: Path) -> int:
        """Return the bytes that this user may still write to the file system of `path`."""

    def total_bytes(self, path: Path) -> int:
        """Return how large the file system of `path` is."""

    def kind(self, path: Path) -> str:
        """Return the name of the file system of `path` if its promises differ from a local disk's, otherwise ""."""


def write_all(write: Callable[[memoryview, int], int], data: bytes, position: int) -> None:
    """Call `write(rest, position)` until nothing is left: a short write is not an error until the next one says why."""
    rest = memoryview(data)
    while rest:
        written = write(rest, position)
        if written <= 0:
            raise OSError(errno.EIO, "the kernel accepted no byte of a write and gave no reason")
        rest = rest[written:]
        position += written


def read_or_report(filesystem: FileSystem, fd: int, path: Path, length: int, position: int) -> bytes:
    """Return what `pread` does; CorruptionError for bytes that the disk can't read, also at the second try."""
    try:
        return filesystem.pread(fd, length, position)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    try:  # A second try costs nothing, and some errors on the way to the disk are passing ones.
        return filesystem.pread(fd, length, position)
    except OSError as error:
        raise CorruptionError(str(path), position, f"the disk can't read it: {error}") from error


class OsFileSystem:
    """The real disk."""

    __slots__ = ()

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        flags = os.O_CLOEXEC | (os.O_RDWR if write or create else os.O_RDONLY)
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        return os.open(path, flags, FILE_MODE)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        data = os.pread(fd, length, position)
        if len(data) == length or not data:
            return data
        parts = [data]
        got = len(data)
        while got < length and (data := os.pread(fd, length - got, position + got)):
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pwrite(self, fd: int, data: bytes, position: int) -> None:
        if os.pwrite(fd, data, position) != len(data):
            # Writing it whole again is simpler than tracking the part, and puts the same bytes in the same place.
            write_all(lambda rest, at: os.pwrite(fd, rest, at), data, position)

    def pwritev(self, fd: int, parts: Sequence[bytes], position: int) -> None:
        if os.pwritev(fd, parts, position) != sum(map(len, parts)):
            self.pwrite(fd, b"".join(parts), position)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def allocate(self, fd: int, length: int) -> None:
        position = self.size(fd)
        while position < length:
            zeros = _ZEROS[: length - position]
            self.pwrite(fd, zeros, position)
            position += len(zeros)

    def preallocate(self, fd: int, length: int) -> None:
        os.posix_fallocate(fd, 0, length)

    def read_direct(self, path: Path, length: int, position: int) -> bytes:
        start = position - position % _DIRECT_ALIGNMENT
        span = position + length - start
        span += -span % _DIRECT_ALIGNMENT
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return self._read_dropped(path, length, position)  # tmpfs and some overlays have no O_DIRECT
        try:
            with mmap.mmap(-1, span) as buffer:  # anonymous memory is page aligned, which O_DIRECT asks for
                got = os.preadv(fd, [buffer], start)
                return buffer[position - start : max(position - start, min(got, position - start + length))]
        finally:
            os.close(fd)

    def drop_cache(self, path: Path) -> None:
        fd = self.open(path)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)

    def _read_dropped(self, path: Path, length: int, position: int) -> bytes:
        fd = self.open(path)
        try:
            os.posix_fadvise(fd, position, length, os.POSIX_FADV_DONTNEED)
            return self.pread(fd, length, position)
        finally:
            os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        source.rename(target)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def mkdir(self, path: Path) -> None:
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)

    def sync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def open_directory(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def syncfs(self, fd: int) -> None:
        # os.sync() waits for every file system of the machine and reports no error.
        _syncfs(fd)

    @property
    def syncfs_tells(self) -> bool:
        return sys.platform == "linux" and _kernel_version() >= _SYNCFS_TELLS

    def listdir(self, path: Path) -> list[str]:
        return sorted(entry.name for entry in path.iterdir())

    def exists(self, path: Path) -> bool:
        return path.exists()

    def lock(self, path: Path) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        return fd

    def free_bytes(self, path: Path) -> int:
        state = os.statvfs(path)
        return state.f_bavail * state.f_frsize

    def total_bytes(self, path: Path) -> int:
        state = os.statvfs(path)
        return state.f_blocks * state.f_frsize

    def kind(self, path: Path) -> str:
        return _KINDS.get(_magic_number(path), "")


def _magic_number(path: Path) -> int:
    """Return `f_type` of statfs(2), which Python's os module doesn't have; 0 where there is none."""
    if sys.platform != "linux":
        return 0
    buffer = (ctypes.c_ulong * 32)()  # the kernel's struct has at most 120 B, and begins with f_type
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(path), buffer) != 0:
        return 0
    return buffer[0] & 0xFFFF_FFFF


def _kernel_version() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])


def _syncfs(fd: int) -> None:
    """Call syncfs(2), which Python's os module doesn't have."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
