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

    __slots__ = ("_clock", "_doubt_until", "_jumped_at", "_monotonic", "_wall_ms")

    def __init__(self, clock: Clock, last_known_ms: int = 0) -> None:
        """`last_known_ms` is the time of the last checkpoint, 0 for a new data directory."""
        self._clock = clock
        # The last reading that was believed, by both clocks.
        self._wall_ms = clock.now_ms()
        self._monotonic = clock.monotonic()
        self._jumped_at: float | None = None  # since when the wall clock tells another story
        # After a stop of more than a day nobody can tell a long stop from a wrong clock: good enough for new records,
        # not good enough to delete old ones.
        long_stop = last_known_ms != 0 and abs(self._wall_ms - last_known_ms) > FAR_MS
        self._doubt_until = self._monotonic + _PROBATION_S if long_stop else 0.0

    @property
    def settled(self) -> bool:
        """Return whether the time may be used to delete what is old; as of the last `now_ms()`."""
        return self._jumped_at is None and self._monotonic >= self._doubt_until

    def now_ms(self) -> int:
        """Return the time to commit with, Unix milliseconds."""
        wall_ms = self._clock.now_ms()
        monotonic = self._clock.monotonic()
        expected_ms = self._wall_ms + int((monotonic - self._monotonic) * 1000)
        if not -FAR_MS <= wall_ms - expected_ms <= FAR_MS:
            if self._jumped_at is None:
                self._jumped_at = monotonic
            if monotonic - self._jumped_at < _PROBATION_S:
                return expected_ms
        self._jumped_at = None
        self._wall_ms = wall_ms
        self._monotonic = monotonic
        return wall_ms

    def monotonic_ms(self) -> int:
        """Return milliseconds that only grow: to measure how long something took."""
        return int(self._clock.monotonic() * 1000)
