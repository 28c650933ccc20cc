"""One broker with a listener of every kind, and clients for each."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.broker_process import BrokerProcess, free_port
from tests.harness.certificates import Authority
from tests.harness.raw_client import RawClient, close_all
from tests.harness.web_socket import WebSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOPICS = [
    {"topic": "safe/#", "log": "safe", "durability": "SAFE"},
    {"topic": "fast/#", "log": "fast", "durability": "FAST"},
]
CONNECT_TIMEOUT_S = 4.0


@pytest.fixture(autouse=True)
def _clients_are_closed() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def trusting(authority: Authority) -> ssl.SSLContext:
    """What a client needs to trust the broker."""
    return ssl.create_default_context(cafile=str(authority.cafile))


@pytest.fixture(scope="session")
def ports() -> dict[str, int]:
    return {name: free_port() for name in ("local", "six", "secure", "mutual", "asking", "web", "webs")}


@pytest.fixture(scope="session")
def broker(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority, ports: dict[str, int]
) -> Iterator[BrokerProcess]:
    certificate = authority.server()
    tls = {"certfile": str(certificate.certfile), "keyfile": str(certificate.keyfile)}
    listeners: dict[str, dict[str, Any]] = {
        "local": {},
        "six": {"bind": "::1"},
        "secure": {"tls": tls},
        "mutual": {"tls": {**tls, "cafile": str(authority.cafile), "require_certificate": True}},
        "asking": {"tls": {**tls, "cafile": str(authority.cafile)}},
        "web": {"websocket": "/mqtt"},
        "webs": {"tls": tls, "websocket": "/mqtt"},
    }
    process = BrokerProcess(
        tmp_path_factory.mktemp("broker"),
        topics=TOPICS,
        listeners={name: {"port": ports[name], **section} for name, section in listeners.items()},
        limits={"connect_timeout": f"{CONNECT_TIMEOUT_S:g}s"},
        storage={"max_backlog_bytes": "64KiB"},  # publishers are paused early
    )
    process.port = ports["local"]
    with process as running:
        yield running


@pytest.fixture
def dial(broker: BrokerProcess, ports: dict[str, int], trusting: ssl.SSLContext) -> Callable[..., RawClient]:
    """A raw client at the listener of a name, before its CONNECT: only MQTT bytes are seen, whatever carries them."""

    def dial(listener: str, **settings: Any) -> RawClient:
        client = RawClient(ports[listener], **settings)
        if listener in ("secure", "asking", "webs"):
            client.socket = trusting.wrap_socket(client.socket, server_hostname="localhost")
        if listener in ("web", "webs"):
            client.socket = WebSocket(client.socket)  # type: ignore[assignment]  # as much of a socket as is used
        return client

    return dial
