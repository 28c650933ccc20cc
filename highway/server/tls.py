"""The TLS contexts of the listeners, which can be exchanged while connections are open."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from highway.config.certificates import certificate_end, make_context
from highway.config.digests import digest_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable

    from highway.config import Listener, TlsSettings

__all__ = ["TlsContexts"]


@dataclass(frozen=True, slots=True)
class _Served:
    """What a listener serves, and when its certificate expires; `digest` is of the files, "" where it isn't sure."""

    tls: TlsSettings
    context: ssl.SSLContext
    end: float
    digest: str


def _serve(tls: TlsSettings) -> _Served:
    context, end = make_context(tls), certificate_end(tls)
    # The digest was made before the files were read for the context, and somebody may have written to them in between.
    return _Served(tls, context, end, tls.digest if tls.digest == digest_of(tls.files) else "")


class TlsContexts:
    """The context of each TLS listener, by its name. A connection keeps the one that it began with.

    Owner: the event loop.
    """

    __slots__ = ("_served",)

    def __init__(self, listeners: Iterable[Listener]) -> None:
        self._served: dict[str, _Served] = {}
        self.load(listeners)

    def __getitem__(self, listener: str) -> ssl.SSLContext:
        return self._served[listener].context

    @property
    def ends(self) -> dict[str, float]:
        """Unix time at which the certificate of a listener expires; those that aren't valid yet are left out."""
        return {name: served.end for name, served in self._served.items() if served.end}

    def load(self, listeners: Iterable[Listener]) -> Callable[[], None]:
        """Read the files of `listeners`, for the connections to come; those that are open don't notice.

        All or nothing: CertificateError leaves the contexts as they were. What is returned takes it back.
        """
        return self._take({item.name: _serve(item.tls) for item in listeners if item.tls is not None})

    async def change(self, listeners: Iterable[Listener]) -> Callable[[], None]:
        """Do the same in a thread, and only for listeners whose files hold something else than they did."""
        wanted = {item.name: item.tls for item in listeners if item.tls is not None}
        new = {name: tls for name, tls in wanted.items() if not self._serves(name, tls)}
        made = {}
        if new:
            made = await asyncio.to_thread(lambda: {name: _serve(tls) for name, tls in new.items()})
        return self._take({name: made.get(name) or self._served[name] for name in wanted})

    def _serves(self, name: str, tls: TlsSettings) -> bool:
        served = self._served.get(name)
        return served is not None and served.tls == tls and served.digest == tls.digest != ""

    def _take(self, served: dict[str, _Served]) -> Callable[[], None]:
        before, self._served = self._served, served

        def take_back() -> None:
            self._served = before

        return take_back
