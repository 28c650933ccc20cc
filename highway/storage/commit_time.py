"""Commit times that one bad clock reading can't spoil.

A commit time is the wall clock's, but never before the log's last one. That rule alone would let one reading of +10
years pin every later record to the far future, where retention by age never reaches it. So a reading that differs by
more than a day from what the monotonic clock leads to expect isn't believed until the wall clock has told the same
story for ten minutes; until then times go on from the last good one. A clock that was really set is followed after
those ten minutes, and at the next start at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from highway.clock import Clock

__all__ = ["FAR_MS", "CommitTime"]

FAR_MS = 24 * 60 * 60 * 1000  # a larger step than any time zone mistake or leap correction
_PROBATION_S = 600.0


class CommitTime:
    """The wall clock, watched by the monotonic one. The loop thread owns it."""

    __slots__ = ("_clock", "_monotonic", "_suspect_since", "_wall_ms", "settled")

    def __init__(self, clock: Clock, last_known_ms: int = 0) -> None:
        """`last_known_ms` is the time of the last checkpoint, 0 for a new data directory."""
        self._clock = clock
        self._wall_ms = clock.now_ms()
        self._monotonic = clock.monotonic()
        self._suspect_since: float | None = None
        # After a stop of more than a day nobody can tell a long stop from a wrong clock: good enough for new records,
        # not good enough to delete old ones.
        self.settled = not last_known_ms or abs(self._wall_ms - last_known_ms) <= FAR_MS
        if not self.settled:
            self._suspect_since = self._monotonic

    def now_ms(self) -> int:
        """Return the time to commit with, Unix milliseconds."""
        wall_ms = self._clock.now_ms()
        monotonic = self._clock.monotonic()
        expected_ms = self._wall_ms + int((monotonic - self._monotonic) * 1000)
        if -FAR_MS <= wall_ms - expected_ms <= FAR_MS:
            self._wall_ms = wall_ms
            self._monotonic = monotonic
            if self.settled:
                return wall_ms
            if self._suspect_since is None or monotonic - self._suspect_since >= _PROBATION_S:
                self.settled = True
            return wall_ms
        return self._suspect(wall_ms, monotonic, expected_ms)

    def monotonic_ms(self) -> int:
        """Return milliseconds that only grow: to measure how long something took."""
        return int(self._clock.monotonic() * 1000)

    def _suspect(self, wall_ms: int, monotonic: float, expected_ms: int) -> int:
        if self.settled or self._suspect_since is None:
            self.settled = False
            self._suspect_since = monotonic
        elif monotonic - self._suspect_since >= _PROBATION_S:
            self._wall_ms = wall_ms
            self._monotonic = monotonic
            self.settled = True
            return wall_ms
        return expected_ms
