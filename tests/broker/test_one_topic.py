"""One topic out of a log of thousands: what comes, and how little of the log is read for it.

The small form of 20,000 topics in 2 million records, of which a replay of one reads less than a tenth.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from highway.storage import Durability, OsFileSystem, RecordHeads
from highway.storage.checking.directory_view import look_at
from highway.storage.checking.dumping import iterate_records
from tests.broker.rig import Rig
from tests.harness import packets

RECORDS, TOPICS = 40_960, 8_192
WANTED = "highway/A77/telemetry"


class Counter:
    """Bytes that the storage reads."""

    def __init__(self) -> None:
        self.bytes = 0


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter:
    counter = Counter()
    pread = OsFileSystem.pread

    def counting(self: OsFileSystem, fd: int, length: int, position: int) -> bytes:
        data = pread(self, fd, length, position)
        counter.bytes += len(data)
        return data

    monkeypatch.setattr(OsFileSystem, "pread", counting)
    return counter


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return filled(Rig(tmp_path, max_inflight=1000))


def topic_of(number: int) -> int:
    return number * 7919 % 60_013 % TOPICS


EXPECTED = [number for number in range(RECORDS) if topic_of(number) == 77]


def filled(rig: Rig) -> Rig:
    """Store the records, and let a clean stop and a start empty the cache."""
    log = rig.storage.logs["other"]
    rng = random.Random(7)
    for number in range(RECORDS):
        heads = RecordHeads(b"highway/A%d/telemetry" % topic_of(number), 1, log.delta_ms())
        log.append(heads.encode([b"%d %s" % (number, rng.randbytes(60).hex().encode())]), 1)
        if not number % 4096:
            rig.settle()
    rig.restart()
    return rig


def stored_bytes(rig: Rig) -> int:
    return sum(path.stat().st_size for path in (Path(rig.directory) / "logs").rglob("*.log"))


def numbers(messages: list[packets.Message]) -> list[int]:
    return [int(message.payload.split()[0]) for message in messages]


@pytest.mark.parametrize("start", ["earliest", "0", "-2"])
def test_a_replay_of_one_topic_reads_its_frames_only(rig: Rig, reads: Counter, start: str) -> None:
    peer = rig.connect("c")
    reads.bytes = 0
    peer.send(packets.subscribe(1, (f"$replay/{start}/{WANTED}", 1)))
    assert numbers(peer.messages()) == (EXPECTED[-2:] if start == "-2" else EXPECTED)
    assert 0 < reads.bytes < stored_bytes(rig) / 10


def test_a_session_that_comes_back_for_one_topic_reads_its_frames_only(tmp_path: Path, reads: Counter) -> None:
    rig = Rig(tmp_path, max_inflight=1000)
    peer = rig.connect("c", clean=False)
    peer.send(packets.subscribe(1, (WANTED, 1)))
    peer.drop()
    filled(rig)
    reads.bytes = 0
    assert numbers(rig.connect("c", clean=False).messages()) == EXPECTED
    assert 0 < reads.bytes < stored_bytes(rig) / 10


def test_a_filter_with_a_wildcard_beside_it_reads_everything_and_misses_nothing(rig: Rig) -> None:
    peer = rig.connect("c")
    peer.send(packets.subscribe(1, (f"$replay/earliest/{WANTED}", 0), ("$replay/earliest/+/A78/#", 0)))
    topics = [message.topic for message in peer.messages()]
    assert topics.count(WANTED) == len(EXPECTED)
    assert topics.count("highway/A78/telemetry") == sum(topic_of(number) == 78 for number in range(RECORDS))


def test_a_dump_of_one_topic_reads_its_frames_only(rig: Rig, reads: Counter) -> None:
    rig.storage.close()
    with look_at(rig.directory) as view:
        reads.bytes = 0
        found = iterate_records(view.logs["other"], 0, None, pytest.fail, frozenset([WANTED.encode()]))
        offsets = [record[0] for record in found if record[3] == WANTED.encode()]
    assert offsets == EXPECTED
    assert 0 < reads.bytes < stored_bytes(rig) / 10


FRAME_BYTES = 16 * 1024


def seal(rig: Rig) -> None:
    """Have all of the log in a sealed segment of many frames, and nothing of it in memory."""
    log = rig.storage.logs["other"]
    while log.tail_bytes:
        assert log.drain(FRAME_BYTES)
        rig.settle()
    assert log.roll(lambda: None)
    rig.settle()
    rig.restart()


@pytest.mark.parametrize("is_killed", [False, True], ids=["appended together", "recovered from the journal"])
def test_topics_that_alternate_are_found_one_by_one(tmp_path: Path, is_killed: bool) -> None:  # noqa: FBT001
    rig = Rig(tmp_path, ((b"#", "other", Durability.SAFE),))
    publisher, rng = rig.connect("p"), random.Random(3)
    turns = [rng.randbytes(100) for _ in range(60)]
    for payload in turns:  # an append and a frame of the journal each, and it begins with the same topic
        publisher.send(b"".join(packets.publish(f"t/{number}", payload) for number in range(100)))
    if is_killed:
        rig.kill()
    seal(rig)
    reader = rig.connect("r").send(packets.subscribe(1, ("$replay/earliest/t/99", 0)))
    assert [message.payload for message in reader.messages()] == turns
