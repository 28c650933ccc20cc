"""`/metrics` of a running broker: every metric of the table, and values that say what happened."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from highway.metrics import METRICS
from highway.metrics.table import COUNTER, HISTOGRAM
from tests.harness.http import request

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.harness.broker_process import BrokerProcess
    from tests.harness.http import Answer


def samples(answer: Answer) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every time series by its name and labels."""
    families = text_string_to_metric_families(answer.body.decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(found: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float:
    return found[f"highway_{name}", frozenset(labels.items())]


def test_every_metric_of_the_table_is_exposed_with_its_kind_and_sentence(get: Callable[..., Answer]) -> None:
    answer = get("/metrics")
    assert answer.content_type == "text/plain"
    told = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
    for metric in METRICS.values():
        family = told.pop(metric.full_name.removesuffix("_total"))
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)
    assert not told


def test_what_was_published_is_counted_by_log_and_qos(broker: BrokerProcess, get: Callable[..., Answer]) -> None:
    before = samples(get("/metrics"))
    with broker.client("metrics-reader") as reader, broker.client("metrics-publisher") as publisher:
        reader.subscribe(("small/#", 1))
        publisher.publish("small/a", b"x" * 100, qos=1)
        assert reader.messages(1)
        found = samples(get("/metrics"))
    received = {"log": "small", "qos": "1"}
    assert value(found, "publish_received_total", **received) == value(before, "publish_received_total", **received) + 1
    assert value(found, "publish_received_total", log="road", qos="0") == 3000
    assert value(found, "high_watermark", log="small") == value(before, "high_watermark", log="small") + 1
    assert value(found, "connections") == value(before, "connections") + 2
    assert value(found, "connects_total", result="accepted") == value(before, "connects_total", result="accepted") + 2
    assert value(found, "publish_sent_total") == value(before, "publish_sent_total") + 1
    assert value(found, "append_to_ack_seconds_count", durability="BALANCED") > 0
    assert value(found, "commit_records_sum") >= value(before, "commit_records_sum") + 1
    assert value(found, "subscribers", state="live") == 1
    assert value(found, "read_only") == 0
    assert value(found, "disk_free_bytes") > 0


def test_offsets_that_are_not_there_are_counted(get: Callable[..., Answer]) -> None:
    before = value(samples(get("/metrics")), "offset_not_found_total")
    assert get("/api/v1/logs/road/records/99999").status == 404
    assert value(samples(get("/metrics")), "offset_not_found_total") == before + 1


def test_readers_of_the_log_are_counted_as_replay(broker: BrokerProcess, get: Callable[..., Answer]) -> None:
    before = value(samples(get("/metrics")), "replayed_records_total", log="road")
    with broker.client("replayer") as reader:
        reader.subscribe(("$replay/-10/highway/#", 0))
        reader.messages(10)
    assert value(samples(get("/metrics")), "replayed_records_total", log="road") >= before + 10


def test_openmetrics_where_it_is_asked_for(broker: BrokerProcess) -> None:
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    answer = request(broker.data / "admin.sock", "/metrics", headers=accept)
    assert answer.content_type == "application/openmetrics-text"
    assert answer.body.endswith(b"# EOF\n")


def test_names_follow_the_rules_of_prometheus() -> None:
    for metric in METRICS.values():
        assert re.fullmatch(r"[a-z][a-z_]*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == COUNTER)
        assert ("_seconds" in metric.name) == (metric.unit == "seconds")
        assert metric.kind != HISTOGRAM or metric.series[0].endswith("_bucket")
        assert metric.help.endswith(".")
        assert "topic" not in metric.labels


def test_table_in_the_readme_is_the_table(pytestconfig: object) -> None:
    root: Path = pytestconfig.rootpath  # type: ignore[attr-defined]
    lines = (root / "README.md").read_text(encoding="utf-8").splitlines()
    for metric in METRICS.values():
        labels = ", ".join(metric.labels) or "-"
        assert f"| `{metric.full_name}` | {metric.kind} | {metric.unit} | {labels} | {metric.help} |" in lines
    assert sum(line.startswith("| `highway_") for line in lines) == len(METRICS)
