"""A disk in memory that tells the page cache from the medium, and can lose power between any two operations.

The model, as strict as POSIX allows:

- A write, truncation or allocation is *volatile* until `fdatasync` or `fsync` of that file (or `syncfs`).
- A directory entry (creation, rename, link, unlink, mkdir) is volatile until `sync_dir` of the directory that holds it.
  Syncing a file doesn't make its name durable; syncing a directory doesn't make the directory's own name durable.
- A rename in one directory is atomic: after a power cut the old state or the new one. Across two directories each of
  the two entries is on its own.
- After a failed sync the volatile writes of that file stay readable and never reach the medium, whatever is synced
  later: Linux marks the pages clean. `read_direct` has what is dirty written back and reads the disk, without making
  anything durable; all other reads see the page cache.

What a test does with it:

    fs = SimulatedFileSystem()
    ... run the code under test ...
    fs.operations                          # every call that changes something, in order: Operation(index, kind, ...)
    fs.is_durable(path)                    # data, length and all names on the way to it have reached the medium
    after = fs.crash(Crash.NOTHING)        # a new file system: what a power cut now would leave
    for label, after in fs.crash_states(random.Random(seed)): ...
    after = fs.kill()                      # kill -9: the page cache survives, descriptors and locks don't

    fs.fail(5, Failure.EIO)                # the 5th operation from now fails (1 is the next one)
    fs.fail(1, Failure.EIO, kinds={"fdatasync"})
    fs.fail(3, Failure.POWER_CUT)          # it and every one after it raises PowerCut; then use crash()
    fs.on_operation = hook                 # hook(operation) runs before each one: crash_states() inside it covers every
                                           # operation boundary of a workload in a single run
    fs.lying = True                        # syncs return without doing anything, as some disks do
    fs.capacity = 100_000                  # bytes; beyond them writes fail with ENOSPC and free_bytes() is 0
    fs.make_unreadable(path, 4096, 8192)   # reads of these bytes fail with EIO, also after a crash

Renaming or linking directories isn't modelled. Methods may be called from several threads.
"""

from __future__ import annotations

import copy
import enum
import errno
import itertools
import os
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

__all__ = ["Crash", "Failure", "Operation", "PowerCut", "SimulatedFileSystem"]

SECTOR_BYTES = 512


class Crash(enum.Enum):
    """Which of the volatile changes a power cut leaves."""

    NOTHING = "nothing unsynced kept"
    EVERYTHING = "everything kept"
    SUBSET = "a random subset of the unsynced writes and entries"
    TORN = "a random subset of the 512-byte sectors of each unsynced write"
    DATA_WITHOUT_ENTRIES = "every write kept, every unsynced directory entry lost"
    ENTRIES_WITHOUT_DATA = "every directory entry kept, every unsynced write lost"


class Failure(enum.Enum):
    """What an operation chosen by `fail` does instead of its work."""

    EIO = errno.EIO
    ENOSPC = errno.ENOSPC
    SHORT_WRITE = "half of the bytes are written, then ENOSPC"
    POWER_CUT = "PowerCut, here and in every operation after it"


class PowerCut(BaseException):
    """The power is gone. A BaseException, so that no `except Exception` in the code under test goes on without it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call that changes something: number, method, the file (for a rename its source) and the range."""

    index: int
    kind: str
    path: Path
    position: int = 0
    length: int = 0
    target: Path | None = None


@dataclass(frozen=True, slots=True)
class _Change:
    """One volatile change of a file: bytes at a position, or (data None) a new length."""

    position: int
    data: bytes | None

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            if self.position < len(content):
                del content[self.position :]
            else:
                content.extend(bytes(self.position - len(content)))
            return
        if self.position > len(content):
            content.extend(bytes(self.position - len(content)))
        content[self.position : self.position + len(self.data)] = self.data

    def torn(self, rng: random.Random) -> Iterator[_Change]:
        """Yield the sectors of a write that made it."""
        if self.data is None:
            if rng.random() < 0.5:
                yield self
            return
        end = self.position + len(self.data)
        start = self.position
        while start < end:
            stop = min(end, start - start % SECTOR_BYTES + SECTOR_BYTES)
            if rng.random() < 0.5:
                yield _Change(start, self.data[start - self.position : stop - self.position])
            start = stop


@dataclass(slots=True)
class _File:
    """One inode: what the medium has, what the page cache has, and the changes between the two."""

    durable: bytearray = field(default_factory=bytearray)
    cached: bytearray = field(default_factory=bytearray)
    pending: list[_Change] = field(default_factory=list)

    def change(self, change: _Change) -> None:
        self.pending.append(change)
        change.apply(self.cached)

    def on_disk(self) -> bytearray:
        """Return what the disk would have after writing back what is dirty: what a failed sync dropped isn't in it."""
        content = bytearray(self.durable)
        for change in self.pending:
            change.apply(content)
        return content

    def sync(self) -> None:
        for change in self.pending:
            change.apply(self.durable)
        self.pending.clear()


@dataclass(frozen=True, slots=True)
class _Entry:
    """One volatile change of a directory, applied as a whole: names removed, then a name that points to something."""

    directory: Path
    removed: Path | None
    added: Path | None
    node: _File | None  # None: a directory

    def apply(self, names: dict[Path, _File | None]) -> None:
        if self.removed is not None:
            names.pop(self.removed, None)
        if self.added is not None:
            names[self.added] = self.node


@dataclass(slots=True)
class _Open:
    """One descriptor."""

    path: Path
    node: _File
    write: bool
    locked: bool = False


def _all_but(dropped: int) -> Callable[[_File], Sequence[_Change]]:
    """Return what keeps every pending change but the one with this id()."""
    return lambda node: [change for change in node.pending if id(change) != dropped]


class SimulatedFileSystem:
    """See the module's text. `root` exists and is durable."""

    def __init__(self, root: Path = Path("/data")) -> None:
        self.root = root
        self.operations: list[Operation] = []
        self.on_operation: Callable[[Operation], None] | None = None
        self.lying = False
        self.capacity: int | None = None
        self.kind_name = ""
        self.bad_sectors: dict[Path, list[tuple[int, int, Iterator[bool]]]] = {}
        self._durable_names: dict[Path, _File | None] = {root: None}
        self._names: dict[Path, _File | None] = {root: None}
        self._entries: list[_Entry] = []
        self._open: dict[int, _Open] = {}
        self._next_fd = 1000
        self._failures: list[tuple[int, Failure, Collection[str] | None]] = []
        self._dead = False
        self._lock = threading.RLock()

    # What tests ask and do.

    def fail(self, nth: int, failure: Failure, kinds: Collection[str] | None = None) -> None:
        """Make the `nth` operation from now, counting only `kinds` if given, fail once."""
        self._failures.append((nth, failure, kinds))

    def heal(self) -> None:
        """Forget every failure that `fail` planned and that hasn't happened yet."""
        self._failures.clear()

    def make_unreadable(self, path: Path, start: int, end: int, times: int | None = None) -> None:
        """Make reads that touch [start, end) of a file fail with EIO: for ever, or the next `times` of them."""
        fails = itertools.repeat(True) if times is None else itertools.repeat(True, times)
        self.bad_sectors.setdefault(path, []).append((start, end, iter(fails)))

    def content(self, path: Path) -> bytes:
        """Return a file's bytes as the page cache has them."""
        return bytes(self._file(path).cached)

    def durable_content(self, path: Path) -> bytes:
        """Return a file's bytes as the medium has them; FileNotFoundError if its name isn't durable."""
        node = self._durable_names.get(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "not durable", str(path))
        return bytes(node.durable)

    def overwrite(self, path: Path, data: bytes) -> None:
        """Put `data` in a file, durably and past all bookkeeping: the hand that damages."""
        node = self._names.get(path)
        if node is None:
            node = self._names[path] = _File()
        node.cached[:] = data
        node.durable[:] = data
        node.pending.clear()
        self._durable_names[path] = node

    def is_durable(self, path: Path) -> bool:
        """Return whether a power cut now would leave this file, or directory, exactly as it is."""
        names = [path, *(parent for parent in path.parents if parent.is_relative_to(self.root))]
        if any(self._names.get(name) is not self._durable_names.get(name, self) for name in names):
            return False
        node = self._names[path]
        return node is None or node.durable == node.cached

    def open_descriptors(self) -> int:
        """Return how many descriptors are open: 0 after everything was closed."""
        return len(self._open)

    def kill(self) -> SimulatedFileSystem:
        """Return the file system that the next process sees after kill -9: all of the page cache, nothing open."""
        with self._lock:
            after = self._empty_copy()
            memo: dict[int, object] = {}
            after._durable_names = copy.deepcopy(self._durable_names, memo)
            after._names = copy.deepcopy(self._names, memo)
            after._entries = copy.deepcopy(self._entries, memo)
            return after

    def crash(self, mode: Crash, rng: random.Random | None = None) -> SimulatedFileSystem:
        """Return the file system that a power cut now leaves; `rng` decides where `mode` leaves a choice."""
        rng = rng or random.Random(0)
        keep_data = {Crash.EVERYTHING: 1.0, Crash.DATA_WITHOUT_ENTRIES: 1.0, Crash.SUBSET: 0.5}.get(mode, 0.0)
        keep_entries = {Crash.EVERYTHING: 1.0, Crash.ENTRIES_WITHOUT_DATA: 1.0, Crash.SUBSET: 0.5, Crash.TORN: 0.5}
        keep_entry = keep_entries.get(mode, 0.0)

        def survivors(node: _File) -> Iterator[_Change]:
            for change in node.pending:
                if mode is Crash.TORN:
                    yield from change.torn(rng)
                elif rng.random() < keep_data:
                    yield change

        with self._lock:
            return self._after([entry for entry in self._entries if rng.random() < keep_entry], survivors)

    def crash_states(
        self, rng: random.Random, samples: int = 3, single: int = 16
    ) -> Iterator[tuple[str, SimulatedFileSystem]]:
        """Yield (label, file system) for many power cuts now.

        Nothing, everything, each with and without entries; each unsynced write dropped alone and each unsynced entry
        lost alone (a random `single` of each, if there are more); `samples` random subsets and `samples` torn ones.
        """
        with self._lock:
            for mode in (Crash.NOTHING, Crash.EVERYTHING, Crash.DATA_WITHOUT_ENTRIES, Crash.ENTRIES_WITHOUT_DATA):
                yield mode.value, self.crash(mode)
            changes = [id(change) for node in self._nodes() for change in node.pending]
            for dropped in rng.sample(changes, min(single, len(changes))):
                label = f"write {changes.index(dropped)} of {len(changes)} dropped"
                yield label, self._after(self._entries, _all_but(dropped))
            for lost in rng.sample(range(len(self._entries)), min(single, len(self._entries))):
                kept = self._entries[:lost] + self._entries[lost + 1 :]
                yield f"entry {lost} lost: {self._entries[lost]}", self._after(kept, lambda node: node.pending)
            for mode in (Crash.SUBSET, Crash.TORN):
                for sample in range(samples):
                    yield f"{mode.value} ({sample})", self.crash(mode, rng)

    def _nodes(self) -> list[_File]:
        """Return every file that some name leads to, now or after a power cut, once and in a fixed order."""
        nodes = [*self._durable_names.values(), *self._names.values(), *(entry.node for entry in self._entries)]
        return list({id(node): node for node in nodes if node is not None}.values())

    def _empty_copy(self) -> SimulatedFileSystem:
        after = SimulatedFileSystem(self.root)
        after.lying = self.lying
        after.capacity = self.capacity
        after.bad_sectors = self.bad_sectors
        after.kind_name = self.kind_name
        return after

    def _after(
        self, entries: Sequence[_Entry], survivors: Callable[[_File], Iterator[_Change] | Sequence[_Change]]
    ) -> SimulatedFileSystem:
        """Return the state in which exactly these entries and changes made it."""
        names = dict(self._durable_names)
        for entry in entries:
            entry.apply(names)
        copies: dict[int, _File] = {}
        for node in self._nodes():
            content = bytearray(node.durable)
            for change in survivors(node):
                change.apply(content)
            copies[id(node)] = _File(content, bytearray(content))
        after = self._empty_copy()
        reachable: dict[Path, _File | None] = {}
        for name, kept in sorted(names.items(), key=lambda item: len(item[0].parts)):
            if name == self.root or name.parent in reachable:  # a lost directory takes its files along
                reachable[name] = None if kept is None else copies[id(kept)]
        after._names = reachable
        after._durable_names = dict(reachable)
        return after

    # The bookkeeping around each operation.

    def _operation(
        self,
        kind: str,
        path: Path,
        position: int = 0,
        length: int = 0,
        *,
        target: Path | None = None,
        syncing: Collection[_File] = (),
    ) -> Failure | None:
        """Log an operation; raise, or return SHORT_WRITE, if it was chosen to fail."""
        if self._dead:
            raise PowerCut
        operation = Operation(len(self.operations), kind, path, position, length, target)
        if self.on_operation is not None:
            self.on_operation(operation)
        self.operations.append(operation)
        failure = self._due(kind)
        if failure is Failure.POWER_CUT:
            self._dead = True
            raise PowerCut
        if failure in (Failure.EIO, Failure.ENOSPC):
            for node in syncing:
                node.pending.clear()  # the pages count as clean now: no later sync writes them
            raise OSError(failure.value, os.strerror(failure.value), str(path))
        return failure

    def _due(self, kind: str) -> Failure | None:
        due = None
        remaining: list[tuple[int, Failure, Collection[str] | None]] = []
        for nth, failure, kinds in self._failures:
            counts = kinds is None or kind in kinds
            if counts and nth == 1 and due is None:
                due = failure
            else:
                remaining.append((nth - counts, failure, kinds))
        self._failures = remaining
        return due

    def _file(self, path: Path) -> _File:
        node = self._names.get(path)
        if node is None:
            number = errno.EISDIR if path in self._names else errno.ENOENT
            raise OSError(number, os.strerror(number), str(path))
        return node

    def _descriptor(self, fd: int, *, write: bool = False) -> _Open:
        if self._dead:
            raise PowerCut
        opened = self._open.get(fd)
        if opened is None or (write and not opened.write):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(fd))
        return opened

    def _enter(self, entry: _Entry) -> None:
        entry.apply(self._names)
        self._entries.append(entry)

    def _require_parent(self, path: Path) -> None:
        if self._names.get(path.parent, self) is not None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

    def _used(self) -> int:
        return sum(len(node.cached) for node in {id(node): node for node in self._names.values() if node}.values())

    def _write(self, kind: str, opened: _Open, data: bytes, position: int) -> None:
        failure = self._operation(kind, opened.path, position, len(data))
        room = len(data)
        if self.capacity is not None:
            growth = max(0, position + len(data) - len(opened.node.cached))
            room -= max(0, growth - max(0, self.capacity - self._used()))
        if failure is Failure.SHORT_WRITE:
            room = min(room, len(data) // 2)
        if room > 0:
            opened.node.change(_Change(position, bytes(data[:room])))
        if room < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(opened.path))

    # FileSystem.

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        with self._lock:
            if create:
                self._operation("create", path)
                self._require_parent(path)
                if path in self._names:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
                self._enter(_Entry(path.parent, None, path, _File()))
            elif self._dead:
                raise PowerCut
            self._next_fd += 1
            self._open[self._next_fd] = _Open(path, self._file(path), write or create)
            return self._next_fd

    def close(self, fd: int) -> None:
        with self._lock:
            if self._open.pop(fd, None) is None:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(fd))

    def pread(self, fd: int, length: int, position: int) -> bytes:
        with self._lock:
            opened = self._descriptor(fd)
            self._refuse_bad_sectors(opened.path, length, position)
            return bytes(opened.node.cached[position : position + length])

    def _refuse_bad_sectors(self, path: Path, length: int, position: int) -> None:
        for start, end, times in self.bad_sectors.get(path, ()):
            if position < end and position + length > start and next(times, False):
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    def pwrite(self, fd: int, data: bytes, position: int) -> None:
        with self._lock:
            self._write("pwrite", self._descriptor(fd, write=True), data, position)

    def pwritev(self, fd: int, parts: Sequence[bytes], position: int) -> None:
        self.pwrite(fd, b"".join(parts), position)

    def fdatasync(self, fd: int) -> None:
        self._sync("fdatasync", fd)

    def fsync(self, fd: int) -> None:
        self._sync("fsync", fd)

    def _sync(self, kind: str, fd: int) -> None:
        with self._lock:
            opened = self._descriptor(fd)
            self._operation(kind, opened.path, length=len(opened.node.cached), syncing=[opened.node])
            if not self.lying:
                opened.node.sync()

    def size(self, fd: int) -> int:
        with self._lock:
            return len(self._descriptor(fd).node.cached)

    def truncate(self, fd: int, length: int) -> None:
        with self._lock:
            opened = self._descriptor(fd, write=True)
            self._operation("truncate", opened.path, length)
            opened.node.change(_Change(length, None))

    def allocate(self, fd: int, length: int) -> None:
        with self._lock:
            opened = self._descriptor(fd, write=True)
            start = len(opened.node.cached)
            if length > start:
                self._write("allocate", opened, bytes(length - start), start)

    def preallocate(self, fd: int, length: int) -> None:
        self.allocate(fd, length)

    def drop_cache(self, path: Path) -> None:
        with self._lock:
            node = self._file(path)
            node.cached[:] = node.on_disk()

    def read_direct(self, path: Path, length: int, position: int) -> bytes:
        with self._lock:
            self._refuse_bad_sectors(path, length, position)
            return bytes(self._file(path).on_disk()[position : position + length])

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            self._operation("rename", source, target=target)
            node = self._file(source)
            self._require_parent(target)
            if source.parent == target.parent:
                self._enter(_Entry(target.parent, source, target, node))
            else:
                self._enter(_Entry(target.parent, None, target, node))
                self._enter(_Entry(source.parent, source, None, None))

    def link(self, source: Path, target: Path) -> None:
        with self._lock:
            self._operation("link", source, target=target)
            self._require_parent(target)
            if target in self._names:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
            self._enter(_Entry(target.parent, None, target, self._file(source)))

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._operation("unlink", path)
            self._file(path)
            self._enter(_Entry(path.parent, path, None, None))

    def mkdir(self, path: Path) -> None:
        with self._lock:
            self._operation("mkdir", path)
            self._require_parent(path)
            if path not in self._names:
                self._enter(_Entry(path.parent, None, path, None))

    def sync_dir(self, path: Path) -> None:
        with self._lock:
            self._operation("sync_dir", path)
            if self._names.get(path, self) is not None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            if self.lying:
                return
            for entry in self._entries:
                if entry.directory == path:
                    entry.apply(self._durable_names)
            self._entries = [entry for entry in self._entries if entry.directory != path]

    def open_directory(self, path: Path) -> int:
        with self._lock:
            if self._names.get(path, self) is not None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self._next_fd += 1
            self._open[self._next_fd] = _Open(path, _File(), write=False)
            return self._next_fd

    @property
    def syncfs_tells(self) -> bool:
        return True

    def syncfs(self, fd: int) -> None:
        with self._lock:
            # The next sync of a journal file would tell of it as well; nobody syncs these one by one afterwards.
            segments = [node for path, node in self._names.items() if node is not None and path.suffix == ".log"]
            self._operation("syncfs", self._descriptor(fd).path, syncing=segments)
            if self.lying:
                return
            for node in self._nodes():
                node.sync()
            for entry in self._entries:
                entry.apply(self._durable_names)
            self._entries.clear()

    def listdir(self, path: Path) -> list[str]:
        with self._lock:
            if self._names.get(path, self) is not None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            return sorted(name.name for name in self._names if name.parent == path and name != path)

    def exists(self, path: Path) -> bool:
        with self._lock:
            return path in self._names

    def lock(self, path: Path) -> int:
        with self._lock:
            if path not in self._names:
                self._operation("create", path)
                self._require_parent(path)
                self._enter(_Entry(path.parent, None, path, _File()))
            node = self._file(path)
            if any(opened.locked and opened.node is node for opened in self._open.values()):
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
            self._next_fd += 1
            self._open[self._next_fd] = _Open(path, node, write=True, locked=True)
            return self._next_fd

    def free_bytes(self, path: Path) -> int:
        with self._lock:
            return 1 << 40 if self.capacity is None else max(0, self.capacity - self._used())

    def total_bytes(self, path: Path) -> int:
        return 1 << 40 if self.capacity is None else self.capacity

    def kind(self, path: Path) -> str:
        return self.kind_name
