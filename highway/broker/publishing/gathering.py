"""What publishers send in one turn of the loop, on its way into the logs together.

Most devices have one message in flight: each of their packets comes alone, and an append, a journal entry and a call
for its acknowledgement cost more than all else that is done with it. A turn of the loop reads from many of them. So
plain publishes of a turn are gathered, and each log gets one append for all of them, in the order in which they came:

    begin() ... take(), acknowledge(), take(), ... flush() ... end()

A message is plain if nothing has to be stored with it, and nobody needs to know who sent it. Everything else, and every
packet that asks a log for something, flushes first: so a log has what was gathered before what comes behind.
Nothing but the packets of the turn runs between `begin` and `end`, and so nothing sees a log without what is gathered.

Owner: the event loop.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from highway.broker.delivery.feed import LiveRun
from highway.storage import Durability

if TYPE_CHECKING:
    from highway.broker.connections.client import Client
    from highway.broker.delivery.feed import Feed
    from highway.broker.publishing.routing import Route
    from highway.broker.sessions.session_store import Puts
    from highway.errors import StorageError
    from highway.mqtt import PublishRun
    from highway.storage import Storage

__all__ = ["GATHERED_BYTES", "Gathering"]

# With more than that an append is large enough, and memory is not spent on what others could be reading already.
GATHERED_BYTES = 64 * 1024

_Waiting = list[tuple["Client", bytes, int]]


class _Part:
    """What is gathered for one log: runs of one topic and QoS each, and how many messages in all."""

    __slots__ = ("base_offset", "count", "room", "routes", "runs")

    def __init__(self, feed: Feed) -> None:
        self.base_offset = feed.log.log_end_offset
        self.room = feed.log.room
        self.count = 0
        self.routes: list[Route] = []
        self.runs: list[LiveRun] = []


class Gathering:
    """The publishes of the turn at hand, and the acknowledgements that wait for the disk with them."""

    __slots__ = ("_bytes", "_parts", "_storage", "_waiting", "is_open")

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._parts: dict[Feed, _Part] = {}
        self._waiting: dict[Durability, _Waiting] = {mode: [] for mode in Durability}
        self._bytes = 0
        self.is_open = False

    def begin(self) -> None:
        """Gather from now on, until `end`."""
        self.is_open = True

    def end(self) -> None:
        """Bring what is gathered into the logs, and gather no more."""
        self.is_open = False
        self.flush()

    def take(self, route: Route, feed: Feed, run: PublishRun, puts: Puts) -> bool:
        """Gather a plain run; of another one return False, and see to it that it comes behind what is gathered by now."""
        is_plain = run.qos < 2 and not (run.properties or run.retain or puts or route.may_have_no_local)
        if is_plain and self.add(route, feed, run.qos, run.payloads, run.payload_bytes):
            return True
        self.flush()
        return False

    def add(self, route: Route, feed: Feed, qos: int, payloads: list[bytes], payload_bytes: int) -> bool:
        """Gather plain messages; False where that would be too much, and then nothing was done."""
        part = self._parts.get(feed)
        if part is None:
            part = self._parts[feed] = _Part(feed)
        before, count = part.count, len(payloads)
        # Each record has the topic again, which an alias of few bytes may have stood for.
        size = payload_bytes + count * len(route.topic_name)
        if before + count > part.room or self._bytes + size > GATHERED_BYTES:
            return False
        self._bytes += size
        part.count = before + count
        if before:
            last = part.runs[-1]
            if part.routes[-1] is route and last.qos == qos:
                last.extend(payloads)
                return True
        part.routes.append(route)
        part.runs.append(LiveRun(route.topic_name, qos, payloads, part.base_offset + before))
        return True

    def acknowledge(self, mode: Durability, client: Client, data: bytes, pubacks: int) -> None:
        """Have `client.acks_due(data, pubacks, error)` called when all that it sent so far has reached `mode`."""
        self._waiting[mode].append((client, data, pubacks))
        if not self.is_open:
            self.flush()

    def flush(self) -> None:
        """Bring what is gathered into the logs, and what waits for it into the queue behind it."""
        if self._parts:
            parts, self._parts, self._bytes = self._parts, {}, 0
            for feed, part in parts.items():
                if part.count:
                    _append(feed, part)
        for mode, acks in self._waiting.items():  # in this order: a client's modes never fall
            if not acks:
                continue
            self._waiting[mode] = []
            if mode is Durability.FAST:
                _acks_due(acks, None)
            else:
                self._storage.after(mode, partial(_acks_due, acks))


def _append(feed: Feed, part: _Part) -> None:
    log = feed.log
    delta_ms = log.delta_ms()
    data = [
        route.encode_records(run.payloads, run.qos, delta_ms) for route, run in zip(part.routes, part.runs, strict=True)
    ]
    feed.expect_all(part.runs)
    if len(data) == 1:
        log.append(data[0], part.count, topics=part.routes[0].topics)
    else:
        log.append(b"".join(data), part.count, topics=frozenset(route.topic_name for route in part.routes))


def _acks_due(acks: _Waiting, error: StorageError | None) -> None:
    for client, data, pubacks in acks:
        client.acks_due(data, pubacks, error)
