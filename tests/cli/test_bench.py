"""`highway bench` against a running broker, and on the disk: figures that are counted, and a sentence that follows."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading

import pytest

from highway.cli.bench import _disk_verdict
from highway.cli.client import Connection
from highway.cli.exits import Exit
from highway.cli.load import client
from highway.cli.load.client import LoadError, PublishCounter
from highway.cli.load.disk import Disk
from highway.cli.load.publishing import Ingest, ingest, quantile, readings
from highway.cli.load.reading import fanout, resume
from tests.harness import packets
from tests.harness.broker_process import BrokerProcess, free_port
from tests.harness.certificates import Authority


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    authority = Authority(tmp_path_factory.mktemp("authority"))
    certificate = authority.server()
    process = BrokerProcess(tmp_path_factory.mktemp("broker"))
    process.tls_port, process.cafile = free_port(), authority.cafile
    process.write_config(
        {
            "listeners": {
                "local": {"port": process.port},
                "secure": {
                    "port": process.tls_port,
                    "tls": {"certfile": str(certificate.certfile), "keyfile": str(certificate.keyfile)},
                },
            }
        }
    )
    with process as running:
        yield running


@pytest.fixture
def where(broker):
    return Connection("127.0.0.1", broker.port, None, None, None)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publish_stores_what_it_says(highway, broker, qos):
    topic = f"bench/q{qos}"
    ran = highway(
        "bench", "publish", "-p", broker.port, "-t", topic, "-n", 3000, "-q", qos, "--json", "--publishers", 3
    )
    found = json.loads(ran.out)
    assert (ran.code, ran.err) == (0, "")
    assert (found["messages"], found["publishers"], found["window"], found["qos"]) == (3000, 3, 100, qos)
    assert found["messages_per_second"] > 0
    assert f"{found['messages_per_second']:,} messages a second" in found["verdict"]
    assert (found["window_ms"]["p99"] > 0) is (qos > 0)
    replayed = json.loads(highway("bench", "replay", "-p", broker.port, "-t", f"{topic}/#", "--json").out)
    assert replayed["messages"] == 3000
    assert replayed["bytes"] > 3000 * 100


def test_publish_ends_in_time(highway, broker):
    ran = highway("bench", "publish", "-p", broker.port, "-n", 100_000_000, "--seconds", 0.2, "--json")
    found = json.loads(ran.out)
    assert 0 < found["messages"] < 100_000_000
    assert found["seconds"] < 10


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("size", [None, 3, 100, 70_000])
def test_fanout_counts_every_message(highway, broker, qos, size):
    words = ["-p", broker.port, "-n", 300, "--subscribers", 3, "-q", qos, *([] if size is None else ["--size", size])]
    ran = highway("bench", "fanout", *words, "--json", "-t", f"bench/{qos}/{size}")
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran.out)
    assert (found["messages"], found["delivered"]) == (200, 600)  # whole windows of each publisher
    assert "every one of 3 subscribers" in found["verdict"]


def test_over_tls(highway, broker):
    words = ["-h", "localhost", "-p", broker.tls_port, "--cafile", broker.cafile, "--json", "-n", 500]
    assert json.loads(highway("bench", "publish", *words, "--publishers", 1).out)["messages"] == 500
    assert json.loads(highway("bench", "fanout", *words, "--subscribers", 2).out)["delivered"] == 800
    assert ssl.create_default_context(cafile=str(broker.cafile)) is not None


def test_replay_of_nothing_says_so_and_limits_hold(highway, broker):
    ran = highway("bench", "replay", "-p", broker.port, "-t", "nobody/ever")
    assert ran.out.startswith("0 messages")
    assert "nothing is stored that matches" in ran.out
    highway("bench", "publish", "-p", broker.port, "-t", "bench/limit", "-n", 1000)
    found = json.loads(highway("bench", "replay", "-p", broker.port, "-t", "bench/limit/#", "-n", 100, "--json").out)
    assert 100 <= found["messages"] <= 1000


def test_a_session_that_missed_everything_gets_it(where):
    load = Ingest(publishers=2, window=50, messages=200, topic="resumed/{}")
    done = resume(where, load, 1, topic_filter="resumed/+")
    assert done.messages == 400
    assert done.bytes > 400 * 100


@pytest.mark.parametrize("command", ["publish", "fanout", "replay"])
def test_no_broker(highway, command):
    ran = highway("bench", command, "-p", free_port())
    assert (ran.code, ran.out) == (Exit.FAILURE, "")
    assert "Connection refused; is a broker running there?" in ran.err


def test_wrong_usage(highway):
    assert highway("bench", "publish", "-t", "a/#").code == Exit.USAGE
    assert highway("bench", "replay", "-t", "a/#/b").code == Exit.USAGE
    assert highway("bench", "disk", "not-there").code == Exit.USAGE


@pytest.fixture
def rude(monkeypatch):
    """A listener that answers the first bytes with what the test says, and closes."""
    monkeypatch.setattr(client, "STALL_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve(answer, *, close):
            def run():
                opened, _ = listening.accept()
                with opened:
                    opened.recv(1000)
                    opened.sendall(answer)
                    if not close:
                        opened.recv(1000)
                        with contextlib.suppress(OSError):
                            opened.recv(1000)

            thread = threading.Thread(target=run)
            thread.start()
            return Connection("127.0.0.1", listening.getsockname()[1], None, None, None), thread

        yield serve


@pytest.mark.parametrize(
    ("answer", "close", "text"),
    [
        (b"\x20\x02\x00\x05", True, "CONNECT refused with code 5"),
        (b"", True, "closed by the broker"),
        (b"\x20\x02\x00\x00", False, "nothing came for 0.5 s"),
    ],
)
def test_a_broker_that_does_not_answer_gives_no_figure(rude, answer, close, text):
    where, thread = rude(answer, close=close)
    with pytest.raises(LoadError, match=text):
        ingest(where, Ingest(publishers=1, window=1, messages=1))
    thread.join(5)


def test_the_counter_sees_every_packet_however_the_stream_is_cut():
    sent = [
        packets.publish("a/b", b"x" * size, qos=qos, packet_id=7)
        for size in (0, 1, 120, 128, 200, 17_000)
        for qos in (0, 1, 2)
    ]
    stream = b"".join([*sent, packets.ack(0x62, 7), b"\xd0\x00"])
    for step in (1, 3, 127, len(stream)):
        counter = PublishCounter()
        acks = b"".join(counter.feed(stream[at : at + step]) for at in range(0, len(stream), step))
        assert counter.packets == len(sent)
        assert counter.bytes == sum(map(len, sent))
        assert acks == (packets.ack(0x40, 7) + packets.ack(0x50, 7)) * 6 + packets.ack(0x70, 7)


def test_what_a_subscriber_should_get_is_counted_to_the_byte(where):
    # Around 128 bytes the packet id that a subscriber at QoS 0 doesn't get takes a byte of the length with it.
    for size in range(104, 116):
        load = Ingest(1, 2, 4, topic="edge/{}", payloads=(b"x" * size,))
        assert fanout(where, load, 1, topic_filter="edge/+").messages == 4


# The disk.


def test_disk(highway, tmp_path):
    ran = highway("bench", "disk", tmp_path, "--seconds", 0.2, "--json")
    found = json.loads(ran.out)
    assert ran.code == 0
    assert found["syncs"] > 0
    assert 0 < found["sync_ms"]["p50"] <= found["sync_ms"]["p99"] <= found["sync_ms"]["max"]
    assert found["file_system"] != "unknown"
    assert list(tmp_path.iterdir()) == [], "nothing is left"
    assert "SAFE will ack one publisher" in found["verdict"]


@pytest.mark.parametrize(
    ("disk", "text"),
    [
        (
            Disk("ext4", [4.0] * 100, 1e8),
            "this disk syncs in 4 ms: SAFE will ack one publisher 250 times a second, 100 publishers 25,000.",
        ),
        (Disk("ext4", [0.01] * 100, 1e8), "there is a cache in between"),
        (Disk("ext4", [1.0] * 98 + [50.0] * 2, 1e8), "One sync in a hundred takes 50 ms"),
        (Disk("tmpfs", [0.01] * 100, 1e8), "this is memory and no disk"),
    ],
)
def test_verdict_on_a_disk(disk, text):
    assert text in _disk_verdict(disk)


def test_quantiles():
    assert quantile([], 0.5) == 0
    assert [quantile([1, 2, 3, 4], share) for share in (0, 0.5, 0.99, 1)] == [1, 3, 4, 4]
    assert len(set(readings(1000))) == 1000
