"""A histogram of plain integers, for what is counted where it happens and read when somebody asks.

One thread owns it and adds; any other may read, and sees counts that are at most one observation apart from their sum.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["COMMIT_RECORDS", "SECONDS", "Histogram", "quantile"]

# From a write into the page cache (20 us) to a disk that stalls.
SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
COMMIT_RECORDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)


class Histogram:
    """Counts of values by upper bound; `counts` has one more for what is above the last bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value; one that equals a bound belongs below it, as in Prometheus."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values were observed."""
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """(upper bound, values up to it) of each bucket, the last one infinite."""
        pairs, seen = [], 0
        for bound, count in zip((*self.bounds, float("inf")), list(self.counts), strict=True):
            seen += count
            pairs.append((bound, seen))
        return pairs


def quantile(before: Sequence[int], after: Sequence[int], bounds: Sequence[float], q: float) -> float | None:
    """The bound below which the share `q` of the values lies that came between two copies of `counts`.

    None without values; what is above the last bound is reported as twice it.
    """
    new = [later - earlier for earlier, later in zip(before, after, strict=True)]
    total = sum(new)
    if not total:
        return None
    seen = 0
    for bound, count in zip(bounds, new, strict=False):
        seen += count
        if seen >= q * total:
            return bound
    return bounds[-1] * 2
