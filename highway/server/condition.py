"""What the parts of the process tell about themselves, for health, metrics and the dashboard.

Each part sets its own fields; whoever answers requests reads them. Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from highway.metrics import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .reloading import Reloader

__all__ = ["BridgeLag", "Condition"]


class BridgeLag(NamedTuple):
    """How far a bridge is behind."""

    name: str
    records: int
    seconds: float
    connected: bool


def _no_certificates() -> Mapping[str, float]:
    return {}


def _no_bridges() -> Sequence[BridgeLag]:
    return ()


class Condition:
    """The parts that are neither broker nor storage."""

    __slots__ = (
        "bridges",
        "certificates",
        "listening",
        "plugin_seconds",
        "reload_error",
        "reload_failed_ms",
        "reloader",
    )

    def __init__(self, certificates: Callable[[], Mapping[str, float]] = _no_certificates) -> None:
        self.listening = False  # every listener is open
        self.reload_error: str | None = None  # why the last reload failed; None after a good one, and before any
        self.reload_failed_ms = 0  # when it did
        self.reloader: Reloader | None = None  # once everything listens
        self.plugin_seconds = Histogram()  # decisions of authentication and topic plugins
        # Listener name to the end of its certificate, in Unix seconds.
        self.certificates = certificates
        self.bridges: Callable[[], Sequence[BridgeLag]] = _no_bridges

    def hung_up(self) -> None:
        """SIGHUP came. While it starts it means nothing: the files have just been read."""
        if self.reloader is not None:
            self.reloader.request()

    def reload_failed(self, why: str, now_ms: int) -> None:
        """A reload was refused; what ran before runs on."""
        self.reload_error, self.reload_failed_ms = why, now_ms

    def reloaded(self) -> None:
        """A reload took effect."""
        self.reload_error = None
