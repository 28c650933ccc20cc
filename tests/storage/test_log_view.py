from __future__ import annotations

import pytest

from highway.errors import OffsetCorruptError
from highway.storage import LogSettings
from tests.storage.rig import Rig


def test_what_was_fetched_from_the_tail_does_not_hide_the_frame_it_went_into():
    rig = Rig()
    rig.open([LogSettings("a")])
    for payload in (b"zero", b"one", b"two"):
        rig.append("a", payload)
        rig.settle()
    assert rig.fetch("a", 1)[5] == b"one"
    log = rig.log("a")
    log.drain()
    rig.settle()
    assert rig.load("a", 2).end_offset == 3
    assert log.read(2) is not None, "a reader that was told to come and fetch it asks for it again for ever"


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_segment_that_is_gone_becomes_a_gap_of_exactly_its_offsets(victim):
    rig = Rig()
    rig.open([LogSettings("a", segment_bytes=300, flush_bytes=260, compression="none")])
    for number in range(40):
        rig.append("a", b"%d" % number + bytes(30))
        rig.settle()
    bases = [segment.base_offset for segment in rig.log("a").writer.segments]
    path = rig.log("a").writer.segments[victim].path
    rig.close()
    rig.filesystem.unlink(path)
    rig.reopen()
    lost = set(range(bases[victim], bases[victim + 1]))
    assert isinstance(rig.fetch("a", max(lost)), OffsetCorruptError)
    assert rig.in_gaps("a") == lost
    assert set(rig.contents("a")) == set(range(40)) - lost


def test_a_hole_that_a_crash_left_between_segments_stays_what_it_was():
    rig = Rig()
    rig.open([LogSettings("a", segment_bytes=300, flush_bytes=260, compression="none")])
    for _ in range(3):
        for number in range(20):
            rig.append("a", b"%d" % number + bytes(30))
            rig.settle()
        rig.kill()
        rig.reopen()
    before = list(rig.log("a").gaps)
    assert len(rig.contents("a")) == 60
    assert rig.log("a").gaps == before
    assert {gap.reason for gap in before} == {"unclean-stop"}
    assert not rig.faults
