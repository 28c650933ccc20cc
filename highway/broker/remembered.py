"""What was worked out for topic names, so that a message costs a look-up.

Publishers choose the names, so each table has a limit and is forgotten as a whole when it is reached. A long name isn't
remembered at all: real ones have a few dozen bytes, and 65,536 of the longest would be 4 GB.

Owner: the event loop.
"""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["MAX_NAME_BYTES", "Remembered"]

T = TypeVar("T")

MAX_NAME_BYTES = 512


class Remembered(dict[bytes, T], Generic[T]):
    """Topic name to what was worked out for it, for at most `limit` names."""

    __slots__ = ("_limit",)

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def remember(self, topic_name: bytes, value: T) -> T:
        """Keep and return `value`."""
        if len(topic_name) <= MAX_NAME_BYTES:
            if len(self) >= self._limit:
                self.clear()
            self[topic_name] = value
        return value
