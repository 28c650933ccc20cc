"""One HTTP connection: aiohttp's, with a line in the log instead of a traceback where the peer is at fault.

Owner: the event loop.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

from aiohttp import web

from highway.log_lines import about
from highway.server.admission import format_address

from .dashboard import SECURITY_HEADERS

if TYPE_CHECKING:
    from aiohttp.web_request import BaseRequest

__all__ = ["HttpProtocol"]

logger = logging.getLogger("highway.server")

# Of what a peer sent, as aiohttp quotes it.
MAX_TOLD = 200


class HttpProtocol(web.RequestHandler):
    """A `RequestHandler` whose answers to what is no HTTP, or too long, are problem details too."""

    __slots__ = ()

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to a request that could not be read or, as aiohttp has it, that a handler has failed with."""
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return super().handle_error(request, status, exc, message)
        detail = " ".join((message or "").split())[:MAX_TOLD]
        name = None if request.transport is None else request.transport.get_extra_info("peername")
        peer = format_address(*name[:2]) if isinstance(name, tuple) else "the socket"
        logger.warning("HTTP: closed: %s", detail, extra=about(peer=peer))
        body = {"title": HTTPStatus(status).phrase, "status": status, "detail": detail}
        answer = web.json_response(
            body, status=status, headers=SECURITY_HEADERS, content_type="application/problem+json"
        )
        answer.force_close()
        return answer
