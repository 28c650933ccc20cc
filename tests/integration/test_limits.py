"""Rates and sizes that clients are held to, by the real broker: they wait, nothing is lost, and others don't notice."""

from __future__ import annotations

import re
import socket
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness import packets, packets5
from tests.harness.broker_process import BrokerProcess
from tests.harness.http import request
from tests.harness.raw_client import RawClient
from tests.harness.timing import timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., BrokerProcess]]:
    """Starts a broker with these limits."""
    started: list[BrokerProcess] = []

    def start(**limits: Any) -> BrokerProcess:
        broker = BrokerProcess(tmp_path_factory.mktemp("broker"), limits=limits)
        started.append(broker)
        return broker.start()

    yield start
    for broker in started:
        assert broker.lines("Traceback") == []
        broker.stop()


def pings_s(client: RawClient, until: threading.Thread) -> list[float]:
    """What pings took while a thread ran."""
    took = [timed(client.ping)]
    while until.is_alive():
        took.append(timed(client.ping))
        until.join(0.02)
    return took


def times_limited(broker: BrokerProcess, limit: str) -> float:
    """How often a limit bit."""
    text = request(broker.data / "admin.sock", "/metrics").body.decode()
    (value,) = re.findall(rf'^highway_limited_total{{limit="{limit}"}} (\S+)$', text, re.MULTILINE)
    return float(value)


@pytest.mark.parametrize(
    ("limits", "size", "seconds"),
    [({"publish_rate": "400/s"}, 1, 2.0), ({"publish_bytes": "400KiB/s"}, 1000, 2.0), ({}, 1, 0.0)],
)
@pytest.mark.parametrize("qos", [0, 1])
def test_a_client_beyond_its_rate_waits_and_loses_nothing(
    start: Callable[..., BrokerProcess], limits: dict[str, str], size: int, seconds: float, qos: int
) -> None:
    broker = start(**limits)
    count = 1200
    with broker.client("reader") as reader, broker.client("quick") as quick, broker.client("steady") as steady:
        reader.subscribe(("t", 0))
        wanted = [b"%0*d" % (size, number) for number in range(count)]
        flood = b"".join(
            packets.publish("t", payload, qos=qos, packet_id=number + 1) for number, payload in enumerate(wanted)
        )
        begin = time.monotonic()

        def send() -> None:
            quick.send(flood)
            for _ in range(2):  # the first may have come in the same read as what is too much, and is answered with it
                quick.ping(timeout=20)

        sender = threading.Thread(target=send)
        sender.start()
        pings = pings_s(steady, sender)
        took = time.monotonic() - begin
        assert [message.payload for message in reader.messages(count)] == wanted
    assert seconds * 0.8 <= took < seconds + 5
    # A single one may have waited for another process, and not for as long as the quick one waits.
    assert statistics.median(pings) < 0.1
    assert max(pings) < 1.5
    assert bool(broker.lines(f"limits.{next(iter(limits), 'x')} is reached client=quick")) is bool(limits)


def test_coming_back_pays_no_debt(start: Callable[..., BrokerProcess]) -> None:
    broker = start(publish_rate="100/s")
    flood = b"".join(packets.publish("t", b"x", qos=1, packet_id=number + 1) for number in range(400))
    begin = time.monotonic()
    with broker.client("quick", clean=False) as quick:
        quick.send(flood)
        for _ in range(400):
            quick.expect(0x40)
    with broker.client("quick", clean=False) as quick:
        quick.send(packets.publish("t", b"x", qos=1, packet_id=1))
        quick.expect(0x40)
        quick.ping()
    assert time.monotonic() - begin > 2.5


def test_what_comes_together_with_connect_counts_too(start: Callable[..., BrokerProcess]) -> None:
    broker = start(publish_rate="100/s")
    flood = b"".join(packets.publish("t", b"x", qos=1, packet_id=number + 1) for number in range(300))
    begin = time.monotonic()
    quick = RawClient(broker.port)
    quick.send(packets.connect("quick", clean=False) + flood)
    quick.expect(0x20)
    for _ in range(300):
        quick.expect(0x40)
    quick.publish("t", b"x")  # a chunk that is charged, with those before
    quick.ping()
    assert time.monotonic() - begin > 1.5


def test_new_topics_are_counted_and_known_ones_are_not(start: Callable[..., BrokerProcess]) -> None:
    broker = start(new_topics="100/s")
    with broker.client("gateway") as gateway, broker.client("other") as other:
        bitten = []
        for _ in range(2):
            gateway.send(b"".join(packets.publish(f"t/{number}", b"x") for number in range(150)))
            gateway.ping()
            other.subscribe(("x/+/+", 0))  # forgets every route, and no name
            gateway.send(b"".join(packets.publish(f"t/{number}", b"x") for number in range(150)))
            gateway.ping()
            bitten.append(times_limited(broker, "new_topics"))
        assert bitten[0] == bitten[1]
        gateway.send(b"".join(packets.publish(f"u/{number}", b"x") for number in range(200)) + packets.PINGREQ)
        gateway.ping()
        begin = time.monotonic()
        gateway.send(packets.publish("v", b"x") + packets.PINGREQ)
        gateway.ping()
        gateway.ping()
    assert time.monotonic() - begin > 0.5
    assert broker.lines("limits.new_topics is reached client=gateway")


def test_a_connect_larger_than_its_limit_is_refused_by_its_length(start: Callable[..., BrokerProcess]) -> None:
    broker = start(max_connect_packet="1KiB")
    before = broker.rss_bytes()
    for head in ("10ffffff7f", "1081" + "10", "10fd8008"):  # 256 MiB, 2 KiB and 128 KiB are announced
        with RawClient(broker.port) as client:
            client.send(head)
            client.expect_closed()
    with RawClient(broker.port) as client:
        client.send(packets5.connect("c" * 1000))
        client.expect(0x20)
    assert broker.rss_bytes() - before < 8 * 1024 * 1024


def test_an_address_that_connects_too_often_waits_and_others_do_not(start: Callable[..., BrokerProcess]) -> None:
    broker = start(connect_rate_per_address="10/s")
    begin = time.monotonic()
    for number in range(30):
        broker.client(f"c{number}").close()
    assert 1.5 < time.monotonic() - begin < 10
    bitten = times_limited(broker, "connect_rate_per_address")
    assert bitten > 0
    with socket.create_connection(("127.0.0.1", broker.port), source_address=("127.0.0.2", 0)) as other:
        other.sendall(packets.connect("other"))
        assert other.recv(4) == b"\x20\x02\0\0"
    assert times_limited(broker, "connect_rate_per_address") == bitten
    assert broker.lines("limits.connect_rate_per_address is reached peer=127.0.0.1")


def test_two_clients_with_one_id_do_not_chase_one_another_for_ever(start: Callable[..., BrokerProcess]) -> None:
    broker = start(reconnect_rate="10/m", connect_timeout="1s")
    with broker.client("steady") as steady:
        answered = 0
        begin = time.monotonic()
        while time.monotonic() - begin < 3.0:
            twin = RawClient(broker.port)
            twin.send(packets.connect("twin", clean=False))
            found = twin.read_packet(timeout=5.0)  # None: it waited for as long as a CONNECT may take
            answered += found is not None
            steady.ping()
        assert answered == 10
        assert len(broker.lines("held off")) == 1
        assert len(broker.lines("taken over")) <= 2


def test_what_bit_is_a_metric(start: Callable[..., BrokerProcess]) -> None:
    broker = start(max_subscriptions=1, max_sessions=2)
    with broker.client("c", clean=False) as client, broker.client("d", clean=False):
        assert client.subscribe(("a", 0), ("b", 0), ("c", 0)) == [0, 0x80, 0x80]
        refused = RawClient(broker.port)
        refused.send(packets.connect("e", clean=False))
        refused.expect_bytes("20020003")
    text = request(broker.data / "admin.sock", "/metrics").body.decode()
    assert 'highway_limited_total{limit="max_subscriptions"} 2.0' in text
    assert 'highway_limited_total{limit="max_sessions"} 1.0' in text
    assert 'highway_limited_total{limit="publish_rate"} 0.0' in text
