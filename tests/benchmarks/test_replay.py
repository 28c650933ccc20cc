"""Coming back works at a small scale, and every message is checked; how fast it is, is no matter for a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.benchmarks import replay
from tests.harness.broker_process import BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("replay"), topics=replay.TOPICS) as running:
        yield running


@pytest.mark.parametrize("qos", [1, 0])
def test_one_session_gets_all_that_it_missed(broker: BrokerProcess, qos: int) -> None:
    found = replay.one_session(broker, 50_000, qos)
    assert found["grown_mib"] < 20  # positions, not copies


def test_many_sessions_at_once_get_all_in_order(broker: BrokerProcess) -> None:
    found = replay.herd(broker, 200, 500)
    assert found["last_done_s"] < 60
    assert found["grown_mib"] < 100


def test_subscribers_that_are_stuck_hold_nobody_up_and_recover(broker: BrokerProcess) -> None:
    found = replay.stuck(broker, 20_000)
    assert found["recovered"] == 4
    assert found["grown_mib"] < 60
    # A tenth slower is what a quiet machine shows. This one may be anything but, and then says less in time than in work.
    assert found["ratio"] > 0.3
    assert found["cpu_ratio"] < 3


def test_sessions_with_topics_of_their_own_get_all_of_theirs(broker: BrokerProcess) -> None:
    found = replay.own_topics(broker, 100, 100)
    assert found["seconds"] < 60
