"""What the log says while a full disk refuses every publish."""

from __future__ import annotations

from typing import TYPE_CHECKING

from highway.errors import DiskFullError
from tests.broker.rig import Rig
from tests.harness import packets

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_thousand_refusals_are_a_line_a_second(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(tmp_path)
    rig.storage._committer.fault = DiskFullError("no space")
    for second in range(3):
        for number in range(100):
            sensor = rig.connect(f"sensor-{second}-{number}")
            sensor.send(packets.publish("t", b"x", qos=1, packet_id=1))
            assert sensor.link.closed
        rig.advance(1.0)
    refusals = [record for record in caplog.records if "publish refused" in record.getMessage()]
    lines = [record.getMessage() for record in refusals]
    assert len(lines) == 3
    assert refusals[1].about == {"client": "sensor-1-0"}
    assert lines[1].endswith("(and 99 more since the last such line)")
