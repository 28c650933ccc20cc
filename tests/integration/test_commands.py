"""`highway pub`, `sub`, `fetch` and `log inspect` as processes of their own, against a running broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

from highway.cli.exits import Exit
from tests.harness.broker_process import ROOT, BrokerProcess, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


class Ran(NamedTuple):
    """What a command left behind."""

    code: int
    out: bytes
    err: str


def words_of(broker, words):
    return [sys.executable, "-m", "highway", words[0], "-p", str(broker.port), *words[1:]]


def highway(broker, *words, stdin=b""):
    """Run a command against `broker` to its end."""
    done = subprocess.run(
        words_of(broker, words), input=stdin, capture_output=True, timeout=60, check=False, env=ENVIRONMENT
    )
    return Ran(done.returncode, done.stdout, done.stderr.decode())


@pytest.fixture
def subscriber(broker, tmp_path):
    """Start `highway sub` in the background; returns the process and a function that reads what it has printed."""
    running = []

    def start(*words) -> tuple[subprocess.Popen, Callable[[], bytes]]:
        path = tmp_path / f"out{len(running)}"
        with path.open("wb") as file:
            process = subprocess.Popen(
                words_of(broker, ["sub", *words]),
                stdout=file,
                stderr=file,
                env=ENVIRONMENT,
                # A test run that a shell put into the background ignores SIGINT, and its children would inherit that.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  no threads here
            )
        running.append(process)
        return process, path.read_bytes

    yield start
    for process in running:
        process.kill()
        process.wait()


def test_message_is_published_stored_and_fetched_byte_by_byte(broker, tmp_path):
    payload = bytes(range(256)) * 40
    (tmp_path / "payload").write_bytes(payload)
    topic = "safe/bytes"
    assert highway(broker, "pub", "-t", topic, "-f", tmp_path / "payload", "-q", "2") == (0, b"", "")
    found = json.loads(highway(broker, "sub", "-t", topic, "--from", "-1", "-C", "1", "--json").out)
    assert "payload" not in found
    assert found["topic"] == topic
    bounds = json.loads(highway(broker, "sub", "-t", f"$range/{topic}", "-C", "1").out)
    offset = bounds["high_watermark"] - 1
    assert highway(broker, "fetch", topic, str(offset)) == (0, payload, "")
    assert highway(broker, "pub", "-t", topic, "-f", "-", stdin=payload) == (0, b"", "")
    assert highway(broker, "fetch", topic, str(offset + 1)) == (0, payload, "")


def test_lines_are_all_acknowledged_before_the_end_and_replayed_in_order(broker):
    lines = b"".join(b"line %d\n" % number for number in range(3000))
    assert highway(broker, "pub", "-t", "safe/lines", "-l", stdin=b"\n" + lines + b"\n") == (0, b"", "")
    assert highway(broker, "sub", "-t", "safe/lines", "--from", "earliest", "-C", "3000") == (0, lines, "")
    assert highway(broker, "sub", "-t", "safe/lines", "--from", "-2", "-C", "2", "-v") == (
        0,
        b"safe/lines line 2998\nsafe/lines line 2999\n",
        "",
    )


def test_replay_goes_on_live(broker, subscriber):
    highway(broker, "pub", "-t", "fast/live", "-m", "before")
    process, printed = subscriber("-t", "fast/live", "--from", "earliest", "-q", "1", "-C", "2")
    wait_until(lambda: printed() == b"before\n", what="the stored message")
    highway(broker, "pub", "-t", "fast/live", "-m", "after")
    assert process.wait(10) == 0
    assert printed() == b"before\nafter\n"


def test_interrupt_is_the_way_to_end_a_subscription(broker, subscriber):
    highway(broker, "pub", "-t", "fast/end", "-m", "seen")
    process, printed = subscriber("-t", "fast/end", "--from", "earliest")
    wait_until(lambda: printed() == b"seen\n", what="the stored message")
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    assert printed() == b"seen\n"


def test_kept_session_gets_what_it_missed(broker):
    words = ["sub", "-t", "safe/session", "-q", "1", "-c", "-i", "keeper"]
    assert highway(broker, *words, "-W", "1").code == Exit.TIME_OUT
    highway(broker, "pub", "-t", "safe/session", "-l", stdin=b"one\ntwo\n")
    assert highway(broker, *words, "-C", "2") == (0, b"one\ntwo\n", "")


def test_retained_message_is_set_and_cleared(broker):
    highway(broker, "pub", "-t", "fast/retained", "-r", "-m", "kept")
    assert json.loads(highway(broker, "sub", "-t", "fast/retained", "-C", "1", "--json").out) == {
        "topic": "fast/retained",
        "payload": "kept",
        "qos": 0,
        "retain": True,
    }
    highway(broker, "pub", "-t", "fast/retained", "-r", "-n")
    ran = highway(broker, "sub", "-t", "fast/retained", "-W", "0.5")
    assert (ran.code, ran.out) == (Exit.TIME_OUT, b"")
    assert "0.5 s are over, after 0 messages" in ran.err


def test_offset_that_is_not_there_ends_with_3_and_names_the_range(broker):
    highway(broker, "pub", "-t", "highway/A1/control", "-m", "go")
    ran = highway(broker, "fetch", "highway/A1/control", "999999")
    assert (ran.code, ran.out) == (Exit.NOT_FOUND, b"")
    assert "there is no message of highway/A1/control at offset 999999 of the log control; it holds 0 to " in ran.err
    ran = highway(broker, "sub", "-t", "highway/A1/control", "--from", "999999", "-C", "1")
    assert (ran.code, ran.out) == (Exit.NOT_FOUND, b"")
    assert "the broker refuses $replay/999999/highway/A1/control" in ran.err
    ran = highway(broker, "sub", "-t", "#", "--from", "0", "-C", "1")
    assert (ran.code, ran.out) == (Exit.NOT_FOUND, b"")
    assert "spans several logs" in ran.err


def test_filter_that_is_refused_ends_with_6(broker):
    ran = highway(broker, "sub", "-t", "$fetch/nonsense/a", "-C", "1", "-W", "5")
    assert ran == (Exit.REFUSED, b"", "Error: the broker refuses $fetch/nonsense/a\n")


def test_broken_connection_is_an_error_and_no_success(own_broker):
    with own_broker as broker:
        process = subprocess.Popen(
            words_of(broker, ["pub", "-t", "safe/x", "-l"]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        )
        process.stdin.write(b"first\n")
        process.stdin.flush()
        deadline = time.monotonic() + 20
        while highway(broker, "fetch", "safe/x", "0").code != 0:
            assert time.monotonic() < deadline
        broker.kill()
        _, err = process.communicate(b"second\n", timeout=20)
        assert process.returncode == Exit.FAILURE
        assert b"broke" in err
        assert b"Traceback" not in err


def test_frames_of_a_running_broker_are_shown_with_their_ratio(own_broker):
    with own_broker as broker:
        reading = b'{"ts": 1790000000000, "sensor": "A1-001", "speed_kmh": 88.5}'
        highway(broker, "pub", "-t", "fast/x", "-l", stdin=b"".join(reading + b"\n" for _ in range(20_000)))

        def inspect():
            words = [sys.executable, "-m", "highway", "log", "inspect", "--json", "--data-dir", broker.data, "fast"]
            return subprocess.run(words, capture_output=True, timeout=30, check=False, env=ENVIRONMENT)

        wait_until(lambda: json.loads(inspect().stdout or b'{"records": 0}')["records"] > 0, what="a frame")
        found = json.loads(inspect().stdout)
        assert found["ratio"] >= 4
        assert not found["damaged"]


def test_second_broker_on_one_directory_is_refused(own_broker):
    with own_broker as broker:
        words = [sys.executable, "-m", "highway", "serve", "-c", str(broker.config), "--listen", "127.0.0.1:0"]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False, env=ENVIRONMENT)
        assert ran.returncode == Exit.FAILURE
        assert str(broker.process.pid) in ran.stderr
        assert "Traceback" not in ran.stderr


def test_wrong_configuration_starts_nothing(tmp_path):
    process = BrokerProcess(tmp_path, topics=[{"topic": "a/#/b"}])
    process.spawn()
    assert process.wait() == Exit.USAGE
    assert not process.data.exists()
