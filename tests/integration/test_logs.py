"""What a real broker says on standard error: fields, one line each, and never what is a client's secret."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest

from highway.config.passwords import hash_password
from tests.harness import packets
from tests.harness.broker_process import BrokerProcess
from tests.harness.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAYLOAD = b"S3CRET-PAYLOAD"
PASSWORD = b"S3CRET-PASSWORD"
STORM = "storm\u202e\u2028x"  # turns the text around on a terminal, and begins a line in some viewers


def connect(client_id: str, username: str, password: bytes, will: bytes = b"") -> bytes:
    """CONNECT with a password, and with a will of that payload."""
    flags = 0xC2 | (0x04 if will else 0)
    fields = packets.text(client_id)
    if will:
        fields += packets.text("free/will") + packets.text(will)
    fields += packets.text(username) + packets.text(password)
    return packets.packet(0x10, packets.text("MQTT") + bytes([4, flags, 0, 60]) + fields)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    (tmp_path / "passwd").write_text(f"user:{hash_password(PASSWORD)}\n")
    (tmp_path / "passwd").chmod(0o600)
    process = BrokerProcess(
        tmp_path,
        topics=[{"topic": "#", "log": "all"}],
        auth={
            "anonymous": False,
            "password_file": str(tmp_path / "passwd"),
            "acl": [{"allow": ["publish", "subscribe"], "topic": "free/#"}],
        },
        logging={"format": "json", "level": "debug"},
    )
    yield process
    if process.process is not None:
        process.kill()


def told(broker: BrokerProcess) -> list[dict[str, object]]:
    """The log lines, each of which is an object but the one that scripts wait for."""
    return [json.loads(line) for line in broker.stderr if line != "highway: ready"]


def test_no_payload_and_no_password_is_ever_told(broker: BrokerProcess) -> None:
    faults = [
        packets.publish("denied/x", PAYLOAD, qos=1, packet_id=1),
        packets.publish("free/x", PAYLOAD, qos=1, packet_id=0),
        packets.publish("free/#", PAYLOAD, qos=0),
        packets.publish("$SYS/x", PAYLOAD, qos=1, packet_id=1),
        packets.publish("free/x", PAYLOAD, qos=1, packet_id=1)[:-3] + b"\xff" * 4,
        packets.packet(0x36, packets.text("free/x") + b"\0\1" + PAYLOAD),
        b"\xf0\x0e" + PAYLOAD,
        PAYLOAD * 20,
    ]
    with broker:
        for number, fault in enumerate(faults):
            with RawClient(broker.port) as client:
                client.send(connect(f"faulty-{number}", "user", PASSWORD, will=PAYLOAD))
                assert client.expect(0x20)[1] == 0
                client.send(fault + packets.PINGREQ)
                while client.read_packet(timeout=2) not in (None, (0xD0, b"")):
                    pass
        for name, password in (("user", PASSWORD + b"-wrong"), ("nobody", PASSWORD)):
            with RawClient(broker.port) as client:
                client.send(connect("guesses", name, password))
                client.expect_closed(within=5)
        with RawClient(broker.port) as client:
            client.send(PAYLOAD)
            client.expect_closed(within=5)
        broker.wait_for_line("guesses")
    everything = "\n".join(broker.stderr)
    assert PAYLOAD.decode() not in everything
    assert PASSWORD.decode() not in everything
    assert any(line.get("client") == "faulty-0" and line.get("topic") == "denied/x" for line in told(broker))


def test_a_client_that_comes_back_with_the_same_fault_is_one_line_a_minute_with_a_count(broker: BrokerProcess) -> None:
    with broker:
        for _ in range(20):
            with RawClient(broker.port) as client:
                client.send(connect(STORM, "user", PASSWORD))
                client.expect(0x20)
                client.send("c100")
                client.expect_closed()
    about = [line for line in told(broker) if line.get("client") == STORM]
    assert [(line["level"], line.get("repeated")) for line in about] == [("warning", None), ("warning", 19)]
    assert all(line["peer"] for line in about)
    assert "\u202e" not in "\n".join(broker.stderr)


def test_what_is_not_mqtt_at_all_is_told_by_address(broker: BrokerProcess) -> None:
    with broker:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", broker.port)) as client:
                client.sendall(b"GET / HTTP/1.1\r\nAuthorization: Bearer S3CRET\r\n\r\n")
                client.settimeout(5)
                while client.recv(100):
                    pass
    lines = [line for line in told(broker) if str(line["message"]).startswith("closed")]
    assert [line.get("repeated") for line in lines] == [None, 2]
    assert "S3CRET" not in "\n".join(broker.stderr)
