"""Who may ask: everybody on this machine, but no page of a stranger; where there is a token, whoever shows it.

The unix socket asks for nothing: the rights of its file say who may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiohttp import web

from highway.config.listeners import is_loopback

from .problems import Handler, Problem

if TYPE_CHECKING:
    from aiohttp.typedefs import Middleware

    from highway.config.secret_files import Secret

__all__ = ["AUTHORISED", "guard", "is_over_tcp"]

# Set on a request that may see everything.
AUTHORISED = "authorised"

# What needs no token: the page that asks for it, and health, for load balancers that can't show one.
_OPEN = ("/dashboard/", "/livez", "/readyz")


def guard(token: Secret | None) -> Middleware:
    """The middleware that turns away who may not ask."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_over_tcp(request):
            request[AUTHORISED] = True
        elif token is None:
            _refuse_strangers(request)
            request[AUTHORISED] = True
        else:
            request[AUTHORISED] = _shows(request, token)
            if not request[AUTHORISED] and request.path != "/" and not request.path.startswith(_OPEN):
                problem = Problem(
                    401, "token wanted", "Authorization: Bearer with the token of `http: token:` is wanted"
                )
                problem.headers["WWW-Authenticate"] = "Bearer"
                raise problem
        return await handler(request)

    return guarded


def is_over_tcp(request: web.Request) -> bool:
    """Whether a request came over TCP, and not through the unix socket, which only the broker's user can open."""
    transport = request.transport
    return transport is None or isinstance(transport.get_extra_info("sockname"), tuple)


def _refuse_strangers(request: web.Request) -> None:
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


def _shows(request: web.Request, token: Secret) -> bool:
    scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
    return scheme.lower() == "bearer" and token.matches(shown.strip())
