"""What recovery found and did, for people and for the checks that watch them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from highway.errors import CorruptionError
    from highway.storage.gaps import Gap

__all__ = ["RecoveryReport"]

_MAX_LINES = 50  # a disk that has gone to pieces must not fill another one with its log


@dataclass(slots=True)
class RecoveryReport:
    """The story of one open."""

    clean: bool = False  # the last stop was in order, and nothing contradicts it
    new: bool = False  # there was no data directory before
    rebuilt: bool = False  # no checkpoint was readable; everything was scanned
    seconds: float = 0.0
    frames_replayed: int = 0  # of the journal
    records_recovered: int = 0  # from the journal, that no segment had
    torn_bytes_cut: int = 0
    logs: int = 0
    epoch_bumps: int = 0
    damaged: list[CorruptionError] = field(default_factory=list)  # bytes that had been durable and aren't readable
    gaps: list[tuple[str, Gap]] = field(default_factory=list)  # (log name, gap) recorded by this open

    @property
    def lost_offsets(self) -> int:
        """Return how many offsets of durable records are gone."""
        return sum(gap.to_offset - gap.from_offset for _, gap in self.gaps if gap.reason == "corruption")

    def damage_lines(self) -> list[str]:
        """Return a line for each place that is damaged and for each range of offsets that is lost, for the log."""
        lines = [f"damaged: {error}" for error in self.damaged]
        lines += [
            f"log {name}: offsets {gap.from_offset} to {gap.to_offset - 1} are lost"
            for name, gap in self.gaps
            if gap.reason == "corruption"
        ]
        if len(lines) > _MAX_LINES:
            lines[_MAX_LINES:] = [f"{len(lines) - _MAX_LINES} more; highway log verify names all of it"]
        return lines

    def __str__(self) -> str:
        if self.new:
            return "new data directory"
        parts = ["clean stop" if self.clean else "unclean stop", f"{self.logs} logs in {self.seconds:.2f} s"]
        if not self.clean:
            parts.append(f"{self.frames_replayed} journal frames replayed, {self.records_recovered} records recovered")
        if self.torn_bytes_cut:
            parts.append(f"{self.torn_bytes_cut} torn bytes cut and kept in quarantine")
        if self.rebuilt:
            parts.append("rebuilt without a checkpoint")
        if self.gaps:
            parts.append(f"{len(self.gaps)} gaps recorded")
        if self.damaged:
            parts.append(f"{len(self.damaged)} damaged ranges, {self.lost_offsets} offsets lost: {self.damaged[0]}")
        return "; ".join(parts)
