"""How fast a replay may go where its reader asked for a rate.

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from highway.clock import Clock

__all__ = ["Pace"]

# What may be sent at once after a pause, in seconds of the rate and at least: a coarse timer must not cost any of it.
BURST_S = 0.25
MIN_BURST = 2.0


class Pace:
    """A token bucket of messages."""

    __slots__ = ("_allowance", "_at", "_clock", "_rate", "waiting")

    def __init__(self, rate: int, clock: Clock) -> None:
        self._rate = rate
        self._clock = clock
        self._at = clock.monotonic()
        self._allowance = 1.0
        self.waiting = False  # a timer is set that goes on

    def allowance(self) -> int:
        """How many messages may go now."""
        now = self._clock.monotonic()
        self._allowance = min(max(MIN_BURST, self._rate * BURST_S), self._allowance + (now - self._at) * self._rate)
        self._at = now
        return int(self._allowance)

    def take(self, count: int) -> None:
        """Note that `count` messages went."""
        self._allowance -= count

    @property
    def wait_s(self) -> float:
        """Seconds until the next message may go."""
        return max(0.001, (1.0 - self._allowance) / self._rate)
