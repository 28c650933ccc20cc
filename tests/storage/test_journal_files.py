from __future__ import annotations

from highway.clock import ManualClock
from highway.storage.filesystem import OsFileSystem
from highway.storage.journal_files import JournalFiles


def test_half_made_files_of_a_former_life_are_deleted_and_no_others(tmp_path):
    kept = ["00000000000000000003.wal", "notes.tmp", "0000000000000000000x.tmp"]
    for name in [*kept, "00000000000000000004.tmp", "00000000000000000005.tmp"]:
        (tmp_path / name).write_bytes(b"x")
    JournalFiles(OsFileSystem(), tmp_path, 4096, ManualClock()).adopt([])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
