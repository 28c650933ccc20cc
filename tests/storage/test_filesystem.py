"""Both file systems keep the same contract; the simulated one also keeps its own promises about power cuts."""

from __future__ import annotations

import errno
import os
import random
import resource
from pathlib import Path

import pytest

from highway.storage.disk.filesystem import OsFileSystem, write_all
from tests.storage.simulated_filesystem import Crash, Failure, PowerCut, SimulatedFileSystem

ROOT = Path("/data")


@pytest.fixture(params=["os", "simulated"])
def disk(request, tmp_path):
    return (OsFileSystem(), tmp_path) if request.param == "os" else (SimulatedFileSystem(), ROOT)


def test_what_is_written_is_read(disk):
    fs, root = disk
    fd = fs.open(root / "f", create=True)
    fs.pwrite(fd, b"hello", 0)
    fs.pwritev(fd, (b"ab", b"", b"cd"), 10)
    fs.fdatasync(fd)
    fs.fsync(fd)
    assert fs.size(fd) == 14
    assert fs.pread(fd, 100, 0) == b"hello\0\0\0\0\0abcd"
    assert fs.pread(fd, 3, 12) == b"cd"
    assert fs.pread(fd, 3, 99) == b""
    assert fs.read_direct(root / "f", 6, 9) == b"\0abcd"
    assert fs.read_direct(root / "f", 3, 1) == b"ell"
    assert fs.read_direct(root / "f", 3, 99) == b""
    fs.close(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        fs.pread(fd, 1, 0)


def test_read_direct_crosses_blocks(disk):
    fs, root = disk
    content = random.Random(1).randbytes(20_000)
    fd = fs.open(root / "f", create=True)
    fs.pwrite(fd, content, 0)
    fs.fsync(fd)
    fs.close(fd)
    for position, length in ((0, 20_000), (4095, 2), (4096, 4096), (8191, 8194), (19_999, 50)):
        assert fs.read_direct(root / "f", length, position) == content[position : position + length]


def test_creating_what_exists_and_opening_what_does_not(disk):
    fs, root = disk
    fs.close(fs.open(root / "f", create=True))
    with pytest.raises(FileExistsError):
        fs.open(root / "f", create=True)
    with pytest.raises(FileNotFoundError):
        fs.open(root / "g", write=True)
    with pytest.raises(FileNotFoundError):
        fs.open(root / "no" / "f", create=True)


def test_a_file_opened_to_read_is_not_written(disk):
    fs, root = disk
    fs.close(fs.open(root / "f", create=True))
    fd = fs.open(root / "f")
    with pytest.raises(OSError, match="Bad file descriptor"):
        fs.pwrite(fd, b"x", 0)
    fs.close(fd)


def test_truncate_and_allocate(disk):
    fs, root = disk
    fd = fs.open(root / "f", create=True)
    fs.pwrite(fd, b"x" * 10, 0)
    fs.truncate(fd, 4)
    fs.allocate(fd, 3_000_000)
    assert fs.size(fd) == 3_000_000
    assert fs.pread(fd, 6, 0) == b"xxxx\0\0"
    fs.allocate(fd, 10)
    assert fs.size(fd) == 3_000_000
    fs.truncate(fd, 3_000_001)
    assert fs.pread(fd, 9, 2_999_999) == b"\0\0"
    fs.close(fd)


def test_names(disk):
    fs, root = disk
    fs.mkdir(root / "d")
    fs.mkdir(root / "d")
    fs.sync_dir(root)
    fd = fs.open(root / "d" / "b", create=True)
    fs.pwrite(fd, b"content", 0)
    fs.close(fd)
    fs.rename(root / "d" / "b", root / "d" / "a")
    fs.link(root / "d" / "a", root / "d" / "c")
    fs.sync_dir(root / "d")
    fd = fs.open_directory(root)
    fs.syncfs(fd)
    fs.close(fd)
    assert fs.listdir(root / "d") == ["a", "c"]
    assert fs.exists(root / "d" / "a")
    assert not fs.exists(root / "d" / "b")
    with pytest.raises(FileExistsError):
        fs.link(root / "d" / "a", root / "d" / "c")
    fs.unlink(root / "d" / "a")
    with pytest.raises(FileNotFoundError):
        fs.unlink(root / "d" / "a")
    fd = fs.open(root / "d" / "c")
    assert fs.pread(fd, 100, 0) == b"content"
    fs.close(fd)
    for call in (fs.listdir, fs.sync_dir):
        with pytest.raises(FileNotFoundError):
            call(root / "no")
    assert fs.free_bytes(root) > 0


def test_a_lock_has_one_holder(disk):
    fs, root = disk
    fd = fs.lock(root / "LOCK")
    fs.pwrite(fd, b"me", 0)
    with pytest.raises(BlockingIOError):
        fs.lock(root / "LOCK")
    fs.close(fd)
    fd = fs.lock(root / "LOCK")
    assert fs.pread(fd, 10, 0) == b"me"
    fs.close(fd)


def test_only_the_owner_can_read(tmp_path):
    fs = OsFileSystem()
    fs.mkdir(tmp_path / "d")
    os.close(fs.open(tmp_path / "d" / "f", create=True))
    os.close(fs.lock(tmp_path / "d" / "LOCK"))
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "d" / "f").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "d" / "LOCK").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100])
def test_a_short_write_is_continued(step):
    written = bytearray(10)

    def write(rest: memoryview, position: int) -> int:
        part = rest[:step]
        written[position : position + len(part)] = part
        return len(part)

    write_all(write, b"0123456789", 0)
    assert written == b"0123456789"


def test_a_write_that_takes_nothing_is_an_error():
    with pytest.raises(OSError, match="accepted no byte"):
        write_all(lambda rest, position: 0, b"x", 0)


@pytest.mark.parametrize(
    "write",
    [lambda fs, fd: fs.pwrite(fd, b"x" * 150, 0), lambda fs, fd: fs.pwritev(fd, (b"x" * 60, b"y" * 90), 0)],
    ids=["pwrite", "pwritev"],
)
def test_a_write_that_the_kernel_cuts_short_raises_what_the_rest_meets(tmp_path, write):
    """The file size limit of the process gives a real short write, and then EFBIG."""
    fs = OsFileSystem()
    fd = fs.open(tmp_path / "f", create=True)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write(fs, fd)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG
    assert fs.size(fd) == 100
    fs.close(fd)


# The simulation.


def created(fs: SimulatedFileSystem, name: str, content: bytes = b"", *, durable: bool = True) -> int:
    fd = fs.open(ROOT / name, create=True)
    fs.pwrite(fd, content, 0)
    if durable:
        fs.fsync(fd)
        fs.sync_dir((ROOT / name).parent)
    return fd


def test_a_write_needs_a_sync_and_a_name_needs_a_directory_sync():
    fs = SimulatedFileSystem()
    fd = created(fs, "f", b"one", durable=False)
    assert not fs.crash(Crash.NOTHING).exists(ROOT / "f")
    assert fs.crash(Crash.ENTRIES_WITHOUT_DATA).content(ROOT / "f") == b""
    fs.fdatasync(fd)
    assert not fs.crash(Crash.NOTHING).exists(ROOT / "f")
    assert not fs.is_durable(ROOT / "f")
    fs.sync_dir(ROOT)
    assert fs.crash(Crash.NOTHING).content(ROOT / "f") == b"one"
    assert fs.is_durable(ROOT / "f")
    fs.pwrite(fd, b"two", 0)
    assert not fs.is_durable(ROOT / "f")
    assert fs.crash(Crash.NOTHING).content(ROOT / "f") == b"one"
    assert fs.crash(Crash.EVERYTHING).content(ROOT / "f") == b"two"
    assert fs.kill().content(ROOT / "f") == b"two"
    assert fs.kill().crash(Crash.NOTHING).content(ROOT / "f") == b"one"
    assert fs.durable_content(ROOT / "f") == b"one"
    assert fs.read_direct(ROOT / "f", 3, 0) == b"two", "it is written back first"
    assert fs.durable_content(ROOT / "f") == b"one", "and that makes nothing durable"


def test_a_rename_is_whole_or_not_at_all():
    fs = SimulatedFileSystem()
    created(fs, "f", b"old")
    created(fs, "f.tmp", b"new")
    fs.rename(ROOT / "f.tmp", ROOT / "f")
    assert fs.crash(Crash.NOTHING).content(ROOT / "f") == b"old"
    assert fs.crash(Crash.NOTHING).content(ROOT / "f.tmp") == b"new"
    after = fs.crash(Crash.EVERYTHING)
    assert after.content(ROOT / "f") == b"new"
    assert not after.exists(ROOT / "f.tmp")
    fs.sync_dir(ROOT)
    assert fs.crash(Crash.NOTHING).content(ROOT / "f") == b"new"


def test_a_rename_before_the_sync_of_its_content_can_leave_an_empty_file():
    fs = SimulatedFileSystem()
    created(fs, "f", b"old")
    created(fs, "f.tmp", b"new", durable=False)
    fs.rename(ROOT / "f.tmp", ROOT / "f")
    assert fs.crash(Crash.ENTRIES_WITHOUT_DATA).content(ROOT / "f") == b""


def test_a_lost_directory_takes_its_files_along():
    fs = SimulatedFileSystem()
    fs.mkdir(ROOT / "d")
    created(fs, "d/f", b"x")
    assert not fs.is_durable(ROOT / "d" / "f")
    assert not fs.crash(Crash.NOTHING).exists(ROOT / "d" / "f")
    fs.sync_dir(ROOT)
    assert fs.is_durable(ROOT / "d" / "f")


def test_an_unsynced_removal_comes_back():
    fs = SimulatedFileSystem()
    created(fs, "f", b"x")
    fs.unlink(ROOT / "f")
    assert fs.crash(Crash.NOTHING).content(ROOT / "f") == b"x"
    fs.sync_dir(ROOT)
    assert not fs.crash(Crash.NOTHING).exists(ROOT / "f")


def test_torn_writes_keep_whole_sectors():
    fs = SimulatedFileSystem()
    fd = created(fs, "f", b"o" * 2048)
    fs.pwrite(fd, b"n" * 1500, 100)
    seen = set()
    for seed in range(40):
        content = fs.crash(Crash.TORN, random.Random(seed)).content(ROOT / "f")
        sectors = [content[at : at + 512] for at in range(0, 2048, 512)]
        whole = [b"o" * 100 + b"n" * 412, b"n" * 512, b"n" * 512, b"n" * 64 + b"o" * 448]
        assert all(sector in (b"o" * 512, new) for sector, new in zip(sectors, whole, strict=True))
        seen.add(content)
    assert len(seen) > 8


def test_crash_states_drop_each_write_and_each_entry():
    fs = SimulatedFileSystem()
    fd = created(fs, "f", b"....")
    fs.pwrite(fd, b"a", 0)
    fs.pwrite(fd, b"b", 1)
    created(fs, "g", durable=False)
    states = list(fs.crash_states(random.Random(1), samples=20))
    contents = {state.content(ROOT / "f") for _, state in states}
    assert contents == {b"....", b"a...", b".b..", b"ab.."}
    assert {state.exists(ROOT / "g") for _, state in states} == {True, False}
    assert all(label for label, _ in states)


def test_after_a_failed_sync_nothing_reaches_the_medium_though_a_later_sync_succeeds():
    fs = SimulatedFileSystem()
    fd = created(fs, "f", b"old")
    fs.pwrite(fd, b"new", 0)
    fs.fail(1, Failure.EIO, kinds={"fdatasync"})
    with pytest.raises(OSError, match="Input/output error"):
        fs.fdatasync(fd)
    fs.fdatasync(fd)
    assert fs.content(ROOT / "f") == b"new"
    assert fs.read_direct(ROOT / "f", 3, 0) == b"old"
    assert fs.crash(Crash.EVERYTHING).content(ROOT / "f") == b"old"


def test_a_lying_disk_acknowledges_and_keeps_nothing():
    fs = SimulatedFileSystem()
    fs.lying = True
    fd = created(fs, "f", b"x")
    fs.syncfs(fs.open_directory(ROOT))
    fs.fdatasync(fd)
    assert fs.content(ROOT / "f") == b"x"
    assert not fs.crash(Crash.NOTHING).exists(ROOT / "f")


def test_the_chosen_operation_fails_once():
    fs = SimulatedFileSystem()
    fd = created(fs, "f")
    fs.fail(2, Failure.ENOSPC)
    fs.pwrite(fd, b"a", 0)
    with pytest.raises(OSError, match="No space left"):
        fs.pwrite(fd, b"b", 1)
    fs.pwrite(fd, b"c", 2)
    assert fs.content(ROOT / "f") == b"a\0c"
    fs.fail(1, Failure.EIO)
    fs.heal()
    fs.fdatasync(fd)


def test_a_short_write_leaves_half():
    fs = SimulatedFileSystem()
    fd = created(fs, "f")
    fs.fail(1, Failure.SHORT_WRITE)
    with pytest.raises(OSError, match="No space left"):
        fs.pwrite(fd, b"abcd", 0)
    assert fs.content(ROOT / "f") == b"ab"


def test_a_full_disk():
    fs = SimulatedFileSystem()
    fd = created(fs, "f")
    fs.capacity = 6
    fs.pwrite(fd, b"abcd", 0)
    assert fs.free_bytes(ROOT) == 2
    with pytest.raises(OSError, match="No space left"):
        fs.pwrite(fd, b"efgh", 4)
    assert fs.content(ROOT / "f") == b"abcdef"
    fs.pwrite(fd, b"ABCDEF", 0)
    assert fs.free_bytes(ROOT) == 0
    fs.unlink(ROOT / "f")
    assert fs.free_bytes(ROOT) == 6


def test_power_cut_stops_everything_and_the_hook_sees_every_operation():
    fs = SimulatedFileSystem()
    seen = []
    fs.on_operation = seen.append
    fd = created(fs, "f", b"x")
    fs.fail(1, Failure.POWER_CUT)
    for call in (
        lambda: fs.pwrite(fd, b"y", 0),
        lambda: fs.pread(fd, 1, 0),
        lambda: fs.open(ROOT / "f"),
        lambda: fs.sync_dir(ROOT),
    ):
        with pytest.raises(PowerCut):
            call()
    assert [operation.kind for operation in seen] == ["create", "pwrite", "fsync", "sync_dir", "pwrite"]
    assert [operation.kind for operation in fs.operations] == [operation.kind for operation in seen]
    assert fs.crash(Crash.NOTHING).content(ROOT / "f") == b"x"


def test_descriptors_of_the_dead_are_gone():
    fs = SimulatedFileSystem()
    fd = fs.lock(ROOT / "LOCK")
    assert fs.open_descriptors() == 1
    after = fs.kill()
    assert after.open_descriptors() == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        after.size(fd)
    after.close(after.lock(ROOT / "LOCK"))


def test_damage_by_hand_is_durable():
    fs = SimulatedFileSystem()
    created(fs, "f", b"abc")
    fs.overwrite(ROOT / "f", b"aXc")
    assert fs.crash(Crash.NOTHING).content(ROOT / "f") == b"aXc"
