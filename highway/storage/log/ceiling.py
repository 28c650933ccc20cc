"""The ceiling of a log: the offsets that it may show before their records are synced.

FAST and BALANCED records can be seen and then lost with the power. So they show only below a ceiling that is durable in
the journal: after an unclean stop the log goes on there, and no offset that anybody may have seen is given to another
message. Offsets are reserved by the block, half a reservation ahead, so that appends don't wait for it. A log that is
only ever SAFE needs no ceiling.

The loop thread owns all of this.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from highway.storage.journal.format import encode_reserve

if TYPE_CHECKING:
    from highway.storage.journal.commit import Committer

    from .commit_time import CommitTime

__all__ = ["RESERVATION_BLOCK", "OffsetCeiling"]

RESERVATION_BLOCK = 65_536  # offsets
_MAX_BLOCKS = 64
_SHORT_BLOCK_MS = 1000  # a reservation used up in less doubles the next one
_NEVER = 1 << 62


class OffsetCeiling:
    """`offset` is the ceiling, exclusive; a log that ends above `reserve_at` has to call `reserve`."""

    __slots__ = (
        "_blocks",
        "_committer",
        "_log_id",
        "_requested",
        "_reserved_ms",
        "_time",
        "offset",
        "reservations",
        "reserve_at",
    )

    def __init__(self, log_id: int, offset: int, committer: Committer, time: CommitTime, *, needed: bool) -> None:
        self.offset = offset
        self.reserve_at = offset if needed else _NEVER
        self.reservations: deque[tuple[int, int]] = deque()  # (entry, ceiling) on their way
        self._log_id = log_id
        self._committer = committer
        self._time = time
        self._requested = offset
        self._blocks = 1
        self._reserved_ms = -_NEVER  # monotonic time of the last reservation

    def room(self, end: int) -> int:
        """Return how many records can follow `end` before one has to wait for a reservation."""
        return _NEVER if self.reserve_at == _NEVER else self.offset - end

    def reserve(self, end: int) -> None:
        """Ask for more offsets: enough for `end`, and more blocks at a time when they go fast."""
        committer = self._committer
        now_ms = self._time.monotonic_ms()
        if now_ms - self._reserved_ms < _SHORT_BLOCK_MS:
            self._blocks = min(2 * self._blocks, _MAX_BLOCKS)
        self._reserved_ms = now_ms
        span = self._blocks * RESERVATION_BLOCK
        self._requested = max(self._requested, end) + span
        self.reserve_at = self._requested - span // 2
        entry = committer.hand_over([encode_reserve(self._log_id, self._requested)])
        self.reservations.append((entry, self._requested))
        committer.journal.want_synced(entry)

    def committed(self, synced: int) -> bool:
        """Raise the ceiling to what is durably reserved, now that the journal is synced; return whether it rose."""
        before = self.offset
        reservations = self.reservations
        while reservations and reservations[0][0] <= synced:
            self.offset = reservations.popleft()[1]
        return self.offset > before

    def change(self, *, needed: bool) -> None:
        """Reserve offsets from now on, or no longer: what is shown before it is synced needs a ceiling."""
        if not needed:
            self.reserve_at = _NEVER
        elif self.reserve_at == _NEVER:
            self.reserve_at = self.offset
