"""`per_topic` logs of a real broker, as operators see them: by HTTP, by command, on the directory, after a crash."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.parse import quote

from tests.harness.broker_process import ROOT, BrokerProcess
from tests.harness.publisher import publish_all

if TYPE_CHECKING:
    from pathlib import Path

TOPICS = [{"topic": "a/#", "log": "own", "per_topic": True, "max_logs": 10}]
NAME = "own/a/1"


def get(broker: BrokerProcess, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("localhost", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(broker.data / "admin.sock"))
    connection.request("GET", path)
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


def highway(*words: object) -> str:
    command = [sys.executable, "-m", "highway", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT).stdout


def test_logs_of_topics_are_listed_read_and_kept(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, topics=TOPICS) as broker:
        publish_all(broker.port, "a/1", [b"one", b"two"])
        publish_all(broker.port, "a/2", [b"three"])
        broker.kill()
        broker.start()
        rows = [json.loads(line) for line in highway("topics", "--json", "--data-dir", broker.data).splitlines()]
        assert {row["log"]: (row["topics"], row["records"]) for row in rows} == {
            "other": (["#"], 0),
            NAME: (["a/1"], 2),
            "own/a/2": (["a/2"], 1),
        }
        path = f"/api/v1/logs/{quote(NAME, safe='')}"
        assert json.loads(get(broker, path)[1])["log"] == NAME
        status, lines = get(broker, f"{path}/records?from=1")
        assert (status, json.loads(lines.splitlines()[0])["payload"]) == (200, "two")
        assert highway("fetch", "-p", broker.port, "a/1", 1) == "two"
        assert broker.stop() == 0
    assert NAME in highway("log", "inspect", "--data-dir", broker.data)
    assert "own/a/2" in highway("log", "verify", "--data-dir", broker.data)
