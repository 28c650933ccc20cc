"""One broker that is reached in four ways, and what each client is told to reach it in one of them."""

from __future__ import annotations

import shutil
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.broker_process import BrokerProcess, free_port
from tests.harness.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Iterator

CLIENTS = Path(__file__).parent
WEBSOCKET_PATH = "/mqtt"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a client connects to, and whom it has to trust there."""

    name: str
    port: int
    tls: bool
    websocket: bool
    cafile: str

    @property
    def context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=self.cafile) if self.tls else None

    @property
    def url(self) -> str:
        scheme = ("wss" if self.tls else "ws") if self.websocket else ("mqtts" if self.tls else "mqtt")
        return f"{scheme}://localhost:{self.port}{WEBSOCKET_PATH if self.websocket else ''}"


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Endpoint]]:
    """tcp, tls, ws and wss of one running broker."""
    authority = Authority(tmp_path_factory.mktemp("authority"))
    certificate = authority.server()
    tls: dict[str, Any] = {"tls": {"certfile": str(certificate.certfile), "keyfile": str(certificate.keyfile)}}
    web = {"websocket": WEBSOCKET_PATH}
    listeners = {"tcp": {}, "tls": tls, "ws": web, "wss": {**tls, **web}}
    ports = {name: free_port() for name in listeners}
    process = BrokerProcess(
        tmp_path_factory.mktemp("broker"),
        topics=[{"topic": "tls/#", "log": "safe", "durability": "SAFE"}],
        listeners={name: {"port": ports[name], **section} for name, section in listeners.items()},
    )
    process.port = ports["tcp"]
    with process:
        yield {
            name: Endpoint(name, ports[name], "tls" in section, "websocket" in section, str(authority.cafile))
            for name, section in listeners.items()
        }


@pytest.fixture(scope="session")
def mqtt_js() -> str:
    """The program that runs mqtt.js; skips where it can't be run."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed (Debian: nodejs npm)")
    if not (CLIENTS / "node_modules" / "mqtt").is_dir():
        pytest.skip("mqtt.js is not installed: npm install in tests/clients")
    return node
