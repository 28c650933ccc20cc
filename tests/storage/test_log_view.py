from __future__ import annotations

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
