"""Every client over every transport and in every version that it has: one exchange, told by the client itself.

An exchange: something retained is there; the client subscribes at QoS 2 and gets it; it publishes at every QoS, once
more than fits into a TLS record or a WebSocket frame of the usual size, and gets all of it back. mqtt.js also leaves,
misses something and comes back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import ssl
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import aiomqtt
import gmqtt
import pytest
from amqtt.client import MQTTClient as AmqttClient
from paho.mqtt import client as paho, enums as paho_enums

from tests.harness.broker_process import wait_until
from tests.harness.mosquitto import mosquitto_pub, mosquitto_sub, needs_mosquitto

if TYPE_CHECKING:
    from tests.clients.conftest import Endpoint

TRANSPORTS = ["tcp", "tls", "ws", "wss"]
SOCKETS = ["tcp", "tls"]  # for the clients that have no WebSocket
VERSIONS = [4, 5]
TIMEOUT_S = 20.0
QOS = [0, 1, 2]
LARGE = bytes(range(256)) * 300


class Got(NamedTuple):
    """A message as a client tells of it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


def expected(base: str) -> list[Got]:
    return [
        Got(f"{base}/kept", b"retained", 1, True),
        *(Got(f"{base}/live", b"%d" % qos, qos, False) for qos in QOS),
        Got(f"{base}/large", LARGE, 1, False),
    ]


def check(got: list[Got], base: str) -> None:
    # A client may hand on a QoS 2 message when its PUBREL comes, behind what was sent after it.
    assert sorted(got) == sorted(expected(base))


def messages(base: str) -> list[tuple[str, bytes, int]]:
    return [(got.topic, got.payload, got.qos) for got in expected(base)[1:]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_paho(endpoints: dict[str, Endpoint], transport: str, version: int) -> None:
    endpoint, base = endpoints[transport], f"{transport}/paho{version}"
    client = paho.Client(
        paho_enums.CallbackAPIVersion.VERSION2,
        client_id=base,
        protocol=paho.MQTTv5 if version == 5 else paho.MQTTv311,
        transport="websockets" if endpoint.websocket else "tcp",
    )
    if endpoint.tls:
        client.tls_set(ca_certs=endpoint.cafile)
    received: queue.Queue[Got] = queue.Queue()
    client.on_message = lambda _client, _data, m: received.put(Got(m.topic, m.payload, m.qos, m.retain))
    client.connect("localhost", endpoint.port)
    client.loop_start()
    try:
        wait_until(client.is_connected, what="CONNACK")
        client.publish(f"{base}/kept", b"retained", 1, retain=True).wait_for_publish(TIMEOUT_S)
        client.subscribe(f"{base}/#", 2)
        got = [received.get(timeout=TIMEOUT_S)]
        for topic, payload, qos in messages(base):
            client.publish(topic, payload, qos)
        check(got + [received.get(timeout=TIMEOUT_S) for _ in messages(base)], base)
        assert received.empty()
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_aiomqtt(endpoints: dict[str, Endpoint], transport: str, version: int) -> None:
    endpoint, base = endpoints[transport], f"{transport}/aiomqtt{version}"

    async def exchange() -> list[Got]:
        got: list[Got] = []
        async with aiomqtt.Client(
            "localhost",
            endpoint.port,
            identifier=base,
            protocol=aiomqtt.ProtocolVersion(version),
            transport="websockets" if endpoint.websocket else "tcp",
            tls_context=endpoint.context,
        ) as client:
            await client.publish(f"{base}/kept", b"retained", qos=1, retain=True)
            await client.subscribe(f"{base}/#", qos=2)
            async for message in client.messages:
                if not got:
                    for topic, payload, qos in messages(base):
                        await client.publish(topic, payload, qos=qos)
                assert isinstance(message.payload, bytes)
                got.append(Got(str(message.topic), message.payload, message.qos, message.retain))
                if len(got) == len(expected(base)):
                    break
        return got

    check(asyncio.run(asyncio.wait_for(exchange(), TIMEOUT_S)), base)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transport", SOCKETS)
def test_gmqtt(endpoints: dict[str, Endpoint], transport: str, version: int) -> None:
    endpoint, base = endpoints[transport], f"{transport}/gmqtt{version}"

    async def exchange() -> list[Got]:
        received: asyncio.Queue[Got] = asyncio.Queue()
        client = gmqtt.Client(base)

        def on_message(_client: Any, topic: str, payload: bytes, qos: int, found: dict[str, Any]) -> int:
            received.put_nowait(Got(topic, payload, qos, bool(found["retain"])))
            return 0

        client.on_message = on_message
        await client.connect("localhost", endpoint.port, ssl=endpoint.context or False, version=version)
        client.publish(f"{base}/kept", b"retained", qos=1, retain=True)
        client.subscribe(f"{base}/#", qos=2)
        got = [await received.get()]
        for topic, payload, qos in messages(base):
            client.publish(topic, payload, qos=qos)
        got += [await received.get() for _ in messages(base)]
        with contextlib.suppress(ssl.SSLError):  # asyncio resents acknowledgements that come while it closes
            await client.disconnect()
        return got

    check(asyncio.run(asyncio.wait_for(exchange(), TIMEOUT_S)), base)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_amqtt(endpoints: dict[str, Endpoint], transport: str) -> None:
    endpoint, base = endpoints[transport], f"{transport}/amqtt4"

    async def exchange() -> list[Got]:
        client = AmqttClient(client_id=base, config={"auto_reconnect": False})
        await client.connect(endpoint.url, cafile=endpoint.cafile if endpoint.tls else None)
        try:
            await client.publish(f"{base}/kept", b"retained", qos=1, retain=True)
            await client.subscribe([(f"{base}/#", 2)])
            got = [await deliver(client)]
            for topic, payload, qos in messages(base):
                await client.publish(topic, payload, qos=qos)
            return got + [await deliver(client) for _ in messages(base)]
        finally:
            await client.disconnect()

    async def deliver(client: AmqttClient) -> Got:
        message = await client.deliver_message(timeout_duration=TIMEOUT_S)
        assert message is not None
        packet = message.publish_packet
        assert packet is not None
        return Got(message.topic, bytes(message.data), packet.qos, packet.retain_flag)

    check(asyncio.run(asyncio.wait_for(exchange(), 2 * TIMEOUT_S)), base)


@needs_mosquitto
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transport", SOCKETS)
def test_mosquitto_pub_and_sub(endpoints: dict[str, Endpoint], transport: str, version: int, tmp_path: Path) -> None:
    endpoint, base = endpoints[transport], f"{transport}/mosquitto{version}"
    common = ["-h", "localhost", "-V", "mqttv5" if version == 5 else "mqttv311"]
    if endpoint.tls:
        common += ["--cafile", endpoint.cafile]
    session = [*common, "-i", f"{base}/sub", "-c", *(["-x", "60"] if version == 5 else [])]
    large = tmp_path / "large"
    large.write_bytes(LARGE)
    mosquitto_pub(endpoint.port, *common, "-r", "-q", "1", "-t", f"{base}/kept", "-m", "retained")
    subscribe = [*session, "-q", "2", "-t", f"{base}/#", "-F", "%t %x %q %r"]
    code, first, error = mosquitto_sub(endpoint.port, *subscribe, "-C", "1", "-W", "20")
    assert code == 0, error
    for topic, payload, qos in messages(base):
        body = ["-f", str(large)] if payload == LARGE else ["-m", payload.decode()]
        mosquitto_pub(endpoint.port, *common, "-q", str(qos), "-t", topic, *body)
    # What was sent at QoS 0 while it was away is kept for it as well.
    code, rest, error = mosquitto_sub(endpoint.port, *subscribe, "-C", str(len(QOS) + 2), "-W", "20")
    assert code == 0, error
    got = {
        Got(topic, bytes.fromhex(payload), int(qos), retain == "1")
        for topic, payload, qos, retain in (line.split(" ") for line in first + rest)
    }
    check(list(got), base)


@needs_mosquitto
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transport", SOCKETS)
def test_mosquitto_rr(endpoints: dict[str, Endpoint], transport: str, version: int) -> None:
    endpoint, base = endpoints[transport], f"{transport}/rr{version}"

    async def answer() -> bytes:
        async with aiomqtt.Client(
            "localhost",
            endpoint.port,
            identifier=base,
            protocol=aiomqtt.ProtocolVersion(version),
            tls_context=endpoint.context,
        ) as answerer:
            await answerer.subscribe(f"{base}/ask", qos=1)
            words = ["-h", "localhost", "-p", str(endpoint.port), "-W", "15", *secure, "-V", f"mqttv{protocol}"]
            asker = await asyncio.create_subprocess_exec(
                *("mosquitto_rr", *words, "-q", "1", "-t", f"{base}/ask", "-e", f"{base}/answer", "-m", "what time"),
                stdout=subprocess.PIPE,
            )
            request = await anext(answerer.messages)
            assert request.payload == b"what time"
            if version == 5:
                assert request.properties is not None
                assert request.properties.ResponseTopic == f"{base}/answer"
            await answerer.publish(f"{base}/answer", b"noon", qos=1)
            out, _ = await asker.communicate()
            assert asker.returncode == 0
            return out

    secure = ["--cafile", endpoint.cafile] if endpoint.tls else []
    protocol = "5" if version == 5 else "311"
    assert asyncio.run(asyncio.wait_for(answer(), TIMEOUT_S)) == b"noon\n"


def run_js(program: str, script: str, endpoint: Endpoint, *words: str) -> list[dict[str, Any]]:
    trust = [endpoint.cafile] if endpoint.tls else []
    done = subprocess.run(
        [program, str(Path(__file__).parent / script), endpoint.url, *words, *trust],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_mqtt_js(endpoints: dict[str, Endpoint], mqtt_js: str, transport: str, version: int) -> None:
    got = run_js(mqtt_js, "exchange.js", endpoints[transport], str(version))
    base = f"mqttjs/{version}"
    assert [(row["situation"], row["topic"], row["payload"], row["qos"], row["retain"]) for row in got] == [
        *(("live", f"{base}/live", f"live {qos}", qos, False) for qos in QOS),
        ("missed", f"{base}/kept", "missed", 1, False),
        ("retained", f"{base}/kept", "missed", 0, True),
    ]
    for row in got[:3]:
        found = row["properties"]
        assert found.get("userProperties") == ({"name": "value"} if version == 5 else None)
        assert found.get("responseTopic") == (f"{base}/answer" if version == 5 else None)
