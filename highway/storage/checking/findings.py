"""What a look at a data directory found, for people and for the commands that print it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Finding", "LogTotals", "LostOffsets", "Verification"]


class LostOffsets(NamedTuple):
    """Offsets of a log that can't be read; at most these, where nothing says how many there were."""

    log: str
    from_offset: int
    to_offset: int  # exclusive
    recorded: bool = False  # the checkpoint has them as a gap already

    @property
    def total(self) -> int:
        """Return how many offsets these are."""
        return self.to_offset - self.from_offset


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that isn't as it should be."""

    kind: str  # segment, index, journal, checkpoint, snapshot, format, hole, torn
    path: Path
    position: int
    end_position: int | None  # exclusive; None: unknown, or to the end of the file
    reason: str
    log: str = ""
    lost: tuple[LostOffsets, ...] = ()
    damaged: bool = True  # False: what any crash leaves; nothing is lost, and the next start deals with it
    remedy: str = ""  # what `highway log repair` does about it

    def __str__(self) -> str:
        where = f"{self.path}: byte {self.position}"
        if self.end_position is not None:
            where = f"{self.path}: bytes {self.position}..{self.end_position - 1}"
        text = f"{where}: {self.reason}"
        for lost in self.lost:
            recorded = ", recorded as a gap" if lost.recorded else ""
            text += f"; log {lost.log} lost offsets {lost.from_offset}..{lost.to_offset - 1}{recorded}"
        return text


@dataclass(slots=True)
class LogTotals:
    """What of one log was read."""

    name: str
    segments: int = 0
    frames: int = 0
    records: int = 0
    bytes: int = 0
    log_start_offset: int = 0
    log_end_offset: int = 0
    in_journal: int = 0  # records that no segment has yet

    @property
    def offsets(self) -> str:
        """Return "first..last", or "none"."""
        if self.log_end_offset <= self.log_start_offset:
            return "none"
        return f"{self.log_start_offset}..{self.log_end_offset - 1}"


@dataclass(slots=True)
class Verification:
    """The whole story."""

    findings: list[Finding] = field(default_factory=list)
    logs: list[LogTotals] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0

    @property
    def damaged(self) -> list[Finding]:
        """Return what is damaged, without what any crash leaves."""
        return [finding for finding in self.findings if finding.damaged]

    @property
    def lost_offsets(self) -> int:
        """Return how many offsets of durable records can't be read."""
        return sum(lost.total for finding in self.damaged for lost in finding.lost)
