"""`highway status`, `topics` and `sessions` against a running broker."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from highway.cli.exits import Exit
from tests.harness.broker_process import ROOT, BrokerProcess
from tests.harness.publisher import publish_all
from tests.harness.raw_client import close_all

if TYPE_CHECKING:
    from collections.abc import Iterator

MISSED = 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with a client that is away and has missed MISSED messages."""
    folder = tmp_path_factory.mktemp("admin") / ("deep" * 30)
    folder.mkdir()
    with BrokerProcess(folder, topics=[{"topic": "a/#", "log": "a", "durability": "BALANCED"}]) as running:
        with running.client("away", clean=False) as client:
            client.subscribe(("a/#", 1), ("a/+/c", 0))
            client.disconnect()
        publish_all(running.port, "a/b", [b"%d" % number for number in range(MISSED)])
        yield running
        close_all()


@pytest.fixture
def admin(broker, highway):
    """Run a command on the broker's data directory."""
    return lambda *words: highway(*words, "--data-dir", broker.data)


def columns(out):
    """The table as one dict for each row; cells hold no two spaces in a row."""
    headers, *rows = (re.split(r" {2,}", line.strip()) for line in out.splitlines())
    return [dict(zip(headers, row, strict=True)) for row in rows]


def test_status(admin):
    ran = admin("status")
    assert (ran.code, ran.err) == (0, "")
    shown = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
    assert shown["broker"].endswith("takes messages")
    assert shown["clients"] == "0 connected, 1 sessions"
    assert shown["messages"].startswith("20 received, ")
    found = json.loads(admin("status", "--json").out)
    assert (found["sessions"], found["publish_received"], found["writable"]) == (1, MISSED, True)


def test_topics(admin):
    ran = admin("topics")
    assert (ran.code, ran.err) == (0, "")
    log, other = columns(ran.out)
    assert (log["LOG"], log["TOPICS"], log["DURABILITY"]) == ("a", "a/#", "BALANCED")
    assert (log["START"], log["END"], log["RECORDS"]) == ("0", str(MISSED), str(MISSED))
    assert (other["LOG"], other["RECORDS"], other["NEWEST"]) == ("other", "0", "-")
    lines = [json.loads(line) for line in admin("topics", "--json").out.splitlines()]
    assert [line["log"] for line in lines] == ["a", "other"]


def test_sessions_list_and_show(admin, broker):
    with broker.client("here") as client:
        client.subscribe(("a/#", 0))
        away, here = sorted(columns(admin("sessions", "list").out), key=lambda row: row["CLIENT"])
        lines = [json.loads(line) for line in admin("sessions", "list", "--json").out.splitlines()]
    assert (away["STATE"], away["LAG"], away["SUBSCRIPTIONS"], away["EXPIRES"]) == ("OFFLINE", "20", "2", "in 90 d")
    assert (here["STATE"], here["LAG"], here["EXPIRES"]) == ("LIVE", "0", "with its connection")
    assert {line["client"] for line in lines} == {"away", "here"}
    ran = admin("sessions", "show", "away")
    assert re.search(r"^client +away \(MQTT 3\.1\.1\)$", ran.out, re.MULTILINE)
    assert re.search(r"^lag +20 messages, [0-9.]+ (s|min)$", ran.out, re.MULTILINE)
    assert re.search(r"^subscription +a/\+/c \(QoS 0\)$", ran.out, re.MULTILINE)
    assert re.search(r"^a +ordinary +OFFLINE +0 +20 +20$", ran.out, re.MULTILINE)
    found = json.loads(admin("sessions", "show", "away", "--json").out)
    assert found["positions"][0]["next_offset"] == 0
    assert found["lag_seconds"] > 0


def test_sessions_alone_is_a_list(admin, highway):
    listed = admin("sessions", "list", "--json")
    assert admin("sessions", "--json") == listed
    assert [row["CLIENT"] for row in columns(admin("sessions").out)] == [json.loads(listed.out)["client"]]
    assert "Commands:" in highway("sessions", "--help").out


def test_a_log_that_is_not_there_is_told_with_those_that_are(admin):
    ran = admin("tail", "a/b")
    assert (ran.code, ran.err) == (Exit.NOT_FOUND, "Error: there is no log 'a/b'; there are a, other\n")


def test_directories_are_found_by_the_configuration_too(highway, broker):
    ran = highway("log", "verify", "a", "-c", broker.config)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("log a: ")


def test_session_is_moved_and_dropped(admin, broker):
    for client_id in ("moved", "dropped"):
        with broker.client(client_id, clean=False) as client:
            client.subscribe(("a/#", 0))
            client.disconnect()
    assert admin("sessions", "reset", "moved", "--to", "-2") == (0, f"a: goes on at {MISSED - 2}\n", "")
    ran = admin("sessions", "reset", "moved", "--to", str(MISSED - 1), "--json")
    assert json.loads(ran.out) == {"client": "moved", "positions": {"a": MISSED - 1}}
    with broker.client("moved", clean=False) as client:
        assert client.message().payload == b"%d" % (MISSED - 1)
    assert admin("sessions", "drop", "dropped") == (0, "dropped: dropped\n", "")
    assert json.loads(admin("sessions", "drop", "moved", "--json").out) == {"client": "moved", "dropped": True}
    with broker.client("dropped", clean=False) as client:
        assert not client.session_present


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["show", "nobody"], Exit.NOT_FOUND, "there is no session of client 'nobody'"),
        (["drop", "nobody"], Exit.NOT_FOUND, "there is no session of client 'nobody'"),
        (["reset", "nobody", "--to", "latest"], Exit.NOT_FOUND, "there is no session of client 'nobody'"),
        (["reset", "away", "--to", "999"], Exit.NOT_FOUND, "offset 999 is beyond the end of log 'a'"),
        (["reset", "away", "--to", "soon"], Exit.USAGE, "Invalid value for --to"),
        (["reset", "away"], Exit.USAGE, "Missing option '--to'"),
    ],
)
def test_what_is_not_there(words, code, message, admin):
    ran = admin("sessions", *words)
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err


def test_client_id_that_is_no_part_of_a_path_or_of_a_terminal(admin, broker):
    client_id = "../a b/%41?#\u202ederas\u200b|"
    with broker.client(client_id, clean=False) as client:
        client.disconnect()
    assert json.loads(admin("sessions", "show", client_id, "--json").out)["client"] == client_id
    for words in (["list"], ["show", client_id], ["drop", client_id]):
        ran = admin("sessions", *words)
        assert ran.code == 0
        assert "\u202e" not in ran.out
        assert r"../a b/%41?#\u202ederas\u200b|" in ran.out


@pytest.mark.parametrize("words", [["status"], ["topics"], ["sessions", "list"], ["sessions", "drop", "x"]])
def test_no_broker_is_exit_code_1(words, highway, tmp_path):
    hint = "; -c FILE or --data-dir says where one does\n"
    assert highway(*words) == (1, "", f"Error: no broker runs on highway-data: No such file or directory{hint}")
    (tmp_path / "highway-data").mkdir()
    assert highway(*words) == (1, "", f"Error: no broker runs on highway-data{hint}")


def test_broker_that_was_killed_is_no_broker(highway, tmp_path):
    process = BrokerProcess(tmp_path).start()
    assert highway("status", "--data-dir", process.data).code == 0
    process.kill()
    assert (process.data / "admin.sock").exists()
    assert highway("status", "--data-dir", process.data).code == 1


def test_broker_is_found_by_its_configuration_or_the_environment(broker, highway, monkeypatch):
    assert highway("status", "-c", broker.config).code == 0
    monkeypatch.setenv("HIGHWAY__DATA_DIR", str(broker.data))
    assert highway("status").code == 0


def test_table_on_a_terminal(broker):
    master, slave = pty.openpty()
    words = [sys.executable, "-m", "highway", "topics", "--data-dir", str(broker.data)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "TERM": "xterm"}
    process = subprocess.Popen(words, stdout=slave, stderr=slave, cwd=ROOT, env=environment)
    os.close(slave)
    shown = b""
    while True:
        try:
            data = os.read(master, 4096)
        except OSError:  # the other side is closed
            break
        if not data:
            break
        shown += data
    os.close(master)
    assert process.wait(10) == 0
    assert "─" in shown.decode()
    assert "DURABILITY" in shown.decode()
