"""A damaged byte in the directory of a stopped broker: it starts, serves all else and says what is lost."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.harness.broker_process import ROOT, BrokerProcess, wait_until
from tests.harness.log_reader import read_log
from tests.harness.publisher import publish_all
from tests.harness.raw_client import RawClient

if TYPE_CHECKING:
    from pathlib import Path

PAYLOADS = [b"message %05d " % number + os.urandom(200) for number in range(20_000)]


def highway(*words: object) -> tuple[int, str]:
    ran = subprocess.run(
        [sys.executable, "-m", "highway", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert "Traceback" not in ran.stderr
    return ran.returncode, ran.stdout


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def verified(data: Path) -> tuple[int, dict[str, Any]]:
    code, out = highway("log", "verify", "--json", "--data-dir", data)
    return code, json.loads(out)


def test_a_flipped_byte_of_a_segment_costs_its_frame_and_is_named(own_broker: BrokerProcess) -> None:
    own_broker.start()
    publish_all(own_broker.port, "safe/a", PAYLOADS)
    publish_all(own_broker.port, "balanced/a", PAYLOADS[:1000])
    assert own_broker.stop() == 0
    (segment,) = (own_broker.data / "logs").glob("safe-*/*.log")
    flip(segment, segment.stat().st_size // 2)
    code, found = verified(own_broker.data)
    assert code == 5
    ((lost,),) = [finding["lost"] for finding in found["findings"]]
    assert found["findings"][0]["file"] == str(segment)
    gone = range(lost["from_offset"], lost["to_offset"])
    assert 0 < len(gone) < len(PAYLOADS) // 2

    own_broker.start()
    stored = read_log(own_broker.port, "safe/#")
    assert {record.offset: record.payload for record in stored} == {
        offset: payload for offset, payload in enumerate(PAYLOADS) if offset not in gone
    }
    assert [record.payload for record in read_log(own_broker.port, "balanced/#")] == PAYLOADS[:1000]
    assert own_broker.lines(f"log safe: offsets {gone[0]} to {gone[-1]} are lost: .*{segment.name}: at byte ")
    code, found = verified(own_broker.data)
    assert code == 5, "also beside the running broker"
    own_broker.stop()
    assert highway("log", "repair", "--apply", "--data-dir", own_broker.data)[0] == 0
    code, out = highway("log", "gaps", "safe", "--data-dir", own_broker.data)
    assert f"safe  {gone[0]}..{gone[-1]}  {len(gone):,} offsets  corruption" in out


def test_flipped_bytes_of_what_is_there_twice_cost_nothing(own_broker: BrokerProcess) -> None:
    own_broker.start()
    publish_all(own_broker.port, "safe/a", PAYLOADS[:50])
    with own_broker.client("stays", clean=False) as client:
        client.subscribe(("safe/#", 1))
    own_broker.stop()
    for pattern in ("CHECKPOINT.a", "FORMAT", "LOCK", "meta/*.snap", "logs/*/*.log"):
        flip(min(own_broker.data.glob(pattern)), 30)
    code, found = verified(own_broker.data)
    assert (code, found["lost_offsets"]) == (5, 0)
    assert {finding["kind"] for finding in found["findings"]} == {"checkpoint", "format", "snapshot", "segment"}
    own_broker.start()
    assert [record.payload for record in read_log(own_broker.port, "safe/#")] == PAYLOADS[:50]
    with RawClient.connected(own_broker.port, "stays", clean=False) as client:
        assert client.session_present


def test_a_backup_of_the_running_broker_serves_everything_that_was_acknowledged(own_broker: BrokerProcess) -> None:
    own_broker.start()
    publish_all(own_broker.port, "safe/a", PAYLOADS[:3000])
    backup = own_broker.directory / "backup"
    assert highway("backup", "create", backup, "--data-dir", own_broker.data)[0] == 0
    publish_all(own_broker.port, "safe/a", PAYLOADS[3000:4000])
    own_broker.kill()
    own_broker.data.rename(own_broker.directory / "lost")
    assert highway("backup", "verify", backup)[0] == 0
    assert highway("backup", "restore", backup, "--data-dir", own_broker.data)[0] == 0
    own_broker.start()
    assert [record.payload for record in read_log(own_broker.port, "safe/#")] == PAYLOADS[:3000]


def test_a_flipped_byte_under_the_running_broker_is_found_by_the_scrub(tmp_path: Path) -> None:
    topics = [{"topic": "safe/#", "log": "safe", "durability": "SAFE", "segment_bytes": "64KiB", "flush_bytes": "4KiB"}]
    storage = {"scrub_rate": "64MiB/s", "scrub_interval": "1s", "checkpoint_interval": "100ms"}
    with BrokerProcess(tmp_path, topics=topics, storage=storage) as broker:
        publish_all(broker.port, "safe/a", PAYLOADS[:2000])
        wait_until(lambda: len(list(broker.data.glob("logs/safe-*/*.idx"))) > 1, what="sealed segments")
        segment = min(broker.data.glob("logs/safe-*/*.log"))
        with segment.open("r+b") as file:
            file.seek(segment.stat().st_size // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 0x10]))
        broker.wait_for_line(f"log safe: offsets [0-9]+ to [0-9]+ are lost: .*{segment.name}", timeout=20)
        ready = http_get(broker, "/readyz")
        assert ready.startswith("ready\n")
        assert "degraded: Log safe:" in ready
        gone = re.search("offsets ([0-9]+) to ([0-9]+)", ready)
        assert gone is not None
        left = {record.offset for record in read_log(broker.port, "safe/#")}
        assert left == set(range(2000)) - set(range(int(gone[1]), int(gone[2]) + 1))


def http_get(broker: BrokerProcess, path: str) -> str:
    connection = http.client.HTTPConnection("localhost", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(broker.data / "admin.sock"))
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text
