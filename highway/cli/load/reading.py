"""Readers: many of one stream (`fanout`), one that missed a lot (`resume`), one that reads the past (`replay`)."""

from __future__ import annotations

import selectors
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .client import LoadClient, LoadError, all_connected, ready
from .publishing import Publisher, ingest

if TYPE_CHECKING:
    from collections.abc import Callable

    from highway.cli.client import Connection

    from .publishing import Ingest

__all__ = ["Delivered", "fanout", "replay", "resume"]


@dataclass(frozen=True, slots=True)
class Delivered:
    """What came of it: messages delivered to all readers together, and their bytes where they were counted."""

    messages: int
    seconds: float
    bytes: int = 0

    @property
    def rate(self) -> float:
        """Messages delivered a second."""
        return self.messages / self.seconds if self.seconds else 0.0


def fanout(
    where: Connection,
    load: Ingest,
    subscribers: int,
    *,
    qos: int = 0,
    topic_filter: str = "highway/+/telemetry",
    on_progress: Callable[[int], None] | None = None,
) -> Delivered:
    """Publish `load` to that many subscribers; LoadError if one gets another number of messages than were sent.

    At QoS 0 bytes are counted and no packet is looked at; at QoS 1 every message is acknowledged.
    """
    with (
        all_connected(lambda number: LoadClient(where, f"bench-sub-{number}"), subscribers) as readers,
        all_connected(lambda number: Publisher(where, number, load), load.publishers) as publishers,
    ):
        for reader in readers:
            reader.subscribe(topic_filter, qos)
        total = load.total
        expected = total if qos else sum(publisher.bytes_at_qos0() for publisher in publishers)
        seconds, got = _serve(readers, publishers, expected, qos=qos, on_progress=on_progress)
    if set(got.values()) != {expected}:
        unit = "messages" if qos else "bytes"
        raise LoadError(f"subscribers got {sorted(set(got.values()))} {unit}, expected {expected}")
    return Delivered(total * subscribers, seconds)


def _serve(
    readers: list[LoadClient],
    publishers: list[Publisher],
    expected: int,
    *,
    qos: int,
    on_progress: Callable[[int], None] | None,
) -> tuple[float, dict[LoadClient, int]]:
    got = dict.fromkeys(readers, 0)
    with selectors.DefaultSelector() as selector:
        for client in (*readers, *publishers):
            selector.register(client.socket, selectors.EVENT_READ, client)
        started = time.perf_counter()
        for publisher in publishers:
            publisher.send()
        complete = 0
        while complete < len(readers):
            for key, _ in ready(selector):
                client = key.data
                if isinstance(client, Publisher):
                    if not client.on_readable():
                        selector.unregister(key.fileobj)
                    elif on_progress is not None:
                        on_progress(client.window)
                    continue
                got[client] += client.count() if qos else len(client.receive())
                if got[client] >= expected:
                    complete += 1
                    selector.unregister(key.fileobj)
        return time.perf_counter() - started, got


def resume(where: Connection, load: Ingest, qos: int, *, topic_filter: str = "highway/+/telemetry") -> Delivered:
    """Messages that a session which missed them all gets back, and how long that takes it."""
    client_id = f"bench-resume-{time.time_ns()}"
    with all_connected(lambda _: LoadClient(where, client_id, clean=False), 1) as (session,):
        session.subscribe(topic_filter, qos)
        session.close()
    total = ingest(where, load).messages
    started = time.perf_counter()
    with all_connected(lambda _: LoadClient(where, client_id, clean=False), 1) as (session,):
        while session.counter.packets < total:
            session.count()
        seconds = time.perf_counter() - started
        session.close()
    LoadClient(where, client_id).close()  # a clean session: the old one is gone
    return Delivered(total, seconds, session.counter.bytes)


def replay(
    where: Connection,
    topic_filter: str,
    *,
    start: str = "earliest",
    limit: int | None = None,
    max_seconds: float | None = None,
    quiet_s: float = 1.0,
    on_progress: Callable[[int], None] | None = None,
) -> Delivered:
    """Read what is stored, at QoS 0: `limit` messages at most, for `max_seconds`, or until `quiet_s` without any."""
    reader = LoadClient(where, f"bench-replay-{time.time_ns()}")
    try:
        started = last = time.perf_counter()
        reader.subscribe(f"$replay/{start}/{topic_filter}", 0)
        with selectors.DefaultSelector() as selector:
            selector.register(reader.socket, selectors.EVENT_READ)
            while selector.select(quiet_s):
                count = reader.count()
                last = time.perf_counter()
                if on_progress is not None:
                    on_progress(count)
                if limit is not None and reader.counter.packets >= limit:
                    break
                if max_seconds is not None and last - started >= max_seconds:
                    break
        return Delivered(reader.counter.packets, last - started, reader.counter.bytes)
    finally:
        reader.drop()
