"""A few threads that hash passwords, so that the loop never does.

A hash takes 40 ms of a core and 46 MiB on purpose. Threads are few, so that a fleet that comes back after a restart, or
a guesser, costs a bounded share of both; they are nicer than the loop and let go of the interpreter while they work.
The rest wait in line, and whoever gave up meanwhile is passed over. There is a line for each user of the file and each
address, and one for all other names of an address; they take turns, so that a guesser holds up those he pretends to be.

Owner: the event loop, which is called back there.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import threading
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from highway.config.passwords import verify_password

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from highway.broker.authentication import Login
    from highway.config.passwords import Passwords

__all__ = ["PasswordChecks"]

MAX_THREADS = 4
NICENESS = 10


class PasswordChecks:
    """Checks passwords against one `Passwords`, and remembers which were right."""

    __slots__ = ("_decoy", "_idle", "_key", "_lines", "_loop", "_passwords", "_pool", "_right")

    def __init__(self, passwords: Passwords, loop: asyncio.AbstractEventLoop) -> None:
        self._passwords = passwords
        self._decoy = passwords.decoy()
        self._loop = loop
        threads = min(MAX_THREADS, max(1, (os.cpu_count() or 1) // 2))
        self._pool = ThreadPoolExecutor(threads, "passwords", initializer=_be_nice)
        self._idle = threads
        self._lines: OrderedDict[tuple[str, str], deque[Callable[[], None]]] = OrderedDict()  # the next turn first
        # What was right once is known again by a keyed hash of it: a fleet that lost its network for a moment comes
        # back without 40 ms for each. Wrong ones always take the long way.
        self._key = os.urandom(32)
        self._right: dict[str, bytes] = {}

    def knows(self, user: str) -> bool:
        """Whether the file has the user."""
        return user in self._passwords.hashes

    def is_right(self, user: str, password: bytes) -> bool:
        """Whether the password is known to be right; False also where it wasn't looked at yet."""
        right = self._right.get(user)
        return right is not None and hmac.compare_digest(right, self._digest(user, password))

    def check(self, login: Login, user: str, password: bytes, done: Callable[[bool], None]) -> None:
        """Find out, and call `done` on the loop. A user that isn't in the file takes as long as one that is."""
        stored = self._passwords.hashes.get(user)
        against = self._decoy if stored is None else stored

        def work() -> None:
            right = not login.is_abandoned and bool(against) and verify_password(against, password)
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(checked, right and stored is not None)

        def checked(right: bool) -> None:  # noqa: FBT001  the answer itself
            self._idle += 1
            self._begin()
            if right:
                self._right[user] = self._digest(user, password)
            if not login.is_abandoned:
                done(right)

        line = ("" if stored is None else user, login.peer.rpartition(":")[0])
        self._lines.setdefault(line, deque()).append(work)
        self._begin()

    def _begin(self) -> None:
        """Give every thread that has nothing to do the first of the line whose turn it is."""
        while self._idle and self._lines:
            line, waiting = self._lines.popitem(last=False)
            with contextlib.suppress(RuntimeError):  # closed
                self._pool.submit(waiting.popleft())
                self._idle -= 1
            if waiting:
                self._lines[line] = waiting

    def _digest(self, user: str, password: bytes) -> bytes:
        return hashlib.blake2b(user.encode() + b"\0" + password, key=self._key, digest_size=32).digest()

    def close(self) -> None:
        """Finish what is under way, and nothing else."""
        self._lines.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _be_nice() -> None:
    with contextlib.suppress(OSError, AttributeError):  # a luxury of Linux, where a thread has a priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
