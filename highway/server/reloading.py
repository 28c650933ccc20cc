"""Another configuration for a broker that runs: read, planned, and only then in force, as a whole or not at all.

    read     the files and everything that they name; a fault anywhere, and nothing more happens
    plan     what would change; what a shorter retention would delete is asked of the storage engine
    prepare  whatever can fail: plugins, certificates, sockets. A failure takes back what was prepared before it
    apply    logs, routes, rights, limits, log lines: nothing of it can fail, and no other turn of the loop is between

A plan that deletes messages is refused unless that is allowed. Whatever fails, the configuration before stays in force,
and `Condition` tells everybody who asks.

Owner: the event loop. Files are read, and everything is worked out that needs nothing but them and what is in force, in
one visit of a thread: a second visit is to wait for the interpreter once more while publishers have it. Requests come
one after the other.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from highway.broker.reconfiguring import end_unknown, reconfigure, renew_rights
from highway.config.plan import Plan, compaction_changes, in_force, make_plan, opened_doors, retention_changes
from highway.errors import ConfigError, HighwayError, ReloadRefusedError
from highway.storage.settings import find_settings

from .last_good import LAST_GOOD, keep_last_good
from .watching import watch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from highway.broker import Broker
    from highway.config import Settings
    from highway.config.loading import Source
    from highway.log_lines import LogLines
    from highway.storage import Deletion, LogSettings

    from .access.gate import Gate
    from .condition import Condition
    from .doors import Doors
    from .tls import TlsContexts

__all__ = ["Reloader"]

logger = logging.getLogger("highway.server")

# Lines about one reload. A list of a thousand entries that all change would hold up the loop, and nobody reads it.
TOLD_CHANGES = 100


@dataclass(frozen=True, slots=True)
class _Draft:
    """What was read, and what follows from it where `before` is in force."""

    before: Settings
    new: Settings
    settings: Settings  # `new`, less what needs a restart
    plan: Plan  # as if nothing were stored
    opened: list[str]
    retention: list[LogSettings]  # what the storage engine is to be asked about
    compaction: dict[str, LogSettings]


def _draft(source: Source, instead: Path | None, before: Settings) -> _Draft:
    """Read the files, and work out what they change; ConfigError as `Source.load`."""
    new = source.load(instead)
    settings = in_force(before, new)
    return _Draft(
        before,
        new,
        settings,
        make_plan(before, new),
        opened_doors(before, new, settings),
        retention_changes(before, new),
        {log.name: log for log in compaction_changes(before, new)},
    )


class Reloader:
    """The configuration in force, and the way to another one."""

    def __init__(
        self,
        source: Source,
        settings: Settings,
        broker: Broker,
        doors: Doors,
        contexts: TlsContexts,
        gate: Gate,
        lines: LogLines,
        condition: Condition,
    ) -> None:
        self.source = source
        self.settings = settings  # in force
        self.waiting: list[str] = []  # keys that the files have otherwise, and that wait for a restart
        self._broker = broker
        self._doors = doors
        self._contexts = contexts
        self._gate = gate
        self._lines = lines
        self._condition = condition
        self._kept: Settings | None = None  # what the last good copy says
        self._turn = asyncio.Lock()
        self._tasks = {asyncio.get_running_loop().create_task(watch(self), name="watch the configuration")}

    async def plan(self, instead: Path | None = None) -> Plan:
        """What a reload would change now, or what another file would. ConfigError with all that is wrong with it."""
        return (await self._plan(instead))[0]

    async def _plan(self, instead: Path | None = None) -> tuple[Plan, _Draft]:
        draft = await asyncio.to_thread(_draft, self.source, instead, self.settings)
        deletions = await self._deletions(draft)
        compacted = self._compacted(draft)
        if not deletions and not compacted:
            return draft.plan, draft
        return await asyncio.to_thread(make_plan, draft.before, draft.new, deletions, compacted), draft

    async def _deletions(self, draft: _Draft) -> dict[str, Deletion]:
        """What retention would delete."""
        if not draft.retention:
            return {}
        answer: asyncio.Future[dict[str, Deletion]] = asyncio.get_running_loop().create_future()
        self._broker.storage.plan_retention(draft.retention, answer.set_result, only_new=True)
        return await answer

    def _compacted(self, draft: _Draft) -> set[str]:
        """The entries whose logs hold something to compact."""
        if not draft.compaction:
            return set()
        return {
            settings.name
            for name, log in self._broker.storage.logs.items()
            if (settings := find_settings(draft.compaction, name)) is not None
            and log.log_start_offset < log.log_end_offset
        }

    async def reload(self, *, allow_trim: bool = False) -> Plan:
        """Put the files in force as they are now; returns what has changed.

        ConfigError, ReloadRefusedError for a plan that deletes what nobody has allowed, CertificateError or another
        HighwayError for what can't be had: then nothing has changed.
        """
        async with self._turn:
            try:
                plan, draft = await self._plan()
                if plan.losses and not allow_trim:
                    raise ReloadRefusedError(_refusal(plan), "highway reload --allow-trim does that")
                if draft.opened:
                    where = ", ".join(draft.opened)
                    raise ReloadRefusedError(
                        f"anybody on the network could connect at {where} until the restart that it needs",
                        "restart instead, or reload in two steps",
                    )
                await self._apply(draft.settings)
            except Exception as error:
                self._condition.reload_failed(_short(error), self._broker.clock.now_ms())
                raise
            self.waiting = plan.waiting
            self._tell(plan)
            await self._keep()
            self._condition.reloaded()
            if plan.deletes:
                self._broker.storage.reap()
            return plan

    async def keep(self) -> None:
        """Have the last good copy say what is in force."""
        async with self._turn:
            await self._keep()

    async def _keep(self) -> None:
        settings = self.settings
        if self._kept != settings or not (settings.data_dir / LAST_GOOD).exists():
            self._kept = settings if await asyncio.to_thread(keep_last_good, settings) else None

    async def _apply(self, settings: Settings) -> None:
        access = await self._gate.prepare(settings.auth)
        take_back: Callable[[], None] | None = None
        try:
            take_back = await self._contexts.change(settings.listeners)
            close_others = await self._doors.change(settings.listeners)
        except BaseException:
            if take_back is not None:
                take_back()
            await self._gate.let_go(access)
            raise
        # From here on nothing can fail.
        storage = self._broker.storage
        gone = {log.name for log in self.settings.logs} - {log.name for log in settings.logs}
        storage.change_logs(settings.logs, gone)
        access_before = self._gate.change(access, self._broker.clients.values())
        reconfigure(self._broker, settings.broker)
        if access.plugins is not None or access_before.plugins is not None:
            renew_rights(self._broker)  # what plugins decided is asked for again
        if access is not access_before:
            end_unknown(self._broker)
        close_others()
        self._lines.apply(settings.logging)
        self.settings = settings
        await self._gate.let_go(access_before)

    def _tell(self, plan: Plan) -> None:
        for warning in plan.warnings:
            logger.warning("configuration: %s", warning)
        for change in plan.changes[:TOLD_CHANGES]:
            logger.info("reload: %s", change)
        more = len(plan.changes) - TOLD_CHANGES
        if more > 0:
            logger.info("reload: and %d more changes of that kind", more)
        logger.info("reload: %s is in force, %d changes", self.source, len(plan.changes))

    def request(self) -> None:
        """Reload soon, as SIGHUP asks for: nobody waits for the answer, so that it goes to the log."""

        async def run() -> None:
            try:
                await self.reload()
            except HighwayError as error:
                for line in error.problems if isinstance(error, ConfigError) else [str(error)]:
                    logger.error("reload failed: %s", line)
                logger.error("reload failed: the configuration before it stays in force")
            except Exception:
                logger.exception("reload failed, by a fault of ours")

        task = asyncio.get_running_loop().create_task(run(), name="reload")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Begin nothing more."""
        for task in self._tasks:
            task.cancel()


def _short(error: Exception) -> str:
    """One sentence about a failure that may have many lines."""
    if isinstance(error, ConfigError) and len(error.problems) > 1:
        return f"{error.problems[0]} (and {len(error.problems) - 1} more)"
    return str(error) or type(error).__name__


def _refusal(plan: Plan) -> str:
    return "it would delete stored messages: " + "; ".join(map(str, plan.losses))
