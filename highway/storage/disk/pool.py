"""Work that must not hold up the loop thread, and the way back to it.

`Mailbox` carries calls from other threads to the loop; `Pool` runs work in a few threads and posts what came of it.
Both have an inline form for tests: then a post is a call, and work waits until `run_pending`.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Handle", "Mailbox", "Pool", "Scheduler"]

T = TypeVar("T")


class Handle(Protocol):
    """What `call_later` returns."""

    def cancel(self) -> object:
        """Undo it."""


class Scheduler(Protocol):
    """The part of an event loop that storage needs; an asyncio loop has it."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> object:
        """Run `callback(*args)` in the loop thread soon; may be called from any thread."""

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Handle:
        """Run `callback(*args)` in the loop thread after `delay` seconds."""


class Mailbox:
    """Calls on their way to the loop thread. `post` may be called from any thread, the rest is the loop's."""

    __slots__ = ("_calls", "_inline", "_rung", "_scheduler")

    def __init__(self, scheduler: Scheduler, *, inline: bool) -> None:
        self._scheduler = scheduler
        self._inline = inline
        self._calls: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = SimpleQueue()
        self._rung = False

    def post(self, function: Callable[..., object], *args: Any) -> None:
        """Have the loop thread call `function(*args)`."""
        if self._inline:
            function(*args)
            return
        self._calls.put((function, args))
        if not self._rung:
            self._ring()

    def _ring(self) -> None:
        self._rung = True
        with contextlib.suppress(RuntimeError):  # the loop has been closed; Storage.close delivers by itself
            self._scheduler.call_soon_threadsafe(self.deliver)

    def deliver(self) -> None:
        """Make the calls that are waiting."""
        self._rung = False
        try:
            while True:
                function, args = self._calls.get_nowait()
                function(*args)
        except Empty:
            pass
        except BaseException:
            self._ring()  # a callback failed: the loop reports it, and those behind it still get their turn
            raise

    def wait(self, seconds: float) -> bool:
        """Make the next call, waiting for it up to `seconds`; False if none came. For a loop thread that closes."""
        try:
            function, args = self._calls.get(timeout=seconds)
        except Empty:
            return False
        function(*args)
        return True


class Pool:
    """A few threads for compression, segment files and reads."""

    __slots__ = ("_mailbox", "_pending", "_tasks", "_threads")

    def __init__(self, mailbox: Mailbox, threads: int) -> None:
        """With 0 threads work is queued until `run_pending`."""
        self._mailbox = mailbox
        self._pending: deque[Callable[[], None]] = deque()
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name=f"highway-pool-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], T], done: Callable[[T | Exception], object] | None = None) -> None:
        """Run `work` in a pool thread, then `done` with its result or its exception in the loop thread."""

        def task() -> None:
            outcome: T | Exception
            try:
                outcome = work()
            except Exception as error:  # noqa: BLE001 - it goes to whoever asked for the work
                outcome = error
            if done is not None:
                self._mailbox.post(done, outcome)

        if self._threads:
            self._tasks.put(task)
        else:
            self._pending.append(task)

    def run_pending(self) -> bool:
        """Run what is queued, in this thread, in order; return whether there was anything. Without threads only."""
        ran = False
        while self._pending:
            self._pending.popleft()()
            ran = True
        return ran

    def close(self) -> None:
        """End the threads after what is queued."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
