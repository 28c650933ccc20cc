"""A log whose messages are stored and acknowledged at once, and seen by subscribers only some time later.

Commit times never decrease within a log, so the gate is one offset: the first whose commit time plus the delay is
still to come. The log is asked for it as time goes on, and every cursor reads up to there.

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from highway.errors import StorageError

from .feed import Feed, LiveRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from highway.broker.connections.link import Scheduler
    from highway.broker.sessions.session import Session
    from highway.clock import Clock
    from highway.mqtt import PublishRun
    from highway.storage import Log

__all__ = ["DelayedFeed"]

# How late the gate may open: a twentieth of the delay, within these bounds.
MIN_STEP_S, MAX_STEP_S = 0.02, 1.0


class DelayedFeed(Feed):
    """A feed with a gate. Only retained runs wait in `pending`: everything else is read back from the log."""

    __slots__ = ("_asked", "_clock", "_delay_ms", "_scheduler", "_timer_set")

    def __init__(
        self, log: Log, deliver: Callable[[LiveRun], None], delay_ms: int, scheduler: Scheduler, clock: Clock
    ) -> None:
        super().__init__(log, deliver)
        self._delay_ms = delay_ms
        self._scheduler = scheduler
        self._clock = clock
        self._asked = False
        self._timer_set = False
        # Until the log answered once, nothing of it is shown.
        self.visible = log.log_start_offset
        self.advance()

    @property
    def is_delayed(self) -> bool:
        return True

    @property
    def accepted(self) -> int:
        """A subscription gets what the gate still holds back."""
        return self.visible

    def expect(self, run: PublishRun, publisher: Session | None) -> None:
        if run.retain:
            super().expect(run, publisher)

    def expect_all(self, runs: list[LiveRun]) -> None:
        """They are read back from the log."""

    def forget(self) -> None:
        if self.pending and self.pending[-1].base_offset >= self.log.log_end_offset:
            self.pending.pop()

    def advance(self) -> None:
        """Ask the log how far the gate is open now; the answer, and the next question, come by themselves."""
        self.moved = True
        if not self._asked and not self._timer_set:
            self._asked = True
            self.log.offset_at(self._clock.now_ms() - self._delay_ms + 1, self._open)

    def _open(self, gate: int | StorageError) -> None:
        self._asked = False
        # A log that can't be asked now is asked again with the next step.
        end = self.visible if isinstance(gate, StorageError) else min(gate, self.log.high_watermark)
        if end > self.visible:
            before, self.visible = self.visible, end
            while self.pending and self.pending[0].end_offset <= end:
                self.deliver(self.pending.popleft())
            for cursor in self.cursors:
                cursor.gate_opened(before)
        if self.visible < self.log.high_watermark and not self._timer_set:
            self._timer_set = True
            step_s = min(MAX_STEP_S, max(MIN_STEP_S, self._delay_ms / 20_000))
            self._scheduler.call_later(step_s, self._step)

    def _step(self) -> None:
        self._timer_set = False
        self.advance()
