"""The benchmark runs and counts right; how fast it is, is no matter for a test."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.benchmarks import compare

if TYPE_CHECKING:
    import pytest


def test_a_short_benchmark_gives_a_figure_for_every_case(capsys: pytest.CaptureFixture[str]) -> None:
    compare.run(rounds=1, scale=0.01)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ") and "/s" in line]
    assert len(lines) == sum(len(modes) for _, modes, _ in compare.cases(0.01))
    assert all(re.search(r"\| [\d,]+/s \|", line) for line in lines)
