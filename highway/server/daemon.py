"""Run a broker until a signal says stop: open the data directory, listen, serve, close.

Standard error says what people and supervisors wait for: where to connect, `highway: ready`, and why it stopped.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING

from highway.broker import Broker
from highway.broker.reconfiguring import renew_rights
from highway.clock import SystemClock
from highway.config.loading import Source
from highway.errors import DiskFailedError, StorageError
from highway.log_lines import LogLines
from highway.storage import Storage, descriptor_share

from .access.gate import keep_fresh, open_gate
from .condition import Condition
from .connection import Connections
from .doors import Doors
from .http import ADMIN_SOCKET, HttpServer
from .http.places import MAX_CONNECTIONS
from .reloading import Reloader
from .supervisor import Supervisor
from .tls import TlsContexts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from highway.config import Settings

    from .listening import Door

__all__ = ["EXIT_DISK_FAILED", "run"]

logger = logging.getLogger("highway.server")

EXIT_DISK_FAILED = 74  # EX_IOERR: a sync failed, and what the page cache holds can't be trusted any more

# Objects born between two collections of the youngest generation. The default of 700 would run the collector once
# for every few messages, over lists and tuples that hold no cycles; with 50,000 it takes ten milliseconds at a time.
GC_THRESHOLD = 10_000
# The journal thread does little Python between system calls; the default of 5 ms would let it wait that long for the
# interpreter while publishers wait for their acknowledgements.
SWITCH_INTERVAL_S = 0.0005
REPEATED_INTERVAL_S = 10.0  # how late the count of a fault that has stopped may be told
OTHER_DESCRIPTORS = 64 + MAX_CONNECTIONS  # journal, listeners, loop, interpreter; HTTP


def run(settings: Settings, source: Source | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. Raises HighwayError if it can't start.

    `source` is where the settings came from, and where a reload reads them anew.
    """
    lines = LogLines(with_time="JOURNAL_STREAM" not in os.environ)  # the journal writes the time itself
    lines.apply(settings.logging)
    lines.install()
    gc.set_threshold(GC_THRESHOLD, 20, 50)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    _raise_descriptor_limit(settings.broker.max_connections)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_serve(settings, source or Source(), lines))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop  # noqa: PLC0415  not on every platform
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _raise_descriptor_limit(max_connections: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return
    segments = descriptor_share()
    connections = max(0, hard - segments - OTHER_DESCRIPTORS)
    level = logging.INFO if connections >= max_connections else logging.WARNING
    logger.log(
        level,
        "open files: %d allowed, enough for %d segments and %d connections; max_connections is %d",
        *(hard, segments, connections, max_connections),
    )


def _say_ready(doors: Iterable[Door], settings: Settings, lines: LogLines) -> None:
    """Start-up is over: two lines to paste, one publishes, one replays, and the line that scripts wait for."""
    gc.collect()
    gc.freeze()  # what start-up made lives as long as the process: no collection has to look at it again
    _say_how_to_try(doors, "" if settings.auth.anonymous else " -u NAME -P PASSWORD", lines)
    lines.say("ready", plain=True)


def _say_how_to_try(doors: Iterable[Door], login: str, lines: LogLines) -> None:
    for door in doors:
        if door.is_plain:
            address = f"-h {door.host} -p {door.port}{login}"
            lines.say(f"""try: mosquitto_pub {address} -q 1 -t highway/A1/telemetry -m '{{"speed_kmh":82.5}}'""")
            lines.say(f"and: mosquitto_sub {address} -v -t '$replay/earliest/highway/#'")
            return


def _status(broker: Broker) -> str:
    """What `systemctl status` shows."""
    counters = broker.counters
    state = "serving" if broker.storage.writable else "READ-ONLY"
    return (
        f"{state}: {counters.clients_connected:,} clients, {counters.publish_received:,} messages in, "
        f"{counters.publish_sent:,} out"
    )


def _tell_repeated(loop: asyncio.AbstractEventLoop, lines: LogLines) -> None:
    lines.flush_repeated()
    loop.call_later(REPEATED_INTERVAL_S, _tell_repeated, loop, lines)


async def _open_all(settings: Settings, http: HttpServer, doors: Doors, lines: LogLines) -> None:
    """Serve HTTP, then listen."""
    await http.start(settings.data_dir / ADMIN_SOCKET, settings.http, settings.http_token)
    if http.url is not None:
        lines.say(f"HTTP on {http.url}")
    await doors.open(settings.listeners)


async def _serve(settings: Settings, source: Source, lines: LogLines) -> int:
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(code: int) -> None:
        if not stopped.done():
            stopped.set_result(code)

    _tell_repeated(loop, lines)

    contexts = TlsContexts(settings.listeners)
    condition = Condition(certificates=lambda: contexts.ends)
    loop.add_signal_handler(signal.SIGHUP, condition.hung_up)
    gate = await open_gate(settings.auth, loop, condition.plugin_seconds)
    clock = SystemClock()
    supervisor = Supervisor(os.environ)
    with supervisor.busy(f"recovering {settings.data_dir}"):
        storage = Storage.open(settings.data_dir, settings.logs, scheduler=loop, clock=clock, settings=settings.storage)
    logger.info("data in %s", settings.data_dir)

    def fault(error: StorageError) -> None:
        logger.error("%s", error)
        if isinstance(error, DiskFailedError) and not storage.writable:  # or else one log mends itself
            stop(EXIT_DISK_FAILED)

    storage.on_fault = fault
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, 0)
    broker = Broker(settings.broker, storage, loop, clock, gate)
    keep_fresh(gate, partial(renew_rights, broker), loop)
    connections = Connections(broker, loop)
    doors = Doors(connections, contexts, lines.say)
    http = HttpServer(broker, loop, condition)
    try:
        await _open_all(settings, http, doors, lines)
        condition.reloader = Reloader(source, settings, broker, doors, contexts, gate, lines, condition)
        condition.listening = True
        _say_ready(doors, settings, lines)
        supervisor.ready(_status(broker))
        supervisor.watch(loop, storage, lambda: _status(broker))
        await condition.reloader.keep()
        code = await stopped
        lines.say(f"stopping with code {code}")
    finally:
        supervisor.stopping()
        doors.close()
        if condition.reloader is not None:
            condition.reloader.close()
        await http.close()
        broker.close()
        await asyncio.to_thread(gate.access.close)
        with supervisor.busy("stopping: what is in memory goes to the disk"):
            storage.close()
        lines.flush_repeated(everything=True)
    return code
