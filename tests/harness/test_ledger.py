"""The oracle must see every kind of fault that it is there for."""

from __future__ import annotations

import time

import pytest

from tests.harness import packets
from tests.harness.ledger import Ledger, Stored


@pytest.fixture
def ledger() -> Ledger:
    """Five messages on one topic; all but the last are acked."""
    book = Ledger()
    for number in range(5):
        book.add_sent("t", b"%d" % number)
        if number < 4:
            book.add_acked("t", number)
    return book


def stored(*numbers: int, first_offset: int = 10) -> list[Stored]:
    return [Stored(first_offset + place, "t", b"%d" % number) for place, number in enumerate(numbers)]


@pytest.mark.parametrize("numbers", [(0, 1, 2, 3), (0, 1, 2, 3, 4)])
def test_all_acked_with_or_without_the_unacked_is_right(ledger: Ledger, numbers: tuple[int, ...]) -> None:
    assert ledger.check("log", ["t"], stored(*numbers)) == 0


@pytest.mark.parametrize(
    ("numbers", "fault"),
    [
        ((0, 1, 3), "1 acked messages missing"),
        ((0, 1, 2, 2, 3), "out of order or twice"),
        ((0, 2, 1, 3), "out of order or twice"),
        ((0, 1, 2, 3, 77), "never sent"),
    ],
)
def test_loss_duplicates_disorder_and_inventions_are_seen(ledger: Ledger, numbers: tuple[int, ...], fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        ledger.check("log", ["t"], stored(*numbers))


def test_offsets_that_do_not_grow_are_seen(ledger: Ledger) -> None:
    with pytest.raises(AssertionError, match="grow"):
        ledger.check("log", ["t"], [*stored(0, 1, 2), Stored(5, "t", b"3")])


def test_an_offset_used_again_for_other_bytes_is_seen(ledger: Ledger) -> None:
    ledger.add_seen("log", [Stored(10, "t", b"4")])
    with pytest.raises(AssertionError, match="offset 10 of log was"):
        ledger.check("log", ["t"], stored(0, 1, 2, 3))
    ledger.check("another log", ["t"], stored(0, 1, 2, 3))


def test_loss_is_allowed_within_the_window_only(ledger: Ledger) -> None:
    assert ledger.check("log", ["t"], stored(0, 1), may_lose_after=time.monotonic() - 60) == 2
    with pytest.raises(AssertionError, match="before the window"):
        ledger.check("log", ["t"], stored(0, 1), may_lose_after=time.monotonic() + 60)


def test_a_hole_before_a_survivor_is_not_a_flush_window(ledger: Ledger) -> None:
    with pytest.raises(AssertionError, match="a later one survived"):
        ledger.check("log", ["t"], stored(0, 2, 3), may_lose_after=0.0)


def test_packets_are_cut_wherever_the_stream_is_split() -> None:
    whole = packets.publish("a", bytes(200)) + packets.PINGRESP + packets.ack(0x40, 7)
    expected = [(0x30, b"\0\1a" + bytes(200)), (0xD0, b""), (0x40, b"\0\7")]
    for split in range(len(whole)):
        splitter = packets.PacketSplitter()
        assert splitter.feed(whole[:split]) + splitter.feed(whole[split:]) == expected
        assert splitter.pending == 0
