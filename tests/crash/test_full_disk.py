"""T10: publishers fill the disk of the real broker, a loop-mounted ext4 of 64 MiB."""

from __future__ import annotations

import contextlib
import itertools
import random
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.crash.crash_broker import CrashBroker
from tests.crash.loop_disk import LoopDisk
from tests.harness import packets
from tests.harness.broker_process import wait_until
from tests.harness.log_reader import read_log
from tests.harness.raw_client import PUBACK, RawClient, close_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1024 * 1024
DISK_BYTES = 64 * MIB
FILLER_BYTES = 24 * MIB
MODES = ("safe", "balanced", "fast")
ENTRIES = [{"topic": f"{mode}/#", "log": mode, "durability": mode.upper()} for mode in MODES]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    with LoopDisk(tmp_path, DISK_BYTES) as disk:
        yield disk


@pytest.fixture
def broker(tmp_path: Path, disk: LoopDisk) -> Iterator[CrashBroker]:
    (disk.mount_point / "filler").write_bytes(bytes(FILLER_BYTES))
    broker = CrashBroker(tmp_path, data=disk.mount_point / "data", topics=ENTRIES)
    yield broker
    close_all()
    if broker.process is not None:
        broker.kill()


class Filler:
    """A publisher that waits for each ack, comes back when it is thrown out, and knows what was acknowledged."""

    def __init__(self, broker: CrashBroker, topic: str) -> None:
        self.topic = topic
        self.acked: list[bytes] = []
        self.refused = 0
        self._broker = broker
        self._random = random.Random(topic)
        self._numbers = itertools.count()
        self._client: RawClient | None = None

    def publish(self) -> bool:
        """Publish 128 KiB that don't compress; return whether they were acknowledged."""
        payload = b"%d " % next(self._numbers) + self._random.randbytes(128 * 1024)
        if self._client is None:
            self._client = self._broker.client(f"filler-{self.topic.replace('/', '-')}")
        try:
            self._client.send(packets.publish(self.topic, payload, qos=1, packet_id=1))
            found = self._client.read_packet()
        except ConnectionError:
            found = None
        if found is None:
            self._client.close()
            self._client = None
            self.refused += 1
            return False
        assert found[0] == PUBACK
        self.acked.append(payload)
        return True


def refused(filler: Filler) -> bool:
    return not filler.publish() and not filler.publish()


def fill(fillers: list[Filler]) -> None:
    """Publish until each has been refused twice in a row."""
    for filler in fillers:
        wait_until(partial(refused, filler), timeout=60, what="a full disk")


def see_all(client: RawClient, acked: list[bytes]) -> None:
    """Take messages until every one that was acknowledged has come, in their order; others may be among them."""
    for payload in acked:
        while client.message(timeout=10).payload != payload:
            pass


def check_all_there(broker: CrashBroker, fillers: list[Filler]) -> None:
    for filler in fillers:
        stored = [record.payload for record in read_log(broker.port, filler.topic.replace("x", "#"))]
        positions = {payload: number for number, payload in enumerate(stored)}
        missing = [number for number, payload in enumerate(filler.acked) if payload not in positions]
        assert not missing, f"{filler.topic}: of {len(filler.acked)} acked, {missing[:5]} are not there"
        order = [positions[payload] for payload in filler.acked]
        assert order == sorted(order)


def test_a_full_disk_stops_publishers_alone_and_only_until_there_is_space(disk: LoopDisk, broker: CrashBroker) -> None:
    broker.start()
    fillers = [Filler(broker, f"{mode}/x") for mode in MODES]
    with broker.client("live") as live:
        live.subscribe(("safe/#", 0))
        fill(fillers)
        assert broker.lines("No space left"), "the operator must be told"
        see_all(live, fillers[0].acked)
    # Readers come and get everything, from the beginning, while nothing can be stored.
    for filler in fillers:
        with broker.client("replay") as replay:
            assert replay.subscribe((f"$replay/earliest/{filler.topic}", 0)) == [0]
            see_all(replay, filler.acked)
    fill(fillers)  # a checkpoint may have made some room meanwhile
    (disk.mount_point / "filler").unlink()
    for filler in fillers:
        wait_until(filler.publish, timeout=15, what=f"publishing to {filler.topic}")
        for _ in range(20):
            assert filler.publish()
    check_all_there(broker, fillers)
    broker.restart()
    check_all_there(broker, fillers)


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_broker_starts_on_a_full_disk_and_serves_readers(disk: LoopDisk, broker: CrashBroker, end: str) -> None:
    broker.start()
    fillers = [Filler(broker, f"{mode}/x") for mode in MODES]
    fill(fillers)
    if end == "kill":
        broker.kill()
    else:
        assert broker.stop() == 0
    (disk.mount_point / "rest").write_bytes(b"")
    with contextlib.suppress(OSError), (disk.mount_point / "rest").open("wb", buffering=0) as rest:
        while True:
            rest.write(bytes(4096))
    broker.start()
    for filler in fillers:
        with broker.client("replay") as replay:
            assert replay.subscribe((f"$replay/earliest/{filler.topic}", 0)) == [0]
            see_all(replay, filler.acked)
    fill(fillers)
    (disk.mount_point / "filler").unlink()
    (disk.mount_point / "rest").unlink()
    for filler in fillers:
        wait_until(filler.publish, timeout=15, what=f"publishing to {filler.topic}")
    broker.restart()
    check_all_there(broker, fillers)


def test_retention_makes_room_on_a_full_disk(tmp_path: Path, disk: LoopDisk) -> None:
    """What may be deleted is deleted as soon as the disk is full: nobody waits for the reaper's next round."""
    entry = {"topic": "#", "log": "all", "durability": "SAFE", "retention_bytes": "8MiB", "segment_bytes": "1MiB"}
    broker = CrashBroker(tmp_path, data=disk.mount_point / "data", topics=[entry], storage={"reaper_interval": "1h"})
    with broker:
        filler = Filler(broker, "a/x")
        wait_until(lambda: not filler.publish(), timeout=60, what="a full disk")
        wait_until(filler.publish, timeout=15, what="room by retention")
        for _ in range(20):
            assert filler.publish()
