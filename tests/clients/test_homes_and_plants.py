"""What people connect brokers with: Telegraf's consumer, Node-RED's library, Home Assistant and its devices.

Telegraf and Home Assistant themselves don't install beside a test: paho-mqtt takes their places, with the settings that
their documentation names.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from ha_mqtt_discoverable import Settings
from ha_mqtt_discoverable.sensors import Sensor, SensorInfo, Switch, SwitchInfo
from paho.mqtt import client as paho, enums as paho_enums

from tests.clients.conftest import CLIENTS
from tests.harness.broker_process import BrokerProcess, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

TIMEOUT_S = 20.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as running:
        yield running


class Client:
    """paho-mqtt at MQTT 3.1.1, with what it received."""

    def __init__(self, port: int, client_id: str, *, setup: Callable[[paho.Client], None] = lambda _: None, **settings):
        self.received: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.granted: queue.Queue[list[int]] = queue.Queue()
        client = self.client = paho.Client(paho_enums.CallbackAPIVersion.VERSION2, client_id=client_id, **settings)
        setup(client)
        client.on_message = lambda _client, _data, message: self.received.put(message)
        client.on_subscribe = lambda _client, _data, _mid, codes, _: self.granted.put([code.value for code in codes])
        client.connect("127.0.0.1", port, keepalive=60)
        client.loop_start()
        wait_until(client.is_connected, what="CONNACK")

    def subscribe(self, *filters: tuple[str, int]) -> None:
        self.client.subscribe(list(filters))
        assert self.granted.get(timeout=TIMEOUT_S) == [qos for _, qos in filters]

    def publish(self, topic: str, payload: str, qos: int = 1, *, retain: bool = False) -> None:
        self.client.publish(topic, payload, qos, retain).wait_for_publish(TIMEOUT_S)

    def take(self) -> paho.MQTTMessage:
        return self.received.get(timeout=TIMEOUT_S)

    def take_until(self, topic: str, payload: bytes) -> paho.MQTTMessage:
        """The first message like that; others before it are skipped."""
        while True:
            message = self.take()
            if (message.topic, message.payload) == (topic, payload):
                return message

    def leave(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def die(self) -> None:
        """Be gone without DISCONNECT."""
        opened = self.client.socket()
        assert opened is not None
        self.client.loop_stop()
        opened.close()


# Telegraf: [[inputs.mqtt_consumer]] as its documentation has it, with persistent_session and a client_id, qos = 1.
TELEGRAF_TOPICS = [("telegraf/host01/cpu", 1), ("telegraf/+/mem", 1), ("sensors/#", 1)]


def telegraf(port: int) -> Client:
    """Messages are acknowledged when they are written to the output, as Telegraf does above QoS 0."""
    consumer = Client(port, "telegraf", clean_session=False, manual_ack=True)
    consumer.subscribe(*TELEGRAF_TOPICS)
    return consumer


def test_telegraf_consumer_writes_every_reading_though_it_dies_between_flushes(broker: BrokerProcess) -> None:
    count = 250  # more than may be under way to a client
    consumer = telegraf(broker.port)
    publisher = Client(broker.port, "sensor")
    for number in range(count):
        topic = ("telegraf/host01/cpu", "telegraf/host02/mem", "sensors/hall/7")[number % 3]
        publisher.publish(topic, f"reading value={number}i {1_790_000_000_000_000_000 + number}")
    publisher.publish("telegraf/host02/cpu", "not asked for")
    publisher.leave()

    written: list[int] = []

    def flush(consumer: Client, size: int) -> None:
        """An interval: take `size` messages, write them to the output, then acknowledge."""
        batch = [consumer.take() for _ in range(size)]
        written.extend(int(message.payload.split(b"value=")[1].split(b"i")[0]) for message in batch)
        for message in batch:
            consumer.client.ack(message.mid, message.qos)

    flush(consumer, 60)
    for _ in range(40):
        consumer.take()  # in its buffer, and lost with it
    consumer.die()
    consumer = telegraf(broker.port)
    while len(set(written)) < count:
        flush(consumer, 1)
    consumer.leave()
    assert list(dict.fromkeys(written)) == list(range(count))


# Node-RED.


@pytest.fixture
def node_red(broker: BrokerProcess, mqtt_js: str) -> Iterator[subprocess.Popen[bytes]]:
    program = subprocess.Popen([mqtt_js, str(CLIENTS / "node_red.js"), f"mqtt://127.0.0.1:{broker.port}"])
    yield program
    program.kill()
    program.wait()


def test_a_flow_of_node_red_goes_on_after_the_broker_was_killed(
    broker: BrokerProcess, node_red: subprocess.Popen[bytes]
) -> None:
    for run in range(2):
        watcher = Client(broker.port, "watcher")
        watcher.subscribe(("node-red/status", 1), ("out/#", 2))
        watcher.take_until("node-red/status", b"online")
        watcher.publish(f"in/lamp/{run}", '{"on":true}', 2)
        message = watcher.take_until(f"out/lamp/{run}", b'{"on":true}')
        assert (message.qos, message.retain) == (2, False)
        if run == 0:
            watcher.die()
            broker.restart()
        else:
            node_red.kill()
            assert watcher.take_until("node-red/status", b"offline").qos == 1
            watcher.leave()


# Home Assistant.

DISCOVERY = [("homeassistant/+/+/config", 1), ("homeassistant/+/+/+/config", 1)]
STATUS = "homeassistant/status"


def home_assistant(port: int) -> Client:
    """Its MQTT integration: a will, the subscriptions of discovery, and the birth message."""
    home = Client(port, "", setup=lambda client: client.will_set(STATUS, "offline", 1, retain=True))
    home.subscribe(*DISCOVERY)
    home.publish(STATUS, "online", retain=True)
    return home


@contextlib.contextmanager
def device(port: int, commands: queue.Queue[bytes]) -> Iterator[tuple[Sensor, Switch]]:
    """A sensor and a switch of the library that devices are written with."""
    mqtt = Settings.MQTT(host="127.0.0.1", port=port)
    sensor = Sensor(
        Settings(
            mqtt=mqtt,
            entity=SensorInfo(name="Hall temperature", unique_id="hall-t", device_class="temperature"),
            manual_availability=True,
        )
    )
    switch = Switch(
        Settings(mqtt=mqtt, entity=SwitchInfo(name="Lamp", unique_id="lamp-1")),
        lambda _client, _data, message: commands.put(message.payload),
    )
    try:
        for entity in (sensor, switch):
            wait_until(entity.mqtt_client.is_connected, what="CONNACK")
        yield sensor, switch
    finally:
        for entity in (sensor, switch):
            entity.mqtt_client.disconnect()
            entity.mqtt_client.loop_stop()


def discovered(home: Client) -> dict[str, dict[str, Any]]:
    """Both entities by their unique ids, from retained messages."""
    found = {}
    while len(found) < 2:
        message = home.take()
        assert message.retain
        config = json.loads(message.payload)
        found[config["unique_id"]] = {**config, "config_topic": message.topic}
    return found


def test_home_assistant_finds_its_devices_again_after_the_broker_was_killed(broker: BrokerProcess) -> None:
    commands: queue.Queue[bytes] = queue.Queue()
    with device(broker.port, commands) as (sensor, switch):
        sensor.set_availability(True)
        switch.write_config().wait_for_publish(TIMEOUT_S)
        watch = Client(broker.port, "watch")
        watch.subscribe((sensor.config_topic, 1), (sensor.availability_topic, 1))
        watch.take_until(sensor.availability_topic, b"online")
        watch.leave()
        broker.restart()
        for entity in (sensor, switch):
            wait_until(entity.mqtt_client.is_connected, what="the device's reconnection")

        home = home_assistant(broker.port)
        found = discovered(home)
        assert found["hall-t"]["config_topic"] == "homeassistant/sensor/Hall-temperature/config"
        lamp, hall = found["lamp-1"], found["hall-t"]
        home.subscribe((hall["state_topic"], 1), (hall["availability_topic"], 1), (lamp["state_topic"], 1))
        home.take_until(hall["availability_topic"], b"offline")  # the will of a device that the broker's end cut off
        sensor.set_state(21.5)
        home.take_until(hall["state_topic"], b"21.5")
        sensor.set_availability(True)
        home.take_until(hall["availability_topic"], b"online")
        home.publish(lamp["command_topic"], "ON")
        assert commands.get(timeout=TIMEOUT_S) == b"ON"
        switch.on()
        home.take_until(lamp["state_topic"], b"ON")

        dying = sensor.mqtt_client.socket()
        assert dying is not None
        sensor.mqtt_client.loop_stop()
        dying.close()
        home.take_until(hall["availability_topic"], b"offline")
        switch.delete()  # an empty retained message takes the entity away
        assert home.take_until(lamp["config_topic"], b"").retain is False
        home.die()

    late = Client(broker.port, "late")
    late.subscribe((STATUS, 1), *DISCOVERY)
    got = [late.take() for _ in range(2)]
    late.publish("homeassistant/end/of/config", "end")
    assert late.take().payload == b"end", "the deleted entity is not there any more"
    late.leave()
    assert {(message.topic, message.payload) for message in got} >= {(STATUS, b"offline")}
    assert {message.topic for message in got} == {STATUS, hall["config_topic"]}


def test_devices_hear_of_the_birth_of_home_assistant(broker: BrokerProcess) -> None:
    gadget = Client(broker.port, "gadget")
    gadget.subscribe((STATUS, 1))
    home = home_assistant(broker.port)
    born = gadget.take()
    assert (born.topic, born.payload, born.qos, born.retain) == (STATUS, b"online", 1, False)
    home.die()
    assert gadget.take().payload == b"offline"
    gadget.leave()
