"""T7 and T8, short: the real broker is killed, and loses its power, in full traffic. The long form: make crash."""

from __future__ import annotations

import os
import random

import pytest

from tests.crash.campaign import run_campaign

CYCLES = int(os.environ.get("HIGHWAY_CRASH_CYCLES", "20"))


@pytest.mark.slow
@pytest.mark.timeout(60 + 5 * CYCLES)
@pytest.mark.parametrize("kind", ["kill", "power-cut"])
def test_every_mode_keeps_its_promise_over_20_crashes(kind: str) -> None:
    """SAFE loses nothing, BALANCED and FAST nothing beyond their windows, and no offset carries two messages."""
    seed = random.randrange(2**32)
    campaign = run_campaign(kind, CYCLES, seed)
    print(f"{campaign.line()}, seed {seed}")  # noqa: T201 - pytest shows it with a failure
    assert not campaign.faults, f"seed {seed}: {campaign.faults}"
    # A campaign in which nothing was at risk would prove nothing.
    assert campaign.accounts["safe"].figures.acked > CYCLES
    for mode in campaign.at_risk:
        assert campaign.accounts[mode].figures.lost > 0, f"no crash came between an ack of {mode} and what follows it"
