"""The TLS contexts of the listeners, which can be exchanged while connections are open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from highway.config.certificates import certificate_end, make_context

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable

    from highway.config import Listener

__all__ = ["TlsContexts"]


class TlsContexts:
    """The context of each TLS listener, by its name. A connection keeps the one that it began with.

    Owner: the event loop.
    """

    __slots__ = ("_contexts", "ends")

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self._contexts: dict[str, ssl.SSLContext] = {}
        self.ends: dict[str, float] = {}  # Unix time at which the certificate of a listener expires
        self.load(listeners)

    def __getitem__(self, listener: str) -> ssl.SSLContext:
        return self._contexts[listener]

    def load(self, listeners: Iterable[Listener]) -> Callable[[], None]:
        """Read the files of `listeners`, for the connections to come; those that are open don't notice.

        All or nothing: CertificateError leaves the contexts as they were. What is returned takes it back.
        """
        before = self._contexts, self.ends
        served = [(item.name, item.tls) for item in listeners if item.tls is not None]
        contexts = {name: make_context(tls) for name, tls in served}
        self.ends = {name: end for name, tls in served if (end := certificate_end(tls))}
        self._contexts = contexts

        def take_back() -> None:
            self._contexts, self.ends = before

        return take_back
