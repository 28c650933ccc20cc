"""`highway backup` on real data directories, stopped, killed and under load."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace

import pytest

from highway.cli.exits import Exit
from highway.storage.checking import verification
from highway.storage.disk.filesystem import OsFileSystem
from tests.cli.data_directory import LOGS, RunningStorage, append, flip, killed, open_storage, payload, stopped


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(verification, "_PAUSE_S", 0.01)


@pytest.fixture
def data(tmp_path):
    return stopped(tmp_path / "highway-data")


def files(directory):
    return {str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()}


def served(directory, logs=LOGS):
    """{log: {offset: payload}} of what a broker that starts there serves; and its report."""
    storage = open_storage(directory, logs)
    found = {}
    for name, log in storage.logs.items():
        found[name] = {}
        offset = log.log_start_offset
        while offset < log.high_watermark:
            batches = []
            log.load(offset, batches.append)
            storage.settle()
            if not hasattr(batches[0], "records"):
                break
            found[name].update({record[0]: record[5] for record in batches[0].records()})
            offset = batches[0].end_offset
    report = storage.report
    key = storage.meta.get(b"key")
    storage.close()
    return found, report, key


def expected(count=100):
    return {log.name: {offset: payload(log.name, offset) for offset in range(count)} for log in LOGS}


@pytest.mark.parametrize("make", [stopped, killed])
@pytest.mark.parametrize("words", [[], ["--copy"]])
def test_there_and_back(words, make, highway, tmp_path):
    make(tmp_path / "highway-data")
    ran = highway("backup", "create", "b", *words)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines()[:2] == ["log control: offsets 0..99", "log telemetry: offsets 0..99"]
    assert highway("backup", "verify", "b").out.splitlines()[-1].endswith("intact")
    ran = highway("backup", "restore", "b", "--data-dir", "new")
    assert (ran.code, ran.err) == (0, "")
    found, report, key = served(tmp_path / "new")
    assert found == expected()
    assert key == b"value"
    assert not report.clean, "a restored directory begins a new epoch"
    assert not report.damaged
    assert not files(tmp_path / "new").keys() & {"MANIFEST.json"}


def test_sealed_segments_are_linked_and_everything_else_is_copied(highway, data, tmp_path):
    made = json.loads(highway("backup", "create", "b", "--json").out)
    linked = {name for name, path in files(tmp_path / "b").items() if path.stat().st_nlink == 2}
    sealed = {name for name, path in files(data).items() if path.with_suffix(".idx").exists()}
    assert linked == sealed != set()
    assert made["linked"] == len(linked)
    assert made["damaged"] == []
    assert json.loads(highway("backup", "create", "c", "--copy", "--json").out)["linked"] == 0
    assert not any(path.stat().st_nlink > 1 for path in files(tmp_path / "c").values())


def test_another_disk_is_copied_to(highway, data, tmp_path, monkeypatch):
    def link(self, source, target):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(OsFileSystem, "link", link)
    assert json.loads(highway("backup", "create", "b", "--json").out)["linked"] == 0
    assert highway("backup", "verify", "b").code == 0


def test_the_manifest_lists_every_file_with_size_and_checksum(highway, data, tmp_path):
    made = json.loads(highway("backup", "create", "b", "--json").out)
    manifest = json.loads((tmp_path / "b" / "MANIFEST.json").read_text())
    listed = {file["path"]: file["bytes"] for file in manifest["files"]}
    there = {name: path.stat().st_size for name, path in files(tmp_path / "b").items()}
    del there["MANIFEST.json"]
    assert listed == there
    assert (made["files"], made["bytes"]) == (len(there), sum(there.values()))
    assert manifest["source"] == str(data)
    assert {log["name"]: log["log_end_offset"] for log in manifest["logs"]} == {"control": 100, "telemetry": 100}
    assert "LOCK" not in there


def test_a_backup_beside_a_broker_under_load_has_everything_that_was_acknowledged(highway, tmp_path):
    logs = [replace(LOGS[0], segment_bytes=50_000, retention_bytes=300_000), *LOGS[1:]]
    promised = []
    with RunningStorage(tmp_path / "highway-data", logs) as running:
        while running.starts["telemetry"] < 15_000 or len(promised) < 3:
            promised.append((dict(running.acknowledged), dict(running.starts)))
            ran = highway("backup", "create", f"b{len(promised)}", *(["--copy"] if len(promised) % 2 else []))
            assert (ran.code, ran.err) == (0, "")
            running.wait_for(running.acknowledged["control"] + 3000)
    for number, (acknowledged, starts) in enumerate(promised, 1):
        assert highway("backup", "verify", f"b{number}").code == 0
        assert highway("backup", "restore", f"b{number}", "--data-dir", f"r{number}").code == 0
        found, report, _ = served(tmp_path / f"r{number}", logs)
        assert not report.damaged
        for name, end in acknowledged.items():
            assert all(data == payload(name, offset) for offset, data in found[name].items())
            assert list(found[name]) == list(range(min(found[name]), max(found[name]) + 1))
            assert min(found[name]) >= starts[name]
            assert max(found[name]) >= end - 1, f"{name}: {end} were acknowledged before backup {number}"
            assert name != "control" or min(found[name]) == 0


def test_offsets_after_a_restore_go_on_and_the_backup_is_not_touched(highway, data, tmp_path):
    highway("backup", "create", "b")
    before = {name: path.read_bytes() for name, path in files(tmp_path / "b").items()}
    highway("backup", "restore", "b", "--data-dir", "new")
    storage = open_storage(tmp_path / "new")
    assert storage.logs["telemetry"].epoch == 2
    assert append(storage.logs["telemetry"]) == 105
    storage.settle()
    storage.close()
    assert {name: path.read_bytes() for name, path in files(tmp_path / "b").items()} == before
    storage = open_storage(data)
    append(storage.logs["telemetry"], 300)
    storage.settle()
    storage.close()
    assert highway("backup", "verify", "b").code == 0, "a broker never changes what it has sealed"


def test_repairing_the_source_does_not_reach_into_a_backup(highway, data):
    highway("backup", "create", "b")
    sealed = min(data.glob("logs/telemetry-*/*.log"))
    copied = json.loads(highway("backup", "verify", "b", "--json").out)
    assert copied["damaged"] is False
    flip(sealed, 20)  # the same file: a link is no second copy
    assert highway("backup", "verify", "b").code == Exit.DAMAGED
    assert highway("log", "repair", "--apply").code == 0
    assert sealed.stat().st_nlink == 1, "the header was written again in a file of its own"


# Damage.


@pytest.mark.parametrize("pattern", ["logs/telemetry-*/*.log", "logs/*/*.idx", "meta/*.snap", "CHECKPOINT.a", "FORMAT"])
def test_a_damaged_file_of_a_backup_is_named_and_not_restored(pattern, highway, data, tmp_path):
    highway("backup", "create", "b", "--copy")
    damaged = min((tmp_path / "b").glob(pattern))
    flip(damaged, 45)
    ran = highway("backup", "verify", "b")
    assert ran.code == Exit.DAMAGED
    assert f"{damaged.relative_to(tmp_path)}: byte 0: " in ran.out
    assert "the manifest says" in ran.out
    found = json.loads(highway("backup", "verify", "b", "--json").out)
    assert found["damaged"] is True
    if pattern == "FORMAT":
        return
    ran = highway("backup", "restore", "b", "--data-dir", "new")
    assert (ran.code, ran.out) == (Exit.DAMAGED, "")
    assert "new is incomplete" in ran.err
    assert highway("log", "verify", "--data-dir", "new").code == Exit.FAILURE, "no broker would start with it"
    ran = highway("backup", "restore", "b", "--data-dir", "other", "--accept-damage")
    assert ran.code == Exit.DAMAGED
    found, _, _ = served(tmp_path / "other")
    for name, contents in found.items():
        assert contents.items() <= expected()[name].items()
        assert len(contents) > 50


def test_offsets_that_a_damaged_backup_has_lost_are_named(highway, data, tmp_path):
    highway("backup", "create", "b", "--copy")
    flip(min((tmp_path / "b").glob("logs/telemetry-*/*.log")), 200)
    ran = highway("backup", "verify", "b")
    assert "log telemetry lost offsets 0.." in ran.out


def test_missing_and_foreign_files_of_a_backup(highway, data, tmp_path):
    highway("backup", "create", "b")
    (tmp_path / "b" / "meta" / "note.snap").write_bytes(b"x")
    min((tmp_path / "b").glob("logs/telemetry-*/*.idx")).unlink()
    ran = highway("backup", "verify", "b")
    assert ran.code == Exit.DAMAGED
    assert "the file is missing" in ran.out
    assert "note: b/meta/note.snap: byte 0: 1 B that the manifest doesn't know" in ran.out


def test_a_damaged_manifest(highway, data, tmp_path):
    highway("backup", "create", "b")
    flip(tmp_path / "b" / "MANIFEST.json", 30)
    for words in (["verify", "b"], ["restore", "b", "--data-dir", "new"]):
        ran = highway("backup", *words)
        assert (ran.code, ran.out) == (Exit.DAMAGED, "")
        assert "the manifest's checksum is wrong" in ran.err
    assert not (tmp_path / "new").exists()


def test_a_damaged_source_is_backed_up_as_it_is_and_said(highway, tmp_path):
    data = killed(tmp_path / "highway-data")
    journal = next(path for path in sorted((data / "journal").iterdir()) if b"telemetry 92" in path.read_bytes())
    flip(journal, journal.read_bytes().rindex(b"telemetry 92"))
    ran = highway("backup", "create", "b")
    assert ran.code == Exit.DAMAGED
    assert "damaged in highway-data: " in ran.out
    assert highway("backup", "restore", "b", "--data-dir", "new").code == 0, "every file is as the manifest says"
    found, report, _ = served(tmp_path / "new")
    assert len(report.damaged) == 1
    assert found["telemetry"] == {
        offset: data for offset, data in expected()["telemetry"].items() if not 90 <= offset < 95
    }


def test_a_source_with_a_missing_segment_is_backed_up_without_it(highway, data, tmp_path):
    *_, active = sorted(data.glob("logs/telemetry-*/*.log"))
    active.unlink()
    ran = highway("backup", "create", "b")
    assert ran.code == Exit.DAMAGED
    assert str(active.name) in ran.out
    highway("backup", "restore", "b", "--data-dir", "new")
    found, _, _ = served(tmp_path / "new")
    assert found["control"] == expected()["control"]
    assert found["telemetry"].items() < expected()["telemetry"].items()


# Refusals.


def test_a_target_that_is_not_empty_is_refused(highway, data, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    ran = highway("backup", "create", "full")
    assert (ran.code, ran.out) == (Exit.REFUSED, "")
    assert "full isn't empty" in ran.err
    assert highway("backup", "create", "b").code == 0
    ran = highway("backup", "restore", "b")
    assert (ran.code, ran.out) == (Exit.REFUSED, "")
    assert "highway-data isn't empty" in ran.err
    assert highway("backup", "create", "highway-data/b").code == Exit.REFUSED
    (tmp_path / "empty").mkdir()
    assert highway("backup", "create", "empty").code == 0
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["file"]


@pytest.mark.parametrize("command", ["verify", "restore"])
def test_what_is_no_backup_ends_with_3(command, highway, tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("b", "nowhere"):
        ran = highway("backup", command, name)
        assert (ran.code, ran.out) == (Exit.NOT_FOUND, "")
        assert f"{name} is no backup" in ran.err
    assert not (tmp_path / "highway-data").exists()


def test_nothing_to_back_up_ends_with_3(highway):
    assert highway("backup", "create", "b") == (Exit.NOT_FOUND, "", "Error: highway-data is no data directory\n")


def test_a_full_disk_leaves_no_backup(highway, data, tmp_path, monkeypatch):
    written = OsFileSystem.pwrite
    count = [0]

    def pwrite(self, fd, content, position):
        count[0] += 1
        if count[0] > 5:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written(self, fd, content, position)

    monkeypatch.setattr(OsFileSystem, "pwrite", pwrite)
    ran = highway("backup", "create", "b", "--copy")
    assert ran.code == Exit.FAILURE
    assert "came to no end: [Errno 28]" in ran.err
    assert highway("backup", "verify", "b").code == Exit.NOT_FOUND
