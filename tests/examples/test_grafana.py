"""The Grafana dashboard and the alert rules ask for metrics that there are, with labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from highway.metrics import METRICS

FOLDER = Path(__file__).parents[2] / "examples" / "grafana"
SERIES = {series: metric for metric in METRICS.values() for series in metric.series}
# Labels that Prometheus adds, and that its queries use.
ADDED = {"instance", "le", "job"}
# Told by a stat or a rule of its own that is not about operating: what they mean stands in README.
NOT_SHOWN = {
    "offset_not_found_total",
    "recovery_seconds",
    "recovered_records",
    "retention_deleted_bytes_total",
    "scrubbed_bytes_total",
    "segments",
}
NOT_SHOWN |= {"plugin_decision_seconds", "bridge_lag_records"}


def board() -> dict[str, object]:
    found: dict[str, object] = json.loads((FOLDER / "highway.json").read_text(encoding="utf-8"))
    return found


def rules() -> list[dict[str, object]]:
    found = yaml.safe_load((FOLDER / "alerts.yaml").read_text(encoding="utf-8"))
    return [rule for group in found["groups"] for rule in group["rules"]]


EXPRESSIONS = [
    *(target["expr"] for panel in board()["panels"] for target in panel["targets"]),
    *(rule["expr"] for rule in rules()),
]


@pytest.mark.parametrize("expression", dict.fromkeys(EXPRESSIONS))
def test_expression_asks_for_what_there_is(expression: str) -> None:
    names = re.findall(r"highway_\w+", expression)
    assert names
    assert set(names) <= set(SERIES)
    labels = {label for name in names for label in SERIES[name].labels} | ADDED
    asked = [label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")]
    asked += re.findall(r"(\w+)\s*=~?\s*\"", expression)
    assert set(asked) <= labels
    counters = [name for name in names if SERIES[name].kind != "gauge"]
    assert bool(re.search(r"(rate|increase)\(", expression)) == bool(counters)
    assert expression.count("(") == expression.count(")")


def test_legends_use_labels_that_the_metric_has() -> None:
    for panel in board()["panels"]:
        for target in panel["targets"]:
            names = re.findall(r"highway_\w+", target["expr"])
            labels = {label for name in names for label in SERIES[name].labels} | ADDED
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels


def test_everything_an_operator_watches_is_on_the_board() -> None:
    shown = {SERIES[name].name for name in re.findall(r"highway_\w+", " ".join(EXPRESSIONS))}
    assert set(METRICS) - shown == NOT_SHOWN


def test_panels_have_places_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_rules_say_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "warn")
        assert rule["annotations"]["summary"]
        assert str(rule["annotations"]["description"]).rstrip().endswith(".")
