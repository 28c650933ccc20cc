"""How many sessions may read from disk at once.

A thousand sessions that come back to a thousand places would otherwise have a thousand frames read, unpacked and in
memory before the first of them is sent. Here they wait, and who waits for what another has read meanwhile finds it in
the cache. A place is held from the read until its batch was sent from or dropped, so that what is in memory beside the
cache is bounded too; `pumping.pump` sees to it that nobody keeps one over a turn.

Owner: the event loop.
"""

from __future__ import annotations

from collections import deque
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from highway.errors import StorageError
    from highway.storage import Log, RecordBatch

__all__ = ["MAX_READS", "Reads"]

# Four for each thread of the storage's pool: one is read, one is waited for, two are being sent from.
MAX_READS = 8
# So many waiting for the same log are a herd: what is read for one of them is read for all, and more of it at a time,
# so that each of a thousand with a topic of its own finds many messages in it, and not one.
HERD = 8
MAX_WIDE_READS = 3  # they take more memory
_LOOKED_AT = 64

Done: TypeAlias = "Callable[[RecordBatch | StorageError], None]"
Request: TypeAlias = "tuple[Log, int, frozenset[bytes], Done]"


class Reads:
    """The places, and who waits for one, in the order in which they asked."""

    __slots__ = ("_free", "_reading", "_serving", "_waiting")

    def __init__(self) -> None:
        self._free = MAX_READS
        self._serving = False
        self._waiting: deque[Request] = deque()
        # What is being read, and who wants to read there too, perhaps for other topics: it will be in the cache.
        self._reading: dict[tuple[Log, int], list[Request]] = {}

    def load(self, log: Log, offset: int, topics: frozenset[bytes], done: Done) -> None:
        """As `Log.load`, when a place is free; `done` is called with the place held, and `release` gives it back."""
        request = (log, offset, topics, done)
        following = self._reading.get((log, offset))
        if following is not None:
            following.append(request)
        elif self._free:
            self._free -= 1
            self._read(request)
        else:
            self._waiting.append(request)

    def release(self) -> None:
        """Give a place back; whoever waits first has it then."""
        self._free += 1
        if self._serving:
            return  # called by somebody who was just given a place and has no use for it: the loop below goes on
        self._serving = True
        try:
            while self._free and self._waiting:
                self._serve(self._waiting.popleft())
        finally:
            self._serving = False

    def _serve(self, request: Request) -> None:
        log, offset, _, done = request
        following = self._reading.get((log, offset))
        if following is not None:
            following.append(request)
            return
        self._free -= 1
        batch = log.read(offset) if offset >= log.log_start_offset else None
        if batch is None:
            self._read(request)
        else:
            done(batch)

    def _read(self, request: Request) -> None:
        log, offset, topics, done = request

        def read(result: RecordBatch | StorageError) -> None:
            self._waiting.extendleft(reversed(self._reading.pop((log, offset))))
            done(result)

        others = islice(chain(*self._reading.values(), self._waiting), _LOOKED_AT)
        herd = sum(other[0] is log for other in others)
        wide = herd >= HERD and len(self._reading) < MAX_WIDE_READS
        self._reading[log, offset] = []
        log.load(offset, read, topics, wide=wide)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting) + sum(map(len, self._reading.values()))

    @property
    def held(self) -> int:
        """How many places are held."""
        return MAX_READS - self._free
