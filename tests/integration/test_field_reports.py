"""Public reports against other brokers, as inputs to this one: protocol edges and flow, by number of the report.

Each name begins with `report_<number>`; the bytes are those that the devices sent. Reports that need MQTT 5, access
rules or a fault injector are not here.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
import time

import pytest

from tests.harness import packets
from tests.harness.broker_process import BrokerProcess, wait_until
from tests.harness.log_reader import log_range, read_log
from tests.harness.publisher import publish_all
from tests.harness.raw_client import PUBLISH, SUBACK, RawClient
from tests.harness.timing import timed

THOROUGH = os.environ.get("HIGHWAY_TEST_THOROUGH") == "1"


def test_report_1a_empty_client_id_with_a_persistent_session_is_refused(broker: BrokerProcess) -> None:
    with RawClient(broker.port) as client:
        client.send("100c00044d5154540400003c0000")
        client.expect_bytes("20020002")  # [MQTT-3.1.3-8]
        assert client.expect_closed() == []


def test_report_1b_two_empty_client_ids_at_once_both_stay(broker: BrokerProcess) -> None:
    with RawClient(broker.port) as one, RawClient(broker.port) as two:
        for client in (one, two):
            client.send("100c00044d5154540402003c0000")
            client.expect_bytes("20020000")
        for client in (one, two):
            client.send("c000")
            client.expect_bytes("d000")


def test_report_3_keep_alive_zero_huge_and_the_half_second(broker: BrokerProcess) -> None:
    never = RawClient(broker.port)
    never.send("100d00044d51545404020000000161")
    never.expect_bytes("20020000")
    huge = broker.client("keep-alive-huge", keep_alive=65535)
    start = time.monotonic()
    strict = broker.client("keep-alive-2", keep_alive=2)
    # 1.5 x 15 = 22.5 s must not become 22; 1.5 x 3 = 4.5 s must not become 4.
    keep_alive = 15 if THOROUGH else 3
    slow = broker.client("keep-alive-slow", keep_alive=keep_alive)
    strict.expect_closed(within=10)
    assert time.monotonic() - start >= 2.95
    last_heard = time.monotonic()
    slow.ping()
    slow.expect_closed(within=keep_alive * 1.5 + 5)
    assert time.monotonic() - last_heard >= keep_alive * 1.5 - 0.05
    huge.ping()
    never.send("c000")
    never.expect_bytes("d000")


def test_report_5_one_byte_at_a_time_and_a_large_publish_in_pieces(broker: BrokerProcess) -> None:
    with broker.client("watch-bytes") as watcher, RawClient(broker.port) as client:
        watcher.subscribe(("b/t", 0), ("big/t", 1))
        for byte in bytes.fromhex("101000044d5154540402003c000462797465820800010003622f740030070003622f746869"):
            client.send(bytes([byte]))
        client.expect_bytes("20020000")
        client.expect_in_any_order("9003000100", "30070003622f746869")
        assert watcher.message().payload == b"hi"
        payload = os.urandom(300_000)
        data = packets.publish("big/t", payload, qos=1, packet_id=9)
        for position in range(0, len(data), 1460):
            last = position + 1460 >= len(data)
            client.send(data[position : position + 1460] + (b"\xc0\x00" if last else b""))
            time.sleep(0.002)  # what the reported device did: the pause is the input
        client.expect_in_any_order("40020009", "d000")
        assert watcher.message().payload == payload
        replayed = read_log(broker.port, "big/#")
        assert [record.payload for record in replayed] == [payload]


BAD_NAMES = {
    "NUL in a retained topic": packets.publish(b"bad/a\0b", b"x", retain=True),
    "report's own bytes": bytes.fromhex("3106000361006278"),
    "surrogate": bytes.fromhex("3007000461eda08078"),
    "ff fe": packets.publish(b"bad/\xff\xfe", b"x", retain=True),
    "overlong slash": packets.publish(b"bad\xc0\xafx", b"x", retain=True),
    "NUL in a filter": packets.subscribe(1, (b"bad/\0", 0)),
    "NUL in an unsubscribe": packets.unsubscribe(1, b"bad/\0"),
    "wildcard in a topic": packets.publish(b"bad/+/x", b"x", retain=True),
    "empty topic": packets.publish(b"", b"x", retain=True),
}


@pytest.mark.parametrize("case", BAD_NAMES)
def test_report_7_broken_names_close_and_nothing_is_stored(broker: BrokerProcess, case: str) -> None:
    before = log_range(broker.port, "bad/x")["high_watermark"]
    with broker.client("bad-names") as client:
        client.send(BAD_NAMES[case])
        client.expect_closed()
    assert log_range(broker.port, "bad/x")["high_watermark"] == before
    with broker.client("after-bad-names") as client:
        client.subscribe(("bad/#", 0), ("a/#", 0))
        assert client.waiting_messages() == []


@pytest.mark.parametrize(
    "connect",
    [
        bytes.fromhex("100f00044d5154540402003c0003610062"),
        packets.connect("will-nul", will=(b"bad/\0", b"x", 1, True)),  # type: ignore[arg-type]
        packets.connect("will-plus", will=("bad/+", b"x", 1, True)),
        packets.connect(b"\xff\xfe"),
    ],
    ids=[
        "NUL in the client id",
        "NUL in the will topic",
        "wildcard in the will topic",
        "broken UTF-8 in the client id",
    ],
)
def test_report_7_broken_names_in_connect_close(broker: BrokerProcess, connect: bytes) -> None:
    with RawClient(broker.port) as client:
        client.send(connect)
        seen = client.expect_closed()
        assert not [body for _, body in seen if body[1:2] == b"\0"], "CONNACK 0"


def test_report_7_a_bom_is_a_character_and_payloads_are_free(broker: BrokerProcess) -> None:
    with RawClient(broker.port) as with_bom, broker.client("x") as without:
        with_bom.send("101000044d5154540402003c0004efbbbf78")
        with_bom.expect_bytes("20020000")
        without.ping()  # another client: it was not taken over
        without.subscribe(("\ufeffok", 0), ("ok", 0))
        without.publish("ok", b"a\0\xff")
        without.publish("\ufeffok", b"bom")
        assert [(m.topic, m.payload) for m in without.messages(2)] == [("ok", b"a\0\xff"), ("\ufeffok", b"bom")]


@pytest.mark.parametrize(
    "data", ["8206000000016100", "3206000161000078", "a2050000000161"], ids=["SUBSCRIBE", "PUBLISH", "UNSUBSCRIBE"]
)
def test_report_9_packet_id_0_closes_with_a_line_that_names_it(broker: BrokerProcess, data: str) -> None:
    before, mark = log_range(broker.port, "a")["high_watermark"], len(broker.stderr)
    client_id = f"zero-id-{data[:2]}"  # the same fault of the same client is told once a minute
    with broker.client(client_id) as client:
        client.send(data)
        assert client.expect_closed() == []
    line = broker.wait_for_line(client_id, since=mark)
    assert "packet id" in line.lower()
    assert log_range(broker.port, "a")["high_watermark"] == before


def test_report_11_wildcards_do_not_reach_dollar_topics(broker: BrokerProcess) -> None:
    with broker.client("dollar") as client, broker.client("dollar-pub") as publisher:
        client.subscribe(("#", 0), ("+/#", 0), ("+/broker/uptime", 0))
        publisher.publish("$x/y", b"hidden", qos=0)
        publisher.ping()
        publisher.publish("report/11", b"seen")
        while (message := client.message()).payload != b"seen":
            assert not message.topic.startswith("$")
        assert [m for m in client.waiting_messages() if m.topic.startswith("$")] == []
        client.subscribe(("$SYS/#", 0))
        assert client.message(timeout=15).topic.startswith("$SYS/")


def test_report_11_sys_is_not_stored_nor_written_by_clients(broker: BrokerProcess) -> None:
    with broker.client("sys-reader") as client:
        client.subscribe(("$SYS/broker/uptime", 0), ("$SYS/broker/forged", 0))
        assert client.message(timeout=15).payload.endswith(b"seconds")
        with broker.client("sys-writer") as forger:
            forger.send(packets.publish("$SYS/broker/forged", b"forged", retain=True))
            forger.send(packets.publish("$SYS/broker/uptime", b"forged", qos=1, packet_id=1, retain=True))
            forger.socket.settimeout(1)
        forged = [message for message in client.waiting_messages() if message.payload == b"forged"]
        assert forged == []
    assert [record for record in read_log(broker.port, "#") if record.topic.startswith("$")] == []


def test_report_11_double_hash_is_not_a_filter(broker: BrokerProcess) -> None:
    with broker.client("hashes") as client:
        client.send(packets.subscribe(1, ("##", 0)))
        refused_or_closed(client, 1)


def refused_or_closed(client: RawClient, codes: int) -> None:
    """The connection is closed, or a SUBACK has 0x80 in every place."""
    found = client.read_packet()
    if found is not None:
        assert found[0] == SUBACK
        assert found[1][2:] == b"\x80" * codes


def test_report_13_qos_2_publish_five_times_before_pubrel(broker: BrokerProcess) -> None:
    with broker.client("q2-sub") as subscriber, broker.client("q2-pub") as client:
        subscriber.subscribe(("q2", 2))
        before = log_range(broker.port, "q2")["high_watermark"]
        client.send("340700027132000578")
        for _ in range(4):
            client.send("3c0700027132000578")
        client.send("62020005")
        client.expect_bytes("50020005" * 5 + "70020005")
        assert subscriber.message().payload == b"x"
        assert subscriber.waiting_messages() == []
        assert log_range(broker.port, "q2")["high_watermark"] == before + 1
        client.send("340700027132000579")  # the same id after PUBCOMP is a new message
        client.expect_bytes("50020005")
        client.send("62020005")
        client.expect_bytes("70020005")
        assert subscriber.message().payload == b"y"


def test_report_15_acks_for_unknown_ids_are_answered_and_do_no_harm(broker: BrokerProcess) -> None:
    with broker.client("unknown-ids") as client:
        client.send("400200095002000962020009c000")
        client.expect_in_any_order("62020009", "70020009", "d000")


def test_report_17_the_will_of_a_taken_over_connection_comes_before_online(broker: BrokerProcess) -> None:
    connect = bytes.fromhex("101700044d5154540426003c0002746b0002737400036f6666")
    online = bytes.fromhex("3106000273746f6e")
    rounds = 200 if THOROUGH else 60
    with broker.client("takeover-watcher") as watcher:
        watcher.subscribe(("st", 0))
        current = RawClient(broker.port)
        current.send(connect)
        current.expect_bytes("20020000")
        for number in range(rounds):
            newcomer = RawClient(broker.port)
            if number % 2:
                current.reset()
            newcomer.send(connect)
            newcomer.expect_bytes("20020000")
            newcomer.send(online)
            assert [message.payload for message in watcher.messages(2)] == [b"off", b"on"], f"round {number}"
            if not number % 2:
                current.expect_closed()
            current = newcomer
        with broker.client("takeover-late") as late:
            late.subscribe(("st", 0))
            assert late.message().payload == b"on"
        current.disconnect()
        assert watcher.waiting_messages() == []


def test_report_19_a_socket_that_nobody_reads_does_not_hold_the_session(broker: BrokerProcess) -> None:
    stuck = RawClient(broker.port, receive_buffer=4096)
    stuck.login("w", clean=False)
    stuck.subscribe(("wedge/#", 1))
    payload = bytes(100_000)
    publish_all(broker.port, "wedge/x", [payload] * 200)
    start = time.monotonic()
    second = broker.client("w", clean=False)
    assert second.session_present
    third = RawClient(broker.port)
    third.send(packets.connect("w", clean=False))
    stuck.reset()
    third.expect_bytes("20020100")
    assert time.monotonic() - start < 8
    second.expect_closed(within=5)
    assert len(third.messages(200, timeout=20)) == 200
    third.disconnect()


def test_report_21_a_clean_session_leaves_nothing_behind(broker: BrokerProcess) -> None:
    first = broker.client("c", clean=False)
    first.auto_ack = False
    first.subscribe(("clean/t", 1))
    with broker.client("clean-pub") as publisher:
        for number in range(5):
            publisher.publish("clean/t", b"%d" % number)
        for message in first.messages(5)[:3]:
            first.send(packets.ack(0x40, message.packet_id))
        first.disconnect()
        clean = broker.client("c", clean=True)
        assert not clean.session_present  # [MQTT-3.1.2-6]
        clean.disconnect()
        publisher.publish("clean/t", b"5")
        publisher.publish("clean/t", b"6")
        fresh = broker.client("c", clean=False)
        assert not fresh.session_present
        publisher.publish("clean/t", b"nobody subscribed")
        assert fresh.waiting_messages() == []
        fresh.subscribe(("clean/t", 1))
        publisher.publish("clean/t", b"7")
        publisher.publish("clean/t", b"8")
        assert [message.payload for message in fresh.messages(2)] == [b"7", b"8"]
        fresh.disconnect()
        publisher.publish("clean/t", b"9")
        again = broker.client("c", clean=False)
        assert again.session_present
        assert [message.payload for message in again.messages(1)] == [b"9"]
        again.disconnect()


def test_report_25_overlapping_filters_give_one_copy_live_retained_and_replayed(broker: BrokerProcess) -> None:
    with broker.client("o25", clean=False) as client, broker.client("o25-pub") as publisher:
        client.subscribe(("t25/#", 0), ("t25/1", 1))
        publisher.publish("t25/1", b"live", retain=True)
        live = client.message()
        assert (live.payload, live.qos) == (b"live", 1)  # [MQTT-3.3.5-1]
        assert client.waiting_messages() == []
        client.disconnect()
        publisher.publish("t25/1", b"missed")
        back = broker.client("o25", clean=False)
        missed = back.message()
        assert (missed.payload, missed.qos) == (b"missed", 1)
        assert back.waiting_messages() == []
        back.disconnect()


@pytest.mark.parametrize("rounds", [200 if THOROUGH else 40])
def test_report_31_a_retained_value_never_comes_after_a_newer_live_one(broker: BrokerProcess, rounds: int) -> None:
    stop = threading.Event()
    last_acked = [0]

    def count_up() -> None:
        with broker.client("r31-pub") as publisher:
            while not stop.is_set():
                publisher.publish("r31", b"%d" % (last_acked[0] + 1), retain=True)
                last_acked[0] += 1

    thread = threading.Thread(target=count_up)
    thread.start()
    try:
        wait_until(lambda: last_acked[0] > 0)
        for _ in range(rounds):
            with broker.client("r31-sub") as client:
                client.subscribe(("r31", 0))
                got = client.messages(20)
            values = [int(message.payload) for message in got]
            assert values == sorted(values)
            assert len(set(values)) >= len(values) - 1
            assert sum(message.retain for message in got) <= 1
    finally:
        stop.set()
        thread.join()
    with broker.client("r31-end") as client:
        client.subscribe(("r31", 0))
        assert int(client.message().payload) == last_acked[0]


@pytest.mark.parametrize("qos", [0, 1])
def test_report_33_a_subscriber_that_stops_reading_slows_nobody(own_broker: BrokerProcess, qos: int) -> None:
    own_broker.start()
    count = 200_000 if THOROUGH else 40_000
    payload = bytes(1000)
    stuck = RawClient(own_broker.port, receive_buffer=4096)
    stuck.login("stuck", clean=qos == 0)
    stuck.subscribe(("r33/#", qos))
    reader = own_broker.client("reads")
    reader.subscribe(("r33/#", 0))
    received = [0]

    def read() -> None:
        while received[0] < count:
            received[0] += len(reader.messages(1000, timeout=60))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    publish_all(own_broker.port, "r33/x", [payload] * 1000)
    before = own_broker.rss_bytes()
    publish_all(own_broker.port, "r33/x", [payload] * (count - 1000))
    thread.join(60)
    assert received[0] == count
    # What the storage may keep in memory (tails, cache, a checkpoint's worth of journal) is bounded; a queue for the
    # stuck reader would come on top of it with the size of all that was published.
    grown = own_broker.rss_bytes() - before
    assert grown < 150 * 1024 * 1024, f"grew by {grown / 1e6:.0f} MB"
    stuck.reset()
    if qos == 1:
        with own_broker.client("stuck", clean=False) as back:
            assert back.session_present
            assert len(back.messages(count, timeout=60)) == count


def test_report_35_retention_frees_what_a_client_has_in_flight(tmp_path_factory: pytest.TempPathFactory) -> None:
    topics = [{"topic": "r35/#", "log": "r35", "retention_bytes": "256KiB", "segment_bytes": "64KiB"}]
    with BrokerProcess(
        tmp_path_factory.mktemp("r35"),
        topics=topics,
        limits={"max_inflight": 10},
        storage={"checkpoint_interval": "500ms", "reaper_interval": "500ms"},
    ) as broker:
        holds, behind = broker.client("holds", clean=False), broker.client("behind", clean=False)
        behind.subscribe(("r35/#", 1))
        behind.disconnect()
        holds.auto_ack = False
        holds.subscribe(("r35/#", 1))
        number = 0

        def publish_more() -> int:
            nonlocal number
            batch = [(b"%d " % n) + os.urandom(1000) for n in range(number, number + 200)]
            number += 200
            publish_all(broker.port, "r35/x", batch)
            return int(log_range(broker.port, "r35/x")["log_start_offset"])

        publish_more()
        held = holds.messages(10)
        wait_until(lambda: publish_more() > 10, timeout=30, what="retention")
        for message in held:
            holds.send(packets.ack(0x40, message.packet_id))  # late, for offsets that are gone
        holds.auto_ack = True
        publish_all(broker.port, "r35/x", [b"-1 end"])
        check_goes_on(holds, 10)
        behind = broker.client("behind", clean=False)
        assert behind.session_present
        start = check_goes_on(behind, 0)
        assert start > 0, "the log start has moved"


def check_goes_on(client: RawClient, at_least: int) -> int:
    """Messages come from some first existing offset on without disorder up to the end; returns the first."""
    numbers: list[int] = []
    while not numbers or numbers[-1] != -1:
        numbers.append(int(client.message(timeout=20).payload.split()[0]))
    body = numbers[:-1]
    assert body == sorted(set(body))
    assert body[0] >= at_least
    return body[0]


def test_report_37_500_filters_get_500_codes_in_order(broker: BrokerProcess) -> None:
    with broker.client("many") as client:
        good = [(f"many/{number}", number % 3) for number in range(500)]
        assert client.subscribe(*good) == [qos for _, qos in good]
        with_bad = [*good[:249], ("a/#/b", 0), *good[250:]]
        client.send(packets.subscribe(9, *with_bad))
        found = client.read_packet()
        # One documented choice: 0x80 in the place of the bad one, or a malformed packet that closes.
        if found is not None:
            assert list(found[1][2:]) == [qos for _, qos in good[:249]] + [0x80] + [qos for _, qos in good[250:]]


@pytest.mark.parametrize(
    "data",
    [
        packets.subscribe(4, (b"/" * 65535, 0)),
        packets.subscribe(4, (b"+/" * 30_000, 0)),
        packets.publish(b"/" * 65534 + b"a", b"x", qos=1, packet_id=4, retain=True),
        packets.unsubscribe(4, b"/" * 65535),
    ],
    ids=["SUBSCRIBE slashes", "SUBSCRIBE pluses", "PUBLISH", "UNSUBSCRIBE"],
)
def test_report_71_names_of_65535_levels_are_refused_at_once(broker: BrokerProcess, data: bytes) -> None:
    mark = len(broker.stderr)
    with broker.client("deep") as client, broker.client("bystander") as bystander:
        client.send(data)
        bystander.ping(timeout=3)  # what is done for each level, again for each level, would take minutes
        found = client.read_packet()
        if found is not None and found[0] == SUBACK:
            assert found[1][2:] == b"\x80"
        elif found is not None:
            assert found[0] == 0xB0, "an UNSUBACK for a filter that can't exist does no harm"
    assert not broker.lines("RecursionError|Traceback", since=mark)


def test_report_73_silent_sockets_keep_nobody_out(own_broker: BrokerProcess) -> None:
    own_broker.write_config({"limits": {"connect_timeout": "4s"}})
    own_broker.start()
    silent = [socket.create_connection(("127.0.0.1", own_broker.port)) for _ in range(300)]
    try:
        clients = [own_broker.client(f"good-{number}") for number in range(20)]
        assert select.select(silent, [], [], 0)[0] == [], "they had to wait until one of the silent was closed"
        for connection in silent:
            connection.settimeout(10)
            assert connection.recv(1) == b"", "closed at the CONNECT timeout"
        for client in clients:
            client.ping()
    finally:
        for connection in silent:
            connection.close()


def test_report_69_a_subscribe_does_not_scan_what_is_retained(own_broker: BrokerProcess) -> None:
    own_broker.start()
    count = 100_000 if THOROUGH else 20_000
    with own_broker.client("retains") as client:
        for first in range(0, count, 1000):
            client.send(b"".join(packets.publish(f"r/{n}/x", b"v", retain=True) for n in range(first, first + 1000)))
        client.ping(timeout=30)
    with own_broker.client("looks") as client:
        for topic_filter, hits in (("other/+/y", 0), ("r/7/+", 1), ("+/7/x", 1)):
            fastest = min(timed(lambda f=topic_filter: client.subscribe((f, 0))) for _ in range(20))  # type: ignore[misc]
            assert fastest < 0.02, f"{topic_filter}: {fastest * 1000:.1f} ms"
            assert len(client.waiting_messages()) == 20 * hits
            client.unsubscribe(topic_filter)


def test_report_75_a_dead_session_is_cheap(own_broker: BrokerProcess) -> None:
    own_broker.start()
    count = 10_000 if THOROUGH else 1000
    before = own_broker.rss_bytes()
    for number in range(count):
        with RawClient(own_broker.port) as client:
            client.send(packets.connect(f"random-{number}", clean=False) + packets.subscribe(1, ("r75/#", 1)))
            client.expect_bytes("200200009003000101")
    publish_all(own_broker.port, "r75/x", [bytes(100)] * 5000)
    per_session = (own_broker.rss_bytes() - before) / count
    assert per_session < 25_000, f"{per_session:.0f} bytes for a session that nobody will resume"


def test_report_5_connect_and_publish_in_one_segment(broker: BrokerProcess) -> None:
    with RawClient(broker.port) as client:
        client.send(
            packets.connect("one-segment")
            + packets.subscribe(1, ("seg/x", 1))
            + packets.publish("seg/x", b"now", qos=1, packet_id=2)
        )
        client.expect_bytes("200200009003000101", timeout=5)
        kinds = set()
        for _ in range(2):
            found = client.read_packet()
            assert found is not None
            kinds.add(found[0] & 0xF0)
        assert kinds == {PUBLISH, 0x40}
        client.send(struct.pack(">BBH", 0x40, 2, 1))
        client.ping()
