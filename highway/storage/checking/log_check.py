"""All segments of one log against what the checkpoint says about it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from highway.storage.checkpoint.checkpoint import NO_SEGMENT, LogState
from highway.storage.gaps import CORRUPTION, Gap
from highway.storage.recovery.log_recovery import RecoveredLog, list_segments
from highway.storage.segment.format import SEGMENT_HEADER_BYTES
from highway.storage.segment.segment import INDEX_SUFFIX, segment_path

from .findings import Finding, LogTotals, LostOffsets
from .segment_check import SegmentCheck, check_segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from highway.storage.disk.descriptors import Descriptors

__all__ = ["LogCheck"]

_RECORD = "its offsets are recorded as a gap"


class LogCheck:
    """`run`, then look at `findings`, `totals` and `files`."""

    def __init__(
        self,
        known: LogState,
        log: RecoveredLog,
        files: Descriptors,
        on_bytes: Callable[[int], None],
        *,
        gaps_are_known: bool,
    ) -> None:
        """`known` is the log as the checkpoint has it, `log` as recovery leaves it.

        Without `gaps_are_known` (the newest checkpoint is damaged) a hole without a gap is no loss: the gap may have
        stood there.
        """
        self.findings: list[Finding] = []
        self.files = 0
        self.totals = LogTotals(known.name, log_start_offset=known.log_start, log_end_offset=log.end)
        self.totals.in_journal = sum(batch.count for _, batch in log.tail)
        self._known = known
        self._durable_end = known.durable_end
        self._descriptors = files
        self._on_bytes = on_bytes
        self._gaps_are_known = gaps_are_known
        self._lost = [_span(gap) for gap in known.gaps if gap.reason == CORRUPTION]
        self._empty = [_span(gap) for gap in (*known.gaps, *log.state.gaps) if gap.reason != CORRUPTION]
        self._expected = known.log_start  # every offset below it has been accounted for

    def run(self, directory: Path) -> None:
        """Read every segment in `directory`."""
        filesystem = self._descriptors.filesystem
        active = self._known.active_base
        bases: list[int] = []
        if filesystem.exists(directory):
            # Twice: a file that is being replaced by another one of its name may be missing in one listing.
            names = {*filesystem.listdir(directory), *filesystem.listdir(directory)}
            bases = list_segments(sorted(names))
        for base, following in pairwise([*bases, active]):
            if base < following <= self._known.log_start:
                continue  # retention is about to delete it
            try:
                check = check_segment(segment_path(directory, base), self._descriptors, self._on_bytes)
            except FileNotFoundError:
                continue  # retention has deleted it
            self._judge(check, following)
        if active != NO_SEGMENT and active not in bases:
            path = segment_path(directory, active)
            self._add("segment", path, (0, None), "the active segment is gone", (active, self._durable_end))
        elif self._expected < self._durable_end:
            self._add_hole(segment_path(directory, max(bases, default=0)), self._expected, self._durable_end)

    def _judge(self, check: SegmentCheck, following: int) -> None:
        """Turn what is wrong with a segment into findings; `following` is the base offset of the next one."""
        active = self._known.active_base
        self._count(check)
        if check.base_offset > self._expected:
            self._add_hole(check.path, self._expected, check.base_offset)
        # A damaged frame in front of a gap is told as what it is, and not once more as a hole.
        damaged = [(damage.from_offset, damage.to_offset) for damage in check.damaged if damage.to_offset is not None]
        for hole in _without(check.holes, damaged):
            self._add_hole(check.path, *hole)
        self._expected = max(self._expected, check.end_offset)
        # Of a sealed segment everything was durable; of one that is newer than the checkpoint nothing is known to be.
        durable, limit = check.size, following
        if check.base_offset == active:
            durable, limit = self._known.durable_length, self._durable_end
        elif check.base_offset > active:
            durable, limit = 0, check.base_offset
        if check.fault and durable:
            self._add("segment", check.path, (0, check.size), check.fault, (check.base_offset, limit))
        elif check.fault:
            remedy = "it is moved to quarantine/"
            self._add("torn", check.path, (0, check.size), check.fault, damaged=False, remedy=remedy)
        elif check.header_fault:
            reason = f"{check.header_fault}; its index or its first frame tells what stood there"
            self._add("segment", check.path, (0, SEGMENT_HEADER_BYTES), reason, remedy="it is written again")
        if check.size < durable:
            reason = f"file of {check.size} B, of which {durable} B were durable"
            self._add("segment", check.path, (check.size, durable), reason, (check.end_offset, limit))
        else:
            self._judge_ranges(check, durable, limit)
        self._judge_index(check, sealed=check.base_offset < active)

    def _judge_ranges(self, check: SegmentCheck, durable: int, limit: int) -> None:
        for damage in [*check.damaged, *([check.tail] if check.tail is not None else [])]:
            if damage.position >= durable:
                reason = f"{damage.reason}: torn, or being written; the journal has it"
                span = (damage.position, check.size)
                remedy = "it is cut, with the bytes in quarantine/"
                self._add("torn", check.path, span, reason, damaged=False, remedy=remedy)
                return
            to_offset = limit if damage.to_offset is None else damage.to_offset
            span = (damage.position, damage.end_position)
            self._add("segment", check.path, span, damage.reason, (damage.from_offset, to_offset))

    def _judge_index(self, check: SegmentCheck, *, sealed: bool) -> None:
        path = check.path.with_suffix(INDEX_SUFFIX)
        remedy = "it is built from the segment"
        if check.index_fault is not None:
            span = (check.index_fault.position, None)
            # Beside an active segment it is what a clean stop left, and a crash brought back: nobody uses it.
            self._add("index", path, span, check.index_fault.reason, damaged=sealed, remedy=remedy)
        elif sealed and check.index_difference:
            self._add("index", path, (0, None), check.index_difference, remedy=remedy)
        elif sealed and not check.has_index and not check.fault:
            self._add("index", path, (0, None), "a sealed segment without index", damaged=False, remedy=remedy)

    def _count(self, check: SegmentCheck) -> None:
        self.files += 1 + check.has_index
        self.totals.segments += 1
        self.totals.frames += check.frames
        self.totals.records += check.records
        self.totals.bytes += check.size

    def _add_hole(self, path: Path, from_offset: int, to_offset: int) -> None:
        """Note offsets that no segment has, except for those of which a gap says why."""
        pieces = _without(_without([(from_offset, to_offset)], self._empty), self._lost)
        for piece in pieces:
            reason = "offsets are missing that no gap explains"
            if not self._gaps_are_known:
                reason += "; the damaged checkpoint may have had it"
            self._add("hole", path, (0, None), reason, piece, damaged=self._gaps_are_known)

    def _add(
        self,
        kind: str,
        path: Path,
        span: tuple[int, int | None],
        reason: str,
        offsets: tuple[int, int] | None = None,
        *,
        damaged: bool = True,
        remedy: str = "",
    ) -> None:
        lost: list[LostOffsets] = []
        name = self._known.name
        if offsets is not None:
            self._expected = max(self._expected, offsets[1])
            pieces = _without([(max(offsets[0], self._known.log_start), offsets[1])], self._empty)
            new = _without(pieces, self._lost)
            lost = [LostOffsets(name, *piece) for piece in new]
            lost += [LostOffsets(name, *piece, recorded=True) for piece in _without(pieces, new)]
        remedy = remedy or (_RECORD if lost else "")
        self.findings.append(Finding(kind, path, *span, reason, name, tuple(sorted(lost)), damaged, remedy))


def _span(gap: Gap) -> tuple[int, int]:
    return gap.from_offset, gap.to_offset


def _without(ranges: Iterable[tuple[int, int]], holes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of `ranges` that are in none of `holes`."""
    left = [(start, end) for start, end in ranges if start < end]
    for from_offset, to_offset in holes:
        pieces = [(start, min(end, from_offset)) for start, end in left]
        pieces += [(max(start, to_offset), end) for start, end in left]
        left = [(start, end) for start, end in pieces if start < end]
    return sorted(set(left))
