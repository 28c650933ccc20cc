"""The running count and the bar of bytes that are shown on a terminal."""

from __future__ import annotations

import pytest

from highway.cli.progress import ByteBar, CountBar, MessageCounter


def test_count_stays_on_standard_error(capfd):
    with MessageCounter("acknowledged") as counter:
        for _ in range(1500):
            counter.add(1)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "1,500 messages acknowledged" in captured.err


@pytest.mark.parametrize("kind", [ByteBar, CountBar])
def test_bar_stays_on_standard_error(capfd, kind):
    with kind("verified", 1000) as bar:
        bar.add(400)
        bar.add(600)
    assert capfd.readouterr().out == ""
