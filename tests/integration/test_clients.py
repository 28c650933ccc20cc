"""Clients that people use, against the running broker: paho-mqtt, mosquitto_pub and mosquitto_sub, amqtt's client."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from typing import TYPE_CHECKING, Any

import pytest
from amqtt.client import MQTTClient as AmqttClient
from paho.mqtt import client as paho, enums as paho_enums

from tests.harness import packets
from tests.harness.broker_process import wait_until
from tests.harness.mosquitto import MosquittoSub, mosquitto_pub, mosquitto_sub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.harness.broker_process import BrokerProcess

QOS = [0, 1, 2]


@contextlib.contextmanager
def paho_client(
    broker: BrokerProcess, client_id: str, *, clean: bool = True, **will: Any
) -> Iterator[tuple[paho.Client, queue.Queue[paho.MQTTMessage]]]:
    """A connected paho client with its network thread, and the queue of what it receives."""
    client = paho.Client(
        paho_enums.CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=clean, protocol=paho.MQTTv311
    )
    received: queue.Queue[paho.MQTTMessage] = queue.Queue()
    client.on_message = lambda _client, _data, message: received.put(message)
    if will:
        client.will_set(**will)
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    try:
        wait_until(client.is_connected, what="CONNACK")
        yield client, received
    finally:
        client.disconnect()
        client.loop_stop()


def paho_subscribe(client: paho.Client, topic_filter: str, qos: int) -> None:
    granted: queue.Queue[list[Any]] = queue.Queue()
    client.on_subscribe = lambda _client, _data, _mid, codes, _properties: granted.put(codes)
    client.subscribe(topic_filter, qos)
    assert [code.value for code in granted.get(timeout=10)] == [qos]


@pytest.mark.parametrize("subscribed", QOS)
@pytest.mark.parametrize("published", QOS)
def test_paho_every_qos_both_ways(broker: BrokerProcess, published: int, subscribed: int) -> None:
    topic = f"paho/{published}/{subscribed}"
    with paho_client(broker, "paho-sub") as (subscriber, received), paho_client(broker, "paho-pub") as (publisher, _):
        paho_subscribe(subscriber, topic, subscribed)
        sent = [publisher.publish(topic, b"%d" % number, published) for number in range(200)]
        sent[-1].wait_for_publish(10)
        got = [received.get(timeout=10) for _ in range(200)]
    assert [message.payload for message in got] == [b"%d" % number for number in range(200)]
    assert {message.qos for message in got} == {min(published, subscribed)}  # [MQTT-3.8.4-6]
    assert not any(message.retain for message in got)
    assert received.empty()


def test_paho_persistent_session_gets_what_it_missed(broker: BrokerProcess) -> None:
    with paho_client(broker, "paho-away", clean=False) as (client, _):
        paho_subscribe(client, "paho/away/#", 2)
    with paho_client(broker, "paho-pub") as (publisher, _):
        sent = [publisher.publish(f"paho/away/{n % 3}", b"%d" % n, 1 + n % 2) for n in range(500)]
        for message in sent:
            message.wait_for_publish(10)
    with paho_client(broker, "paho-away", clean=False) as (client, received):
        got = [received.get(timeout=10) for _ in range(500)]
    numbers = [int(message.payload) for message in got]
    # paho hands on a QoS 2 message at its PUBREL, so that the order of sending shows within each QoS.
    assert [number for number in numbers if number % 2] == list(range(1, 500, 2))
    assert [number for number in numbers if not number % 2] == list(range(0, 500, 2))


def test_paho_will_and_retained(broker: BrokerProcess) -> None:
    with paho_client(broker, "paho-watch") as (watcher, received):
        paho_subscribe(watcher, "paho/st", 1)
        with paho_client(broker, "paho-dies", topic="paho/st", payload=b"off", qos=1, retain=True) as (dying, _):
            dying.publish("paho/st", b"on", 1, retain=True).wait_for_publish(10)
            on = received.get(timeout=10)
            assert (on.payload, on.retain) == (b"on", False)
            sock = dying.socket()
            assert sock is not None
            dying.loop_stop()
            sock.close()
        off = received.get(timeout=10)
        assert (off.payload, off.retain) == (b"off", False)
    with paho_client(broker, "paho-late") as (late, received):
        paho_subscribe(late, "paho/+", 1)
        kept = received.get(timeout=10)
        assert (kept.payload, kept.retain) == (b"off", True)


@pytest.mark.usefixtures("mosquitto_clients")
@pytest.mark.parametrize("qos", QOS)
def test_mosquitto_every_qos_both_ways(broker: BrokerProcess, qos: int) -> None:
    topic = f"mosquitto/{qos}"
    with MosquittoSub(broker.port, "-q", str(qos), "-t", topic, "-t", f"{topic}/ready", "-F", "%q %p") as sub:
        while True:  # the subscription is in place when a message comes through
            mosquitto_pub(broker.port, "-t", f"{topic}/ready", "-m", "ready")
            with contextlib.suppress(AssertionError):
                assert sub.lines(1, timeout=1) == ["0 ready"]
                break
        for number in range(3):
            mosquitto_pub(broker.port, "-q", str(qos), "-t", topic, "-m", f"m{number}")
        got: list[str] = []
        while len(got) < 3:
            got += [line for line in sub.lines(1) if not line.endswith("ready")]
    assert got == [f"{qos} m{number}" for number in range(3)]


@pytest.mark.usefixtures("mosquitto_clients")
def test_mosquitto_retained_is_kept_and_cleared(broker: BrokerProcess) -> None:
    mosquitto_pub(broker.port, "-r", "-q", "1", "-t", "mosquitto/kept", "-m", "value")
    code, lines, _ = mosquitto_sub(broker.port, "-t", "mosquitto/kept", "-C", "1", "-F", "%r %p")
    assert (code, lines) == (0, ["1 value"])
    mosquitto_pub(broker.port, "-r", "-n", "-q", "1", "-t", "mosquitto/kept")
    with broker.client("raw-late") as client:
        client.subscribe(("mosquitto/kept", 1))
        assert client.waiting_messages() == []


@contextlib.asynccontextmanager
async def amqtt_client(broker: BrokerProcess, client_id: str, *, clean: bool = True) -> AsyncIterator[AmqttClient]:
    client = AmqttClient(client_id=client_id, config={"auto_reconnect": False})
    await client.connect(f"mqtt://127.0.0.1:{broker.port}/", cleansession=clean)
    try:
        yield client
    finally:
        await client.disconnect()


@pytest.mark.parametrize("qos", QOS)
def test_amqtt_every_qos_both_ways(broker: BrokerProcess, qos: int) -> None:
    async def exchange() -> list[tuple[bytes, int]]:
        async with amqtt_client(broker, "amqtt-sub") as subscriber, amqtt_client(broker, "amqtt-pub") as publisher:
            assert await subscriber.subscribe([(f"amqtt/{qos}", qos)]) == [qos]
            for number in range(20):
                await publisher.publish(f"amqtt/{qos}", b"%d" % number, qos=qos)
            got = []
            for _ in range(20):
                message = await subscriber.deliver_message(timeout_duration=10)
                assert message is not None
                got.append((bytes(message.data), message.qos))
            return got

    assert asyncio.run(exchange()) == [(b"%d" % number, qos) for number in range(20)]


def test_amqtt_persistent_session_gets_what_it_missed(broker: BrokerProcess) -> None:
    async def be_away_and_back() -> list[bytes]:
        async with amqtt_client(broker, "amqtt-away", clean=False) as client:
            await client.subscribe([("amqtt/away", 1)])
        async with amqtt_client(broker, "amqtt-pub") as publisher:
            for number in range(20):
                await publisher.publish("amqtt/away", b"%d" % number, qos=1)
        async with amqtt_client(broker, "amqtt-away", clean=False) as client:
            got = []
            for _ in range(20):
                message = await client.deliver_message(timeout_duration=10)
                assert message is not None
                got.append(bytes(message.data))
            return got

    assert asyncio.run(be_away_and_back()) == [b"%d" % number for number in range(20)]


def test_a_second_connection_takes_the_session_over(broker: BrokerProcess) -> None:
    first = broker.client("same", clean=False)
    first.subscribe(("takeover/#", 1))
    with broker.client("same", clean=False) as second, broker.client("other") as publisher:
        assert second.session_present
        first.expect_closed()  # [MQTT-3.1.4-2]
        publisher.publish("takeover/x", b"for the second")
        assert second.message().payload == b"for the second"


def test_a_will_is_not_sent_after_disconnect_and_is_after_a_fault(broker: BrokerProcess) -> None:
    will = ("wills/x", b"lost", 1, False)
    with broker.client("watcher") as watcher:
        watcher.subscribe(("wills/#", 1))
        broker.client("leaves", will=will).disconnect()
        broken = broker.client("breaks", will=("wills/y", b"fault", 1, False))
        broken.send("f000")
        broken.expect_closed()
        cut = broker.client("is-cut", will=("wills/z", b"cut", 1, False))
        cut.reset()
        got = {(message.topic, message.payload) for message in watcher.messages(2)}
        assert got == {("wills/y", b"fault"), ("wills/z", b"cut")}


def test_keep_alive_is_one_and_a_half_times(broker: BrokerProcess) -> None:
    with broker.client("watcher") as watcher:
        watcher.subscribe(("ka/#", 1))
        start = time.monotonic()
        client = broker.client("silent", keep_alive=1, will=("ka/silent", b"gone", 1, False))
        client.expect_closed(within=10)
        assert time.monotonic() - start >= 1.45
        assert watcher.message().payload == b"gone"


def test_overlapping_subscriptions_give_one_copy_at_the_highest_qos(broker: BrokerProcess) -> None:
    with broker.client("overlaps") as client, broker.client("publisher") as publisher:
        assert client.subscribe(("over/#", 0), ("over/1", 2), ("+/1", 1)) == [0, 2, 1]
        publisher.publish("over/1", b"2", qos=2)
        publisher.publish("over/1", b"1", qos=1)
        publisher.publish("over/2", b"0", qos=1)
        got = [(message.topic, message.payload, message.qos) for message in client.messages(3)]
        assert got == [("over/1", b"2", 2), ("over/1", b"1", 1), ("over/2", b"0", 0)]
        assert client.waiting_messages() == []


def test_retained_comes_on_every_subscribe_with_the_flag_set(broker: BrokerProcess) -> None:
    with broker.client("retains") as client:
        client.publish("ret/c", b"C", qos=0, retain=True)
        client.publish("ret/a", b"A", retain=True)
        client.publish("ret/b", b"B", qos=2, retain=True)  # its ack says that all three are kept
        for _ in range(2):  # [MQTT-3.8.4-3] a repeated SUBSCRIBE sends retained messages again
            assert client.subscribe(("ret/#", 1)) == [1]
            got = {(m.topic, m.payload, m.qos, m.retain) for m in client.messages(3)}
            assert got == {("ret/a", b"A", 1, True), ("ret/b", b"B", 1, True), ("ret/c", b"C", 0, True)}
        client.publish("ret/a", b"", retain=True)
        emptied = client.message()
        assert (emptied.payload, emptied.retain) == (b"", False)
        client.unsubscribe("ret/#")
        client.subscribe(("ret/a", 1))
        assert client.waiting_messages() == []


def test_unacknowledged_messages_come_again_with_dup_and_their_ids(broker: BrokerProcess) -> None:
    first = broker.client("slow", clean=False)
    first.auto_ack = False
    first.subscribe(("again/#", 2))
    with broker.client("publisher") as publisher:
        for number in range(5):
            publisher.publish("again/x", b"%d" % number, qos=1 + number % 2)
    before = first.messages(5)
    first.send(packets.ack(0x40, before[0].packet_id))
    first.send(packets.ack(0x50, before[1].packet_id))
    first.expect_bytes(packets.ack(0x62, before[1].packet_id))
    first.close()
    with broker.client("slow", clean=False) as again:
        assert again.session_present
        assert again.expect(0x60) == before[1].packet_id.to_bytes(2, "big")  # PUBREL again, not the message
        after = again.messages(3)
        assert [(m.payload, m.packet_id) for m in after] == [(m.payload, m.packet_id) for m in before[2:]]
        assert all(message.dup for message in after)  # [MQTT-3.3.1-1]
        assert again.waiting_messages() == []


def test_sys_topics_are_retained_and_count(broker: BrokerProcess) -> None:
    with broker.client("admin") as client:
        client.subscribe(("$SYS/broker/#", 0))
        seen: dict[str, bytes] = {}
        while not {"$SYS/broker/uptime", "$SYS/broker/clients/connected", "$SYS/broker/messages/received"} <= set(seen):
            message = client.message(timeout=15)
            seen[message.topic] = message.payload
        assert seen["$SYS/broker/uptime"].endswith(b" seconds")
        assert int(seen["$SYS/broker/clients/connected"]) >= 0
