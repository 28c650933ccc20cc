"""Rates, as limits of what a client may do: so much in a time, and all of it at once after a pause.

Whoever takes more than there is owes it, and waits until it is paid: so a chunk of messages is counted once it was
handled, and nothing of it has to be dropped.

Owner: the event loop.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Rate", "TokenBucket", "TokenBuckets"]

# Names whose bucket is remembered. 65,536 take 20 MB.
MANY = 65_536


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


class TokenBuckets:
    """A bucket for each name, of the latest MANY of them: who is forgotten owes nothing."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, tuple[Rate, TokenBucket]] = {}  # in the order of their use

    def of(self, name: str, rate: Rate, now: float) -> TokenBucket:
        """The bucket of a name, full where it is new or its rate has changed."""
        found = self._known.pop(name, None)
        if found is None or found[0] != rate:
            found = (rate, TokenBucket(rate, now))
        self._known[name] = found
        if len(self._known) > MANY:
            del self._known[next(iter(self._known))]
        return found[1]

    def wait_s(self, name: str, rate: Rate | None, now: float, patience_s: float) -> float:
        """Take one; returns the seconds until nothing is owed. Beyond `patience_s` none is taken: nobody would wait."""
        if rate is None:
            return 0.0
        bucket = self.of(name, rate, now)
        owed_s = bucket.take(0, now)
        return owed_s if owed_s > patience_s else bucket.take(1, now)
