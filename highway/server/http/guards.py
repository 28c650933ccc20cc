"""Who may ask: everybody on this machine, but no page of a stranger; from beyond it, whoever has the token."""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web

from highway.config.listeners import is_loopback

from .problems import Handler, Problem

__all__ = ["no_strangers"]


@web.middleware
async def no_strangers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Keep out the pages that a browser on this machine shows: they reach the loopback interface as well as we do.

    Such a page comes under a name of its own that it had resolve to 127.0.0.1, or with an `Origin` that isn't ours.
    """
    try:
        host = urlsplit(f"//{request.host}").hostname or ""
    except ValueError:
        host = ""
    if not is_loopback(host):
        raise Problem(403, "another host", f"asked for {request.host!r}; this is served as localhost or 127.0.0.1")
    origin = request.headers.get("Origin")
    if origin not in (None, f"http://{request.host}"):
        raise Problem(403, "another origin", f"asked for by a page of {origin}")
    return await handler(request)
