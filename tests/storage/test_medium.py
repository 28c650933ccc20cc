from __future__ import annotations

import logging
from pathlib import Path

import pytest

from highway.errors import DataDirectoryError
from highway.storage import OsFileSystem, StorageSettings
from highway.storage.disk.medium import fit_to_disk
from highway.storage.settings import MIB
from tests.storage.rig import DIRECTORY, Rig


@pytest.mark.parametrize("kind", ["nfs", "smb"])
def test_a_network_file_system_is_refused_before_anything_is_touched(kind):
    rig = Rig()
    rig.filesystem.kind_name = kind
    with pytest.raises(DataDirectoryError, match=f"{DIRECTORY} is on {kind}: .*choose a directory on a local disk"):
        rig.open(["a"])
    assert rig.filesystem.operations == []


@pytest.mark.parametrize("kind", ["tmpfs", "overlayfs", "fuse", "9p"])
def test_a_file_system_that_forgets_is_warned_of(kind, caplog):
    rig = Rig()
    rig.filesystem.kind_name = kind
    rig.open(["a"])
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{DIRECTORY} is on {kind}: " in warning.getMessage()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
def test_the_kernel_says_what_a_directory_is_on():
    assert OsFileSystem().kind(Path("/dev/shm")) == "tmpfs"
    assert OsFileSystem().kind(Path("/proc")) == ""
    assert OsFileSystem().kind(Path("/nowhere")) == ""


def test_a_small_disk_gets_a_small_journal_and_a_small_reserve():
    fitted = fit_to_disk(StorageSettings(), 64 * MIB)
    assert fitted.journal_file_bytes == fitted.checkpoint_bytes == fitted.reserve_bytes == 4 * MIB
    assert fit_to_disk(StorageSettings(), 1 << 40) == StorageSettings()
    assert fit_to_disk(StorageSettings(), 100).journal_file_bytes == MIB
