"""The bearer token: asked for over TCP, and not on the socket in the data directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

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


def test_the_token_stands_in_no_line(broker: BrokerProcess) -> None:
    assert not broker.lines(TOKEN)
