"""What the broker needs of a network connection, and nothing more: the server implements it over asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Link", "Scheduler", "TimerHandle"]


class TimerHandle(Protocol):
    """A timer that can be called off."""

    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """The event loop as the broker and the log see it."""

    def call_soon(self, callback: Callable[..., object], *args: Any) -> object: ...

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> TimerHandle: ...


class Link(Protocol):
    """The sending side of one network connection. Owner: the event loop."""

    congested: bool
    """The write buffer is above its high water mark: whoever sends reads from the log instead, until `drained`."""

    peer: str
    """Address and port of the other end, for logs."""

    @property
    def ssl_object(self) -> Any:
        """What the ssl module knows of a TLS connection, the client's certificate among it; None for others."""

    def established(self, keep_alive_s: int) -> None:
        """The client is in: watch its keep alive from now on instead of the connect time-out; 0 watches nothing."""

    def write(self, data: bytes) -> None:
        """Send; what is written in one turn of the loop leaves in one system call. Never fails, never blocks."""

    def close(self, last: bytes = b"") -> None:
        """Send what was written and then `last`, behind which nothing follows, and close. Idempotent.

        What was read from the peer before is handled first, and may be answered.
        """

    def pause_reading(self) -> None:
        """Stop taking bytes from the peer: TCP pushes back."""

    def resume_reading(self) -> None:
        """Undo `pause_reading`."""
