"""WebSocket on raw sockets: the handshake, and frames in every legal and many an illegal shape."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import aiomqtt
import pytest

from tests.harness import packets
from tests.harness.raw_client import PUBACK, RawClient
from tests.harness.web_socket import BINARY, CLOSE, CONTINUATION, PING, PONG, TEXT, WebSocket, frame, request
from tests.server.conftest import CONNECT_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.broker_process import BrokerProcess


@pytest.fixture
def client(dial: Callable[..., RawClient]) -> RawClient:
    """A connected client whose socket is a WebSocket."""
    client = dial("web")
    client.login("web")
    return client


def web_socket(client: RawClient) -> WebSocket:
    assert isinstance(client.socket, WebSocket)
    return client.socket


def status_of(port: int, handshake: bytes) -> tuple[int, bytes]:
    """The status that a handshake is answered with, and everything after the first line; 0 for no answer at all."""
    raw = RawClient(port)
    raw.send(handshake)
    answer = b""
    while b"\r\n\r\n" not in answer:
        data = raw.socket.recv(4096)
        if not data:
            break
        answer += data
    first, _, rest = answer.partition(b"\r\n")
    if first and int(first.split()[1]) != 101:
        while data := raw.socket.recv(4096):  # and it is closed
            rest += data
    return (int(first.split()[1]) if first else 0), rest


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ("mqtt", b"mqtt"),
        ("mqttv3.1", b"mqttv3.1"),
        ("mqttv3.1, mqtt", b"mqtt"),
        ("chat, mqtt", b"mqtt"),
    ],
)
@pytest.mark.usefixtures("broker")
def test_subprotocol(ports: dict[str, int], offered: str, chosen: bytes) -> None:
    status, rest = status_of(ports["web"], request(protocol=offered))
    assert status == 101
    assert b"\r\nSec-WebSocket-Protocol: " + chosen + b"\r\n" in b"\r\n" + rest  # [MQTT-6.0.0-4]
    assert b"Sec-WebSocket-Extensions" not in rest


# Situation -> what is sent, and the status of the answer; 0 for a bare close.
HANDSHAKES = {
    "no subprotocol": (request(protocol=None), 400),  # [MQTT-6.0.0-3]
    "another subprotocol": (request(protocol="chat"), 400),
    "no path": (request("/"), 404),
    "a slash more": (request("/mqtt/"), 404),
    "capitals": (request("/MQTT"), 404),
    "a query": (request("/mqtt?token=x"), 101),
    "a short key": (request(key=b"short"), 400),
    "an old version": (request().replace(b"Version: 13", b"Version: 8"), 400),
    "no upgrade": (request().replace(b"Upgrade: websocket\r\n", b""), 426),
    "a browser": (b"GET /mqtt HTTP/1.1\r\nHost: x\r\n\r\n", 426),
    "POST": (request().replace(b"GET", b"POST"), 0),
    "HTTP 0.9": (b"GET /mqtt\r\n\r\n", 0),
    "MQTT": (packets.connect("x"), 0),
    "a ping too early": (request() + frame(PING, b"x"), 400),
    "a CONNECT too early": (request() + frame(BINARY, packets.connect("x")), 400),
}


@pytest.mark.parametrize(("handshake", "status"), HANDSHAKES.values(), ids=HANDSHAKES)
@pytest.mark.usefixtures("broker")
def test_handshake(ports: dict[str, int], handshake: bytes, status: int) -> None:
    assert status_of(ports["web"], handshake)[0] == status


def test_refused_handshake_is_logged_with_its_reason(broker: BrokerProcess, ports: dict[str, int]) -> None:
    status_of(ports["web"], request("/wrong"))
    broker.wait_for_line("closed: WebSocket: it asks for the path '/wrong'")
    status_of(ports["web"], request(protocol="chat"))
    broker.wait_for_line("closed: WebSocket: invalid subprotocol; expected one of mqtt, mqttv3.1")
    status_of(ports["web"], packets.connect("x"))
    broker.wait_for_line("closed: this listener is for WebSocket, and what came first is no HTTP request")


def test_byte_by_byte(ports: dict[str, int], broker: BrokerProcess) -> None:
    del broker
    raw = RawClient(ports["web"])
    sent = frame(BINARY, packets.connect("drip")) + frame(BINARY, packets.subscribe(1, ("drip/x", 1)))
    sent += frame(BINARY, packets.publish("drip/x", b"drop", qos=1, packet_id=2))
    for byte in request():
        raw.socket.send(bytes([byte]))
    socket = WebSocket.__new__(WebSocket)
    socket.below, socket._received, socket.frames = raw.socket, b"", []
    assert socket.read_response()[0] == 101
    for byte in sent:
        raw.socket.send(bytes([byte]))
    raw.socket = socket
    raw.expect_bytes("20020000")
    raw.expect_bytes("9003000101")
    raw.expect_in_any_order("40020002", packets.publish("drip/x", b"drop", qos=1, packet_id=1).hex())


def test_packets_and_frames_need_not_meet(client: RawClient) -> None:
    stream = packets.subscribe(1, ("meet/x", 0))
    stream += b"".join(packets.publish("meet/x", b"%d" % n * n, qos=1, packet_id=n) for n in range(1, 100))
    socket = web_socket(client)
    for size in (1, 7, 1000, len(stream)):
        for start in range(0, len(stream), size):
            client.send(stream[start : start + size])
            if size == 7:
                socket.send_raw(frame(BINARY))  # an empty frame is no packet, and no fault
        assert [message.payload for message in client.messages(99)] == [b"%d" % n * n for n in range(1, 100)]
        client.ping()


def test_ping_in_the_middle_of_a_fragmented_message(client: RawClient) -> None:
    socket = web_socket(client)
    packet = packets.publish("frag/x", b"whole", qos=1, packet_id=5)
    socket.send_raw(frame(BINARY, packet[:3], fin=False))
    socket.send_raw(frame(PING, b"between"))
    socket.send_raw(frame(CONTINUATION, packet[3:8], fin=False))
    socket.send_raw(frame(PONG, b"asked by nobody"))
    socket.send_raw(frame(CONTINUATION, b"", fin=False))
    socket.send_raw(frame(CONTINUATION, packet[8:]))
    assert client.expect(PUBACK) == b"\x00\x05"
    assert socket.pongs == [b"between"]


# Situation -> frames, and the code of the close frame that answers; 0 for one without a code.
ENDS = {
    "text": (frame(TEXT, packets.PINGREQ), 1003),  # [MQTT-6.0.0-1]
    "the begin of a text": (frame(TEXT, b"", fin=False), 1002),  # as a whole message comes next
    "text and a goodbye": (frame(TEXT) + frame(CLOSE, b"\x03\xe8"), 1000),
    "no mask": (frame(BINARY, packets.PINGREQ, masked=False), 1002),
    "the end of nothing": (frame(CONTINUATION, packets.PINGREQ), 1002),
    "a message in a message": (frame(BINARY, b"\xc0", fin=False) + frame(BINARY, b"\x00"), 1002),
    "a reserved data opcode": (frame(3), 1002),
    "a reserved control opcode": (frame(11), 1002),
    "a ping in fragments": (frame(PING, fin=False), 1002),
    "a long ping": (frame(PING, bytes(126)), 1002),
    "a reserved bit": (b"\xc2\x80\x00\x00\x00\x00", 1002),
    "1 GiB announced": (b"\x82\xff\x00\x00\x00\x00\x40\x00\x00\x00", 1009),
    "a negative length": (b"\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff", 1009),
    "a goodbye": (frame(CLOSE, b"\x03\xe8"), 1000),
    "a goodbye without a code": (frame(CLOSE), 0),
    "half a code": (frame(CLOSE, b"\x03"), 1002),
}


@pytest.mark.parametrize(("data", "code"), ENDS.values(), ids=ENDS)
def test_frames_that_end_the_connection(dial: Callable[..., RawClient], data: bytes, code: int) -> None:
    watcher = dial("local")
    watcher.login("watcher")
    watcher.subscribe(("ends/x", 0))
    client = dial("web")
    client.login("ends", will=("ends/x", b"gone", 0, False))
    socket = web_socket(client)
    before, after = (frame(BINARY, packets.publish("ends/x", payload)) for payload in (b"in time", b"too late"))
    socket.send_raw(before + data + after)
    assert client.expect_closed() == []
    assert socket.close_code == code
    assert socket.below.recv(1) == b""  # the server goes first
    assert [message.payload for message in watcher.messages(2)] == [b"in time", b"gone"]


def test_broker_says_goodbye_and_waits_for_the_answer(client: RawClient) -> None:
    socket = web_socket(client)
    client.send("f000")
    assert client.expect_closed() == []
    assert socket.close_code == 1000
    socket.send_raw(frame(PING, b"still here"))
    socket.send_raw(frame(CLOSE, b"\x03\xe8"))
    assert socket.read_frame() == (PONG, b"still here")
    assert socket.read_frame() is None


def test_a_turn_of_the_loop_is_one_frame(client: RawClient, dial: Callable[..., RawClient]) -> None:
    client.subscribe(("turn/#", 0))
    publisher = dial("local")
    publisher.login("turns")
    web_socket(client).frames.clear()
    publisher.send(b"".join(packets.publish(f"turn/{n % 7}", b"%d" % n) for n in range(1000)))
    assert [int(message.payload) for message in client.messages(1000)] == list(range(1000))
    assert len(web_socket(client).frames) < 20


def test_a_message_of_the_largest_size_passes_and_one_above_it_does_not(client: RawClient) -> None:
    largest = 1024 * 1024 - 4 - 2 - len("large/x")
    client.send(packets.publish("large/x", bytes(largest - 2), qos=1, packet_id=1))
    assert client.expect(PUBACK) == b"\x00\x01"
    client.send(packets.publish("large/x", bytes(largest), qos=1, packet_id=2))
    assert client.expect_closed() == []


def test_what_comes_before_connect_is_bounded(dial: Callable[..., RawClient], broker: BrokerProcess) -> None:
    client = dial("web")
    socket = web_socket(client)
    mark = len(broker.stderr)
    socket.send_raw(frame(BINARY, bytes(1024 * 1024))[: 300 * 1024])
    assert client.expect_closed() == []
    assert socket.close_code == 1009
    broker.wait_for_line("closed: more than 131072 bytes, and no CONNECT among them", since=mark)


def test_a_client_that_does_not_wait_for_connack_is_served(dial: Callable[..., RawClient]) -> None:
    client = dial("web")
    socket = web_socket(client)
    large = packets.publish("eager/x", bytes(500 * 1024), qos=1, packet_id=9)
    socket.send_raw(frame(BINARY, packets.connect("eager")) + frame(BINARY, large))
    client.expect_bytes("20020000")
    assert client.expect(PUBACK) == b"\x00\x09"


def test_a_handshake_that_is_never_finished_is_closed_in_time(ports: dict[str, int], broker: BrokerProcess) -> None:
    del broker
    start = time.monotonic()
    raw = RawClient(ports["web"])
    raw.send(request()[:-2])
    raw.expect_closed(within=10)
    assert time.monotonic() - start > 0.75 * CONNECT_TIMEOUT_S


@pytest.mark.usefixtures("broker")
def test_aiomqtt_over_websocket(ports: dict[str, int]) -> None:
    async def exchange() -> list[bytes]:
        async with aiomqtt.Client(
            "127.0.0.1", ports["web"], transport="websockets", websocket_path="/mqtt", identifier="aio"
        ) as client:
            await client.subscribe("aio/#", qos=2)
            for number in range(30):
                await client.publish("aio/x", b"%d" % number, qos=number % 3)
            return sorted([bytes((await anext(client.messages)).payload) for _ in range(30)])

    assert asyncio.run(exchange()) == sorted(b"%d" % number for number in range(30))


def test_the_log_holds_no_traceback(broker: BrokerProcess) -> None:
    """Of all that came before in this module, too."""
    assert not broker.lines("Traceback|Exception in callback|never retrieved|parser failed")
