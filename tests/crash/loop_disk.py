"""A file system that loses its power: ext4 in a file, on a loop device. Needs root.

`cut` is the power cut. The process is stopped first: without that an fdatasync in flight could return 0 to it with
nothing stored, and it would acknowledge what never was durable. Then the file system is shut down as it stands, without
flushing its journal; the process dies, and what a new mount finds is what had been given to the device.

The kernel writes dirty pages back when it likes, and in any order. `cut` does so before the shutdown with a random
share of them, so that a later frame may be on the disk and the one before it not. What this can't show is a drive that
lies about its own cache, or a torn sector: the simulated disk of tests/storage does that.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

if TYPE_CHECKING:
    import random
    from types import TracebackType

__all__ = ["LoopDisk", "loop_disk_missing", "wait_stopped"]

_SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN
_NO_LOG_FLUSH = 2
_WRITE_AND_WAIT = 1 | 2 | 4
_PAGE_BYTES = 4096
_WRITTEN_BACK = {".wal", ".log"}
_LIBC = ctypes.CDLL(None, use_errno=True)
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_TOOLS = ("mkfs.ext4", "losetup", "mount", "umount")


def loop_disk_missing() -> str:
    """Why there can be no LoopDisk here; "" if there can."""
    if os.geteuid() != 0:
        return "needs root: mounts a file system"
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=_PATH) is None]
    if missing:
        return f"{', '.join(missing)} not installed (Debian: e2fsprogs, mount)"
    if not Path("/dev/loop-control").exists():
        return "the kernel has no loop devices"
    return ""


def _run(*command: str) -> str:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env={**os.environ, "PATH": _PATH}, timeout=60
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout.strip()


class LoopDisk:
    """An ext4 of its own, mounted while in the context."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        self.mount_point = directory / "disk"
        self._image = directory / "disk.img"
        self._size_bytes = size_bytes
        self._device = ""
        self._mounted = False

    def __enter__(self) -> Self:
        reason = loop_disk_missing()
        if reason:
            pytest.skip(reason)
        self.mount_point.mkdir()
        with self._image.open("wb") as image:
            image.truncate(self._size_bytes)
        # No blocks are kept for root, as the broker of the test is root and must meet the end of the disk.
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(self._image))
        try:
            self._device = _run("losetup", "--find", "--show", str(self._image))
        except AssertionError as error:
            pytest.skip(f"no loop device: {error}")
        try:
            self.mount()
        except BaseException:
            _run("losetup", "--detach", self._device)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._mounted:
                _run("umount", str(self.mount_point))
        except AssertionError:
            _run("umount", "--lazy", str(self.mount_point))  # a process of a failed test still has files open
        finally:
            _run("losetup", "--detach", self._device)
            self._image.unlink()

    def mount(self) -> None:
        # noauto_da_alloc: ext4 would otherwise flush a file that is renamed over another one, and hide a missing sync.
        _run("mount", "-t", "ext4", "-o", "noauto_da_alloc", self._device, str(self.mount_point))
        self._mounted = True

    def unmount(self) -> None:
        _run("umount", str(self.mount_point))
        self._mounted = False

    def cut(self, pid: int, choose: random.Random) -> None:
        """Take the power from the file system, with process `pid` stopped at that moment; then kill it.

        The caller waits for the process's end, and then calls `restore`.
        """
        share = choose.choice((0.0, 0.5, 0.9))
        descriptor = os.open(self.mount_point, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.kill(pid, signal.SIGSTOP)
            wait_stopped(pid)
            if share:
                self._write_back(choose, share)
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
            os.kill(pid, signal.SIGKILL)
        finally:
            os.close(descriptor)

    def _write_back(self, choose: random.Random, share: float) -> None:
        """Bring a share of the dirty pages to the device, without a sync: no metadata goes with them."""
        for path in sorted(self.mount_point.rglob("*")):
            if path.suffix not in _WRITTEN_BACK:
                continue
            with path.open("rb") as file:
                for position in range(0, path.stat().st_size, _PAGE_BYTES):
                    if choose.random() < share:
                        sync_file_range(file.fileno(), position, _PAGE_BYTES)

    def restore(self) -> None:
        """Switch the power on again: unmount what is dead and mount what is stored."""
        self.unmount()
        self.mount()


def sync_file_range(descriptor: int, position: int, length: int) -> None:
    """Write dirty pages back and wait for it; Python has no such call."""
    if _LIBC.sync_file_range(descriptor, ctypes.c_int64(position), ctypes.c_int64(length), _WRITE_AND_WAIT):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def wait_stopped(pid: int) -> None:
    """Wait until no thread of a process that has got SIGSTOP can run another line of its program.

    A thread that waits for the disk (D) needn't stop: on its way back from the kernel it meets the signal first.
    """
    deadline = time.monotonic() + 10
    while not set(_thread_states(pid)) <= {"T", "D", "Z"}:
        assert time.monotonic() < deadline, f"process {pid} doesn't stop: {_thread_states(pid)}"


def _thread_states(pid: int) -> list[str]:
    stats = [
        (task / "stat").read_text(encoding="utf-8", errors="replace") for task in Path(f"/proc/{pid}/task").iterdir()
    ]
    return [stat.rpartition(")")[2].split()[0] for stat in stats]  # the name before it may hold anything
