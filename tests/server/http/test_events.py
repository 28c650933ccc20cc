"""Server-sent events of a running broker."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.http import request
from tests.harness.publisher import publish_all

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.broker_process import BrokerProcess


def events(port: int, path: str) -> Iterator[tuple[str, Any]]:
    """(event, value) of a stream, for as long as it is read."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        lines = connection.makefile("r", encoding="utf-8")
        assert "200" in lines.readline()
        name = ""
        for line in lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ").strip()
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


def test_overview_comes_with_its_history_and_then_once_a_second(broker: BrokerProcess, http_port: int) -> None:
    stream = events(http_port, "/api/v1/events")
    name, history = next(stream)
    assert name == "history"
    assert len(history[-1]) == 4
    states = [next(stream) for _ in range(2)]
    assert [name for name, _ in states] == ["state", "state"]
    first, second = (state for _, state in states)
    assert second["time_ms"] > first["time_ms"]
    assert {log["log"] for log in second["logs"]} == {"road", "small", "other"}
    assert second["publish_received"] >= 3002


def test_tail_of_one_topic(broker: BrokerProcess, http_port: int) -> None:
    stream = events(http_port, "/api/v1/events?log=small&topic=small/tail")
    publish_all(broker.port, "small/other", [b"not this"])
    # The tail begins somewhere in here: what counts is that what comes later is in it, in order.
    for number in range(3):
        publish_all(broker.port, "small/tail", [b"%d" % number])
        if number == 0:
            publish_all(broker.port, "small/tail", [b"first"] * 20)
    found: list[str] = []
    while "2" not in found:
        publish_all(broker.port, "small/tail", [b"2"])
        name, value = next(stream)
        assert name == "records"
        found += [record["payload"] for record in value]
        assert {record["topic"] for record in value} == {"small/tail"}


@pytest.mark.parametrize(("query", "status"), [("log=nope", 404), ("log=small&topic=a/%23/b", 400)])
def test_what_can_not_be_followed_is_a_problem(broker: BrokerProcess, http_port: int, query: str, status: int) -> None:
    answer = request(http_port, f"/api/v1/events?{query}")
    assert (answer.status, answer.content_type) == (status, "application/problem+json")


def test_a_listener_that_leaves_is_no_trouble(broker: BrokerProcess, http_port: int) -> None:
    mark = len(broker.stderr)
    stream = events(http_port, "/api/v1/events")
    next(stream)
    stream.close()  # type: ignore[attr-defined]  # a generator is more than an iterator
    other = events(http_port, "/api/v1/events")
    assert [next(other)[0] for _ in range(3)] == ["history", "state", "state"]
    assert not broker.lines("Traceback|ERROR", since=mark)
