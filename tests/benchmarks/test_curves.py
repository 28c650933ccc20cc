"""Every curve and figure can be measured at a small scale; what a message costs there is no matter for a test."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from tests.benchmarks import absolutes
from tests.benchmarks.curve_load import topic_windows
from tests.benchmarks.curves import CURVES, Curve, curve_points, write_curves

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("curve", CURVES, ids=lambda curve: curve.name)
def test_a_curve_is_measured_and_written(curve: Curve, tmp_path: Path) -> None:
    points = curve_points(curve, (10, 50), 200, 1, tmp_path)
    assert [point.size for point in points] == [10, 50]
    assert all(point.rate > 0 and point.rss_mib > 10 for point in points)
    text = write_curves(tmp_path / "out", ["- a machine"], {curve.name: points}).read_text()
    assert f"## {curve.name}: {curve.title}" in text
    assert "| 50 |" in text
    ET.parse(tmp_path / "out" / "charts" / f"curve-{curve.name}.svg")


@pytest.mark.parametrize(("topics", "messages"), [(10, 200), (50, 50), (13, 7)])
def test_every_message_is_sent_and_none_behind_another_of_its_topic(topics: int, messages: int) -> None:
    windows = topic_windows([f"t/{number:03d}" for number in range(topics)], messages)
    assert sum(due for own in windows for _, due in own) == 4 * messages
    for own in windows:
        stream = b"".join(data for data, _ in own)
        names = [part[:3] for part in stream.split(b"t/")[1:]]
        assert all(one != other for one, other in itertools.pairwise(names))


def test_the_figures_are_measured(tmp_path: Path) -> None:
    for name in ("idle", "topics", "disk", "restart"):
        (tmp_path / name).mkdir()
    found = absolutes.idle(tmp_path / "idle", connections=20, logs=20, seconds=0.2, settle=0)
    found |= absolutes.topics(tmp_path / "topics", 50)
    found |= absolutes.disk(tmp_path / "disk", 500, quiet=0.5)
    found |= absolutes.restart(tmp_path / "restart", 100_000_000, 1000)
    assert 10 < found["50 topics, each with a subscription, MB"] < 1000
    assert 10 < found["a reading of 110 bytes, re-framed, bytes"] < 110
    assert found["ready after kill -9 at 0.1 GB, s"] > 0
    assert "| processor with all idle, % | 1 |" in absolutes.write_figures(tmp_path, [], found).read_text()
