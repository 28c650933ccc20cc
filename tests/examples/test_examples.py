"""Every program in examples/, run as its README says."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.harness.broker_process import ROOT, BrokerProcess, free_port, wait_until
from tests.harness.http import request
from tests.harness.log_reader import read_log
from tests.harness.publisher import publish_all
from tests.harness.raw_client import close_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

EXAMPLES = ROOT / "examples"
NODE_MODULES = ROOT / "tests" / "clients" / "node_modules"
TOPIC = "highway/A1/telemetry"
FILTER = "highway/+/telemetry"
TOPICS = [{"topic": "highway/+/telemetry", "log": "telemetry", "durability": "BALANCED"}]
MESSAGES = [b"m%d" % number for number in range(300)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path, topics=TOPICS, http={"port": free_port()})
    with process as running:
        yield running
        close_all()


class Example:
    """A program of examples/ that was started; what it prints goes into files."""

    def __init__(self, words: list[str], folder: Path) -> None:
        self._paths = [folder / f"{time.monotonic_ns()}.{name}" for name in ("out", "err")]
        with self._paths[0].open("wb") as out, self._paths[1].open("wb") as err:
            self.process = subprocess.Popen(words, stdout=out, stderr=err)

    def lines(self) -> list[str]:
        """What it has printed so far, whole lines."""
        return self._paths[0].read_text().rpartition("\n")[0].splitlines()

    def errors(self) -> str:
        return self._paths[1].read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def finish(self, *, timeout: float = 60.0) -> None:
        """Wait for its end, which must be a good one."""
        assert self.process.wait(timeout) == 0, self.errors()


@pytest.fixture
def start(broker: BrokerProcess, tmp_path: Path) -> Iterator[Callable[..., Example]]:
    """Start an example; whatever still runs at the end of the test is killed."""
    running: list[Example] = []

    def start(program: str, *before: object, after: tuple[object, ...] = ()) -> Example:
        runner = "node" if program.endswith(".mjs") else sys.executable
        words = [runner, str(EXAMPLES / program), *map(str, before), "127.0.0.1", str(broker.port), *map(str, after)]
        running.append(Example(words, tmp_path))
        return running[-1]

    yield start
    for example in running:
        example.kill()


def test_every_example_is_in_the_readme() -> None:
    listed = re.findall(r"^\*\*\[(\S+)\]\((\S+)\)\*\*", (EXAMPLES / "README.md").read_text(), flags=re.MULTILINE)
    assert [name.removesuffix("/") for name, _ in listed] == [target for _, target in listed]
    assert sorted(target for _, target in listed) == sorted(
        path.name
        for path in EXAMPLES.iterdir()
        if path.suffix in (".py", ".mjs") or (path.is_dir() and path.name != "__pycache__")
    )


def test_sensor(start: Callable[..., Example], broker: BrokerProcess) -> None:
    start("sensor.py", after=(2,)).finish()
    first, second = read_log(broker.port, FILTER)
    assert re.fullmatch(rb'\{"number": 0, "speed_kmh": [0-9.]+, "time": [0-9.]+\}', first.payload)
    assert b'"number": 1' in second.payload
    assert len((EXAMPLES / "sensor.py").read_text().splitlines()) <= 22


@pytest.fixture(params=["reader_with_offset.py", "reader_with_offset.mjs"])
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A reader with a place of its own. Where the libraries of JavaScript aren't there, that one is skipped."""
    name: str = request.param
    if name.endswith(".py"):
        return name
    if shutil.which("node") is None:
        pytest.skip("node is not installed (Debian: nodejs npm)")
    if not (NODE_MODULES / "mqtt").is_dir():
        pytest.skip("mqtt.js is not installed: npm install in tests/clients")
    folder = tmp_path / "js"
    folder.mkdir()
    (folder / "node_modules").symlink_to(NODE_MODULES)  # an import looks for them beside the program
    shutil.copy(EXAMPLES / name, folder)
    return str(folder / name)


def test_reader_goes_on_where_its_file_ends(
    reader: str, start: Callable[..., Example], broker: BrokerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "copy"
    publish_all(broker.port, TOPIC, MESSAGES[:100])
    start(reader, path, after=(60,)).finish()
    assert len(path.read_bytes().splitlines()) >= 60
    with path.open("ab") as file:
        file.write(b"100 highway/A1/tele")  # a crash in the middle of a write
    publish_all(broker.port, TOPIC, MESSAGES[100:200])
    second = start(reader, path)
    wait_until(lambda: path.read_bytes().count(b"\n") >= 150, what="150 lines")
    second.kill()
    broker.restart()  # offsets go on behind a hole: where a reader goes on isn't always the next number
    publish_all(broker.port, TOPIC, MESSAGES[200:])
    third = start(reader, path)
    wait_until(lambda: path.read_bytes().endswith(b" m299\n"), what="the last line")
    third.kill()
    lines = [line.split(b" ") for line in path.read_bytes().splitlines()]
    assert [payload for _, _, payload in lines] == MESSAGES
    assert {topic for _, topic, _ in lines} == {TOPIC.encode()}
    offsets = [int(offset) for offset, _, _ in lines]
    assert offsets == sorted(set(offsets))


def test_gateway_sends_everything_again_and_each_line_is_stored_once(
    start: Callable[..., Example], broker: BrokerProcess, tmp_path: Path
) -> None:
    lines = [b"reading %d" % number for number in range(8000)]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    gateway = start("gateway.py", tmp_path / "lines")
    for _ in range(3):
        stored = len(read_log(broker.port, FILTER))
        wait_until(lambda stored=stored: len(read_log(broker.port, FILTER)) > stored, what="progress")
        assert gateway.process.poll() is None, f"it was done before it could be disturbed: {gateway.errors()}"
        broker.restart()
    gateway.finish()
    assert gateway.lines() == ["8000 lines acknowledged"]
    assert gateway.errors().count("sending everything again") >= 3
    assert [record.payload for record in read_log(broker.port, FILTER)] == lines


def test_readings_to_csv(broker: BrokerProcess) -> None:
    publish_all(broker.port, TOPIC, [b'{"speed_kmh": %d, "ok": "yes"}' % speed for speed in (80, 82, 84)])
    publish_all(broker.port, TOPIC, [b"no JSON", b"\xff", b"[1]"])
    url = next(line.split()[-1] for line in broker.lines("HTTP on"))
    words = [sys.executable, str(EXAMPLES / "readings_to_csv.py"), url, "telemetry", "1h"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [(row["offset"], row["topic"], row["field"], row["value"]) for row in rows] == [
        (str(offset), TOPIC, "speed_kmh", str(80 + 2 * offset)) for offset in range(3)
    ]
    assert done.stderr == f"{TOPIC} speed_kmh: n=3 mean=82.000 stdev=2.000\n"


def test_what_a_worker_that_dies_had_in_hand_goes_to_the_others(
    start: Callable[..., Example], broker: BrokerProcess
) -> None:
    workers = [start("shared_workers.py", name) for name in ("one", "two", "three")]
    wait_until(lambda: subscriptions(broker) == 3, what="three members")
    publish_all(broker.port, "jobs/all", [b"job-%d" % number for number in range(300)])
    wait_until(lambda: len(workers[0].lines()) >= 10, what="ten jobs done")
    workers[0].kill()
    everything = {f"job-{number}" for number in range(300)}
    wait_until(lambda: {line.split()[1] for worker in workers for line in worker.lines()} == everything, timeout=30)
    for worker in workers[1:]:
        assert len(worker.lines()) > 50, "they did not take turns"
        assert worker.process.poll() is None


def subscriptions(broker: BrokerProcess) -> int:
    sessions = request(broker.data / "admin.sock", "/api/v1/sessions").json()
    return sum(session["subscriptions"] for session in sessions)
