"""The running count that `highway pub -l` shows on a terminal."""

from __future__ import annotations

from highway.cli.progress import MessageCounter


def test_count_stays_on_standard_error(capfd):
    with MessageCounter("acknowledged") as counter:
        for _ in range(1500):
            counter.add(1)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "1,500 messages acknowledged" in captured.err
