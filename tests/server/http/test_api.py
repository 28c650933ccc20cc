"""The HTTP API of a running broker, over the socket in its data directory and over TCP."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import stat
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from tests.harness.broker_process import BrokerProcess, free_port, wait_until
from tests.harness.http import Answer, request
from tests.harness.publisher import publish_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

COUNT = 3000  # messages of log `road`


def offsets(answer: Answer) -> list[int]:
    assert (answer.status, answer.content_type) == (200, "application/jsonl")
    return [line["offset"] for line in answer.lines()]


def test_health(get: Callable[..., Answer]) -> None:
    assert (get("/livez").status, get("/readyz").body) == (200, b"ready\n")


def test_socket_is_its_owners_alone(broker: BrokerProcess) -> None:
    mode = (broker.data / "admin.sock").stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_tcp_says_what_the_socket_says(broker: BrokerProcess, http_port: int, get: Callable[..., Answer]) -> None:
    assert broker.lines(rf"^highway: HTTP on http://127\.0\.0\.1:{http_port}$")
    path = "/api/v1/logs/small"
    assert request(http_port, path).json() == get(path).json()


def test_status(get: Callable[..., Answer]) -> None:
    found = get("/api/v1/status").json()
    assert found["writable"] is True
    assert found["publish_received"] == COUNT + 2
    assert found["uptime_seconds"] > 0


def test_topics(get: Callable[..., Answer]) -> None:
    road, small, other = get("/api/v1/topics").json()
    assert (road["log"], road["topics"], road["durability"]) == ("road", ["highway/#"], "BALANCED")
    assert (road["log_start_offset"], road["high_watermark"], road["records"]) == (0, COUNT, COUNT)
    assert abs(road["newest_ms"] / 1000 - time.time()) < 600
    assert small["records"] == 2
    assert (other["log"], other["records"], other["newest_ms"]) == ("other", 0, None)


def test_records_as_json_lines(get: Callable[..., Answer]) -> None:
    answer = get("/api/v1/logs/road/records")
    lines = answer.lines()
    assert [line["offset"] for line in lines] == list(range(COUNT))
    assert [int(line["payload"]) for line in lines] == list(range(COUNT))
    assert {line["topic"] for line in lines} == {"highway/A1/speed", "highway/A2/speed"}
    assert set(lines[0]) == {"offset", "timestamp", "topic", "qos", "retain", "payload"}


def test_large_records_take_little_memory_where_nobody_reads_them(tmp_path: Path) -> None:
    port = free_port()
    with BrokerProcess(tmp_path, http={"port": port}, memory_budget="8MiB") as broker, broker.client("c") as client:
        for _ in range(60):
            client.publish("t", os.urandom(1_000_000))
        before = broker.rss_bytes()
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.connect(("127.0.0.1", port))
            reader.sendall(b"GET /api/v1/logs/other/records HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert reader.recv(1, socket.MSG_WAITALL)
            for _ in range(20):
                client.ping()
                # A reader that is slow is what is tested; what it is written goes on while its socket takes something.
                time.sleep(0.02)
            assert broker.rss_bytes() < before + 60_000_000  # a batch, and what one turn writes
        request(port, "/livez")
        assert not broker.lines("Error handling request")


def test_records_keep_to_the_rate_of_those_who_catch_up(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, limits={"catchup_bytes": "100KiB/s"}) as broker:
        publish_all(broker.port, "t", [b"x" * 1000] * 180)
        before = time.monotonic()
        answer = request(broker.data / "admin.sock", "/api/v1/logs/other/records")
        seconds = time.monotonic() - before
        assert offsets(answer) == list(range(180))
        assert seconds >= len(answer.body) / 102_400 - 1  # what the first second may take comes at once
        metrics = request(broker.data / "admin.sock", "/metrics").body.decode()
        assert 'highway_limited_total{limit="catchup_bytes"} 0.0' not in metrics


def test_who_owes_for_records_is_sent_no_more_by_another_request(tmp_path: Path) -> None:
    """Each request would else bring its first piece at once, and who asks again and again would have all of them."""
    with BrokerProcess(tmp_path, limits={"catchup_bytes": "1KiB/h"}) as broker, contextlib.ExitStack() as stack:
        publish_all(broker.port, "t", [b"x" * 1000] * 20)

        def ask() -> socket.socket:
            asks = stack.enter_context(socket.socket(socket.AF_UNIX))
            asks.settimeout(10.0)
            asks.connect(str(broker.data / "admin.sock"))
            asks.sendall(b"GET /api/v1/logs/other/records HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return asks

        def limited() -> float:
            metrics = request(broker.data / "admin.sock", "/metrics").body.decode()
            return float(metrics.split('highway_limited_total{limit="catchup_bytes"} ')[1].split()[0])

        def sent(asks: socket.socket) -> bytes:
            with contextlib.suppress(BlockingIOError):
                return asks.recv(1 << 20, socket.MSG_DONTWAIT)
            return b""

        first = ask()
        wait_until(lambda: limited() == 1)
        assert b'"offset"' in sent(first)
        first.close()
        second = ask()
        wait_until(lambda: limited() == 2)
        assert b'"offset"' not in sent(second)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("from=2990", list(range(2990, COUNT))),
        ("from=-3", [2997, 2998, 2999]),
        ("from=10&until=13", [10, 11, 12]),
        ("from=10&limit=2", [10, 11]),
        ("from=1h&limit=1", [0]),
        ("from=latest", []),
        ("from=-2&topic=highway/A1/%2B", [2996, 2998]),
        ("topic=highway/A2/speed&limit=2", [1, 3]),
        ("topic=%23&limit=0", []),
        ("until=@0", []),
    ],
)
def test_records_from_until_topic_and_limit(query: str, expected: list[int], get: Callable[..., Answer]) -> None:
    assert offsets(get(f"/api/v1/logs/road/records?{query}")) == expected


def test_payload_that_is_no_text_comes_as_base64(get: Callable[..., Answer]) -> None:
    text, raw = get("/api/v1/logs/small/records").lines()
    assert text["payload"] == "gr\u00fcn"
    assert base64.b64decode(raw["payload_base64"]) == b"\xff\x00"
    assert "payload" not in raw


def test_one_record(get: Callable[..., Answer]) -> None:
    found = get("/api/v1/logs/road/records/1234").json()
    assert (found["offset"], found["topic"], found["payload"]) == (1234, "highway/A1/speed", "1234")


@pytest.mark.parametrize("path", ["records/3000", "records?from=3001", "records?until=3001"])
def test_an_offset_beyond_the_end_is_not_found_and_the_range_is_told(path: str, get: Callable[..., Answer]) -> None:
    missing = get(f"/api/v1/logs/road/{path}")
    assert (missing.status, missing.content_type) == (404, "application/problem+json")
    problem = missing.json()
    assert (problem["title"], problem["log_start_offset"], problem["high_watermark"]) == ("OFFSET_NOT_FOUND", 0, COUNT)


@pytest.mark.parametrize(
    ("path", "status", "detail"),
    [
        ("/api/v1/logs/nope", 404, "there is no log 'nope'"),
        ("/api/v1/logs/nope/records", 404, "there is no log 'nope'"),
        ("/api/v1/logs/road/records/x", 400, "offset='x': a whole number is wanted"),
        ("/api/v1/logs/road/records?from=soon", 400, "soon"),
        ("/api/v1/logs/road/records?until=soon", 400, "soon"),
        ("/api/v1/logs/road/records?limit=-1", 400, "limit='-1'"),
        ("/api/v1/logs/road/records?topic=a/%23/b", 400, "that is not alone in the last level"),
        ("/api/v1/sessions/nobody", 404, "there is no session of client 'nobody'"),
        ("/api/v1/nope", 404, "GET /api/v1/nope"),
    ],
)
def test_problems_say_what_is_wrong(path: str, status: int, detail: str, get: Callable[..., Answer]) -> None:
    answer = get(path)
    assert (answer.status, answer.content_type) == (status, "application/problem+json")
    assert detail in answer.json()["detail"]
    assert answer.json()["status"] == status


def test_what_may_not_be_done_is_refused(get: Callable[..., Answer]) -> None:
    assert get("/api/v1/status", method="POST").status == 405
    assert get("/api/v1/sessions/nobody/reset?to=earliest", method="POST").status == 404
    assert get("/api/v1/sessions/nobody", method="DELETE").status == 404


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Host": "192.0.2.1:8080"}, {"Origin": "http://evil.example"}]
)
def test_pages_of_strangers_are_kept_out(headers: dict[str, str], http_port: int) -> None:
    answer = request(http_port, "/api/v1/status", headers=headers)
    assert (answer.status, answer.content_type) == (403, "application/problem+json")
    assert b"uptime" not in answer.body


def test_own_pages_may_ask(http_port: int) -> None:
    origin = f"http://localhost:{http_port}"
    headers = {"Host": f"localhost:{http_port}", "Origin": origin}
    assert request(http_port, "/api/v1/status", headers=headers).status == 200


def test_session_is_seen_moved_and_dropped(broker: BrokerProcess, get: Callable[..., Answer]) -> None:
    client_id = "odd / %41?#\u00fc"
    path = f"/api/v1/sessions/{quote(client_id, safe='')}"
    with broker.client(client_id, clean=False) as client:
        client.subscribe(("small/#", 1))
        (line,) = [session for session in get("/api/v1/sessions").json() if session["client"] == client_id]
        assert (line["online"], line["state"], line["subscriptions"], line["lag"]) == (True, "LIVE", 1, 0)
        moved = get(f"{path}/reset?to=earliest", method="POST")
        assert moved.json() == {"client": client_id, "positions": {"small": 0}}
        assert [message.payload for message in client.messages(2)] == ["gr\u00fcn".encode(), b"\xff\x00"]
        client.disconnect()
    get(f"{path}/reset?to=1", method="POST")
    found = get(path).json()
    assert (found["client"], found["state"], found["lag"]) == (client_id, "OFFLINE", 1)
    assert 0 < found["lag_seconds"] < 600
    assert found["positions"] == [
        {
            "log": "small",
            "source": None,
            "next_offset": 1,
            "high_watermark": 2,
            "lag": 1,
            "state": "OFFLINE",
        }
    ]
    assert get(f"{path}/reset?to=3", method="POST").status == 400
    assert get(path, method="DELETE").status == 204
    assert get(path).status == 404
    with broker.client(client_id, clean=False) as client:
        assert not client.session_present


def test_reader_that_goes_away_in_the_middle_is_no_trouble(broker: BrokerProcess, http_port: int) -> None:
    mark = len(broker.stderr)
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", http_port)) as cut:
            cut.sendall(b"GET /api/v1/logs/road/records HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert cut.recv(100).startswith(b"HTTP/1.1 200 OK")
    assert request(http_port, "/livez").status == 200
    assert not broker.lines("Traceback|ERROR", since=mark)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", "more than 8190 bytes"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 9000 + b"\r\n\r\n", "more than 8190 bytes"),
        (b"\x10\x0e\0\4MQTT\4\2\0\x3c\0\2ab", "Invalid method"),
    ],
)
def test_a_request_that_cannot_be_read_is_a_problem_and_one_line(
    broker: BrokerProcess, http_port: int, said: bytes, told: str
) -> None:
    mark = len(broker.stderr)
    with socket.create_connection(("127.0.0.1", http_port)) as peer:
        peer.sendall(said)
        head, body = b"".join(iter(lambda: peer.recv(65_536), b"")).split(b"\r\n\r\n")
    assert head.partition(b"\r\n")[0].endswith(b" 400 Bad Request")
    assert b"\r\nContent-Type: application/problem+json" in head
    answer = json.loads(body)
    assert (answer["title"], answer["status"]) == ("Bad Request", 400)
    assert told in answer["detail"]
    assert request(http_port, "/livez").status == 200
    broker.wait_for_line(rf"WARNING highway.server: HTTP: closed: .*{told}.* peer=127.0.0.1:\d+$", since=mark)
    assert not broker.lines("Traceback|ERROR", since=mark)


def test_address_in_use_ends_the_start_with_one_line(http_port: int, broker: BrokerProcess, tmp_path: Any) -> None:
    second = BrokerProcess(tmp_path, http={"port": http_port})
    second.spawn()
    assert second.wait() == 1
    assert second.lines("^highway: ")[-1] == (
        f"highway: can't listen on 127.0.0.1:{http_port} (HTTP): Address already in use "
        "(--http HOST:PORT takes another, --no-http none)"
    )
    assert not second.lines("Traceback|: ready")


def test_socket_of_a_broker_that_was_killed_is_in_nobodys_way(tmp_path: Any) -> None:
    process = BrokerProcess(tmp_path).start()
    process.restart()
    assert request(process.data / "admin.sock", "/readyz").status == 200
    process.stop()
