"""The scrub finds damage in sealed segments that nobody reads, at its rate, and says what a reader would be told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from highway.errors import CorruptionError
from highway.storage import Durability, LogSettings
from highway.storage.settings import KIB
from tests.storage.rig import SMALL, Rig

LOGS = [
    LogSettings("a", Durability.SAFE, segment_bytes=2000, flush_bytes=400, compression="none"),
    LogSettings("b", Durability.SAFE, segment_bytes=2000, flush_bytes=400, compression="none"),
]


def filled(**settings):
    """Two logs of several sealed segments, and what is in them."""
    rig = Rig(settings=replace(SMALL, **settings))
    rig.open(LOGS)
    for number in range(80):
        for log in LOGS:
            rig.append(log.name, b"%d" % number * 40)
        rig.settle()
        if number % 4 == 3:
            rig.checkpoint()
            for log in LOGS:
                rig.log(log.name).drain()
            rig.settle()
    assert all(len(rig.log(log.name).writer.segments) > 2 for log in LOGS)
    return rig


def flip(rig, name, number, position=300):
    segment = rig.log(name).writer.segments[number]
    content = bytearray(rig.filesystem.content(segment.path))
    content[position] ^= 0x10
    rig.filesystem.overwrite(segment.path, bytes(content))


def sealed_bytes(rig):
    return sum(segment.length for log in LOGS for segment in rig.log(log.name).writer.segments[:-1])


@pytest.fixture
def rig():
    return filled(scrub_rate=16 * KIB, scrub_interval_ms=60_000)


def test_damage_that_nobody_reads_is_found_and_told(rig):
    flip(rig, "a", 1)
    before = rig.contents("b")
    rig.advance(61, step=1.0)
    assert rig.storage.scrubber.rounds == 0
    rig.advance(30, step=1.0)
    assert rig.storage.scrubber.rounds == 1
    log = rig.log("a")
    (gap,) = log.gaps
    assert gap.reason == "corruption"
    assert log.corrupt_records == gap.to_offset - gap.from_offset > 0
    (fault,) = rig.faults
    assert isinstance(fault, CorruptionError)
    assert rig.storage.writable
    assert gap.from_offset not in rig.contents("a")
    assert rig.contents("b") == before
    rig.advance(120, step=1.0)
    assert rig.storage.scrubber.rounds > 1
    assert len(rig.faults) == 1, "what is known is not told again"


def test_it_goes_on_behind_damage_to_the_end_of_the_segment(rig):
    flip(rig, "a", 0)
    flip(rig, "a", 0, 900)
    flip(rig, "b", 1)
    rig.advance(100, step=1.0)
    assert (len(rig.log("a").gaps), len(rig.log("b").gaps)) == (2, 1)


def test_a_segment_without_header_is_lost_as_a_whole(rig):
    segment = rig.log("a").writer.segments[1]
    rig.filesystem.overwrite(segment.path, bytes(segment.length))
    rig.filesystem.unlink(segment.path.with_suffix(".idx"))
    segment._header = None
    rig.advance(100, step=1.0)
    following = rig.log("a").writer.segments[2].base_offset
    (gap,) = rig.log("a").gaps
    assert (gap.from_offset, gap.to_offset) == (segment.base_offset, following)


def test_it_keeps_to_its_rate(rig):
    started = rig.clock.monotonic()
    while not rig.storage.scrubber.rounds:
        rig.advance(1, step=0.25)
    seconds = rig.clock.monotonic() - started - 60
    assert rig.storage.scrubber.checked_bytes > sealed_bytes(rig) * 0.9
    assert rig.storage.scrubber.checked_bytes / seconds <= 16 * KIB


def test_a_rate_of_nothing_is_no_scrub():
    rig = filled(scrub_rate=0, scrub_interval_ms=1000)
    flip(rig, "a", 1)
    rig.advance(100, step=1.0)
    assert not rig.storage.scrubber.checked_bytes
    assert not rig.faults


def test_what_retention_deletes_meanwhile_is_no_damage(rig):
    rig.advance(59, step=1.0)
    log = rig.log("a")
    rig.storage.trim(log, log.writer.segments[-1].base_offset, lambda _: None)
    rig.advance(60, step=1.0)
    assert rig.storage.scrubber.rounds == 1
    assert not log.gaps
    assert not rig.faults


def test_a_close_stops_it(rig):
    rig.advance(60.5, step=0.25)
    rig.close()
    assert rig.storage.scrubber.rounds == 0
    rig.reopen()
    assert rig.storage.report.clean
