"""The short form of `python -m tests.fuzz.live`: ten seconds of the same streams; `make fuzz` makes new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fuzz.live import MIB, fuzz
from tests.harness.raw_client import close_all

if TYPE_CHECKING:
    from pathlib import Path

SEED = 20_261_130


def test_ten_seconds_of_hostile_packets(tmp_path: Path) -> None:
    outcome = fuzz(tmp_path, 10.0, SEED)
    close_all()
    assert outcome.faults == [], str(outcome)
    assert outcome.connections > 200, str(outcome)
    assert outcome.honest > 50, str(outcome)
    assert outcome.worst_s < 5.0, str(outcome)
    assert max(outcome.rss) < 400 * MIB, str(outcome)
