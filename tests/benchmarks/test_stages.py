"""The stages can be measured; what they take is for a quiet machine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from highway.storage import Durability
from tests.benchmarks import stages

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_every_stage_has_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "MESSAGES", 200)
    monkeypatch.setattr(stages, "REPETITIONS", 2)

    async def measure() -> stages.Stages:
        found = stages.Stages(tmp_path / "data", Durability.SAFE, asyncio.get_running_loop())
        try:
            await found.run()
        finally:
            found.close()
        return found

    found = asyncio.run(measure())
    assert len(found.found) == 8
    assert min(found.found.values()) > 0
    assert found.broker.counters.publish_received > 8 * 200, "messages were refused"
