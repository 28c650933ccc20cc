"""Hundreds of logs: what is done once for each of them must not be what takes long."""

from __future__ import annotations

import pytest

from highway.storage import Durability, LogSettings, StorageSettings
from highway.storage.settings import KIB, MIB
from tests.storage.rig import Rig

NAMES = [f"log-{number}" for number in range(100)]


@pytest.fixture
def rig():
    """A hundred logs that were killed with frames in their segments that nobody had synced."""
    rig = Rig(settings=StorageSettings(journal_file_bytes=64 * KIB, checkpoint_bytes=64 * MIB))
    rig.open([LogSettings(name, Durability.BALANCED, flush_bytes=200) for name in NAMES])
    for payload in (b"1", bytes(300), b"3"):
        for name in NAMES:
            rig.append(name, payload)
        rig.settle()
    rig.kill()
    return rig


def test_recovery_syncs_many_segments_at_once(rig):
    done = []
    rig.filesystem.on_operation = done.append
    rig.reopen()
    rig.filesystem.on_operation = None
    syncs = [operation for operation in done if "sync" in operation.kind and "logs" in operation.path.parts]
    assert [operation.kind for operation in syncs] == ["syncfs"]


def test_what_recovery_shows_survives_the_power_cut_that_follows(rig):
    rig.reopen()
    shown = {name: rig.contents(name) for name in NAMES}
    assert all(set(contents.values()) == {b"1", bytes(300), b"3"} for contents in shown.values())
    rig.power_cut()
    rig.reopen()
    assert {name: rig.contents(name) for name in NAMES} == shown
    assert not rig.storage.report.damaged
