"""The bearer token: asked for over TCP, and not on the socket in the data directory."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from highway.server.http.places import MAX_CONNECTIONS
from tests.harness.broker_process import BrokerProcess, free_port
from tests.harness.http import request

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "a-token-of-24-characters"


@pytest.fixture(scope="module")
def http_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, http_port: int) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("token")
    secret = folder / "http-token"
    secret.touch(0o600)
    secret.write_text(TOKEN + "\n")
    with BrokerProcess(folder, http={"port": http_port, "token": {"file": "http-token"}}) as running:
        yield running


@pytest.mark.parametrize("path", ["/api/v1/status", "/metrics", "/api/v1/events", "/api/v1/nope", "/api/v1/sessions/x"])
@pytest.mark.parametrize("shown", [None, "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xe9"])
def test_nothing_is_told_without_the_token(broker: BrokerProcess, http_port: int, path: str, shown: str | None) -> None:
    answer = request(http_port, path, headers={} if shown is None else {"Authorization": shown})
    assert (answer.status, answer.content_type) == (401, "application/problem+json")
    assert answer.json()["title"] == "token wanted"


def test_with_the_token_everything_is_told_under_any_name(broker: BrokerProcess, http_port: int) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Host": "plant.example"}
    for path in ("/api/v1/status", "/metrics"):
        assert request(http_port, path, headers=headers).status == 200


@pytest.mark.parametrize("path", ["/", "/dashboard/app.js", "/livez", "/readyz"])
def test_the_page_that_asks_for_it_and_health_are_open(broker: BrokerProcess, http_port: int, path: str) -> None:
    assert request(http_port, path).status == 200


def test_the_socket_asks_for_none(broker: BrokerProcess) -> None:
    assert request(broker.data / "admin.sock", "/api/v1/status").status == 200


def test_strangers_take_no_more_than_the_places_that_there_are(broker: BrokerProcess, http_port: int) -> None:
    assert broker.process is not None
    descriptors = Path(f"/proc/{broker.process.pid}/fd")
    with ExitStack() as opened:

        def connection(request: bytes) -> socket.socket:
            made = opened.enter_context(socket.create_connection(("127.0.0.1", http_port), timeout=10))
            made.sendall(request)
            return made

        reader = connection(
            b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n\r\n" % TOKEN.encode()
        )
        assert reader.recv(12) == b"HTTP/1.1 200"
        before = len(list(descriptors.iterdir()))
        silent = [connection(b"GET /livez HTTP/1.1\r\nHo") for _ in range(MAX_CONNECTIONS + 50)]
        assert silent[0].recv(1) == b"", "the oldest has made room"
        assert request(http_port, "/livez").status == 200
        assert len(list(descriptors.iterdir())) <= before + MAX_CONNECTIONS
        seen = b""
        while seen.count(b"event: state") < 2:
            seen += reader.recv(65536)
            assert seen, "who has shown the token was turned out"


def test_the_token_stands_in_no_line(broker: BrokerProcess) -> None:
    assert not broker.lines(TOKEN)
