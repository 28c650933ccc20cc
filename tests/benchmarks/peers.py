"""The brokers that are measured side by side, each started on loopback with a folder of its own, and ended with it.

Settings are those that come closest to each other: nothing is limited, everything that a session misses is kept. What each
does before its acknowledgement differs, and is said in the report.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil

from highway.cli.client import Connection
from highway.cli.load.client import LoadClient, LoadError
from tests.harness.broker_process import ROOT, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PEERS", "Peer", "Running"]

START_S = 60.0
STOP_S = 30.0
SBIN = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin:/usr/lib/rabbitmq/bin"


def program(name: str) -> str | None:
    """Where it is: beside this Python, on the path, or where servers are."""
    for path in (str(Path(sys.executable).parent), None, SBIN):
        found = shutil.which(name, path=path)
        if found is not None:
            return found
    return None


@dataclass(frozen=True)
class Peer:
    """A broker with one set of settings. `share` is the part of the load that it gets, so that a slow one isn't waited for."""

    name: str
    promise: str  # what its acknowledgement of QoS 1 means for the disk
    executable: str
    command: Callable[[Path, int], list[str]]
    version: Callable[[], str]
    settings: Callable[[Path, int], dict[str, str]]  # files to write, by name
    environment: Callable[[Path, int], dict[str, str]] = lambda _folder, _port: {}
    share: float = 1.0
    stores_only_for_sessions: bool = False
    is_highway: bool = False
    not_counted: tuple[str, ...] = ()  # names of files and folders of constant size: they say nothing of a message
    finish: Callable[[], None] = lambda: None  # after the end of its process

    def missing(self) -> str:
        """Why it can't be measured; "" if it can."""
        return "" if program(self.executable) else f"{self.executable} is not installed"


class Running:
    """A peer that was started on a folder, and is again on the same folder and port by `start`."""

    def __init__(self, peer: Peer, folder: Path) -> None:
        self.peer = peer
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        for each in [folder, *folder.parents][:2]:
            each.chmod(0o755)
        folder.chmod(0o777)  # mosquitto gives up root
        for name, text in peer.settings(folder, self.port).items():
            (folder / name).write_text(text)

    @property
    def where(self) -> Connection:
        """How to reach it."""
        return Connection("127.0.0.1", self.port, None, None, None)

    def start(self, *, prepare: bool = True) -> Self:
        """Start it, and return when a client is accepted."""
        with (self.folder / "output.txt").open("ab") as output:
            self.process = subprocess.Popen(
                self.peer.command(self.folder, self.port),
                cwd=ROOT if self.peer.is_highway else self.folder,
                env={**os.environ, **self.peer.environment(self.folder, self.port)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        wait_until(self._accepts, timeout=START_S, what=f"{self.peer.name} (see {self.folder}/output.txt)")
        if prepare and self.peer.stores_only_for_sessions:
            keeper = LoadClient(self.where, "bench-keeper", clean=False)
            keeper.subscribe("highway/+/telemetry", 1)
            keeper.close()
        return self

    def _accepts(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (
            f"{self.peer.name} ended: {(self.folder / 'output.txt').read_text()[-2000:]}"
        )
        try:
            LoadClient(self.where, "bench-knock").close()
        except (OSError, LoadError):
            return False
        return True

    def _processes(self) -> list[psutil.Process]:
        assert self.process is not None
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def rss_bytes(self) -> int:
        """Memory of all its processes."""
        total = 0
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss
        return total

    def cpu_seconds(self) -> float:
        """Processor time that all its processes have used."""
        total = 0.0
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                used = process.cpu_times()
                total += used.user + used.system
        return total

    def disk_bytes(self) -> int:
        """What its folder takes on the disk."""
        ignored = {"output.txt", *self.peer.not_counted}
        total = 0
        for path in self.folder.rglob("*"):
            with contextlib.suppress(OSError):
                if path.is_file() and not ignored & set(path.parts):
                    total += path.stat().st_blocks * 512
        return total

    def stop(self) -> None:
        """End it as a service manager does, and by force if that takes too long."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._end_the_rest(signal.SIGTERM)

    def kill(self) -> None:
        """`kill -9`."""
        assert self.process is not None
        self._end_the_rest(signal.SIGKILL)
        self.process.wait(STOP_S)

    def _end_the_rest(self, number: int) -> None:
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.stop()
            self.peer.finish()


# Highway.


def highway(mode: str) -> Peer:
    topics = [{"topic": "highway/+/telemetry", "log": "telemetry", "durability": mode}]

    def settings(folder: Path, port: int) -> dict[str, str]:
        whole: dict[str, Any] = {
            "data_dir": str(folder / "data"),
            "listeners": {"local": {"bind": "127.0.0.1", "port": port}},
            "topics": topics,
            # A whole fleet comes from one address here.
            "limits": {"connect_rate_per_address": "unlimited", "max_half_open_per_address": 10_000},
        }
        return {"highway.yaml": json.dumps(whole, indent=1)}

    promises = {"FAST": "in memory", "BALANCED": "written, synced every second", "SAFE": "synced and read back"}
    return Peer(
        f"Highway {mode}",
        promises[mode],
        "python3",
        lambda folder, _: [sys.executable, "-m", "highway", "serve", "-c", str(folder / "highway.yaml")],
        _highway_version,
        settings,
        lambda _folder, _port: {"PYTHONPATH": str(ROOT)},
        is_highway=True,
        not_counted=("journal", "RESERVE"),
    )


def _highway_version() -> str:
    from highway import __version__

    return f"{__version__}, Python {sys.version.split()[0]}"


def _first_line(*words: str) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0].strip() if lines else "unknown"


# mosquitto.

MOSQUITTO_CONF = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence true
persistence_location {folder}/
set_tcp_nodelay true
max_inflight_messages 0
max_queued_messages 0
queue_qos0_messages true
"""

MOSQUITTO = Peer(
    "mosquitto",
    "in memory",
    "mosquitto",
    lambda folder, _: [program("mosquitto") or "", "-c", str(folder / "mosquitto.conf")],
    lambda: _first_line(program("mosquitto") or "", "-h"),
    lambda folder, port: {"mosquitto.conf": MOSQUITTO_CONF.format(folder=folder, port=port)},
)

# nats-server.

NATS_CONF = """\
server_name: bench
listen: 127.0.0.1:{other}
jetstream {{ store_dir: "{folder}/store"{sync} }}
mqtt {{ listen: 127.0.0.1:{port}, max_ack_pending: 20000 }}
"""


def nats(name: str, promise: str, sync: str, share: float) -> Peer:
    return Peer(
        name,
        promise,
        "nats-server",
        lambda folder, _: [program("nats-server") or "", "-c", str(folder / "nats.conf")],
        lambda: _first_line(program("nats-server") or "", "--version"),
        lambda folder, port: {
            "nats.conf": NATS_CONF.format(folder=folder, port=port, other=free_port(), sync=sync),
        },
        share=share,
        stores_only_for_sessions=True,
    )


# RabbitMQ.

RABBIT_CONF = """\
listeners.tcp.1 = 127.0.0.1:{other}
mqtt.listeners.tcp.1 = 127.0.0.1:{port}
mqtt.allow_anonymous = true
mqtt.prefetch = 1000
mqtt.tcp_listen_options.nodelay = true
loopback_users = none
"""


def _rabbit_environment(folder: Path, port: int) -> dict[str, str]:
    return {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "ERL_EPMD_PORT": str(_epmd_port()),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }


def _epmd_port() -> int:
    """One name server for all nodes of this run, on a port that isn't anybody's."""
    global _EPMD  # noqa: PLW0603
    _EPMD = _EPMD or free_port()
    return _EPMD


def _end_epmd() -> None:
    subprocess.run(["epmd", "-port", str(_EPMD), "-kill"], check=False, capture_output=True)


_EPMD = 0

RABBITMQ = Peer(
    "RabbitMQ",
    "a classic durable queue, for QoS 1",
    "rabbitmq-server",
    lambda _folder, _port: ["/usr/lib/rabbitmq/bin/rabbitmq-server"],
    lambda: _first_line("dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server"),
    lambda _folder, port: {
        "rabbitmq.conf": RABBIT_CONF.format(port=port, other=free_port()),
        "enabled_plugins": "[rabbitmq_mqtt].\n",
    },
    _rabbit_environment,
    share=0.2,
    stores_only_for_sessions=True,
    finish=_end_epmd,
)

# amqtt.

AMQTT_CONF = """\
listeners:
  default:
    type: tcp
    bind: 127.0.0.1:{port}
    max_connections: 0
plugins:
  amqtt.plugins.authentication.AnonymousAuthPlugin:
    allow_anonymous: true
"""

AMQTT = Peer(
    "amqtt",
    "before the message is routed",
    "amqtt",
    lambda folder, _: [program("amqtt") or "", "-c", str(folder / "amqtt.yaml")],
    lambda: _first_line(sys.executable, "-c", "import amqtt; print(amqtt.__version__)"),
    lambda _folder, port: {"amqtt.yaml": AMQTT_CONF.format(port=port)},
    share=0.1,
)

PEERS = [
    *map(highway, ("FAST", "BALANCED", "SAFE")),
    MOSQUITTO,
    nats("nats", "written, synced every two minutes", "", 1.0),
    nats("nats always", "synced", ", sync_interval: always", 0.1),
    RABBITMQ,
    AMQTT,
]
