"""Notices that the configuration files have changed, where `reload: watch:` asks for that.

What is looked at are the contents, not times: a file that is replaced, linked to another, written in place or set back
in time counts, whatever did it. A change is taken up once it rests, that is when two looks in a row find the same: a
file that is being written in two halves is read whole. A configuration that fails isn't tried again before it changes
again.

Owner: the event loop; the files are read in a thread.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from highway.config.digests import digest_of, watched_files

if TYPE_CHECKING:
    from highway.config import Settings

    from .reloading import Reloader

__all__ = ["watch"]

# Without `watch`, how often it is looked whether that has changed.
IDLE_S = 1.0


async def watch(reloader: Reloader) -> None:
    """Ask for a reload whenever the files have changed and rest; never ends."""
    known = before = ""
    seen: Settings | None = None
    while True:
        settings = reloader.settings
        if not settings.watch_ms:
            seen = None
            await asyncio.sleep(IDLE_S)
            continue
        now = await asyncio.to_thread(digest_of, watched_files(settings))
        if settings is not seen:
            seen, known = settings, settings.digest
        if now == known:
            before = ""
        elif now != before:
            before = now  # it may still be written to
        else:
            known = now
            reloader.request()
        await asyncio.sleep(settings.watch_ms / 1000)
