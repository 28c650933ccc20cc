"""`highway log inspect` on a directory."""

from __future__ import annotations

import json

import pytest

from highway.cli.exits import Exit
from highway.storage.disk.descriptors import Descriptors
from highway.storage.disk.filesystem import OsFileSystem
from highway.storage.segment.records import RecordHeads
from highway.storage.segment.segment import Segment


@pytest.fixture
def data(tmp_path):
    """A data directory with two logs; `telemetry` has two frames of readings that compress well."""
    files = Descriptors(OsFileSystem())
    for name, counts in (("control", [1]), ("telemetry", [1000, 500])):
        directory = tmp_path / "highway-data" / "logs" / f"{name}-01020304"
        directory.mkdir(parents=True)
        segment = Segment.create(directory, files, log_uuid=b"\1" * 16, base_offset=0, epoch=1, created_ms=0, salt=7)
        heads = RecordHeads(b"highway/A1/telemetry", 1, 0)
        for count in counts:
            segment.append_frame(
                heads.encode([b'{"reading": %d}' % number for number in range(count)]),
                count=count,
                base_offset=segment.next_offset,
                min_ms=1_790_000_000_000,
                max_ms=1_790_000_000_500,
                epoch=1,
            )
    files.close()
    return tmp_path / "highway-data"


def test_every_log_with_its_frames_and_a_total(highway, data):
    ran = highway("log", "inspect")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert [line for line in lines if line.startswith("log ")] == [
        "log control  highway-data/logs/control-01020304",
        "log telemetry  highway-data/logs/telemetry-01020304",
    ]
    frames = [line.split() for line in lines if "zstd" in line or " none " in line]
    assert [(frame[1], frame[2]) for frame in frames] == [("0..0", "1"), ("0..999", "1000"), ("1000..1499", "500")]
    assert frames[1][-3:] == ["2026-09-21T14:13:20.000", "..", "2026-09-21T14:13:20.500"]
    assert lines[-1].startswith("  total: 1 segments, 2 frames, 1,500 records, ")
    assert float(lines[-1].split("ratio ")[1]) > 4


def test_one_log_as_json(highway, data):
    ran = highway("log", "inspect", "--json", "--verify", "--data-dir", data, "telemetry")
    (line,) = ran.out.splitlines()
    found = json.loads(line)
    assert (ran.code, found["log"], found["records"], found["damaged"]) == (0, "telemetry", 1500, False)
    assert found["ratio"] == round(found["raw_bytes"] / found["stored_bytes"], 2)
    (segment,) = found["segments"]
    assert [frame["base_offset"] for frame in segment["frames"]] == [0, 1000]
    assert segment["file_bytes"] == 64 + found["stored_bytes"]


def test_damage_is_shown_with_its_range_and_ends_with_5(highway, data):
    (path,) = (data / "logs" / "telemetry-01020304").iterdir()
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    ran = highway("log", "inspect", "--verify", "telemetry")
    assert ran.code == Exit.DAMAGED
    assert "damaged: bytes 64.." in ran.out
    assert "offsets 0..999: " in ran.out
    assert json.loads(highway("log", "inspect", "--verify", "--json", "telemetry").out)["damaged"] is True


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data-dir", "nowhere"], "Error: nowhere holds no logs\n"),
        (["nope"], "Error: highway-data holds no log 'nope', but control, telemetry\n"),
    ],
)
def test_not_there_ends_with_3(words, message, highway, data):
    assert highway("log", "inspect", *words) == (Exit.NOT_FOUND, "", message)
