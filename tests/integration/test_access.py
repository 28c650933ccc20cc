"""Access rules from the YAML file to the socket."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.harness import packets
from tests.harness.broker_process import ROOT, BrokerProcess
from tests.harness.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator

ACL = [
    {"allow": ["publish", "subscribe", "replay", "fetch"], "client": "ops", "topic": "#"},
    {"allow": "subscribe", "topic": "weather/+/me"},
    {"allow": "subscribe", "topic": "dev/%c/#"},
    {"allow": "publish", "topic": "dev/%u/+"},
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    auth = {"anonymous": True, "acl": ACL}
    topics = [{"topic": "#", "log": "all", "durability": "SAFE"}]
    with BrokerProcess(tmp_path_factory.mktemp("acl"), topics=topics, auth=auth) as running:
        yield running


def test_report_65_each_filter_gets_its_own_code(broker: BrokerProcess) -> None:
    with broker.client("c") as client:
        assert client.subscribe(("weather/x/me", 1), ("#", 1), ("weather/#", 1), ("+/+/me", 1)) == [1, 0x80, 0x80, 0x80]
        with broker.client("ops") as ops:
            ops.publish("weather/x/me", b"1")
            ops.publish("weather/x/you", b"2")
        assert client.message().topic == "weather/x/me"
        client.ping()
        assert client.waiting_messages() == []


def test_report_65_a_denied_publish_is_not_on_disk(broker: BrokerProcess) -> None:
    with broker.client("ops") as ops:
        ops.publish("mine", b"before")
        assert ops.subscribe(("$range/mine", 0)) == [0]
        before = ops.message().payload
        with broker.client("c") as client:
            client.publish("theirs", b"x", qos=1, retain=True)
            client.ping()
        assert ops.subscribe(("$range/mine", 0)) == [0]
        assert ops.message().payload == before
        ops.subscribe(("theirs", 0))
        ops.ping()
        assert ops.waiting_messages() == []


@pytest.mark.parametrize("name", ["#", "+", "a/../b", "a/b", "%u"])
def test_report_63_a_name_is_no_pattern(broker: BrokerProcess, name: str) -> None:
    with RawClient(broker.port) as client, broker.client("ops") as ops:
        ops.subscribe(("dev/#", 0))
        client.send(packets.connect(name, username=name))
        client.expect_bytes("20020000")
        assert client.subscribe(("dev/#", 0), ("dev/+/x", 0), ("dev/a/x", 0)) == [0x80, 0x80, 0x80]
        client.publish("dev/a/x", b"x")
        client.ping()
        ops.ping()
        assert ops.waiting_messages() == []


def test_highway_pub_says_that_it_was_refused(broker: BrokerProcess) -> None:
    words = ["pub", "-p", str(broker.port), "-u", "u", "-q", "1", "-t"]
    for topic, code, error in (
        ("dev/u/x", 0, ""),
        ("dev/other/x", 6, "Error: the broker refuses dev/other/x: Not authorized\n"),
    ):
        ran = subprocess.run(
            [sys.executable, "-m", "highway", *words, topic, "-m", "x"],
            capture_output=True,
            check=False,
            cwd=ROOT,
            text=True,
            timeout=60,
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (code, "", error)
