"""`highway config`: check, show, schema, init."""

from __future__ import annotations

import json
from pathlib import Path

from highway.cli.exits import Exit
from highway.config.schema import ConfigFile

ROOT = Path(__file__).parents[2]


def test_check_of_a_valid_file(highway, tmp_path):
    (tmp_path / "c.yaml").write_text("topics: [{topic: a, log: x}]\n")
    assert highway("config", "check", "c.yaml") == (0, "c.yaml: valid; listens on 127.0.0.1:1883; logs: x, other\n", "")


def test_check_without_a_file_is_about_the_built_in_configuration(highway):
    ran = highway("config", "check")
    assert ran.code == 0
    assert ran.out.startswith(
        "built-in configuration: valid; listens on 127.0.0.1:1883; logs: telemetry, control, other"
    )


def test_check_lists_every_problem_and_ends_with_2(highway, tmp_path):
    (tmp_path / "c.yaml").write_text("limits: {max_inflight: 0}\nnope: 1\n")
    ran = highway("config", "check", "c.yaml")
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert ran.err.splitlines() == [
        "c.yaml:1:24: limits.max_inflight: 0 is too small: at least 1",
        f"c.yaml:2:1: nope: unknown key; one of {', '.join(sorted(ConfigFile.model_fields))} is wanted",
        "highway: 2 problems in the configuration",
    ]


def test_check_as_json(highway, tmp_path):
    (tmp_path / "bad.yaml").write_text("unmatched: drop\n")
    (tmp_path / "good.yaml").write_text("topics: [{topic: a/+}, {topic: a/b}]\n")
    ran = highway("config", "check", "--json", "bad.yaml")
    assert ran.code == Exit.USAGE
    assert json.loads(ran.out) == {
        "valid": False,
        "problems": ["bad.yaml:1:12: unmatched: 'drop' is no value here; one of reject, store is wanted"],
        "warnings": [],
    }
    ran = highway("config", "check", "--json", "good.yaml")
    found = json.loads(ran.out)
    assert (ran.code, found["valid"], len(found["warnings"])) == (0, True, 1)


def test_check_prints_warnings_beside_the_verdict(highway, tmp_path):
    (tmp_path / "c.yaml").write_text("topics: [{topic: a/+}, {topic: a/b}]\n")
    ran = highway("config", "check", "c.yaml")
    assert ran.code == 0
    assert ran.err.startswith("warning: c.yaml:1:32: topics[1].topic: never decides")


def test_environment_counts(highway, monkeypatch):
    monkeypatch.setenv("HIGHWAY__LISTENERS__LOCAL__PORT", "1884")
    assert "listens on 127.0.0.1:1884" in highway("config", "check").out
    monkeypatch.setenv("HIGHWAY__LISTNERS", "{}")
    ran = highway("config", "check")
    assert ran.code == Exit.USAGE
    assert ran.err.startswith("environment HIGHWAY__LISTNERS: listners: unknown key; did you mean 'listeners'?")


def test_shown_configuration_is_a_file_that_shows_the_same(highway, tmp_path):
    first = highway("config", "show")
    (tmp_path / "shown.yaml").write_text(first.out)
    assert highway("config", "show", "shown.yaml") == first
    as_json = highway("config", "show", "--json", "shown.yaml")
    assert json.loads(as_json.out)["limits"]["max_packet"] == "1MiB"


def test_schema_is_the_shipped_one(highway):
    assert json.loads(highway("config", "schema").out) == json.loads((ROOT / "config/highway.schema.json").read_text())


def test_show_effective_says_where_each_value_came_from(highway, tmp_path, monkeypatch):
    (tmp_path / "c.yaml").write_text("limits: {max_inflight: 5}\n")
    monkeypatch.setenv("HIGHWAY__LOGGING__LEVEL", "debug")
    ran = highway("config", "show", "--effective", "c.yaml")
    assert ran.code == 0
    assert "  max_inflight: 5" in ran.out
    assert next(line for line in ran.out.splitlines() if "max_inflight" in line).endswith("# c.yaml:1:10")
    found = json.loads(highway("config", "show", "--effective", "--json", "c.yaml").out)
    assert found["logging.level"] == {"value": "debug", "origin": "environment HIGHWAY__LOGGING__LEVEL"}
    assert found["limits.max_connections"]["origin"] == "default"


def test_diff_of_two_files_needs_no_broker(highway, tmp_path):
    (tmp_path / "a.yaml").write_text("topics: [{topic: a, log: x, durability: SAFE}]\n")
    (tmp_path / "b.yaml").write_text("topics: [{topic: a, log: x, durability: FAST}]\n")
    expected = "topics.x: durability SAFE -> FAST for new appends\n"
    assert highway("config", "diff", "b.yaml", "--against", "a.yaml") == (0, expected, "")
    assert highway("config", "diff", "a.yaml", "--against", "a.yaml") == (0, "", "nothing would change\n")
    ran = highway("config", "diff", "--json", "b.yaml", "--against", "a.yaml")
    assert json.loads(ran.out)["changes"][0]["key"] == "topics.x"
    ran = highway("config", "diff", "a.yaml")
    assert (ran.code, ran.out) == (Exit.FAILURE, "")
    assert "no broker runs on" in ran.err


def test_init_writes_files_that_check_out_and_overwrites_only_when_told(highway, tmp_path):
    ran = highway("config", "init", "etc")
    assert ran.code == 0
    assert sorted(path.name for path in (tmp_path / "etc").iterdir()) == [
        "highway.schema.json",
        "highway.yaml",
        "topics.schema.json",
        "topics.yaml",
    ]
    assert (tmp_path / "etc/highway.yaml").read_text() == (ROOT / "config/highway.yaml").read_text()
    assert highway("config", "check", "etc/highway.yaml").code == 0

    (tmp_path / "etc/topics.yaml").write_text("[]\n")
    ran = highway("config", "init", "etc")
    assert ran.code == Exit.REFUSED
    assert "topics.schema.json would be overwritten in etc; --force does that" in ran.err
    assert (tmp_path / "etc/topics.yaml").read_text() == "[]\n"
    assert highway("config", "init", "--force", "etc").code == 0
    assert (tmp_path / "etc/topics.yaml").read_text() == (ROOT / "config/topics.yaml").read_text()
    (tmp_path / "file").write_text("")
    assert highway("config", "init", "file/below").code == Exit.FAILURE
