"""Journal files: made once, used again, never replaced while they are in use."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from highway.clock import ManualClock
from highway.storage import Durability, LogSettings
from highway.storage.journal.files import JournalFiles, list_journal
from highway.storage.journal.format import parse_file_header
from tests.storage.rig import SMALL, Rig
from tests.storage.simulated_filesystem import SimulatedFileSystem

ROOT = Path("/data")


def made():
    filesystem = SimulatedFileSystem(ROOT)
    return filesystem, JournalFiles(filesystem, ROOT, 4096, ManualClock())


def test_a_file_that_is_prepared_is_the_one_that_is_taken():
    filesystem, files = made()
    files.prepare(1)
    before = len(filesystem.operations)
    file = files.take(1)
    assert len(filesystem.operations) == before, "nothing is left to do when it is needed"
    assert parse_file_header(filesystem.content(file.path), "").salt == file.salt
    assert filesystem.is_durable(file.path)


def test_a_preparation_that_comes_too_late_does_not_replace_the_file_in_use():
    filesystem, files = made()
    file = files.take(2)
    filesystem.pwrite(file.fd, b"a frame", 128)
    files.prepare(2)
    files.prepare(1)
    assert b"a frame" in filesystem.content(file.path)
    assert [sequence for sequence, _ in list_journal(filesystem, ROOT)] == [2]
    files.prepare(3)
    assert files.take(3).sequence == 3


def test_recycled_files_are_used_again_and_the_surplus_is_deleted():
    filesystem, files = made()
    for sequence in range(1, 7):
        filesystem.close(files.take(sequence).fd)
    files.recycle(6)
    assert [sequence for sequence, _ in list_journal(filesystem, ROOT)] == [4, 5, 6]
    salts = {parse_file_header(filesystem.content(path), "").salt for _, path in list_journal(filesystem, ROOT)}
    file = files.take(7)
    assert file.salt not in salts
    assert [sequence for sequence, _ in list_journal(filesystem, ROOT)] == [4, 6, 7]


def test_a_pool_that_is_late_costs_no_record():
    rig = Rig(settings=replace(SMALL, checkpoint_bytes=1 << 30))  # the journal alone has the records
    rig.open([LogSettings("a", Durability.SAFE, flush_bytes=1 << 20)])
    for number in range(200):  # without a turn of the pool the journal makes every file itself
        rig.append("a", b"%d" % number + bytes(80))
        while not rig.storage._journal.idle:
            rig.storage._journal.run_once()
    rig.settle()
    rig.kill()
    rig.reopen()
    assert not rig.storage.report.damaged
    assert len(rig.contents("a")) == 200
