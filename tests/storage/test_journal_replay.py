"""Replaying a frame: what has to be done again and no more, in the order in which it was done."""

from __future__ import annotations

import pytest

from highway.errors import CorruptionError
from highway.storage.checkpoint.checkpoint import LogState
from highway.storage.journal.format import (
    PutEntry,
    RecordsEntry,
    ReserveEntry,
    encode_put,
    encode_records_head,
    encode_reserve,
)
from highway.storage.journal.replay import replay_frame
from highway.storage.recovery.log_recovery import RecoveredLog
from highway.storage.segment.records import RecordBatch


def append(log_id, base_offset, count=1, base_ms=1000, last_ms=1000):
    batch = RecordBatch(base_offset, count, base_ms, last_ms, b"%d;" % base_offset * count)
    return encode_records_head(log_id, batch) + batch.data


def log(log_id, segment_end=0):
    return RecoveredLog(LogState(log_id, f"log {log_id}", bytes(16)), segment_end=segment_end)


def replay(*parts, entry=1, logs=()):
    """Return (what was applied, the following entry); records as (log, base, count, last ms, data)."""
    applied = []

    def apply(number, found):
        if isinstance(found, RecordsEntry):
            batch = found.batch
            found = (found.log_id, batch.base_offset, batch.count, batch.last_ms, batch.data)
        applied.append((number, found))

    following = replay_frame(b"".join(parts), entry, "x", {one.state.log_id: one for one in logs}, apply)
    return applied, following


def test_appends_that_continue_each_other_are_one_batch_with_the_first_one_s_entry():
    applied, following = replay(append(1, 5), append(2, 0), append(1, 6, 2, last_ms=1003), append(2, 1), entry=10)
    assert applied == [(10, (1, 5, 3, 1003, b"5;6;6;")), (11, (2, 0, 2, 1000, b"0;1;"))]
    assert following == 14


@pytest.mark.parametrize("second", [append(1, 7), append(1, 6, base_ms=1001)], ids=["hole", "other base time"])
def test_appends_that_do_not_continue_stay_apart(second):
    applied, _ = replay(append(1, 5), second)
    assert [number for number, _ in applied] == [1, 2]


def test_a_joined_batch_stays_small_enough_to_be_decoded_as_a_whole():
    applied, _ = replay(*(append(1, offset) for offset in range(10_000)))
    assert [batch[2] for _, batch in applied] == [4096, 4096, 1808]


def test_what_a_segment_has_is_only_noted():
    known = log(1, segment_end=6)
    applied, following = replay(append(1, 4), append(1, 5), append(1, 6), logs=[known])
    assert [number for number, _ in applied] == [3]
    assert known.last_entry == 2
    assert following == 4


def test_the_order_between_records_and_other_entries_is_kept():
    applied, _ = replay(append(1, 0), encode_reserve(1, 70_000), append(1, 1), encode_put(b"key", b"value"))
    assert applied == [
        (1, (1, 0, 1, 1000, b"0;")),
        (2, ReserveEntry(1, 70_000)),
        (3, (1, 1, 1, 1000, b"1;")),
        (4, PutEntry(b"key", b"value")),
    ]


@pytest.mark.parametrize("rest", [b"\x01", append(1, 1)[:-1], b"\x09", b"\x02\0\0\0\x09"])
def test_what_can_be_read_before_a_bad_entry_counts(rest):
    applied = []
    with pytest.raises(CorruptionError):
        replay_frame(append(1, 0) + rest, 1, "x", {}, lambda number, _: applied.append(number))
    assert applied == [1]
