"""One broker with a known content, and requests to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness import packets
from tests.harness.broker_process import BrokerProcess, free_port
from tests.harness.http import Answer, request
from tests.harness.publisher import publish_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

COUNT = 3000
TOPICS = [
    {"topic": "highway/#", "log": "road", "durability": "BALANCED"},
    {"topic": "small/#", "log": "small", "durability": "BALANCED"},
]


@pytest.fixture(scope="module")
def http_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, http_port: int) -> Iterator[BrokerProcess]:
    """A broker whose log `road` has COUNT messages: even offsets on one topic, odd ones on another."""
    # A folder whose name is longer than the path of a socket may be.
    folder = tmp_path_factory.mktemp("http") / ("deep" * 30)
    folder.mkdir()
    process = BrokerProcess(folder, topics=TOPICS, http={"port": http_port})
    with process as running:
        with running.client("publisher") as publisher:
            for base in range(0, COUNT, 2):
                publisher.send(packets.publish("highway/A1/speed", b"%d" % base))
                publisher.send(packets.publish("highway/A2/speed", b"%d" % (base + 1)))
            publisher.ping()
        publish_all(running.port, "small/text", ["gr\u00fcn".encode(), b"\xff\x00"])
        yield running


@pytest.fixture
def get(broker: BrokerProcess) -> Callable[..., Answer]:
    """A request over the socket."""

    def get(path: str, **settings: object) -> Answer:
        return request(broker.data / "admin.sock", path, **settings)

    return get
