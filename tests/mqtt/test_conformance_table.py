"""Every statement of the two specifications: at the line that enforces it, and in the table of the package's README."""

from __future__ import annotations

import json
import re
from pathlib import Path

import highway

SOURCE = Path(highway.__file__).parent
README = SOURCE / "mqtt" / "README.md"
STATEMENT_IDS = Path(__file__).parents[1] / "conformance" / "statement_ids.json"
VERSIONS = ("3.1.1", "5.0")
# A version counts for the ids that follow it with nothing but commas between: `5.0 [MQTT-1.5.4-1], [MQTT-1.5.4-2]`.
# Without a version an id stands for both.
GROUP = re.compile(r"(?:(3\.1\.1|5\.0) )?(\[MQTT-[\d.-]+\](?:, *\[MQTT-[\d.-]+\])*)")
STATEMENT = re.compile(r"MQTT-[\d.-]*\d")
ROW = re.compile(r"^\| (MQTT-[\d.-]+) \| (3\.1\.1|5\.0|both) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
# Why a statement is at no line, as the first words of its note.
REASONS = ("the client's duty", "does not arise")


def versions(mark: str) -> tuple[str, ...]:
    return VERSIONS if mark in ("", "both") else (mark,)


def claims_of_the_code() -> set[tuple[str, str, str]]:
    """(file, statement, version) for every id in the source."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        text = re.sub(r"\s*\n\s*#?\s*", " ", path.read_text())
        file = path.relative_to(SOURCE).as_posix()
        for mark, group in GROUP.findall(text):
            found |= {(file, one, version) for one in STATEMENT.findall(group) for version in versions(mark)}
    return found


def rows() -> list[tuple[str, str, list[str], str]]:
    """(statement, version or both, files, note)"""
    return [
        (statement, mark, re.findall(r"`([^`]+)`", where), note)
        for statement, mark, where, note in ROW.findall(README.read_text())
    ]


def statement_ids() -> set[tuple[str, str]]:
    """Every (statement, version) that there is."""
    listed = json.loads(STATEMENT_IDS.read_text())
    return {(statement, version) for version in VERSIONS for statement in listed[version]}


def test_the_table_and_the_code_say_the_same():
    table = {(file, one, version) for one, mark, files, _ in rows() for file in files for version in versions(mark)}
    code = claims_of_the_code()
    assert sorted(code - table) == [], "in the code: add these to the table of highway/mqtt/README.md"
    assert sorted(table - code) == [], "in the table: no such id is in that file"


def test_every_statement_is_in_the_table():
    known = {(statement, version) for statement, mark, _, _ in rows() for version in versions(mark)}
    assert sorted(statement_ids() - known) == [], "neither at a line nor in the table with a reason"
    assert sorted(known - statement_ids()) == [], "no specification has these"


def test_a_statement_that_is_at_no_line_has_a_reason():
    for statement, _, files, note in rows():
        assert bool(files) is not note.startswith(REASONS), f"{statement}: {note}"


def test_every_mention_of_a_statement_is_a_claim():
    """An id in brackets and in no other form, so that none escapes the comparison."""
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        assert len(STATEMENT.findall(text)) == len(re.findall(r"\[MQTT-[\d.-]+\]", text)), path


def test_rows_are_sorted_and_stand_once():
    def key(row):
        return [int(number) for number in re.findall(r"\d+", row[0])], row[1]

    found = rows()
    assert found == sorted(found, key=key)
    claimed = [(statement, version) for statement, mark, _, _ in found for version in versions(mark)]
    assert len(set(claimed)) == len(claimed)
