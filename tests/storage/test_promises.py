"""What has been promised at the moment of a sync, when a crash could still take all that it is about."""

from __future__ import annotations

import pytest

from highway.storage import Durability, LogSettings
from tests.storage.rig import Rig

LOGS = [
    LogSettings("fast", Durability.FAST),
    LogSettings("balanced", Durability.BALANCED),
    LogSettings("other", Durability.BALANCED),
    LogSettings("safe", Durability.SAFE),
]


@pytest.fixture
def rig():
    rig = Rig()
    rig.open(LOGS)
    rig.settle()
    return rig


def watch_syncs(rig, look):
    """Call `look` before each sync of the journal from now on; return what it returned."""
    seen = []

    def hook(operation):
        if operation.kind == "fdatasync" and operation.path.parent.name == "journal":
            seen.append(look())

    rig.filesystem.on_operation = hook
    return seen


def test_nothing_is_shown_below_a_reservation_that_is_not_durable(rig):
    """Shown and then lost with the power, these offsets would be given to other messages."""
    seen = watch_syncs(rig, lambda: [rig.log(name).high_watermark for name in ("fast", "balanced")])
    rig.append("fast", b"1")
    rig.append("balanced", b"2")  # has the frame announced as written, before its sync
    rig.settle()
    assert seen[0] == [0, 0]
    assert [rig.log(name).high_watermark for name in ("fast", "balanced")] == [1, 1]


def test_a_safe_acknowledgement_in_a_frame_with_balanced_ones_waits_for_the_sync(rig):
    acknowledged = []
    for name in ("fast", "balanced"):
        rig.append(name, b"the reservations are durable behind this")
    rig.settle()
    seen = watch_syncs(rig, lambda: list(acknowledged))
    rig.append("balanced", b"1")
    rig.storage.after(Durability.BALANCED, lambda error: acknowledged.append(("balanced", error)))
    rig.append("safe", b"2")
    rig.storage.after(Durability.SAFE, lambda error: acknowledged.append(("safe", error)))
    rig.settle()
    assert seen == [[("balanced", None)]]
    assert acknowledged == [("balanced", None), ("safe", None)]


def test_a_safe_record_in_a_balanced_log_is_shown_after_its_sync(rig):
    for name in ("balanced", "other"):
        rig.append(name, b"the reservations are durable behind this")
    rig.settle()
    seen = watch_syncs(rig, lambda: [rig.log(name).high_watermark for name in ("other", "balanced")])
    rig.append("other", b"1")
    rig.append("balanced", b"2", durability=Durability.SAFE)
    rig.settle()
    assert seen == [[2, 1]]
    assert rig.log("balanced").high_watermark == 2
