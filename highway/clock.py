"""Time as a parameter, so that tests can own it."""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "ManualClock", "SystemClock"]


class Clock(Protocol):
    """What the layers above read the time from."""

    def now_ms(self) -> int:
        """Wall clock, Unix milliseconds: for commit times, retention and what people read. It may step."""

    def monotonic(self) -> float:
        """Seconds that only grow: for every timer."""


class SystemClock:
    """The machine's clocks."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to."""

    __slots__ = ("_monotonic", "_now_ms")

    def __init__(self, now_ms: int = 1_790_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Move both clocks forward by `seconds`."""
        self._now_ms += round(seconds * 1000)
        self._monotonic += seconds

    def step(self, seconds: float) -> None:
        """Step the wall clock alone, as an operator or NTP does."""
        self._now_ms += round(seconds * 1000)
