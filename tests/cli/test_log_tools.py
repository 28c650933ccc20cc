"""`highway log verify`, `dump`, `gaps` and `repair` on real data directories, stopped, killed and in use."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from highway.cli.exits import Exit
from highway.storage.checking import verification
from tests.cli.data_directory import LOGS, RunningStorage, append, fill, flip, killed, open_storage, payload, stopped


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(verification, "_PAUSE_S", 0.01)


@pytest.fixture
def data(tmp_path):
    return stopped(tmp_path / "highway-data")


def segments(data, log="telemetry"):
    return sorted((data / "logs").glob(f"{log}-*/*.log"))


def contents(data):
    return {
        path.relative_to(data): path.read_bytes() for path in data.rglob("*") if path.is_file() and path.name != "LOCK"
    }


# verify


def test_an_intact_directory(highway, data):
    before = contents(data)
    ran = highway("log", "verify")
    assert (ran.code, ran.err) == (0, "")
    *logs, last = ran.out.splitlines()
    assert [line.split(":")[0] for line in logs] == ["log control", "log telemetry"]
    assert "100 records in" in logs[1]
    assert "offsets 0..99" in logs[1]
    assert last.endswith(" B: intact")
    assert contents(data) == before, "it only reads"


def test_an_intact_directory_after_a_kill_names_what_the_journal_holds(highway, tmp_path):
    killed(tmp_path / "highway-data")
    ran = highway("log", "verify", "--json")
    found = json.loads(ran.out)
    assert (ran.code, found["damaged"], found["lost_offsets"]) == (0, False, 0)
    telemetry = next(log for log in found["logs"] if log["log"] == "telemetry")
    assert telemetry["records_in_journal"] > 0
    assert telemetry["records"] + telemetry["records_in_journal"] == telemetry["log_end_offset"] == 100
    assert (
        sum(path.stat().st_size for path in (tmp_path / "highway-data").rglob("*") if path.is_file()) >= found["bytes"]
    )


def test_a_damaged_frame_is_named_with_log_segment_bytes_and_offsets(highway, data):
    damaged = segments(data)[0]
    flip(damaged, 200)
    ran = highway("log", "verify")
    assert (ran.code, ran.err) == (Exit.DAMAGED, "")
    (line,) = [line for line in ran.out.splitlines() if line.startswith("damaged: ")]
    assert f"{damaged.relative_to(data.parent)}: bytes 64.." in line
    assert "log telemetry lost offsets 0.." in line
    assert ran.out.splitlines()[-1].endswith("offsets lost")
    found = json.loads(highway("log", "verify", "--json").out)
    (finding,) = found["findings"]
    (lost,) = finding["lost"]
    assert found["damaged"] is True
    assert found["lost_offsets"] == lost["to_offset"] - lost["from_offset"]
    assert (finding["kind"], finding["log"], finding["position"]) == ("segment", "telemetry", 64)
    assert finding["position"] < 200 < finding["end_position"]
    assert lost["recorded"] is False


def test_damage_in_another_log_is_not_looked_for(highway, data):
    flip(segments(data)[0], 200)
    assert highway("log", "verify", "control").code == 0
    assert highway("log", "verify", "control", "telemetry").code == Exit.DAMAGED


@pytest.mark.parametrize(
    ("pattern", "position", "words"),
    [
        ("FORMAT", 20, "checksum of FORMAT"),
        ("CHECKPOINT.a", 100, "the other checkpoint counts"),
        ("meta/*.snap", 40, "another one has what it had"),
        ("meta/*.copy", 40, "another one has what it had"),
        ("logs/telemetry-*/*.idx", 90, "index checksum"),
        ("logs/telemetry-*/*.log", 50, "its index or its first frame tells"),
    ],
)
def test_damage_that_loses_nothing_is_named_too(pattern, position, words, highway, data):
    path = min(data.glob(pattern))
    flip(path, position)
    ran = highway("log", "verify")
    assert ran.code == Exit.DAMAGED
    (line,) = [line for line in ran.out.splitlines() if line.startswith("damaged: ")]
    assert str(path.relative_to(data.parent)) in line
    assert words in line
    assert ran.out.splitlines()[-1].endswith("1 damaged range, 0 offsets lost")


def test_a_damaged_journal_is_named_with_the_offsets_of_all_its_logs(highway, tmp_path):
    data = killed(tmp_path / "highway-data")
    journal = next(path for path in sorted((data / "journal").iterdir()) if b"telemetry 92" in path.read_bytes())
    flip(journal, journal.read_bytes().rindex(b"telemetry 92"))
    before = contents(data)
    found = json.loads(highway("log", "verify", "--json").out)
    finding = next(finding for finding in found["findings"] if finding["lost"])
    assert finding["kind"] == "journal"
    lost = {lost["log"]: (lost["from_offset"], lost["to_offset"]) for lost in finding["lost"]}
    assert lost == {"control": (90, 95), "telemetry": (90, 95)}
    assert contents(data) == before


def test_a_damaged_frame_in_front_of_a_gap_is_counted_once(highway, tmp_path):
    data = killed(tmp_path / "highway-data")
    with_gap = open_storage(data)
    append(with_gap.logs["control"])
    with_gap.settle()
    with_gap.close()
    (segment,) = json.loads(highway("log", "inspect", "control", "--json").out)["segments"]
    *_, last, behind = segment["frames"]
    assert behind["base_offset"] > last["base_offset"] + last["records"] == 100
    flip(segments(data, "control")[0], last["position"] + 60)
    found = json.loads(highway("log", "verify", "--json").out)
    (finding,) = (finding for finding in found["findings"] if finding["damaged"])
    assert finding["kind"] == "segment"
    assert found["lost_offsets"] == last["records"]


def test_a_missing_segment_and_a_short_one_are_losses(highway, data):
    gone, *_, active = segments(data)
    gone.unlink()
    with active.open("r+b") as file:
        file.truncate(active.stat().st_size - 5)
    ran = highway("log", "verify")
    assert ran.code == Exit.DAMAGED
    hole, short = [line for line in ran.out.splitlines() if line.startswith("damaged: ")]
    assert "offsets are missing that no gap explains; log telemetry lost offsets 0.." in hole
    assert "were durable; log telemetry lost offsets" in short
    assert short.endswith("..99")


def test_a_torn_tail_is_a_note_and_no_damage(highway, tmp_path):
    data = killed(tmp_path / "highway-data")
    active = segments(data)[-1]
    with active.open("ab") as file:
        file.write(b"\xca\xfe half a frame")
    ran = highway("log", "verify")
    assert ran.code == 0
    (line,) = [line for line in ran.out.splitlines() if line.startswith("note: ")]
    assert "torn, or being written; the journal has it" in line


def test_verify_beside_a_broker_under_load_sees_no_damage(highway, tmp_path):
    directory = tmp_path / "highway-data"
    logs = [replace(LOGS[0], segment_bytes=50_000, retention_bytes=300_000), *LOGS[1:]]
    with RunningStorage(directory, logs) as running:
        while running.starts["telemetry"] < 20_000:
            ran = highway("log", "verify", "--json")
            found = json.loads(ran.out)
            assert ran.code == 0, found["findings"]
            running.wait_for(running.acknowledged["control"] + 500)
    assert running.checkpoints > 5


@pytest.mark.parametrize(
    "words",
    [
        ("log", "verify", "--data-dir", "nowhere"),
        ("log", "dump", "telemetry", "--data-dir", "nowhere"),
        ("log", "gaps", "--data-dir", "nowhere"),
        ("log", "repair", "--data-dir", "nowhere"),
    ],
)
def test_no_data_directory_ends_with_3(words, highway):
    assert highway(*words) == (Exit.NOT_FOUND, "", "Error: nowhere is no data directory\n")


@pytest.mark.parametrize("command", ["verify", "dump", "gaps"])
def test_no_such_log_ends_with_3(command, highway, data):
    ran = highway("log", command, "nope")
    assert (ran.code, ran.out) == (Exit.NOT_FOUND, "")
    assert "holds no log 'nope', but control, telemetry" in ran.err


def test_a_newer_directory_is_refused(highway, data):
    from highway.storage.disk.layout import encode_format

    (data / "FORMAT").write_bytes(encode_format(99))
    ran = highway("log", "verify")
    assert ran.code == Exit.FAILURE
    assert "format 99" in ran.err


# dump


def offsets(out):
    return [int(line.split()[0]) for line in out.splitlines()]


@pytest.mark.parametrize("make", [stopped, killed])
def test_dump_prints_every_record_in_order(make, highway, tmp_path):
    make(tmp_path / "highway-data")
    ran = highway("log", "dump", "telemetry")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert offsets(ran.out) == list(range(100))
    offset, time, quality, topic, *words = lines[7].split()
    assert (offset, quality, topic, " ".join(words)) == ("7", "1-", "highway/A2/telemetry", "telemetry 7")
    assert time.startswith("20")
    assert time.endswith("Z")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--from", "90"], range(90, 100)),
        (["--from", "95", "--until", "98"], range(95, 98)),
        (["--from", "-3"], range(97, 100)),
        (["--until", "-97"], range(3)),
        (["--limit", "4"], range(4)),
        (["--from", "latest"], []),
        (["--from", "@0", "--limit", "1"], [0]),
        (["--from", "@2100-01-01T00:00:00Z"], []),
        (["--until", "1h"], []),
        (["--from", "1h", "--limit", "2"], [0, 1]),
        (["--topic", "highway/A0/#", "--limit", "6"], [0, 1, 2, 3, 4, 15]),
        (["--topic", "highway/A0/#", "--from", "-6"], [79, 90, 91, 92, 93, 94]),
        (["--topic", "nope"], []),
    ],
)
def test_dump_of_a_part(words, expected, highway, data):
    assert offsets(highway("log", "dump", "telemetry", *words).out) == list(expected)


def test_dump_as_json(highway, data):
    (line,) = highway("log", "dump", "control", "--from", "42", "--limit", "1", "--json").out.splitlines()
    record = json.loads(line)
    assert record["offset"] == 42
    assert record["payload"] == payload("control", 42).decode()
    assert (record["qos"], record["retain"], record["topic"]) == (1, False, "highway/A1/control")
    assert record["time"].startswith("20")


def test_dump_goes_on_behind_damage_and_says_what_is_missing(highway, data):
    flip(segments(data)[0], 200)
    ran = highway("log", "dump", "telemetry")
    assert ran.code == Exit.DAMAGED
    found = offsets(ran.out)
    assert found == list(range(found[0], 100))
    assert f"highway: offsets 0..{found[0] - 1} can't be read: " in ran.err


@pytest.mark.parametrize("words", [["--from", "soon"], ["--until", "@"], ["--topic", "a/#/b"], ["--limit", "0"]])
def test_wrong_places_are_wrong_usage(words, highway, data):
    ran = highway("log", "dump", "telemetry", *words)
    assert (ran.code, ran.out) == (Exit.USAGE, "")


# gaps and repair


def test_gaps_of_an_unclean_stop(highway, tmp_path):
    data = killed(tmp_path / "highway-data")
    open_storage(data).close()
    assert highway("log", "gaps", "telemetry") == (0, "", "no gaps\n")
    ran = highway("log", "gaps")
    (line,) = ran.out.splitlines()
    assert line.split()[:2] == ["control", f"100..{5 + 65_536 - 1}"]
    assert "unclean-stop" in line
    assert json.loads(highway("log", "gaps", "--json").out)["from_offset"] == 100


def test_gaps_without_a_checkpoint(highway, data):
    for slot in "ab":
        (data / f"CHECKPOINT.{slot}").write_bytes(b"")
    ran = highway("log", "gaps")
    assert ran.code == Exit.DAMAGED
    assert "no readable checkpoint" in ran.err


def test_repair_has_nothing_to_do(highway, data):
    before = contents(data)
    assert highway("log", "repair") == (0, "nothing to repair\n", "")
    assert highway("log", "repair", "--apply") == (0, "nothing to repair\n", "")
    assert contents(data) == before


def damage_everything(data):
    """One place in each kind of file, of which two lose records."""
    first, *_, active = segments(data)
    flip(first, 200)
    flip(active, active.stat().st_size - 3)
    flip(sorted(data.glob("logs/telemetry-*/*.idx"))[1], 90)
    flip(segments(data, "control")[0], 20)
    flip(next(data.glob("meta/*.snap")), 40)
    flip(data / "CHECKPOINT.b", 100)
    flip(data / "FORMAT", 20)


def test_repair_says_what_it_would_do_and_does_nothing(highway, data):
    damage_everything(data)
    before = contents(data)
    ran = highway("log", "repair")
    assert ran.code == Exit.DAMAGED
    assert len([line for line in ran.out.splitlines() if line.startswith("would repair ")]) == 7
    assert ran.out.splitlines()[-1] == "nothing was changed; --apply repairs"
    found = json.loads(highway("log", "repair", "--json").out)
    assert (found["applied"], len(found["findings"])) == (False, 7)
    assert contents(data) == before


def test_repair_makes_the_next_start_a_clean_one(highway, data):
    damage_everything(data)
    damaged = contents(data)
    lost = json.loads(highway("log", "verify", "--json").out)["lost_offsets"]
    ran = highway("log", "repair", "--apply", "--json")
    assert ran.code == 0, ran.out
    done = json.loads(ran.out)
    assert (done["applied"], len(done["findings"]), done["left"]) == (True, 7, [])
    ran = highway("log", "verify")
    assert ran.code == Exit.DAMAGED, "what is lost is still not there"
    assert {line.rpartition(", ")[2] for line in ran.out.splitlines() if line.startswith("damaged: ")} == {
        "recorded as a gap"
    }
    assert highway("log", "verify", "--only-new").code == 0
    recorded = [json.loads(line) for line in highway("log", "gaps", "--json").out.splitlines()]
    assert sum(gap["to_offset"] - gap["from_offset"] for gap in recorded if gap["reason"] == "corruption") == lost
    storage = open_storage(data)
    assert storage.report.clean
    assert not storage.report.damaged
    assert storage.meta.get(b"key") == b"value"
    storage.close()
    kept = b"".join(path.read_bytes() for path in (data / "quarantine").iterdir())
    for name in ("FORMAT", "CHECKPOINT.b"):
        assert damaged[next(path for path in damaged if path.name == name)] in kept, "what was replaced is kept"


def test_repair_cuts_a_torn_tail_into_quarantine(highway, tmp_path):
    data = killed(tmp_path / "highway-data")
    active = segments(data)[-1]
    with active.open("ab") as file:
        file.write(b"\xca\xfe half a frame")
    assert highway("log", "repair").code == 0, "a torn tail is no damage"
    ran = highway("log", "repair", "--apply")
    assert ran.code == 0
    assert "torn bytes cut and kept in quarantine" in ran.out
    assert any(b"half a frame" in path.read_bytes() for path in (data / "quarantine").iterdir())
    assert highway("log", "verify").out.splitlines()[-1].endswith("intact")
    assert offsets(highway("log", "dump", "telemetry").out) == list(range(100))


def test_repair_is_refused_beside_a_running_broker(highway, tmp_path):
    data = tmp_path / "highway-data"
    storage = fill(data)
    flip(segments(data)[0], 200)
    before = contents(data)
    ran = highway("log", "repair", "--apply")
    assert (ran.code, ran.out) == (Exit.REFUSED, "")
    assert "in use by pid" in ran.err
    assert highway("log", "repair").code == Exit.DAMAGED, "looking is allowed"
    assert contents(data) == before
    storage.close()


def test_repair_stops_before_evidence_would_be_lost(highway, data, monkeypatch):
    monkeypatch.setattr("highway.storage.recovery.quarantine._MAX_BYTES", 10)
    flip(min(data.glob("logs/telemetry-*/*.idx")), 90)
    before = contents(data)
    ran = highway("log", "repair", "--apply")
    assert ran.code == Exit.FAILURE
    assert "no room for a copy" in ran.err
    assert contents(data) == before


def test_repair_without_any_checkpoint_scans_everything(highway, data):
    for slot in "ab":
        flip(data / f"CHECKPOINT.{slot}", 100)
    assert "everything is scanned instead" in highway("log", "repair").out
    assert highway("log", "repair", "--apply").code == 0
    shutil.rmtree(data / "quarantine")
    assert highway("log", "verify").code == 0
    assert offsets(highway("log", "dump", "telemetry").out) == list(range(100))


def test_a_bar_of_bytes_only_where_somebody_sees_it(highway, data, monkeypatch):
    import sys

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    ran = highway("log", "verify")
    assert ran.code == 0
    assert ran.out.splitlines()[-1].endswith("intact")


# compact


def test_compact_says_what_it_would_do_and_does_nothing(highway, data):
    before = contents(data)
    ran = highway("log", "compact", "telemetry")
    assert (ran.code, ran.err) == (0, "")
    line, last = ran.out.splitlines()
    assert line.startswith("log telemetry: 100 records of ")
    assert last == "nothing was changed; --apply compacts"
    assert contents(data) == before
    (found,) = map(json.loads, highway("log", "compact", "telemetry", "--json").out.splitlines())
    assert (found["records"], found["records_left"], found["applied"]) == (100, found["topics"], False)


def test_compact_keeps_the_newest_of_each_topic_at_its_offset(highway, data):
    def dumped(*words):
        return [json.loads(line) for line in highway("log", "dump", "telemetry", "--json", *words).out.splitlines()]

    before = dumped()
    newest = {record["topic"]: record for record in before}
    ran = highway("log", "compact", "telemetry", "--apply", "--json")
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran.out)
    assert (found["records"], found["records_left"], found["topics"]) == (100, len(newest), len(newest))
    assert found["bytes_left"] < found["bytes"]
    assert dumped() == sorted(newest.values(), key=lambda record: record["offset"])
    topic = before[-1]["topic"]
    assert dumped("--topic", topic) == [newest[topic]]
    assert dumped("--from", "-2") == sorted(newest.values(), key=lambda record: record["offset"])[-2:]
    assert highway("log", "gaps", "telemetry").out == ""
    verified = highway("log", "verify")
    assert (verified.code, "damaged" in verified.out, "note" in verified.out) == (0, False, False)
    assert json.loads(highway("log", "compact", "telemetry", "--apply", "--json").out)["records"] == len(newest)


def test_compact_is_refused_beside_a_running_broker(highway, tmp_path):
    data = tmp_path / "highway-data"
    storage = fill(data)
    before = contents(data)
    ran = highway("log", "compact", "telemetry", "--apply")
    assert (ran.code, ran.out) == (Exit.REFUSED, "")
    assert "in use by pid" in ran.err
    assert highway("log", "compact", "telemetry").code == 0, "looking is allowed"
    assert contents(data) == before
    storage.close()


def test_compact_wants_to_be_told_which_log(highway, data):
    assert highway("log", "compact").code == 2
    assert highway("log", "compact", "nope").code == Exit.NOT_FOUND
