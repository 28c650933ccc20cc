"""One running broker for each test module that only talks to it; tests that kill theirs make their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness.broker_process import BrokerProcess
from tests.harness.raw_client import close_all

if TYPE_CHECKING:
    from collections.abc import Iterator

# Every durability mode under a name of its own; `highway/#` is what the documentation shows.
TOPICS = [
    {"topic": "safe/#", "log": "safe", "durability": "SAFE"},
    {"topic": "balanced/#", "log": "balanced", "durability": "BALANCED"},
    {"topic": "fast/#", "log": "fast", "durability": "FAST"},
    {"topic": "highway/+/telemetry", "log": "telemetry", "durability": "BALANCED"},
    {"topic": "highway/+/control", "log": "control", "durability": "SAFE"},
]


@pytest.fixture(autouse=True)
def _clients_are_closed() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), topics=TOPICS) as running:
        yield running


@pytest.fixture
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that isn't started yet and belongs to this test alone."""
    process = BrokerProcess(tmp_path_factory.mktemp("own"), topics=TOPICS)
    yield process
    if process.process is not None:
        process.kill()
