from __future__ import annotations

import resource
from pathlib import Path

import pytest

from highway.storage.disk.descriptors import Descriptors, descriptor_share
from tests.storage.simulated_filesystem import SimulatedFileSystem

ROOT = Path("/data")
PATHS = [ROOT / str(number) for number in range(5)]


@pytest.fixture
def fs():
    fs = SimulatedFileSystem()
    for path in PATHS:
        fs.close(fs.open(path, create=True))
    return fs


def test_idle_files_past_the_limit_are_closed_least_recently_used_first(fs):
    files = Descriptors(fs, limit=2)
    fds = {}
    for path in (*PATHS[:2], PATHS[0], PATHS[2]):
        with files.use(path) as fds[path]:
            pass
    assert len(files) == fs.open_descriptors() == 2
    assert fs.size(fds[PATHS[0]]) == fs.size(fds[PATHS[2]]) == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        fs.size(fds[PATHS[1]])


def test_a_held_file_stays_open_past_the_limit(fs):
    files = Descriptors(fs, limit=1)
    fd = files.acquire(PATHS[0])
    for path in PATHS[1:]:
        with files.use(path):
            assert files.acquire(PATHS[0]) == fd
            files.release(PATHS[0])
    fs.pwrite(fd, b"x", 0)
    files.release(PATHS[0])
    assert len(files) == 1


def test_a_forgotten_file_closes_with_its_last_holder(fs):
    files = Descriptors(fs)
    fd = files.acquire(PATHS[0])
    files.forget(PATHS[0])
    assert fs.pread(fd, 1, 0) == b""
    files.release(PATHS[0])
    assert fs.open_descriptors() == 0
    files.forget(PATHS[1])
    with files.use(PATHS[1]):
        pass
    files.forget(PATHS[1])
    assert fs.open_descriptors() == len(files) == 0


def test_an_adopted_file_is_used_and_close_closes_all(fs):
    files = Descriptors(fs)
    fd = fs.open(PATHS[0], write=True)
    files.adopt(PATHS[0], fd)
    assert files.acquire(PATHS[0]) == fd
    files.acquire(PATHS[1])
    with files.use(PATHS[2]):
        pass
    files.close()
    assert fs.open_descriptors() == len(files) == 0


def test_a_replaced_file_stays_with_those_who_hold_it_and_the_next_gets_the_new_one(fs):
    files = Descriptors(fs, limit=2)
    with files.use(PATHS[0]) as old:
        files.replace(PATHS[0])
        with files.use(PATHS[0]) as new:
            assert new != old
            assert len(files) == 2
        fs.pread(old, 1, 0)
    assert fs.open_descriptors() == 1, "the old one is closed with its last holder"
    files.replace(PATHS[0])
    assert fs.open_descriptors() == 0
    held = files.acquire(PATHS[1])
    files.replace(PATHS[1])
    files.close()
    assert fs.open_descriptors() == 0
    assert held


def test_a_share_of_the_descriptors_is_left_for_connections(monkeypatch):
    for limits, share in (((1024, 4096), 256), ((1 << 20, 1 << 20), 512), ((2, 2), 1)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        assert descriptor_share() == share
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert descriptor_share() == 512
