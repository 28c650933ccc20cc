"""T13: ready within 5 s of kill -9, whatever is stored: 10 GB in segments, and a journal full of single records."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.crash.crash_broker import CrashBroker
from tests.crash.reading import Reading
from tests.crash.stored import APPENDED, PAYLOAD_BYTES, add_stored_logs
from tests.harness.broker_process import ROOT, wait_until
from tests.harness.ledger import Ledger
from tests.harness.publisher import Publisher
from tests.harness.raw_client import close_all

if TYPE_CHECKING:
    from collections.abc import Iterator

STORED_BYTES = 10_000_000_000
READY_SECONDS = 5.0
NAMES = ["safe", "balanced", "fast", "other"]
TOPICS = [
    {"topic": "safe/#", "log": "safe", "durability": "SAFE"},
    {"topic": "balanced/#", "log": "balanced"},
    {"topic": "fast/#", "log": "fast", "durability": "FAST"},
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashBroker]:
    """A broker that has 10 GB, stopped."""
    broker = CrashBroker(tmp_path_factory.mktemp("stored"), topics=TOPICS, storage={"journal_file_bytes": "64MiB"})
    broker.start()
    assert broker.stop() == 0
    records = add_stored_logs(broker.data, NAMES, STORED_BYTES, 64 << 20)
    files = list(broker.data.glob("logs/*/*.log"))
    assert sum(path.stat().st_size for path in files) > STORED_BYTES * 0.99
    assert sum(path.stat().st_blocks for path in files) * 512 < 1 << 30, "the file system doesn't know holes"
    broker.records = records  # type: ignore[attr-defined]
    yield broker
    close_all()
    if broker.process is not None:
        broker.kill()


def start_in_time(broker: CrashBroker) -> None:
    started = time.monotonic()
    broker.start()
    seconds = time.monotonic() - started
    print(f"ready after {seconds:.2f} s")  # noqa: T201 - pytest shows it with a failure
    assert seconds < READY_SECONDS, "\n".join(broker.stderr[-20:])


def test_10_gb_are_there_at_once_after_a_kill_in_full_traffic(broker: CrashBroker) -> None:
    broker.start()
    ledger = Ledger()
    publishers = [Publisher(broker.port, f"{name}/{half}", ledger) for name in NAMES[:2] for half in "ab"]
    for publisher in publishers:
        publisher.start()
    wait_until(lambda: all(publisher.acked > 2000 for publisher in publishers), timeout=30, what="traffic")
    broker.kill()
    for publisher in publishers:
        publisher.finish()
    start_in_time(broker)
    records: int = broker.records  # type: ignore[attr-defined]
    with broker.client("reader") as reader:
        for name in NAMES:
            for offset in (0, records // 2, records - 1):
                assert reader.subscribe((f"$fetch/{offset}/{name}/bulk", 0)) == [0]
                assert reader.message().payload == offset.to_bytes(8, "big") + bytes(PAYLOAD_BYTES - 8)
    for name in NAMES[:2]:
        with Reading(broker.port, name, records) as reading:
            assert ledger.check(name, [f"{name}/a", f"{name}/b"], list(reading)) == 0


def test_a_full_journal_of_single_records_is_read_in_time(broker: CrashBroker) -> None:
    if broker.process is not None:
        broker.kill()
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.stored", str(broker.data), *NAMES],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 9, done.stderr
    start_in_time(broker)
    for number, name in enumerate(NAMES):
        with broker.client("last") as reader:
            assert reader.subscribe((f"$replay/-1/{name}/small", 0)) == [0]
            assert reader.message().payload == b"%d" % (APPENDED - len(NAMES) + number)
