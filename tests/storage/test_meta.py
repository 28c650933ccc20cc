from __future__ import annotations

import time
from pathlib import Path

import pytest

from highway.errors import CorruptionError
from highway.storage import Durability
from highway.storage.checkpoint.meta import Meta, list_snapshots, parse_snapshot, write_snapshot
from highway.storage.disk.small_files import read_file, replace_file
from tests.storage.rig import DIRECTORY, Rig
from tests.storage.simulated_filesystem import Crash, SimulatedFileSystem

ROOT = Path("/data")
ITEMS = {b"a": b"1", b"": b"", b"session/x": b"y" * 300}


def test_items_are_found_by_prefix_and_may_change_while_they_are_walked():
    meta = Meta({b"s/1": b"a", b"s/2": b"b", b"t/1": b"c"})
    for key, _ in meta.items(b"s/"):
        meta.apply(key, None)
    assert dict(meta.items()) == {b"t/1": b"c"}
    assert meta.get(b"s/1") is None
    assert len(meta) == 1


def test_a_prefix_of_any_length_finds_its_keys():
    values = {b"": b"0", b"s": b"1", b"s/": b"2", b"s/a": b"3", b"s/ab": b"4", b"t/a": b"5"}
    meta = Meta(values)
    meta.apply(b"u/a", None)
    assert len(meta) == len(values)
    for length in range(5):
        for key in values:
            prefix = key[:length]
            assert dict(meta.items(prefix)) == {k: v for k, v in values.items() if k.startswith(prefix)}


def test_asking_for_one_kind_of_keys_does_not_cost_what_the_others_have():
    meta = Meta({b"o/%d" % number: b"" for number in range(200_000)} | {b"s/a": b"b"})
    began = time.thread_time()
    for _ in range(1000):
        assert list(meta.items(b"s/")) == [(b"s/a", b"b")]
    assert time.thread_time() - began < 2.0  # each look at all keys would take 20 ms


def test_a_snapshot_comes_back_as_it_was():
    filesystem = SimulatedFileSystem(ROOT)
    write_snapshot(filesystem, ROOT, ITEMS.items(), 42)
    ((entry, path),) = list_snapshots(filesystem, ROOT)
    assert entry == 42
    assert filesystem.is_durable(path)
    assert parse_snapshot(read_file(filesystem, path), "x") == (42, ITEMS)


def test_only_the_newest_two_snapshots_are_kept():
    filesystem = SimulatedFileSystem(ROOT)
    for entry in (3, 9, 27):
        write_snapshot(filesystem, ROOT, ITEMS.items(), entry)
    assert [entry for entry, _ in list_snapshots(filesystem, ROOT)] == [9, 27]
    assert [name for name in filesystem.listdir(ROOT) if name.endswith(".copy")] == [f"{27:020}.copy"]


def test_a_flip_of_every_byte_and_every_cut_of_a_snapshot_are_noticed():
    filesystem = SimulatedFileSystem(ROOT)
    write_snapshot(filesystem, ROOT, ITEMS.items(), 42)
    data = read_file(filesystem, list_snapshots(filesystem, ROOT)[0][1])
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 0x40
        with pytest.raises(CorruptionError):
            parse_snapshot(bytes(changed), "x")
        with pytest.raises(CorruptionError):
            parse_snapshot(data[:position], "x")


@pytest.mark.parametrize("mode", list(Crash))
def test_replacing_a_file_leaves_the_old_or_the_new_one(mode):
    filesystem = SimulatedFileSystem(ROOT)
    path = ROOT / "file"
    replace_file(filesystem, path, b"old")
    found = set()
    filesystem.on_operation = lambda _: found.add(read_file(filesystem.crash(mode), path))
    replace_file(filesystem, path, b"new")
    assert found <= {b"old", b"new"}
    assert read_file(filesystem.crash(Crash.NOTHING), path) == b"new"


def test_puts_survive_a_close_a_kill_and_a_power_cut():
    rig = Rig()
    storage = rig.open(["a"])
    storage.put([(b"k", b"1"), (b"gone", b"x")], Durability.SAFE)
    storage.put([(b"gone", None)], Durability.SAFE)
    rig.settle()
    rig.power_cut()
    assert dict(rig.reopen().meta.items()) == {b"k": b"1"}
    rig.storage.put([(b"k", b"2")])
    rig.settle()
    rig.kill()
    assert rig.reopen().meta.get(b"k") == b"2"
    rig.close()
    assert dict(rig.reopen().meta.items()) == {b"k": b"2"}
    assert rig.storage.report.clean


def test_puts_of_one_call_survive_together_or_not_at_all():
    rig = Rig()
    storage = rig.open(["a"])
    states = []
    rig.filesystem.on_operation = lambda _: states.append(rig.filesystem.crash(Crash.EVERYTHING))
    storage.put([(b"%d" % number, b"v" * 40) for number in range(30)], Durability.SAFE)
    rig.settle()
    counts = set()
    for state in states:
        after = Rig(state)
        counts.add(len(after.open(["a"]).meta))
    assert counts <= {0, 30}


def test_a_put_is_seen_at_once_and_a_put_of_nothing_costs_nothing():
    rig = Rig()
    storage = rig.open(["a"])
    storage.put([(b"k", b"v")], Durability.FAST)
    assert storage.meta.get(b"k") == b"v"
    before = len(rig.filesystem.operations)
    storage.put([])
    rig.settle()
    assert len(rig.filesystem.operations) == before


def fill(rig, rounds, start=0):
    """Write enough puts for snapshots and checkpoints to come about."""
    for number in range(start, start + rounds):
        rig.storage.put([(b"k%d" % (number % 7), b"%d" % number + bytes(400))])
        rig.settle()
    rig.advance(6)


def test_the_journal_gets_shorter_by_snapshots():
    rig = Rig()
    rig.open(["a"])
    fill(rig, 200)
    assert len(list_snapshots(rig.filesystem, DIRECTORY / "meta")) >= 1
    assert len(rig.filesystem.listdir(DIRECTORY / "journal")) <= 8, "80 kB of puts, files of 8 kB"
    expected = dict(rig.storage.meta.items())
    rig.kill()
    assert dict(rig.reopen().meta.items()) == expected


@pytest.mark.parametrize("damaged", [".snap", ".copy"])
def test_a_damaged_snapshot_has_a_copy(damaged, caplog):
    rig = Rig()
    rig.open(["a"])
    fill(rig, 200)
    expected = dict(rig.storage.meta.items())
    _, newest = list_snapshots(rig.filesystem, DIRECTORY / "meta")[-1]
    rig.kill()
    rig.filesystem.overwrite(newest.with_suffix(damaged), bytes(100))
    assert dict(rig.reopen().meta.items()) == expected
    assert not rig.storage.report.damaged
    assert (f"{newest}: at byte" in caplog.text) == (damaged == ".snap"), "in the log, with its place"


def test_a_damaged_snapshot_and_copy_fall_back_to_the_older_one_and_are_reported():
    rig = Rig()
    rig.open(["a"])
    fill(rig, 100)
    fill(rig, 100, start=100)
    _, newest = list_snapshots(rig.filesystem, DIRECTORY / "meta")[-1]
    rig.kill()
    rig.filesystem.overwrite(newest, bytes(100))
    rig.filesystem.overwrite(newest.with_suffix(".copy"), bytes(100))
    storage = rig.reopen()
    assert any(str(newest) == error.path for error in storage.report.damaged)
    assert len(storage.meta) == 7, "what the journal no longer has comes from the older snapshot"


def test_a_close_without_new_puts_writes_no_snapshot():
    rig = Rig()
    rig.open(["a"])
    rig.storage.put([(b"k", b"v")])
    rig.settle()
    rig.close()
    first = list_snapshots(rig.filesystem, DIRECTORY / "meta")
    rig.reopen()
    rig.close()
    assert list_snapshots(rig.filesystem, DIRECTORY / "meta") == first
