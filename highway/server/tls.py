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
        """Read the files of `listeners`; CertificateError if one is no good."""
        self._served = {item.name: _serve(item.tls) for item in listeners if item.tls is not None}

    def __getitem__(self, listener: str) -> ssl.SSLContext:
        return self._served[listener].context

    @property
    def ends(self) -> dict[str, float]:
        """Unix time at which the certificate of a listener expires; those that aren't valid yet are left out."""
        return {name: served.end for name, served in self._served.items() if served.end}

    async def change(self, listeners: Iterable[Listener]) -> Callable[[], None]:
        """Serve `listeners` to connections to come; those that are open don't notice. What is returned takes it back.

        Only files that hold something else than they did are read, in a thread. All or nothing: CertificateError leaves
        the contexts as they were.
        """
        wanted = {item.name: item.tls for item in listeners if item.tls is not None}
        new = {name: tls for name, tls in wanted.items() if not self._serves(name, tls)}
        made = {}
        if new:
            made = await asyncio.to_thread(lambda: {name: _serve(tls) for name, tls in new.items()})
        before = self._served
        self._served = {name: made.get(name) or before[name] for name in wanted}

        def take_back() -> None:
            self._served = before

        return take_back

    def _serves(self, name: str, tls: TlsSettings) -> bool:
        served = self._served.get(name)
        return served is not None and served.tls == tls and served.digest == tls.digest != ""
