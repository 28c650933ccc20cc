"""More clients that people use, mostly over MQTT 5: paho-mqtt, aiomqtt, gmqtt, mosquitto's three.

What each says of itself is what counts: no bytes are looked at here.
"""

from __future__ import annotations

import asyncio
import queue
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import aiomqtt
import gmqtt
import pytest
from paho.mqtt import client as paho, enums as paho_enums
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.harness.broker_process import wait_until
from tests.harness.mosquitto import MosquittoSub, mosquitto_pub

if TYPE_CHECKING:
    from tests.harness.broker_process import BrokerProcess

QOS = [0, 1, 2]


def properties(packet: int, **values: Any) -> Properties:
    made = Properties(packet)
    for name, value in values.items():
        setattr(made, name, value)
    return made


class PahoClient:
    """A connected paho client of MQTT 5 with its network thread, and the queue of what it receives."""

    def __init__(self, port: int, client_id: str, *, clean_start: bool = True, expiry: int = 0) -> None:
        self.received: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self._subscribed: queue.Queue[list[Any]] = queue.Queue()
        client = self.client = paho.Client(
            paho_enums.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv5
        )
        client.on_message = lambda _client, _data, message: self.received.put(message)
        client.on_subscribe = lambda _client, _data, _mid, codes, _properties: self._subscribed.put(codes)
        client.connect(
            "127.0.0.1",
            port,
            clean_start=clean_start,
            # No topic aliases: paho hands on the empty topic names that come with them.
            properties=properties(PacketTypes.CONNECT, SessionExpiryInterval=expiry),
        )
        client.loop_start()
        wait_until(client.is_connected, what="CONNACK")

    def subscribe(self, topic_filter: str, options: SubscribeOptions, **values: Any) -> list[int]:
        self.client.subscribe(topic_filter, options=options, properties=properties(PacketTypes.SUBSCRIBE, **values))
        return [code.value for code in self._subscribed.get(timeout=10)]

    def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False, **values: Any) -> int:
        sent = self.client.publish(topic, payload, qos, retain, properties(PacketTypes.PUBLISH, **values))
        sent.wait_for_publish(10)
        return sent.mid

    def leave(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def test_paho_5(broker: BrokerProcess) -> None:
    pairs = [("b", "1"), ("a", "2"), ("b", "1")]
    publisher = PahoClient(broker.port, "paho5-pub")
    subscriber = PahoClient(broker.port, "paho5-sub", expiry=60)
    assert subscriber.subscribe("paho5/#", SubscribeOptions(qos=2, noLocal=True), SubscriptionIdentifier=7) == [2]
    for qos in QOS:
        publisher.publish(
            "paho5/live",
            b"%d" % qos,
            qos,
            UserProperty=pairs,
            ContentType="text",
            ResponseTopic="paho5/answer",
            CorrelationData=b"42",
            MessageExpiryInterval=100,
        )
    got = [subscriber.received.get(timeout=10) for _ in QOS]
    assert [(m.topic, m.payload, m.qos) for m in got] == [("paho5/live", b"%d" % qos, qos) for qos in QOS]
    for message in got:
        assert message.properties is not None
        assert message.properties.UserProperty == pairs
        assert message.properties.SubscriptionIdentifier == [7]
        assert (message.properties.ResponseTopic, message.properties.CorrelationData) == ("paho5/answer", b"42")
    subscriber.publish("paho5/own", b"not for me", 1)
    subscriber.leave()
    for number in range(300):
        publisher.publish("paho5/missed", b"%d" % number, 1 + number % 2)
    subscriber = PahoClient(broker.port, "paho5-sub", clean_start=False, expiry=0)
    missed = [int(subscriber.received.get(timeout=10).payload) for _ in range(300)]
    assert [number for number in missed if number % 2] == list(range(1, 300, 2))
    assert [number for number in missed if not number % 2] == list(range(0, 300, 2))
    assert subscriber.received.empty()
    for client in (subscriber, publisher):
        client.leave()


@pytest.mark.parametrize("version", [aiomqtt.ProtocolVersion.V311, aiomqtt.ProtocolVersion.V5])
def test_aiomqtt(broker: BrokerProcess, version: aiomqtt.ProtocolVersion) -> None:
    base = f"aiomqtt/{version.name}"

    async def exchange() -> list[tuple[str, bytes, int, bool]]:
        got = []
        async with (
            aiomqtt.Client("127.0.0.1", broker.port, protocol=version, identifier=f"{base}/sub") as subscriber,
            aiomqtt.Client("127.0.0.1", broker.port, protocol=version, identifier=f"{base}/pub") as publisher,
        ):
            await publisher.publish(f"{base}/kept", b"retained", qos=1, retain=True)
            await subscriber.subscribe(f"{base}/#", qos=2)
            for qos in QOS:
                await publisher.publish(f"{base}/live", b"%d" % qos, qos=qos)
            async for message in subscriber.messages:
                assert isinstance(message.payload, bytes)
                got.append((str(message.topic), message.payload, message.qos, message.retain))
                if len(got) == 4:
                    break
            await publisher.publish(f"{base}/kept", b"", qos=1, retain=True)
        return got

    assert asyncio.run(asyncio.wait_for(exchange(), 20)) == [
        (f"{base}/kept", b"retained", 1, True),
        *((f"{base}/live", b"%d" % qos, qos, False) for qos in QOS),
    ]


@pytest.mark.parametrize("version", [4, 5])
def test_gmqtt(broker: BrokerProcess, version: int) -> None:
    base = f"gmqtt/{version}"

    async def exchange() -> list[tuple[str, bytes, int, list[tuple[str, str]]]]:
        received: asyncio.Queue[tuple[str, bytes, int, list[tuple[str, str]]]] = asyncio.Queue()
        subscribed = asyncio.Event()

        def on_message(_client: Any, topic: str, payload: bytes, qos: int, found: dict[str, Any]) -> int:
            received.put_nowait((topic, payload, qos, found.get("user_property", [])))
            return 0

        subscriber, publisher = gmqtt.Client(f"{base}/sub"), gmqtt.Client(f"{base}/pub")
        subscriber.on_message = on_message
        subscriber.on_subscribe = lambda *_: subscribed.set()
        for client in (subscriber, publisher):
            await client.connect("127.0.0.1", broker.port, version=version)
        subscriber.subscribe(f"{base}/#", qos=2)
        await subscribed.wait()
        values: dict[str, Any] = {"user_property": [("a", "1"), ("b", "2")]} if version == 5 else {}
        for qos in QOS:
            publisher.publish(f"{base}/live", b"%d" % qos, qos=qos, **values)
        got = [await received.get() for _ in QOS]
        for client in (subscriber, publisher):
            await client.disconnect()
        return got

    pairs = [("a", "1"), ("b", "2")] if version == 5 else []
    got = asyncio.run(asyncio.wait_for(exchange(), 20))
    assert [(topic, payload, qos, [tuple(pair) for pair in found]) for topic, payload, qos, found in got] == [
        (f"{base}/live", b"%d" % qos, qos, pairs) for qos in QOS
    ]


@pytest.mark.usefixtures("mosquitto_clients")
def test_mosquitto_pub_and_sub_5(broker: BrokerProcess) -> None:
    arguments = (
        "-V",
        "mqttv5",
        "-q",
        "2",
        "-t",
        "mosq5/#",
        "-x",
        "60",
        "-c",
        "-i",
        "mosq5-sub",
        "-F",
        "%q %t %p %P %C",
    )
    values = ("-D", "publish", "user-property", "k", "v", "-D", "publish", "content-type", "text")
    with MosquittoSub(broker.port, *arguments) as sub:
        ready = ["0 mosq5/ready ready k:v text"]
        while True:  # the subscription is in place when a message comes through
            mosquitto_pub(broker.port, "-V", "mqttv5", "-t", "mosq5/ready", "-m", "ready", *values)
            try:
                assert sub.lines(1, timeout=1) == ready
                break
            except AssertionError:
                continue
        for qos in QOS:
            mosquitto_pub(broker.port, "-V", "mqttv5", "-q", str(qos), "-t", "mosq5/live", "-m", f"m{qos}", *values)
        got: list[str] = []
        while len(got) < 3:
            got += [line for line in sub.lines(1) if line not in ready]
    assert got == [f"{qos} mosq5/live m{qos} k:v text" for qos in QOS]
    mosquitto_pub(broker.port, "-V", "mqttv5", "-q", "1", "-t", "mosq5/missed", "-m", "while away")
    with MosquittoSub(broker.port, *arguments) as sub:
        assert sub.lines(1)[0].startswith("1 mosq5/missed while away")


@pytest.mark.skipif(shutil.which("mosquitto_rr") is None, reason="mosquitto_rr is not installed (mosquitto-clients)")
def test_mosquitto_rr(broker: BrokerProcess) -> None:
    answerer = PahoClient(broker.port, "rr-answerer")
    assert answerer.subscribe("rr/ask", SubscribeOptions(qos=1)) == [1]
    asker = subprocess.Popen(
        [
            *("mosquitto_rr", "-h", "127.0.0.1", "-p", str(broker.port), "-V", "mqttv5", "-W", "20"),
            *("-t", "rr/ask", "-e", "rr/answer", "-m", "what time", "-D", "publish", "correlation-data", "42"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    with asker:
        request = answerer.received.get(timeout=20)
        assert request.payload == b"what time"
        assert request.properties is not None
        answerer.publish(
            request.properties.ResponseTopic, b"noon", 1, CorrelationData=request.properties.CorrelationData
        )
        answer, _ = asker.communicate(timeout=20)
    answerer.leave()
    assert (asker.returncode, answer.strip()) == (0, "noon")
