"""What Highway measures: the table of all metrics, and the plain integers of a histogram."""

from __future__ import annotations

from .histogram import Histogram
from .table import METRICS, Metric

__all__ = ["METRICS", "Histogram", "Metric"]
