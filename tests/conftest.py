"""What holds for every test: what a run looks at doesn't depend on luck, and what two processes do at once is apart."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests.harness.broker_process import BrokerProcess
from tests.harness.nursery import Nursery

if TYPE_CHECKING:
    from collections.abc import Iterator

    from xdist.remote import Producer

# A landing must not hang on luck. Others, and as many as wanted: HIGHWAY_EXAMPLES=5000 make test ARGS=tests/mqtt
EXAMPLES = os.environ.get("HIGHWAY_EXAMPLES")

settings.register_profile(
    "highway",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=EXAMPLES is None,
    max_examples=int(EXAMPLES or 100),
)
settings.load_profile("highway")


class Rooms(LoadFileScheduling):
    """A file of tests stays in one process, with its brokers; so do all that crash brokers or mount file systems."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/crash" if nodeid.startswith("tests/crash/") else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Rooms:
    config.option.loadscopereorder = False  # files of few tests are those that take long
    return Rooms(config, log)


@pytest.fixture(scope="session", autouse=True)
def _nursery() -> Iterator[None]:
    """Brokers of tests are forked from a process that has imported everything: half of the time of all tests."""
    with Nursery() as nursery:
        BrokerProcess.nursery = nursery
        yield
        BrokerProcess.nursery = None


@pytest.fixture(scope="session")
def mosquitto_clients() -> None:
    """Skips where mosquitto_pub and mosquitto_sub aren't installed."""
    for name in ("mosquitto_pub", "mosquitto_sub"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed (Debian: mosquitto-clients)")
