"""Server-sent events of a running broker."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any, Self

import pytest

from tests.harness.http import request
from tests.harness.publisher import publish_all

if TYPE_CHECKING:
    from tests.harness.broker_process import BrokerProcess


class Events:
    """A stream of (event, value), begun when this returns."""

    def __init__(self, port: int, path: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self._lines = self._socket.makefile("r", encoding="utf-8")
        self._socket.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        assert "200" in self._lines.readline()
        while self._lines.readline().strip():
            pass

    def next(self) -> tuple[str, Any]:
        name = ""
        for line in self._lines:
            if line.startswith("event: "):
                name = line.removeprefix("event: ").strip()
            elif line.startswith("data: "):
                return name, json.loads(line.removeprefix("data: "))
        raise AssertionError("the stream ended")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        self._socket.close()


def test_overview_comes_with_its_history_and_then_once_a_second(broker: BrokerProcess, http_port: int) -> None:
    with Events(http_port, "/api/v1/events") as stream:
        name, history = stream.next()
        assert name == "history"
        assert len(history[-1]) == 4
        name, rates = stream.next()
        assert name == "rates"
        assert all(isinstance(rate, float) for found in rates.values() for rate in found)
        states = [stream.next() for _ in range(2)]
    assert [name for name, _ in states] == ["state", "state"]
    first, second = (state for _, state in states)
    assert second["time_ms"] > first["time_ms"]
    assert {log["log"] for log in second["logs"]} == {"road", "small", "other"}
    assert second["publish_received"] >= 3002


def test_tail_has_what_comes_from_now_on_on_one_topic(broker: BrokerProcess, http_port: int) -> None:
    publish_all(broker.port, "small/tail", [b"before"])
    with Events(http_port, "/api/v1/events?log=small&topic=small/tail") as stream:
        publish_all(broker.port, "small/other", [b"not this"])
        publish_all(broker.port, "small/tail", [b"%d" % number for number in range(3)])
        found: list[str] = []
        while len(found) < 3:
            name, value = stream.next()
            assert name == "records"
            found += [record["payload"] for record in value]
    assert found == ["0", "1", "2"]


def test_a_tail_that_is_too_fast_is_cut_and_says_so(broker: BrokerProcess, http_port: int) -> None:
    count = 3000
    with Events(http_port, "/api/v1/events?log=other") as stream:
        publish_all(broker.port, "elsewhere", [b"%d" % number for number in range(count)], window=1000)
        shown = skipped = 0
        while shown + skipped < count:
            name, value = stream.next()
            if name == "skipped":
                skipped += value
            else:
                shown += len(value)
                last = value[-1]["payload"]
    assert (shown + skipped, last) == (count, "2999")
    assert skipped


@pytest.mark.parametrize(("query", "status"), [("log=nope", 404), ("log=small&topic=a/%23/b", 400)])
def test_what_can_not_be_followed_is_a_problem(broker: BrokerProcess, http_port: int, query: str, status: int) -> None:
    answer = request(http_port, f"/api/v1/events?{query}")
    assert (answer.status, answer.content_type) == (status, "application/problem+json")


def test_a_listener_that_leaves_is_no_trouble(broker: BrokerProcess, http_port: int) -> None:
    mark = len(broker.stderr)
    with Events(http_port, "/api/v1/events") as stream:
        stream.next()
    with Events(http_port, "/api/v1/events") as stream:
        assert [stream.next()[0] for _ in range(4)] == ["history", "rates", "state", "state"]
    assert not broker.lines("Traceback|ERROR", since=mark)
