"""Lines of a pipe, a terminal or a file, as they come, without a thread."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["read_lines"]

_CHUNK_BYTES = 65_536


async def read_lines(fd: int) -> AsyncIterator[bytes]:
    """The lines that can be read from `fd` until it ends, without their newlines, the last one even if it has none."""
    rest = b""
    while chunk := await _read(fd):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest


async def _read(fd: int) -> bytes:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not readable.done():
            readable.set_result(None)

    try:
        loop.add_reader(fd, wake)
    except PermissionError:
        return os.read(fd, _CHUNK_BYTES)  # a regular file can't be waited for, and needn't be
    try:
        await readable
    finally:
        loop.remove_reader(fd)
    return os.read(fd, _CHUNK_BYTES)
