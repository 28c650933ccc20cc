"""The conformance table of the package's README against the statement ids in the code."""

from __future__ import annotations

import re
from pathlib import Path

import highway

SOURCE = Path(highway.__file__).parent
README = SOURCE / "mqtt" / "README.md"
# A version counts for the ids that follow it with nothing but commas between: `5.0 [MQTT-1.5.4-1], [MQTT-1.5.4-2]`.
GROUP = re.compile(r"(?:(3\.1\.1|5\.0) )?(\[MQTT-[\d.-]+\](?:, *\[MQTT-[\d.-]+\])*)")
STATEMENT = re.compile(r"MQTT-[\d.-]+")
ROW = re.compile(r"^\| (MQTT-[\d.-]+) \| (3\.1\.1|5\.0|both) \| ([^|]+) \| [^|]+ \|$", re.MULTILINE)
VERSIONS = {"3.1.1": {"3.1.1"}, "5.0": {"5.0"}, "both": {"3.1.1", "5.0"}}


def ids_in_code() -> dict[str, dict[str, set[str]]]:
    """{file: {id: versions that it stands for there}}, no versions for an id without a mark."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        text = re.sub(r"\s*\n\s*#?\s*", " ", path.read_text())
        ids: dict[str, set[str]] = {}
        for version, group in GROUP.findall(text):
            for statement in STATEMENT.findall(group):
                ids.setdefault(statement, set()).update({version} - {""})
        found[path.relative_to(SOURCE).as_posix()] = ids
    return found


def rows() -> list[tuple[str, str, list[str]]]:
    return [
        (statement, version, re.findall(r"`([^`]+)`", where))
        for statement, version, where in ROW.findall(README.read_text())
    ]


def test_every_id_in_the_code_is_in_the_table():
    known: dict[str, set[str]] = {}
    for statement, version, _ in rows():
        known.setdefault(statement, set()).update(VERSIONS[version])
    missing = [
        f"{file}: {statement} {' '.join(sorted(versions - known.get(statement, set())))}"
        for file, ids in ids_in_code().items()
        for statement, versions in ids.items()
        if statement not in known or not versions <= known[statement]
    ]
    assert missing == [], "add rows to highway/mqtt/README.md"


def test_every_row_names_files_that_enforce_it():
    code = ids_in_code()
    wrong = [
        f"{statement} ({version}) is not in {file}"
        for statement, version, files in rows()
        for file in files
        if statement not in code.get(file, {})
    ]
    assert wrong == []
    assert all(files for _, _, files in rows())


def test_every_version_in_the_table_is_in_the_code():
    code = ids_in_code()
    for statement, version, files in rows():
        marks = [code[file][statement] for file in files]
        if all(marks):
            assert VERSIONS[version] <= set().union(*marks), statement


def test_rows_are_sorted_and_stand_once():
    def key(row):
        return [int(number) for number in re.findall(r"\d+", row[0])], row[1]

    found = rows()
    assert found == sorted(found, key=key)
    assert len({(statement, version) for statement, version, _ in found}) == len(found)
    assert len(found) > 100
