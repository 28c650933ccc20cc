"""Histograms of plain integers."""

from __future__ import annotations

import pytest

from highway.metrics import Histogram
from highway.metrics.histogram import quantile


def test_a_value_belongs_to_the_first_bound_that_it_does_not_exceed() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 7.0):
        histogram.observe(value)
    assert histogram.counts == [2, 2, 1]
    assert (histogram.count, histogram.total) == (5, 12.0)
    assert histogram.cumulative() == [(1.0, 2), (2.0, 4), (float("inf"), 5)]


@pytest.mark.parametrize(
    ("after", "q", "expected"),
    [
        ([5, 0, 0], 0.99, None),  # nothing new
        ([15, 0, 0], 0.99, 1.0),
        ([104, 1, 0], 0.99, 1.0),
        ([103, 2, 0], 0.99, 2.0),
        ([5, 0, 1], 0.5, 4.0),
    ],
)
def test_quantile_between_two_moments(after: list[int], q: float, expected: float | None) -> None:
    assert quantile([5, 0, 0], after, (1.0, 2.0), q) == expected
