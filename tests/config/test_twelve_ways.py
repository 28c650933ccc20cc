"""The twelve ways in which people get YAML wrong: each one message with its place, and all of them at once."""

from __future__ import annotations

import json

import pytest

from highway.cli.exits import Exit
from highway.cli.main import run

# What is wrong -> (the lines that are put into the file, line among them and column of the message, words of it).
WAYS = {
    "a tab": (["limits:", "\tmax_inflight: 5"], (2, 1), "tab is used for indentation; YAML allows only spaces"),
    "a duplicate key": (
        ["logging: {level: info}", "logging: {level: debug}"],
        (2, 1),
        "logging: the key stands twice here; the first is in line",
    ),
    "off": (["insecure: off"], (1, 11), "insecure: 'off' is neither true nor false; write false"),
    "a time of day": (["storage: {checkpoint_interval: 12:30}"], (1, 32), "nobody can tell; write 12h30m"),
    "an octal": (["http: {port: 0644}"], (1, 14), "http.port: '0644' is not a plain whole number; write 644"),
    "a comment for a topic": (["  - topic: #", "    log: all"], (1, 12), "'#' starts a comment in YAML; if # is meant"),
    "an unknown key": (["  - {topic: u, retenton: 7d}"], (1, 16), "retenton: unknown key; did you mean 'retention'?"),
    "a number without a unit": (["  - {topic: n, retention: 7}"], (1, 27), "retention: 7 has no unit; write 7ms, 7s"),
    "an include that can't be read": (["topics: nowhere.yaml"], (1, 9), "nowhere.yaml can't be read: No such file"),
    "the same filter twice": (
        ["  - {topic: s, log: s1}", "  - {topic: s, log: s2}"],
        (2, 13),
        "stands twice; the first",
    ),
    "a bad filter": (["  - {topic: a/#/b, log: bad}"], (1, 13), "'a/#/b' is no valid topic filter"),
    "a door that stands open": (
        ["listeners: {open: {bind: 0.0.0.0}}"],
        (1, 26),
        "listeners.open.bind: 0.0.0.0 is open to the network",
    ),
}
ENTRIES = [way for way, (lines, _, _) in WAYS.items() if lines[0].startswith("  - ")]


@pytest.fixture
def check(tmp_path, monkeypatch, capsys):
    """The problems that `highway config check --json` finds, and its exit code."""
    monkeypatch.chdir(tmp_path)

    def check(lines):
        (tmp_path / "c.yaml").write_text("\n".join(lines) + "\n")
        code = run(["config", "check", "--json", "c.yaml"])
        return code, json.loads(capsys.readouterr().out)["problems"]

    return check


@pytest.mark.parametrize("way", WAYS)
def test_each_is_one_message_with_line_and_column(way, check):
    lines, (line, column), words = WAYS[way]
    head = ["# a comment", "topics:"] if way in ENTRIES else ["# a comment"]
    code, problems = check([*head, *lines])
    assert code == Exit.USAGE
    (problem,) = problems
    assert problem.startswith(f"c.yaml:{len(head) + line}:{column}: ")
    assert words in problem


def test_all_of_them_in_one_configuration_are_told_at_once(check, tmp_path):
    """`topics` can't be a missing file and a list in one file, so that one stands in conf.d."""
    written, expected = ["# all that can be wrong"], []

    def put(way):
        lines, (line, column), words = WAYS[way]
        expected.append((f"c.yaml:{len(written) + line}:{column}: ", words))
        written.extend(lines)

    for way in WAYS:
        if way not in ENTRIES and way != "an include that can't be read":
            put(way)
    written.append("topics:")
    for way in ENTRIES:
        put(way)
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "more.yaml").write_text("topics: nowhere.yaml\n")
    expected.append(("conf.d/more.yaml:1:9: ", "nowhere.yaml can't be read"))
    code, problems = check(written)
    assert code == Exit.USAGE
    assert len(problems) == len(WAYS) == 12
    for place, words in expected:
        assert [problem for problem in problems if problem.startswith(place) and words in problem], place + words
