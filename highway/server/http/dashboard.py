"""The dashboard: files of this package, served with a policy that lets a page load nothing from anywhere else."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING

from aiohttp import web

from .room import Room

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

__all__ = ["SECURITY_HEADERS", "Dashboard"]

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing inline, nothing from elsewhere, in nobody's frame: what a payload smuggles into a page can't run there.
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class _File:
    """One file, in memory: there are a dozen, and a disk that hangs must not keep the page from showing that."""

    __slots__ = ("body", "content_type", "etag")

    def __init__(self, source: Traversable) -> None:
        self.body = source.read_bytes()
        self.content_type = TYPES["." + source.name.rpartition(".")[2]]
        self.etag = hashlib.sha256(self.body).hexdigest()[:16]


class Dashboard(Room):
    """`/` and `/dashboard/...`. They hold no data, so they ask for no token."""

    def routes(self) -> list[web.RouteDef]:
        folder = resources.files("highway.server").joinpath("dashboard")
        self._files = {item.name: _File(item) for item in folder.iterdir() if _is_served(item)}
        vendored = folder.joinpath("vendor").iterdir()
        self._files |= {f"vendor/{item.name}": _File(item) for item in vendored if _is_served(item)}
        return [web.get("/", self._page), web.get("/dashboard/{name:.+}", self._file)]

    async def _page(self, request: web.Request) -> web.Response:
        return self._answer(request, "index.html")

    async def _file(self, request: web.Request) -> web.Response:
        return self._answer(request, request.match_info["name"])

    def _answer(self, request: web.Request, name: str) -> web.Response:
        file = self._files.get(name)
        if file is None:
            raise web.HTTPNotFound
        headers = {"Content-Type": file.content_type, "Cache-Control": "no-cache", "ETag": f'"{file.etag}"'}
        if any(tag.value == file.etag for tag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
        return web.Response(body=file.body, headers=headers)


def _is_served(item: Traversable) -> bool:
    return item.is_file() and "." + item.name.rpartition(".")[2] in TYPES
