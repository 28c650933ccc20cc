"""Public reports against other brokers, as inputs to this one over MQTT 5; the others are in `test_field_reports`.

Each name begins with `report_<number>`.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.harness import packets, packets5
from tests.harness.broker_process import BrokerProcess, wait_until
from tests.harness.log_reader import log_range, read_log
from tests.harness.packets5 import option
from tests.harness.publisher import publish_all
from tests.harness.raw_client import PUBLISH, RawClient
from tests.harness.raw_client5 import RawClient5

if TYPE_CHECKING:
    from collections.abc import Callable

THOROUGH = os.environ.get("HIGHWAY_TEST_THOROUGH") == "1"
EXPIRY = {"session_expiry_interval": 300}


@pytest.fixture
def client5(broker: BrokerProcess) -> Callable[..., RawClient5]:
    """Connects a client; `settings` are those of CONNECT."""

    def connected(client_id: str, **settings: object) -> RawClient5:
        return RawClient5.connected(broker.port, client_id, **settings)

    return connected


def test_report_1c_an_empty_client_id_gets_one_that_can_be_resumed(client5: Callable[..., RawClient5]) -> None:
    one, other = (client5("", clean_start=False, session_expiry_interval=60) for _ in range(2))
    name = one.connack.properties["assigned_client_identifier"]
    assert name != other.connack.properties["assigned_client_identifier"]
    for client in (one, other):
        client.ping()  # neither kicked the other off
    one.subscribe(("report/1c", 1))
    one.close()
    other.publish("report/1c", b"missed")
    back = client5(name, clean_start=False, session_expiry_interval=60)
    assert back.session_present
    assert back.message().payload == b"missed"
    back.leave(session_expiry_interval=0)


def test_report_3_silence_is_ended_with_a_reason(client5: Callable[..., RawClient5]) -> None:
    never, huge = client5("r3-never", keep_alive=0), client5("r3-huge", keep_alive=65535)
    start = time.monotonic()
    strict = client5("r3-strict", keep_alive=2)
    strict.expect_disconnect(0x8D, within=10)
    assert time.monotonic() - start >= 2.95
    never.ping()
    huge.ping()


def test_report_5_one_byte_at_a_time_and_a_large_publish_in_pieces(
    broker: BrokerProcess, client5: Callable[..., RawClient5]
) -> None:
    watcher = client5("r5-watch")
    watcher.subscribe(("report/5/#", 1))
    with RawClient5(broker.port) as client:
        pairs = [("name", "value"), ("name", "other")]
        whole = (
            packets5.connect("r5-bytes", session_expiry_interval=0, user_property=pairs)
            + packets5.subscribe(1, ("report/5/b", 0), subscription_identifier=300)
            + packets5.publish("report/5/b", b"hi", user_property=pairs)
        )
        for byte in whole:
            client.send(bytes([byte]))
        message = client.message()
        assert (message.payload, message.identifiers, message.all("user_property")) == (b"hi", [300], pairs)
        assert watcher.message().properties == tuple(("user_property", pair) for pair in pairs)
        payload = os.urandom(300_000)
        data = packets5.publish("report/5/t", payload, qos=1, packet_id=9, content_type="x") + packets.PINGREQ
        for position in range(0, len(data), 1460):
            client.send(data[position : position + 1460])
            time.sleep(0.002)  # what the reported device did: the pause is the input
        client.expect_in_any_order("40020009", "d000")
    got = watcher.message()
    assert got.payload == payload
    assert got.properties == (("content_type", "x"),)
    assert [record.payload for record in read_log(broker.port, "report/5/+")][-1] == payload


BROKEN = {
    "NUL in a user property": packets5.publish("report/7", b"x", retain=True, user_property=[("a", "b\0")]),
    "surrogate in a content type": packets5.publish("report/7", b"x", retain=True, content_type=b"\xed\xa0\x80"),
    "ff fe in a response topic": packets5.publish("report/7", b"x", retain=True, response_topic=b"\xff\xfe"),
    "wildcard in a response topic": packets5.publish("report/7", b"x", retain=True, response_topic="a/#"),
    "NUL in a topic": packets5.publish("report/7\0", b"x", retain=True),
    "overlong slash in a topic": packets5.publish(b"report/7\xc0\xafx", b"x", retain=True),
    "NUL in a filter": packets5.subscribe(1, ("report/7/\0", 0)),
    "a property twice": packets5.publish("report/7", b"x", retain=True, content_type=["a", "b"]),
    "a property of another packet": packets5.publish("report/7", b"x", retain=True, receive_maximum=1),
}


@pytest.mark.parametrize("case", BROKEN)
def test_report_7_broken_text_closes_with_a_reason_and_nothing_is_stored(
    broker: BrokerProcess, client5: Callable[..., RawClient5], case: str
) -> None:
    before = log_range(broker.port, "report/7")["high_watermark"]
    client = client5("r7")
    client.send(BROKEN[case])
    ((first, body),) = client.expect_closed()
    assert packets5.parse_disconnect(first, body)[0] in (0x81, 0x82, 0x90, 0x8F)
    assert log_range(broker.port, "report/7")["high_watermark"] == before
    late = client5("r7-late")
    late.subscribe(("report/7/#", 0))
    assert late.waiting_messages() == []


@pytest.mark.parametrize(
    "data",
    [packets5.subscribe(0, ("a", 0)), packets5.publish("a", b"x", qos=1), packets5.unsubscribe(0, "a")],
    ids=["SUBSCRIBE", "PUBLISH", "UNSUBSCRIBE"],
)
def test_report_9_packet_id_0_closes_with_a_reason(client5: Callable[..., RawClient5], data: bytes) -> None:
    client = client5("r9")
    client.send(data)
    client.expect_disconnect(0x82)


def test_report_11_wildcards_do_not_reach_dollar_topics(client5: Callable[..., RawClient5]) -> None:
    client, publisher = client5("r11"), client5("r11-pub")
    client.subscribe(("#", option(0, retain_as_published=True)), ("+/#", 0), ("$share/g/#", 0))
    publisher.publish("$x/y", b"hidden", retain=True)
    assert publisher.publish("$SYS/broker/uptime", b"forged") == 0x87
    publisher.publish("report/11", b"seen")
    while (message := client.message()).payload != b"seen":
        assert not message.topic.startswith("$")
    assert [m for m in client.waiting_messages() if m.topic.startswith("$")] == []
    publisher.publish("$x/y", b"", retain=True)


def test_report_13_qos_2_publish_five_times_before_pubrel(
    broker: BrokerProcess, client5: Callable[..., RawClient5]
) -> None:
    subscriber, client = client5("r13-sub"), client5("r13-pub")
    subscriber.subscribe(("report/13", 2))
    before = log_range(broker.port, "report/13")["high_watermark"]
    client.send(packets5.publish("report/13", b"x", qos=2, packet_id=5))
    for _ in range(4):
        client.send(packets5.publish("report/13", b"x", qos=2, packet_id=5, dup=True))
    client.send("62020005")
    client.expect_bytes("50020005" * 5 + "70020005")
    assert subscriber.message().payload == b"x"
    assert subscriber.waiting_messages() == []
    assert log_range(broker.port, "report/13")["high_watermark"] == before + 1
    client.send(packets5.publish("report/13", b"y", qos=2, packet_id=5) + bytes.fromhex("62020005"))
    client.expect_bytes("5002000570020005")
    assert subscriber.message().payload == b"y"


def test_report_15_acks_for_unknown_ids_are_answered_and_do_no_harm(client5: Callable[..., RawClient5]) -> None:
    client = client5("r15")
    client.send(packets5.ack(0x40, 9, 0x10) + packets5.ack(0x50, 9) + packets5.ack(0x62, 9, 0x92) + packets.PINGREQ)
    client.expect_in_any_order("62020009", "70020009", "d000")


@pytest.mark.parametrize("rounds", [100 if THOROUGH else 30])
def test_report_17_the_will_of_a_taken_over_connection_comes_before_online(
    client5: Callable[..., RawClient5], rounds: int
) -> None:
    watcher = client5("r17-watch")
    watcher.subscribe(("report/17", 0))
    settings = {"will": ("report/17", b"off", 0, True), "clean_start": False, **EXPIRY}
    current = client5("r17", **settings)
    for number in range(rounds):
        cut = number % 2
        if cut:
            current.reset()
        newcomer = client5("r17", **settings)
        newcomer.send(packets5.publish("report/17", b"on", retain=True))
        assert [message.payload for message in watcher.messages(2)] == [b"off", b"on"], f"round {number}"
        if not cut:
            current.expect_disconnect(0x8E)
        current = newcomer
    late = client5("r17-late")
    late.subscribe(("report/17", 0))
    assert late.message().payload == b"on"
    current.leave(session_expiry_interval=0)
    assert watcher.waiting_messages() == []


def test_report_17_a_will_that_waits_is_not_published_for_who_is_back(client5: Callable[..., RawClient5]) -> None:
    watcher = client5("r17d-watch")
    watcher.subscribe(("report/17d", 0))
    settings = {"will": ("report/17d", b"off", 0, False), "will_properties": {"will_delay_interval": 3}}
    for _ in range(3):
        client5("r17d", clean_start=False, **EXPIRY, **settings).close()
        back = client5("r17d", clean_start=False, **EXPIRY)
        assert back.session_present
    watcher.quiet_for(3.5)
    back.leave(session_expiry_interval=0)
    start = time.monotonic()
    client5("r17d", **EXPIRY, **settings).close()
    assert watcher.message(timeout=10).payload == b"off"
    assert time.monotonic() - start >= 2.95


def test_report_19_a_socket_that_nobody_reads_does_not_hold_the_session(
    broker: BrokerProcess, client5: Callable[..., RawClient5]
) -> None:
    stuck = RawClient5(broker.port, receive_buffer=4096)
    stuck.login("r19", **EXPIRY)
    stuck.subscribe(("report/19/#", 1))
    publish_all(broker.port, "report/19/x", [bytes(100_000)] * 100)
    start = time.monotonic()
    second = client5("r19", clean_start=False, **EXPIRY)
    assert second.session_present
    third = client5("r19", clean_start=False, **EXPIRY)
    stuck.reset()
    assert third.session_present
    assert time.monotonic() - start < 8
    second.expect_disconnect(0x8E, within=5)
    assert len(third.messages(100, timeout=20)) == 100
    third.leave(session_expiry_interval=0)


def test_report_23_the_send_quota_starts_afresh_with_each_connection(client5: Callable[..., RawClient5]) -> None:
    first = client5("r23", **EXPIRY, receive_maximum=1)
    first.auto_ack = False
    first.subscribe(("report/23", 1))
    publisher = client5("r23-pub")
    publisher.publish("report/23", b"m0")
    assert first.message().payload == b"m0"
    first.close()
    for number in range(1, 5):
        publisher.publish("report/23", b"m%d" % number)
    back = client5("r23", clean_start=False, **EXPIRY, receive_maximum=4)
    got = back.messages(5)
    assert [(m.payload, m.dup) for m in got] == [(b"m0", True), *((b"m%d" % n, False) for n in range(1, 5))]
    back.leave(session_expiry_interval=0)


def test_report_23_a_receive_maximum_below_what_is_unacknowledged(client5: Callable[..., RawClient5]) -> None:
    first = client5("r23b", **EXPIRY)
    first.auto_ack = False
    first.subscribe(("report/23b", 1))
    publisher = client5("r23b-pub")
    for number in range(20):
        publisher.publish("report/23b", b"%d" % number)
    sent = first.messages(20)
    first.close()
    back = client5("r23b", clean_start=False, **EXPIRY, receive_maximum=3)
    back.auto_ack = False
    for message in sent:
        waiting = back.messages(1)[0]
        assert (waiting.packet_id, waiting.payload, waiting.dup) == (message.packet_id, message.payload, True)
        back.send(packets5.ack(0x40, waiting.packet_id))
    assert back.waiting_messages() == []
    back.leave(session_expiry_interval=0)


def test_report_25_one_copy_with_its_own_identifiers_live_missed_and_retained(
    client5: Callable[..., RawClient5],
) -> None:
    other = client5("r25-other")
    other.subscribe(("report/25/1", 1), subscription_identifier=1)
    client, publisher = client5("r25", **EXPIRY), client5("r25-pub")
    client.subscribe(("report/25/#", 0), subscription_identifier=2)
    client.subscribe(("report/25/1", 1), subscription_identifier=3)
    publisher.publish("report/25/1", b"live", retain=True)
    live = client.message()
    assert (live.payload, live.qos, live.identifiers) == (b"live", 1, [2, 3])
    assert client.waiting_messages() == []
    assert other.message().identifiers == [1]
    client.close()
    publisher.publish("report/25/1", b"missed")
    back = client5("r25", clean_start=False, **EXPIRY)
    assert back.session_present
    missed = back.message()
    assert (missed.payload, missed.qos, missed.identifiers) == (b"missed", 1, [2, 3])
    back.subscribe(("report/25/1", 1), subscription_identifier=4)
    kept = back.message()
    assert (kept.payload, kept.retain, kept.identifiers) == (b"live", True, [4])
    back.subscribe(("$replay/-2/report/25/#", 1), subscription_identifier=5)
    assert [(m.payload, m.identifiers) for m in back.messages(2)] == [(b"live", [5]), (b"missed", [5])]
    assert back.waiting_messages() == []
    back.leave(session_expiry_interval=0)
    publisher.publish("report/25/1", b"", retain=True)


def test_report_27_what_is_too_large_is_passed_over_and_the_rest_arrives(client5: Callable[..., RawClient5]) -> None:
    client5("r27", **EXPIRY, maximum_packet_size=100).send(packets5.subscribe(1, ("r27", 1)))
    publisher = client5("r27-pub")
    wait_until(lambda: publisher.publish("r27", b"0123456789") == 0, what="the subscription")
    client5("r27", clean_start=False, **EXPIRY, maximum_packet_size=100).close()
    head = 1 + 1 + 2 + len("r27") + 2 + 1
    for size in (10, 5000, 20, 100 - head, 101 - head, 30):
        publisher.publish("r27", bytes(size))
    back = client5("r27", clean_start=False, **EXPIRY, maximum_packet_size=100)
    back.ping()
    sizes = [message.size for message in back.messages(4)]
    while sizes[0] != 10 + head or sizes.count(10 + head) > 1:  # the ones that found out whether it had subscribed
        sizes = [*sizes[1:], back.message().size]
    assert sizes == [10 + head, 20 + head, 100, 30 + head]
    for size in (101 - head, 100 - head, 40):
        publisher.publish("r27", bytes(size))
    assert [message.size for message in back.messages(2)] == [100, 40 + head]
    back.leave(session_expiry_interval=0)


@pytest.mark.parametrize("expiry", [0, 300])
def test_report_29_a_member_that_leaves_with_unacked_messages_loses_none(broker: BrokerProcess, expiry: int) -> None:
    filters = (f"$share/g{expiry}/report/29/{expiry}", 1)
    members = [
        RawClient5.connected(broker.port, f"r29-{name}-{expiry}", session_expiry_interval=expiry) for name in "abc"
    ]
    for member in members:
        member.subscribe(filters)
    leaver = members[1]
    leaver.auto_ack = False
    publish_all(broker.port, f"report/29/{expiry}", [b"%d" % number for number in range(300)])
    held = leaver.messages(1)
    leaver.close()
    seen: set[bytes] = set()

    def take() -> int:
        for member in (members[0], members[2]):
            seen.update(message.payload for message in member.waiting_messages())
        return len(seen)

    if expiry:
        back = RawClient5.connected(broker.port, f"r29-b-{expiry}", clean_start=False, session_expiry_interval=expiry)
        assert back.session_present
        wait_until(lambda: (seen.update(m.payload for m in back.waiting_messages()), take())[1] == 300)
        assert held[0].payload in seen
    else:
        wait_until(lambda: take() == 300, what="every message")
    for member in (members[0], members[2]):
        member.leave(session_expiry_interval=0) if expiry else member.leave()


@pytest.mark.parametrize("rounds", [100 if THOROUGH else 30])
def test_report_31_a_retained_value_never_comes_after_a_newer_live_one(
    broker: BrokerProcess, client5: Callable[..., RawClient5], rounds: int
) -> None:
    stop = threading.Event()
    last = [0]

    def count_up() -> None:
        with RawClient5.connected(broker.port, "r31v5-pub") as publisher:
            while not stop.is_set():
                publisher.publish("report/31", b"%d" % (last[0] + 1), retain=True, qos=last[0] % 3)
                last[0] += 1

    thread = threading.Thread(target=count_up)
    thread.start()
    try:
        wait_until(lambda: last[0] > 0)
        for number in range(rounds):
            client = client5(f"r31v5-{number}", session_expiry_interval=number % 2)
            client.subscribe(("report/31", option(number % 3)))
            got = client.messages(15)
            client.close()
            retained = [index for index, message in enumerate(got) if message.retain]
            assert len(retained) <= 1
            for qos in range(3):
                values = [int(message.payload) for message in got if message.qos == qos]
                assert values == sorted(values)
            if retained:
                assert int(got[retained[0]].payload) <= min(
                    (int(m.payload) for m in got[retained[0] + 1 :]), default=10**9
                )
    finally:
        stop.set()
        thread.join()
    late = client5("r31v5-end")
    late.subscribe(("report/31", 0))
    assert int(late.message().payload) == last[0]


def test_report_33_a_subscriber_that_stops_reading_slows_nobody(own_broker: BrokerProcess) -> None:
    own_broker.start()
    count = 100_000 if THOROUGH else 20_000
    payload = bytes(1000)
    stuck = RawClient5(own_broker.port, receive_buffer=4096)
    stuck.login("stuck", **EXPIRY, topic_alias_maximum=5)
    stuck.subscribe(("r33/#", 1), subscription_identifier=9)
    reader = RawClient5.connected(own_broker.port, "reads", topic_alias_maximum=5)
    reader.subscribe(("r33/#", 0))
    received = [0]

    def read() -> None:
        while received[0] < count:
            received[0] += len(reader.messages(1000, timeout=60))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    publish_all(own_broker.port, "r33/x", [payload] * count)
    thread.join(60)
    assert received[0] == count
    stuck.reset()
    back = RawClient5.connected(own_broker.port, "stuck", clean_start=False, **EXPIRY)
    assert back.session_present
    got = back.messages(count, timeout=60)
    assert {(m.topic, *m.identifiers, len(m.payload)) for m in got} == {("r33/x", 9, 1000)}


def test_report_35_retention_frees_what_a_client_has_in_flight(tmp_path_factory: pytest.TempPathFactory) -> None:
    topics = [{"topic": "r35/#", "log": "r35", "retention_bytes": "256KiB", "segment_bytes": "64KiB"}]
    storage = {"checkpoint_interval": "500ms", "reaper_interval": "500ms"}
    with BrokerProcess(tmp_path_factory.mktemp("r35"), topics=topics, storage=storage) as broker:
        client = RawClient5.connected(broker.port, "holds", **EXPIRY, receive_maximum=10)
        client.auto_ack = False
        client.subscribe(("r35/#", 1))
        number = 0

        def publish_more() -> int:
            nonlocal number
            publish_all(broker.port, "r35/x", [(b"%d " % n) + os.urandom(1000) for n in range(number, number + 200)])
            number += 200
            return int(log_range(broker.port, "r35/x")["log_start_offset"])

        publish_more()
        held = client.messages(10)
        wait_until(lambda: publish_more() > 10, timeout=30, what="retention")
        client.close()
        back = RawClient5.connected(broker.port, "holds", clean_start=False, **EXPIRY, receive_maximum=10)
        assert back.session_present
        for message in held:
            back.send(packets5.ack(0x40, message.packet_id))  # late, for offsets that are gone
        publish_all(broker.port, "r35/x", [b"-1 end"])
        numbers: list[int] = []
        while not numbers or numbers[-1] != -1:
            numbers.append(int(back.message(timeout=20).payload.split()[0]))
        assert numbers[:-1] == list(range(numbers[0], number))
        assert numbers[0] >= 10


def test_report_37_500_filters_get_500_codes_in_order(client5: Callable[..., RawClient5]) -> None:
    client = client5("r37")
    good = [(f"report/37/{number}", number % 3) for number in range(500)]
    assert client.subscribe(*good) == [qos for _, qos in good]
    with_bad = [*good[:249], ("$replay/never/x", 0), *good[250:]]
    assert client.subscribe(*with_bad) == [qos for _, qos in good[:249]] + [0x8F] + [qos for _, qos in good[250:]]
    client.send(packets5.subscribe(9, ("a/#/b", 0)))
    client.expect_disconnect(0x8F)  # the one documented choice for a filter that is none


def test_report_37_connect_subscribe_and_publish_in_one_segment(broker: BrokerProcess) -> None:
    with RawClient5(broker.port) as client:
        client.send(
            packets5.connect("r37-segment", **EXPIRY)
            + packets5.subscribe(1, ("report/37/seg", 1))
            + packets5.publish("report/37/seg", b"now", qos=1, packet_id=2)
        )
        seen = [client.read_packet() for _ in range(4)]
        kinds = [found[0] & 0xF0 for found in seen if found is not None]
        assert kinds[:2] == [0x20, 0x90]
        assert set(kinds[2:]) == {PUBLISH, 0x40}
        client.leave(session_expiry_interval=0)


@pytest.mark.parametrize("slashes", [201, 65_535])
def test_report_71_names_of_many_levels_are_refused_at_once_with_a_reason(
    broker: BrokerProcess, client5: Callable[..., RawClient5], slashes: int
) -> None:
    bystander = RawClient.connected(broker.port, "bystander5")
    name = "/" * slashes
    for data in (packets5.subscribe(4, (name, 0)), packets5.publish(name, b"x", qos=1, packet_id=4)):
        client = client5("deep5")
        client.send(data)
        client.expect_disconnect(0x81)
        bystander.ping(timeout=3)  # what is done for each level, again for each level, would take minutes
