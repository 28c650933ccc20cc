"""Requests to the HTTP API, over its socket or over TCP, as curl makes them."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
from yarl import URL

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Answer", "request"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A response as a whole."""

    status: int
    content_type: str
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.body.splitlines()]


def request(
    where: Path | int, path: str, *, method: str = "GET", headers: dict[str, str] | None = None, timeout: float = 30.0
) -> Answer:
    """One request to the socket at a path, or to a port of this machine; `path` is sent as it stands."""
    return asyncio.run(_request(where, path, method, headers or {}, aiohttp.ClientTimeout(timeout)))


async def _request(
    where: Path | int, path: str, method: str, headers: dict[str, str], limit: aiohttp.ClientTimeout
) -> Answer:
    folder = -1
    if isinstance(where, int):
        connector: aiohttp.BaseConnector = aiohttp.TCPConnector()
        url = f"http://127.0.0.1:{where}{path}"
    else:
        folder = os.open(where.parent, os.O_PATH)  # the path of a socket may have 107 bytes
        connector, url = aiohttp.UnixConnector(f"/proc/self/fd/{folder}/{where.name}"), f"http://localhost{path}"
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=limit) as session,
            session.request(method, URL(url, encoded=True), headers=headers) as response,
        ):
            return Answer(response.status, response.content_type, await response.read())
    finally:
        if folder >= 0:
            os.close(folder)
