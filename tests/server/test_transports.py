"""What holds on every kind of listener: the session is one, and a slow reader is a slow reader."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

import pytest
from paho.mqtt import client as paho, enums as paho_enums

from tests.harness import packets
from tests.harness.broker_process import wait_until
from tests.harness.raw_client import PUBACK, RawClient

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.broker_process import BrokerProcess
    from tests.harness.certificates import Authority

KINDS = ["local", "secure", "web", "webs"]


def test_every_listener_is_announced(broker: BrokerProcess, ports: dict[str, int]) -> None:
    for name, text in {
        "local": "MQTT on 127.0.0.1:{}",
        "six": "MQTT on [::1]:{}",
        "secure": "MQTT over TLS on 127.0.0.1:{}",
        "web": "MQTT over WebSocket on ws://127.0.0.1:{}/mqtt",
        "webs": "MQTT over WebSocket on wss://127.0.0.1:{}/mqtt",
    }.items():
        assert f"highway: {text.format(ports[name])} ({name})" in broker.stderr


@pytest.mark.parametrize("listener", KINDS)
def test_paho_publishes_and_subscribes(
    broker: BrokerProcess, ports: dict[str, int], authority: Authority, listener: str
) -> None:
    client = paho.Client(
        paho_enums.CallbackAPIVersion.VERSION2,
        client_id=f"paho-{listener}",
        transport="websockets" if listener.startswith("web") else "tcp",
    )
    if listener in ("secure", "webs"):
        client.tls_set(ca_certs=str(authority.cafile))
    received: queue.Queue[paho.MQTTMessage] = queue.Queue()
    client.on_message = lambda _client, _data, message: received.put(message)
    subscribed: queue.Queue[Any] = queue.Queue()
    client.on_subscribe = lambda *_: subscribed.put(None)
    client.connect("localhost", ports[listener])
    client.loop_start()
    try:
        wait_until(client.is_connected, what="CONNACK")
        client.subscribe(f"paho/{listener}/#", 2)
        subscribed.get(timeout=10)
        payloads = [b"%d " % number * (20_000 if number == 50 else 1) for number in range(100)]
        sent = [client.publish(f"paho/{listener}/x", payload, number % 3) for number, payload in enumerate(payloads)]
        for message in sent:
            message.wait_for_publish(10)
        got = [received.get(timeout=10) for _ in payloads]
    finally:
        client.disconnect()
        client.loop_stop()
    assert sorted(message.payload for message in got) == sorted(payloads)
    for qos in range(3):  # paho hands on a QoS 2 message at its PUBREL
        assert [message.payload for message in got if message.qos == qos] == payloads[qos::3]


@pytest.mark.parametrize("kind", [*KINDS, "six"])
def test_a_session_moves_from_one_kind_of_listener_to_another(
    dial: Callable[..., RawClient], ports: dict[str, int], kind: str
) -> None:
    client = RawClient(ports["six"], host="::1") if kind == "six" else dial(kind)
    client.login("moves", clean=False)
    client.subscribe((f"moves/{kind}", 1))
    client.disconnect()
    publisher = dial("local")
    publisher.login("stays")
    publisher.publish(f"moves/{kind}", b"missed")
    for other in KINDS:
        client = dial(other)
        assert client.login("moves", clean=False)
        if other == KINDS[0]:
            assert client.message().payload == b"missed"
    client.unsubscribe(f"moves/{kind}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_subscriber_that_does_not_read_gets_everything_later(dial: Callable[..., RawClient], kind: str) -> None:
    """More than sockets and write buffers hold, so that it has to come from the log."""
    reader = dial(kind, receive_buffer=16 * 1024)
    reader.login("slow")
    reader.subscribe((f"fast/{kind}/#", 0))
    publisher = dial("local")
    publisher.login("quick")
    payload = bytes(64 * 1024)
    for start in range(0, 160, 16):
        batch = [
            packets.publish(f"fast/{kind}/x", b"%04d" % n + payload, qos=1, packet_id=n + 1)
            for n in range(start, start + 16)
        ]
        publisher.send(b"".join(batch))
        for _ in batch:
            publisher.expect(PUBACK)
    got = reader.messages(160, timeout=20)
    assert [message.payload[:4] for message in got] == [b"%04d" % n for n in range(160)]
    assert {len(message.payload) for message in got} == {4 + len(payload)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_publisher_that_is_paused_goes_on(dial: Callable[..., RawClient], kind: str) -> None:
    """The journal takes 64 KiB at a time here: reading stops and goes on hundreds of times."""
    client = dial(kind)
    client.login("pours")
    payload = bytes(16 * 1024)
    for start in range(1, 257, 64):
        for packet_id in range(start, start + 64):
            client.send(packets.publish("safe/pours", payload, qos=1, packet_id=packet_id))
        ids = [int.from_bytes(client.expect(PUBACK)) for _ in range(64)]
        assert ids == list(range(start, start + 64))


@pytest.mark.parametrize("kind", KINDS)
def test_bad_bytes_close_at_once_and_the_will_is_published(dial: Callable[..., RawClient], kind: str) -> None:
    watcher = dial("local")
    watcher.login("watches")
    watcher.subscribe((f"wills/{kind}", 0))
    client = dial(kind)
    client.login("breaks", will=(f"wills/{kind}", b"fault", 0, False))
    client.send("f000")
    client.expect_closed()
    assert watcher.message().payload == b"fault"


@pytest.mark.parametrize("kind", KINDS)
def test_keep_alive_and_clean_end(dial: Callable[..., RawClient], kind: str) -> None:
    client = dial(kind)
    client.login("silent", keep_alive=1)
    client.expect_closed(within=10)
    client = dial(kind)
    client.login("leaves")
    client.disconnect()
