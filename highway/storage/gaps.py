"""The ranges of a log's offsets that hold nothing: sorted, apart from each other, and merged where they touch."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CORRUPTION", "RETENTION", "UNCLEAN_STOP", "Gap", "add_gap", "find_gap"]

CORRUPTION = "corruption"
RETENTION = "retention"
UNCLEAN_STOP = "unclean-stop"

_from_offset = attrgetter("from_offset")


class Gap(NamedTuple):
    """Offsets of a log that hold nothing, and why."""

    from_offset: int
    to_offset: int  # exclusive
    reason: str  # retention, corruption, unclean-stop
    when_ms: int


def find_gap(gaps: Sequence[Gap], offset: int) -> Gap | None:
    """Return the gap that `offset` is in, or None."""
    index = bisect_right(gaps, offset, key=_from_offset) - 1
    if index >= 0 and offset < gaps[index].to_offset:
        return gaps[index]
    return None


def add_gap(gaps: Sequence[Gap], new: Gap) -> list[Gap]:
    """Return `gaps` with `new` in its place. What is known keeps its reason; only offsets that aren't are added.

    Neighbours with the same reason become one, so that a broker that crashes every night doesn't collect gaps.
    """
    pieces = []
    at = new.from_offset
    for gap in gaps:
        if gap.to_offset <= at or gap.from_offset >= new.to_offset:
            continue
        if gap.from_offset > at:
            pieces.append(new._replace(from_offset=at, to_offset=gap.from_offset))
        at = max(at, gap.to_offset)
    if at < new.to_offset:
        pieces.append(new._replace(from_offset=at))
    merged: list[Gap] = []
    for gap in sorted([*gaps, *pieces], key=_from_offset):
        if merged and merged[-1].to_offset == gap.from_offset and merged[-1].reason == gap.reason:
            merged[-1] = merged[-1]._replace(to_offset=gap.to_offset, when_ms=max(merged[-1].when_ms, gap.when_ms))
        else:
            merged.append(gap)
    return merged
