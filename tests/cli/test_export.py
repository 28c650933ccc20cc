"""`highway export`: what it writes is read back by other programs, and an export that was cut off goes on."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys

import duckdb
import pandas as pd
import pytest

from highway.cli.exits import Exit
from highway.storage import RecordHeads
from highway.storage.exporting import export, parquet_sink
from tests.cli.data_directory import RunningStorage, flip, open_storage, stopped
from tests.harness.broker_process import ROOT, wait_until

PAYLOADS = [
    b'{"speed": 81, "gps": {"lat": 48.1}, "axles": [1, 2], "ok": true, "note": "a,b\\n\\"c\\""}',
    b'{"speed": 82.5, "gps": {"lat": 48}, "axles": [], "ok": false, "note": "\xc3\xa4"}',
    b'{"speed": null, "note": "\\ud800", "ok": true}',
    b"no JSON",
    b"\xff\x00",
    b'{"speed": 84, "note": 7}',
]
FIELDS = ("--field", "speed", "--field", "lat=gps.lat", "--field", "axle=axles.0", "--field", "ok", "--field", "note")


@pytest.fixture
def data(tmp_path):
    """100 records in each of two logs, and then six of a roadside sensor in telemetry."""
    directory = stopped(tmp_path / "highway-data")
    storage = open_storage(directory)
    log = storage.logs["telemetry"]
    heads = RecordHeads(b"road/7", 1 | 4, log.delta_ms())
    log.append(heads.encode(PAYLOADS), len(PAYLOADS))
    storage.settle()
    storage.close()
    return directory


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(export, "_CHUNK_RECORDS", 10)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.usefixtures("data")
def test_jsonl_to_standard_output_and_the_records_as_dump_prints_them(highway):
    ran = highway("export", "jsonl", "telemetry")
    dumped = highway("log", "dump", "telemetry", "--json")
    assert (ran.code, ran.err) == (0, "")
    assert [json.loads(line) for line in ran.out.splitlines()] == [json.loads(line) for line in dumped.out.splitlines()]
    assert len(ran.out.splitlines()) == 106


@pytest.mark.usefixtures("data", "small_chunks")
def test_ranges_and_filters(highway, tmp_path):
    for words, offsets in {
        ("--from", "103"): [103, 104, 105],
        ("--from", "-2", "--until", "105"): [104],
        ("--from", "-2", "--topic", "highway/A1/#"): [88, 89],
        ("--until", "3"): [0, 1, 2],
        ("--until", "7d"): [],
        ("--from", "1h", "--topic", "road/+"): [100, 101, 102, 103, 104, 105],
    }.items():
        target = tmp_path / "out.jsonl"
        ran = highway("export", "jsonl", "telemetry", "-o", target, "--overwrite", "--json", *words)
        assert ran.code == 0, ran.err
        assert [row["offset"] for row in lines(target)] == offsets
        assert json.loads(ran.out)["records"] == len(offsets)
    assert not list(tmp_path.glob("*.partial*"))


def test_csv_is_read_by_pandas_and_by_the_standard_library(data, highway, tmp_path):
    target = tmp_path / "out.csv"
    ran = highway("export", "csv", "telemetry", "-o", target, *FIELDS)
    assert ran.code == 0, ran.err
    with target.open(newline="") as file:
        rows = list(csv.DictReader(file))[100:]
    assert [row["speed"] for row in rows] == ["81", "82.5", "", "", "", "84"]
    assert [row["ok"] for row in rows] == ["true", "false", "true", "", "", ""]
    assert [row["note"] for row in rows] == ['a,b\n"c"', "ä", "?", "", "", "7"]
    assert [row["payload_base64"] for row in rows] == ["", "", "", "", "/wA=", ""]
    frame = pd.read_csv(target, parse_dates=["time"])
    assert len(frame) == 106
    assert frame["speed"].dropna().tolist() == [81, 82.5, 84]
    assert frame["offset"].tolist() == list(range(106))
    assert str(frame["time"].dtype).endswith("UTC]")


@pytest.mark.usefixtures("data", "small_chunks")
def test_parquet_is_read_by_pandas_and_duckdb(highway, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_sink, "_ROW_GROUP", 25)
    target = tmp_path / "out.parquet"
    ran = highway("export", "parquet", "telemetry", "-o", target, *FIELDS, "--field", "none.at.all")
    assert ran.code == 0, ran.err
    frame = pd.read_parquet(target)
    assert frame["offset"].tolist() == list(range(106))
    assert str(frame["time"].dtype) == "datetime64[ms, UTC]"
    assert (frame["time"].astype("int64") == frame["time_ms"]).all()
    road = duckdb.sql(f"from '{target}' where topic = 'road/7' order by \"offset\"")
    types = dict(zip(road.columns, map(str, road.types), strict=True))
    assert {name: types[name] for name in ("speed", "lat", "axle", "ok", "note", "qos", "retain")} == {
        "speed": "DOUBLE",
        "lat": "DOUBLE",
        "axle": "BIGINT",
        "ok": "BOOLEAN",
        "note": "VARCHAR",
        "qos": "TINYINT",
        "retain": "BOOLEAN",
    }
    assert road.project("speed, lat, axle, ok, note").fetchall() == [
        (81.0, 48.1, 1, True, 'a,b\n"c"'),
        (82.5, 48.0, None, False, "ä"),
        (None, None, None, True, "?"),
        (None,) * 5,
        (None,) * 5,
        (84.0, None, None, None, "7"),
    ]
    assert road.project("payload_bytes").fetchall()[4] == (b"\xff\x00",)
    assert frame["none.at.all"].isna().all()
    assert set(tmp_path.iterdir()) == {tmp_path / "highway-data", target}


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_nothing_to_export_is_a_whole_file(highway, tmp_path, kind):
    target = tmp_path / f"out.{kind}"
    assert highway("export", kind, "telemetry", "-o", target, "--topic", "nobody").code == 0
    read = {"jsonl": lines, "csv": pd.read_csv, "parquet": pd.read_parquet}[kind]
    assert len(read(target)) == 0


class CutError(Exception):
    """In the place of a power cut."""


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_an_export_that_was_cut_off_goes_on(data, highway, tmp_path, monkeypatch, kind):
    whole, target = tmp_path / f"whole.{kind}", tmp_path / f"out.{kind}"
    words = ["export", kind, "telemetry", *FIELDS, "-o"]
    assert highway(*words, whole).code == 0
    save = export.Export._commit
    commits = []

    def cut(self):
        save(self)
        commits.append(self._reached.next_offset)
        if len(commits) == 4:
            raise CutError

    monkeypatch.setattr(export.Export, "_commit", cut)
    with pytest.raises(CutError):
        highway(*words, target)
    assert not target.exists()
    partial = tmp_path / f"out.{kind}.partial"
    if kind == "parquet":  # what was written and doesn't count
        (partial / "00000004.parquet").write_bytes(b"torn")
    else:
        with partial.open("ab") as file:
            file.write(b"torn" * 10_000)
    storage = open_storage(data)  # what comes meanwhile is for the next export
    log = storage.logs["telemetry"]
    log.append(RecordHeads(b"late", 0, log.delta_ms()).encode([b"late"]), 1)
    storage.settle()
    storage.close()

    other = highway("export", kind, "telemetry", "--topic", "x/#", "-o", target)
    assert other.code == Exit.FAILURE
    assert "another export: topic, fields differ" in other.err
    ran = highway(*words, target)
    assert ran.code == 0, ran.err
    assert "going on at offset 40, 40 records are there" in ran.err
    if kind == "parquet":
        pd.testing.assert_frame_equal(pd.read_parquet(target), pd.read_parquet(whole))
    else:
        assert target.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("*.partial*"))
    assert highway(*words, target).code == Exit.REFUSED, "it is there"


@pytest.mark.usefixtures("data", "small_chunks")
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_what_is_missing_beside_its_state_is_said_and_restart_begins_again(highway, tmp_path, monkeypatch, kind):
    target = tmp_path / f"out.{kind}"
    monkeypatch.setattr(export.Export, "_judged", lambda _: 1 / 0)
    monkeypatch.setattr("highway.storage.exporting.progress_file.ProgressFile.remove", lambda _: None)
    with pytest.raises(ZeroDivisionError):
        highway("export", kind, "telemetry", "-o", target)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    target.unlink()
    ran = highway("export", kind, "telemetry", "-o", target)
    assert ran.code == Exit.FAILURE
    assert "holds less than its state file says (begin again with --restart)" in ran.err
    assert highway("export", kind, "telemetry", "-o", target, "--restart").code == 0
    assert len(lines(target) if kind == "jsonl" else pd.read_parquet(target)) == 106


def test_a_killed_process_goes_on(data, tmp_path):
    target = tmp_path / "out.jsonl"
    code = (
        "import sys; from highway.cli.main import run; from highway.storage.exporting import export;"
        "export._CHUNK_RECORDS = 1; sys.exit(run(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", code, "export", "jsonl", "telemetry", "--data-dir", str(data), "-o", str(target)]
    process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)
    state = tmp_path / "out.jsonl.partial.state"
    wait_until(lambda: state.exists() or process.poll() is not None, what="the first chunk")
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False, capture_output=True)
    assert done.returncode == 0 or b"is there already" in done.stderr, done.stderr
    assert [row["offset"] for row in lines(target)] == list(range(106))


def test_a_damaged_range_is_named_and_the_rest_exported(data, highway, tmp_path):
    segment = min((data / "logs").glob("telemetry-*/*.log"))
    flip(segment, 300)
    target = tmp_path / "out.jsonl"
    ran = highway("export", "jsonl", "telemetry", "-o", target, "--json")
    assert ran.code == Exit.DAMAGED
    (lost,) = json.loads(ran.out)["lost"]
    kept = [row["offset"] for row in lines(target)]
    assert kept == [offset for offset in range(106) if not lost["from_offset"] <= offset < lost["to_offset"]]
    assert f"offsets {lost['from_offset']}..{lost['to_offset'] - 1} can't be read" in ran.err


def test_beside_a_running_broker_it_only_reads(highway, tmp_path):
    data = tmp_path / "highway-data"
    with RunningStorage(data) as running:
        running.wait_for(500)
        acknowledged = running.acknowledged["telemetry"]
        ran = highway("export", "jsonl", "telemetry", "-o", tmp_path / "out.jsonl", "--json")
        assert ran.code == 0, ran.err
    offsets = [row["offset"] for row in lines(tmp_path / "out.jsonl")]
    assert offsets == list(range(len(offsets)))
    assert len(offsets) >= acknowledged, "whatever was acknowledged before it began"


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--field", "a..b"], "'a..b' names no field"),
        (["--field", "topic"], "every row has a column 'topic'"),
        (["--field", "a", "--field", "a=b"], "asked for twice"),
        (["--from", "yesterday"], "--from"),
        (["--topic", "a/#/b"], "can't be used here"),
        (["--json"], "--json tells of the file"),
    ],
)
def test_wrong_usage(highway, words, text):
    ran = highway("export", "jsonl", "telemetry", *words)
    assert ran.code == Exit.USAGE
    assert text in ran.err
    assert ran.out == ""


@pytest.mark.usefixtures("data")
def test_parquet_without_pyarrow_says_what_to_install(highway, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "highway.storage.exporting.parquet_sink")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    ran = highway("export", "parquet", "telemetry", "-o", tmp_path / "out.parquet")
    assert ran.code == Exit.FAILURE
    assert f"{sys.executable} -m pip install 'pyarrow>=18'" in ran.err
