"""What systemd wants to know (sd_notify): that recovery goes on, that we are ready, that we live, that we stop.

One datagram to `$NOTIFY_SOCKET` each; without that variable nothing is sent. The watchdog is fed by the event loop, and
only when the journal thread has answered since the last time: a process in which either hangs is ended and started
again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import socket
import threading
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Pulse", "Supervisor"]

logger = logging.getLogger("highway.server")

EXTENSION_S = 60.0  # asked for at each sign of progress
PROGRESS_S = 10.0  # between two looks
MOVING_S = 0.002  # of processor time between two looks; less than that is our own looking


class Pulse(Protocol):
    """A thread whose life is to be watched."""

    @property
    def pulse(self) -> int:
        """A number that the thread counts up when it is asked to, and perhaps oftener."""

    def ask_pulse(self) -> None:
        """Ask the thread for a sign of life."""


class Supervisor:
    """The connection to systemd, or to nobody. `environment` is the process's own."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog_s = _watchdog_seconds(environment)
        self._fed_at = -1  # the pulse at the last feeding

    def tell(self, *assignments: str) -> None:
        """Send `READY=1` and the like. A supervisor that isn't there or doesn't read is not worth a failure."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
                opened.setblocking(False)
                opened.sendto("\n".join(assignments).encode(), self._address)
        except OSError as error:
            logger.warning("can't tell systemd %s: %s", assignments[0], error.strerror)

    @contextlib.contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Ask for more time while the block runs, as long as the process does something; `what` is shown."""
        if not self._address:
            yield
            return
        ended = threading.Event()
        asking = threading.Thread(target=self._ask_for_time, args=(what, ended), name="highway-extend", daemon=True)
        asking.start()
        try:
            yield
        finally:
            ended.set()
            asking.join()

    def _ask_for_time(self, what: str, ended: threading.Event) -> None:
        started = time.monotonic()
        before = _work_done()
        extension = f"EXTEND_TIMEOUT_USEC={EXTENSION_S * 1e6:.0f}"
        self.tell(extension, f"STATUS={what}")
        while not ended.wait(PROGRESS_S):
            now = _work_done()
            moving = now[0] - before[0] > MOVING_S or now[1:] != before[1:]
            before = now
            status = f"STATUS={what}, for {time.monotonic() - started:.0f} s"
            if moving:
                self.tell(extension, status)
            else:
                self.tell(f"{status}: the disk doesn't answer")

    def ready(self, status: str) -> None:
        """Tell that clients can connect, and where."""
        self.tell("READY=1", f"STATUS={status}", f"MAINPID={os.getpid()}")

    def stopping(self) -> None:
        """Tell that the end has begun."""
        self.tell("STOPPING=1", "STATUS=stopping")

    def watch(self, loop: asyncio.AbstractEventLoop, watched: Pulse, status: Callable[[], str]) -> None:
        """Feed the watchdog from the loop, four times as often as it bites, while `watched` answers."""
        if not self._address or self._watchdog_s is None:
            return
        if watched.pulse != self._fed_at:
            self._fed_at = watched.pulse
            self.tell("WATCHDOG=1", f"STATUS={status()}")
        watched.ask_pulse()
        loop.call_later(self._watchdog_s / 4, self.watch, loop, watched, status)


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """The time after which systemd ends a process that says nothing; None if it doesn't, or watches another."""
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        return int(environment["WATCHDOG_USEC"]) / 1e6
    except (KeyError, ValueError):
        return None


def _work_done() -> tuple[float, int, int]:
    """Processor seconds, and blocks read and written, of all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, used.ru_inblock, used.ru_oublock
