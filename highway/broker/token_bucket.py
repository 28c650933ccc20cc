"""Rates, as limits of what a client may do: so much in a time, and all of it at once after a pause.

Whoever takes more than there is owes it, and waits until it is paid: so a chunk of messages is counted once it was
handled, and nothing of it has to be dropped.

Owner: the event loop.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Rate", "TokenBucket"]


class Rate(NamedTuple):
    """`amount` in `seconds`, and no more than `amount` at once."""

    amount: int
    seconds: int


class TokenBucket:
    """What is left of a rate. The caller tells the time, in seconds of a clock that never goes back."""

    __slots__ = ("_at", "_burst", "_left", "_per_s")

    def __init__(self, rate: Rate, now: float) -> None:
        self._per_s = rate.amount / rate.seconds
        self._burst = float(rate.amount)
        self._left = self._burst
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take `amount`, whether it is there or not; returns the seconds until nothing is owed, 0 where nothing is."""
        self._left = self.left(now) - amount
        self._at = now
        return 0.0 if self._left >= 0 else -self._left / self._per_s

    def left(self, now: float) -> float:
        """What may be taken now without owing; negative while something is owed."""
        return min(self._burst, self._left + (now - self._at) * self._per_s)

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until `amount` may be taken without owing; 0 where it may be now. More than the rate is never there."""
        return max(0.0, (min(amount, self._burst) - self.left(now)) / self._per_s)

    def is_full(self, now: float) -> bool:
        """Whether it is as if nothing had ever been taken."""
        return self.left(now) >= self._burst
