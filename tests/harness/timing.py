"""Bounds on time that hold on a busy machine too."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["least", "timed"]


def timed(action: Callable[[], object]) -> float:
    """How many seconds an action takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def least(measure: Callable[[], float], *, below: float, attempts: int = 5) -> float:
    """The least that `measure` returns; it is called until that is below `below`, and `attempts` times at most.

    What is slow by its nature is slow each time. What was slow once may have waited for another process.
    """
    found = measure()
    for _ in range(attempts - 1):
        if found < below:
            break
        found = min(found, measure())
    return found
