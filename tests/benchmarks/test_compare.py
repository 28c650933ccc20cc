"""The benchmark runs, counts right and writes its report; how fast anything is, is no matter for a test."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from tests.benchmarks import compare
from tests.benchmarks.charts import bar_chart
from tests.benchmarks.report import Results, write_report
from tests.benchmarks.rows import ROWS
from tests.benchmarks.targets import RATIO_COLUMNS, TARGETS

if TYPE_CHECKING:
    from pathlib import Path

# One of each kind.
SHORT = "QoS 1, 8 x window 100;QoS 2;QoS 0, 8;2 to 10, QoS;latency;resume;replay;storm;idle;restart"


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare.load_client, "STALL_S", compare.STALL_S)


def test_a_short_run_gives_a_figure_for_every_row(tmp_path: Path) -> None:
    path = compare.run(rounds=1, scale=0.005, only=SHORT, brokers="BALANCED;mosquitto", output=tmp_path)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [cell for cell in figures if cell["failure"]] == []
    measured = {(cell["group"], cell["row"]) for cell in figures if cell["broker"] == "Highway BALANCED"}
    words = SHORT.split(";")
    assert measured == {
        (row.group, name)
        for row in ROWS
        if any(word.strip() in f"{row.group}: {each}" for word in words for each in row.names)
        for name in row.names
    }
    assert all(figure >= 0 for cell in figures for figure in cell["figures"])
    report = path.read_text()
    assert "0.005 of the full load" in report
    assert "## Brokers and their settings" in report
    assert "FOLDER/data" in report
    assert str(tmp_path) not in report
    for chart in re.findall(r"!\[[^]]+\]\(([^)]+)\)", report):
        ET.parse(tmp_path / chart)


def test_every_target_and_ratio_is_of_something_that_is_measured() -> None:
    rows = {(row.group, name) for row in ROWS for name in row.names}
    assert [str(target) for target in TARGETS if (target.group, target.row) not in rows] == []
    names = {peer.name for peer in compare.PEERS}
    assert {peer for _, peer in RATIO_COLUMNS} <= names
    assert {f"Highway {mode}" for mode, _ in RATIO_COLUMNS} <= names
    assert len(rows) == sum(len(row.names) for row in ROWS), "two rows have one name"


def test_a_broker_that_fails_has_no_figure_and_the_report_says_why(tmp_path: Path) -> None:
    results = Results()
    results.add("ingest", "QoS 1, 8 x window 100", "/s", "Highway FAST", 500.0)
    results.add("ingest", "QoS 1, 8 x window 100", "/s", "Highway FAST", 700.0)
    results.add("ingest", "QoS 1, 8 x window 100", "/s", "Highway FAST", 600.0)
    results.add("ingest", "QoS 1, 8 x window 100", "/s", "mosquitto", 100.0)
    results.add("ingest", "QoS 1, 8 x window 100", "/s", "amqtt", None, "nothing came")
    report = write_report(tmp_path, results, [], {"RabbitMQ": "rabbitmq-server is not installed"}, [], 3, 1).read_text()
    assert "| ingest: QoS 1, 8 x window 100, FAST / mosquitto | at least 5 | 6 | yes |" in report
    assert "- ingest, QoS 1, 8 x window 100, amqtt: nothing came" in report
    assert "| RabbitMQ | rabbitmq-server is not installed" in report


def test_a_chart_has_a_bar_for_each_figure() -> None:
    rows = {"a & b": {"one": 10.0, "two": 2e6}, "c": {"one": 0.05}, "d": {}}
    root = ET.fromstring(bar_chart("Title <1>", ["one", "two"], rows, "/s"))
    texts = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text")]
    titles = [element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert {"a & b", "c", "2M/s", "10/s", "0.05/s", "Title <1> (logarithmic scale)"} <= set(texts)
    assert len(titles) == 3
    assert ET.fromstring(bar_chart("empty", [], {}, "")) is not None
