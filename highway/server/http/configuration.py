"""The configuration in force, what another one would change, reloads, and what retention deletes.

What changes something, or reads a file that the request names, is served on the unix socket only: there the rights of
the file say who may.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import web

from highway.config.rendering import to_tree
from highway.errors import CertificateError, ConfigError, HighwayError, ReloadRefusedError

from .guards import is_over_tcp
from .problems import Problem
from .room import Room

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from highway.config.plan import Plan
    from highway.server.reloading import Reloader
    from highway.storage import Deletion

__all__ = ["Configuration"]


class Configuration(Room):
    """`/api/v1/config`, `/api/v1/reload` and `/api/v1/retention`."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/api/v1/config", self._config),
            web.post("/api/v1/config/plan", self._plan),
            web.post("/api/v1/reload", self._reload),
            web.get("/api/v1/retention", self._retention),
            web.post("/api/v1/retention/trim", self._trim),
        ]

    @property
    def _reloader(self) -> Reloader:
        reloader = self.condition.reloader
        if reloader is None:
            raise Problem(503, "starting", "the broker is still starting")
        return reloader

    async def _config(self, _: web.Request) -> web.Response:
        reloader = self._reloader
        return web.json_response({"source": str(reloader.source), "effective": to_tree(reloader.settings)})

    async def _plan(self, request: web.Request) -> web.Response:
        only_owner(request)
        file = request.query.get("file")
        plan = await _answered(self._reloader.plan(None if file is None else Path(file)))
        return web.json_response(plan.to_json())

    async def _reload(self, request: web.Request) -> web.Response:
        only_owner(request)
        allow_trim = request.query.get("allow_trim") == "true"
        plan = await _answered(self._reloader.reload(allow_trim=allow_trim))
        return web.json_response(plan.to_json())

    async def _retention(self, request: web.Request) -> web.Response:
        """What would be deleted: by the rules as they are, or by a trim where `before` says up to where."""
        if "before" in request.query:
            return web.json_response(_as_list(await self._trimmed(request, dry_run=True)))
        names = [request.query["log"]] if "log" in request.query else [*self.broker.feeds]
        logs = [self.feed_named(name).log.settings for name in names]
        done = self.loop.create_future()
        self.broker.storage.plan_retention(logs, done.set_result)
        found = await done
        return web.json_response([found[name]._asdict() for name in names if name in found])

    async def _trim(self, request: web.Request) -> web.Response:
        only_owner(request)
        return web.json_response(_as_list(await self._trimmed(request, dry_run=False)))

    async def _trimmed(self, request: web.Request, *, dry_run: bool) -> Deletion | None:
        feed = self.feed_named(request.query.get("log", ""))
        offset = await self.offset(feed, request.query.get("before", ""), b"#")
        storage, done = self.broker.storage, self.loop.create_future()
        (storage.plan_trim if dry_run else storage.trim)(feed.log, offset, done.set_result)
        deletion: Deletion | None = await done
        return deletion


def only_owner(request: web.Request) -> None:
    """Refuse what didn't come through the unix socket, which only the broker's user can open."""
    if is_over_tcp(request):
        raise Problem(403, "only through the socket", "served on the socket in the data directory only")


async def _answered(plan: Awaitable[Plan]) -> Plan:
    """The plan; Problem in place of what is wrong with the configuration, or with putting it in force."""
    try:
        return await plan
    except ConfigError as error:
        raise Problem(
            422, "wrong configuration", "the configuration is wrong; nothing has changed", problems=error.problems
        ) from error
    except CertificateError as error:
        raise Problem(422, "wrong configuration", "nothing has changed", problems=[str(error)]) from error
    except ReloadRefusedError as error:
        raise Problem(409, "refused", str(error)) from error
    except HighwayError as error:
        raise Problem(500, "reload failed", f"{error}; nothing has changed") from error


def _as_list(deletion: Deletion | None) -> list[dict[str, Any]]:
    return [] if deletion is None else [deletion._asdict()]
