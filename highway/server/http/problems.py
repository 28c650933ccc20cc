"""Errors as problem details (RFC 9457), whatever raised them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from aiohttp import web

from highway.errors import HighwayError, MqttError, OffsetError

__all__ = ["Handler", "Problem", "answer_problems"]

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Problem(Exception):  # noqa: N818  it is a problem detail
    """An answer that says what is wrong with the request; `members` are put beside the usual three."""

    def __init__(self, status: int, title: str, detail: str, **members: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.body = {"title": title, "status": status, "detail": detail, **members}
        self.headers: dict[str, str] = {}


@web.middleware
async def answer_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what a handler raised into an answer."""
    headers: dict[str, str] = {}
    try:
        return await handler(request)
    except Problem as problem:
        body, headers = problem.body, problem.headers
    except OffsetError as error:
        body = {
            "title": error.status,
            "status": 404,
            "detail": str(error),
            "log_start_offset": error.log_start_offset,
            "high_watermark": error.high_watermark,
        }
    except MqttError as error:
        body = {"title": "bad request", "status": 400, "detail": str(error)}
    except HighwayError as error:
        body = {"title": "not found", "status": 404, "detail": str(error)}
    except web.HTTPMethodNotAllowed as error:
        headers = {"Allow": error.headers["Allow"]}
        body = {"title": error.reason, "status": error.status, "detail": f"{request.method} {request.path}"}
    except web.HTTPError as error:
        body = {"title": error.reason, "status": error.status, "detail": f"{request.method} {request.path}"}
    status = int(str(body["status"]))
    return web.json_response(body, status=status, headers=headers, content_type="application/problem+json")
