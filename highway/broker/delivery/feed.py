"""A log as the broker sees it: what was appended and is not visible yet, and the cursors that wait at its end.

The storage engine moves the high watermark when an append reached the point that its durability mode asks for. That
is the moment in which live subscribers get the messages, each as one write of bytes that were encoded once and are
shared. Until then the parsed run waits here.

    log_start_offset ... [ visible ) ... log_end_offset
                          ^ LIVE cursors stand here, all of them, without a number of their own

Owner: the event loop.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from highway.broker.sessions.session import Session
    from highway.broker.subscriptions.group_cursor import GroupCursor
    from highway.mqtt import PublishRun
    from highway.storage import Log

    from .cursor import Cursor

__all__ = ["Feed", "LiveRun"]


class LiveRun:
    """Consecutive messages of one topic between append and delivery, of one publisher where that matters."""

    __slots__ = (
        "base_offset",
        "end_offset",
        "payload_bytes",
        "payloads",
        "properties",
        "publisher",
        "qos",
        "retain",
        "topic_name",
        "wires",
    )

    def __init__(
        self,
        topic_name: bytes,
        qos: int,
        payloads: list[bytes],
        base_offset: int,
        *,
        retain: bool = False,
        properties: bytes = b"",
        publisher: Session | None = None,
    ) -> None:
        self.topic_name = topic_name
        self.qos = qos
        self.retain = retain
        self.payloads = payloads
        self.payload_bytes = 0  # until `measure`
        self.properties = properties
        self.base_offset = base_offset
        self.end_offset = base_offset + len(payloads)
        self.publisher = publisher  # None: the broker itself, a session that is gone, or nobody needs to know
        # Encoded once for all subscribers that get the same bytes at QoS 0; see `encoding`. None until there is one.
        self.wires: dict[tuple[int, bool], bytes] | None = None

    def measure(self) -> int:
        """The size of its payloads, kept: it is the same for every subscriber."""
        self.payload_bytes = sum(map(len, self.payloads))
        return self.payload_bytes

    def extend(self, payloads: list[bytes]) -> None:
        """Put more messages of the same kind behind it, before anybody has seen it."""
        self.payloads += payloads
        self.end_offset += len(payloads)

    def may_exceed(self, packet_bytes: int) -> bool:
        """Whether a packet of this run may be larger than that, subscription identifiers aside."""
        overhead = 64 + len(self.topic_name) + len(self.properties)
        return max(map(len, self.payloads)) + overhead > packet_bytes


class Feed:
    """The road from the end of one log to its live subscribers."""

    __slots__ = (
        "_sampled",
        "_sampled_end",
        "cursors",
        "deliver",
        "log",
        "moved",
        "pending",
        "rate",
        "received",
        "replayed",
        "visible",
    )

    def __init__(self, log: Log, deliver: Callable[[LiveRun], None]) -> None:
        self.log = log
        self.deliver = deliver
        self.pending: deque[LiveRun] = deque()
        self.visible = log.high_watermark
        # Of online sessions, so that their positions can be stored while the log moves on past them.
        self.cursors: set[Cursor | GroupCursor] = set()
        self.moved = False
        self.rate = 0.0  # messages a second that were appended between the last two samples
        self._sampled: float | None = None  # monotonic time
        self._sampled_end = log.log_end_offset
        self.received = [0, 0, 0]  # messages that publishers sent, by QoS
        self.replayed = 0  # messages that readers got from the log and not live
        log.on_visible = self.advance

    @property
    def is_delayed(self) -> bool:
        """Whether messages become visible some time after their commit."""
        return False

    @property
    def accepted(self) -> int:
        """Behind the last message that was taken, visible or not: what a subscription begins with."""
        return self.log.log_end_offset

    def sample(self, now: float) -> None:
        """Work out the rate since the last call; `now` is monotonic."""
        end = self.log.log_end_offset
        if self._sampled is not None and now > self._sampled:
            self.rate = (end - self._sampled_end) / (now - self._sampled)
        self._sampled, self._sampled_end = now, end

    def expect(self, run: PublishRun, publisher: Session | None) -> None:
        """Note a run that is about to be appended: `advance` delivers it when it becomes visible."""
        self.pending.append(
            LiveRun(
                run.topic_name,
                run.qos,
                run.payloads,
                self.log.log_end_offset,
                retain=run.retain,
                properties=run.properties,
                publisher=publisher,
            )
        )
        self.received[run.qos] += len(run.payloads)

    def expect_all(self, runs: list[LiveRun]) -> None:
        """Note runs without RETAIN that are about to be appended, all at once."""
        self.pending += runs
        for run in runs:
            self.received[run.qos] += len(run.payloads)

    def forget(self) -> None:
        """Take back the last `expect`: its append was refused."""
        run = self.pending.pop()
        self.received[run.qos] -= len(run.payloads)

    def advance(self) -> None:
        """Deliver every pending run below the high watermark; called when that moved."""
        pending = self.pending
        high_watermark = self.log.high_watermark
        self.moved = True
        while pending:
            run = pending[0]
            if run.end_offset > high_watermark:
                break
            pending.popleft()
            # Moved first: a cursor that falls back to CATCHUP during the delivery reads from here.
            self.visible = run.end_offset
            self.deliver(run)
        self.visible = pending[0].base_offset if pending else high_watermark
