"""The main job with the clients that people have: be away, come back, get exactly what was missed, then live."""

from __future__ import annotations

import datetime as dt
import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.harness import packets
from tests.harness.broker_process import BrokerProcess, wait_until
from tests.harness.log_reader import log_range
from tests.harness.mosquitto import MosquittoSub, mosquitto_pub, mosquitto_sub
from tests.harness.publisher import publish_all
from tests.harness.raw_client import PUBLISH, RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("mosquitto_clients")

TOPIC = "highway/A1/telemetry"


@pytest.mark.parametrize("topic", ["highway/A1/telemetry", "highway/A1/control"])
def test_10_000_messages_while_away_and_a_kill_come_once_in_order_and_then_live(
    own_broker: BrokerProcess, topic: str
) -> None:
    own_broker.start()
    away = ("-c", "-i", "away", "-q", "1", "-t", "highway/#")
    code, _, stderr = mosquitto_sub(own_broker.port, *away, "-E")
    assert code == 0, stderr
    publish_all(own_broker.port, topic, [b"m%d" % number for number in range(10_000)])
    own_broker.restart()
    with MosquittoSub(own_broker.port, *away) as back:
        assert back.lines(10_000) == [f"m{number}" for number in range(10_000)]
        publish_all(own_broker.port, topic, [b"live%d" % number for number in range(100)])
        assert back.lines(100) == [f"live{number}" for number in range(100)]
    # It has acknowledged everything: nothing of it comes again.
    mosquitto_pub(own_broker.port, "-q", "1", "-t", topic, "-m", "later")
    with MosquittoSub(own_broker.port, *away) as again:
        assert again.lines(1) == ["later"]


def test_a_kill_during_delivery_costs_duplicates_at_most(own_broker: BrokerProcess) -> None:
    own_broker.start()
    with own_broker.client("back", clean=False) as client:
        client.subscribe(("highway/#", 1))
        client.disconnect()
    publish_all(own_broker.port, TOPIC, [b"%d" % number for number in range(3000)])
    seen: list[int] = []
    client = own_broker.client("back", clean=False)
    seen += [int(message.payload) for message in client.messages(1000)]
    own_broker.kill()
    seen += [
        int(packets.parse_publish(first, body).payload)
        for first, body in client.expect_closed(within=5)
        if first & 0xF0 == PUBLISH
    ]
    own_broker.start()
    client = own_broker.client("back", clean=False)
    assert client.session_present
    publish_all(own_broker.port, TOPIC, [b"3000"])
    after: list[int] = []
    while not after or after[-1] != 3000:
        after.append(int(client.message().payload))
    assert after == list(range(after[0], 3001)), "a gap or disorder after the crash"
    assert after[0] <= len(seen), f"lost: it had seen 0 to {len(seen) - 1} and went on at {after[0]}"
    assert seen == list(range(len(seen)))


def test_live_traffic_during_catch_up_leaves_no_gap_and_no_duplicate(own_broker: BrokerProcess) -> None:
    own_broker.start()
    with own_broker.client("joins", clean=False) as client:
        client.subscribe(("highway/#", 1))
        client.disconnect()
    publish_all(own_broker.port, TOPIC, [b"%d" % number for number in range(5000)])
    client = own_broker.client("joins", clean=False)
    for first in range(5000, 10_000, 1000):  # while the session catches up
        publish_all(own_broker.port, TOPIC, [b"%d" % number for number in range(first, first + 1000)])
    assert [int(message.payload) for message in client.messages(10_000)] == list(range(10_000))
    assert client.waiting_messages() == []


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[BrokerProcess, int]]:
    """A broker whose telemetry log holds 0..19 of A1 (even offsets) and A2 (odd), and a time between 9 and 10."""
    topics = [{"topic": "highway/+/telemetry", "log": "telemetry"}, {"topic": "highway/+/control", "log": "control"}]
    with BrokerProcess(tmp_path_factory.mktemp("replay"), topics=topics) as broker, broker.client("filler") as client:
        for number in range(10):
            client.publish(f"highway/A{1 + number % 2}/telemetry", b"%d" % number)
        # The commit times of 9 and 10 must differ from the time between them.
        between_ms = time.time_ns() // 1_000_000 + 2
        wait_until(lambda: time.time_ns() // 1_000_000 > between_ms)
        for number in range(10, 20):
            client.publish(f"highway/A{1 + number % 2}/telemetry", b"%d" % number)
        client.publish("highway/A1/control", b"c0")
        yield broker, between_ms


EVEN, ODD = [f"{n}" for n in range(0, 20, 2)], [f"{n}" for n in range(1, 20, 2)]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", EVEN),
        ("0", EVEN),
        ("7", EVEN[4:]),
        ("-5", EVEN[5:]),
        ("-100", EVEN),
        ("15m", EVEN),
        ("90s", EVEN),
        ("7d", EVEN),
        ("@0", EVEN),
        ("@{ms}", EVEN[5:]),
        ("@{rfc3339}", EVEN[5:]),
    ],
)
def test_replay_starts_where_from_says(replayed: tuple[BrokerProcess, int], start: str, expected: list[str]) -> None:
    broker, between_ms = replayed
    moment = dt.datetime.fromtimestamp(between_ms / 1000, dt.UTC).isoformat(timespec="milliseconds")
    start = start.format(ms=between_ms, rfc3339=moment.replace("+00:00", "Z"))
    with MosquittoSub(broker.port, "-F", "%t %p", "-q", "1", "-t", f"$replay/{start}/{TOPIC}") as sub:
        assert sub.lines(len(expected)) == [f"{TOPIC} {payload}" for payload in expected]


@pytest.mark.parametrize("start", ["latest", "3", "@9999999999999"])
def test_replay_from_the_end_starts_with_the_next_live_message(own_broker: BrokerProcess, start: str) -> None:
    own_broker.start()
    publish_all(own_broker.port, TOPIC, [b"0", b"1", b"2"])
    with own_broker.client("end") as client:
        assert client.subscribe((f"$replay/{start}/{TOPIC}", 1)) == [1]
        publish_all(own_broker.port, TOPIC, [b"3", b"4"])
        assert [message.payload for message in client.messages(2)] == [b"3", b"4"]


def test_replay_of_several_logs_then_live_ones(own_broker: BrokerProcess) -> None:
    own_broker.start()
    with own_broker.client("p") as publisher:
        for number in range(5):
            publisher.publish("highway/A1/telemetry", b"t%d" % number)
            publisher.publish("highway/A1/control", b"c%d" % number)
        with MosquittoSub(own_broker.port, "-q", "1", "-t", "$replay/earliest/highway/#") as sub:
            history = sub.lines(10)
            publisher.publish("highway/A2/control", b"live")
            assert sub.lines(1) == ["live"]
    assert [line for line in history if line[0] == "t"] == [f"t{number}" for number in range(5)]
    assert [line for line in history if line[0] == "c"] == [f"c{number}" for number in range(5)]


@pytest.mark.parametrize(
    "topic_filter",
    [
        "$replay/soon/highway/A1/telemetry",
        "$replay/-0/highway/A1/telemetry",
        "$replay/99999/highway/A1/telemetry",  # beyond the log's end
        "$replay/3/highway/#",  # an offset, and several logs
        "$replay/3/#",
        "$replay/earliest",
        "$replay/earliest/$SYS/#",
        "$replay/@2026-13-01T00:00:00Z/highway/A1/telemetry",
        "$log/soon/highway/A1/telemetry",
        "$log/99999/highway/A1/telemetry",
        "$fetch/99999/highway/A1/telemetry",
        "$fetch/x/highway/A1/telemetry",
        "$fetch/1/highway/+/telemetry",
        "$range/highway/#",
    ],
)
def test_a_bad_from_is_refused_and_the_rest_of_the_subscribe_granted(
    replayed: tuple[BrokerProcess, int], topic_filter: str
) -> None:
    broker, _ = replayed
    with broker.client("refused") as client:
        assert client.subscribe((topic_filter, 1), ("fine", 1)) == [0x80, 1]
        assert client.waiting_messages() == []


def test_mosquitto_sub_says_that_a_bad_from_was_refused(replayed: tuple[BrokerProcess, int]) -> None:
    broker, _ = replayed
    code, lines, stderr = mosquitto_sub(broker.port, "-t", f"$replay/soon/{TOPIC}", "-W", "10")
    assert lines == []
    assert "denied" in stderr.lower() or "reject" in stderr.lower() or code != 0


def test_fetch_one_with_mosquitto_sub(replayed: tuple[BrokerProcess, int]) -> None:
    broker, _ = replayed
    code, lines, stderr = mosquitto_sub(broker.port, "-t", "$fetch/17/highway/A2/telemetry", "-C", "1", "-v")
    assert (code, lines) == (0, ["$fetch/17/highway/A2/telemetry 17"]), stderr


def test_fetch_answers_exactly_once_and_leaves_no_subscription(replayed: tuple[BrokerProcess, int]) -> None:
    broker, _ = replayed
    with broker.client("fetches") as client:
        assert client.subscribe(("$fetch/4/highway/A1/telemetry", 1)) == [1]
        message = client.message()
        assert (message.topic, message.payload) == ("$fetch/4/highway/A1/telemetry", b"4")
        assert client.subscribe(("$fetch/4/highway/A1/telemetry", 0)) == [0]
        assert client.message().payload == b"4"
        assert client.waiting_messages() == []


def test_range_says_what_can_be_read(replayed: tuple[BrokerProcess, int]) -> None:
    broker, between_ms = replayed
    answer = log_range(broker.port, TOPIC)
    assert set(answer) == {"log", "log_start_offset", "high_watermark", "oldest", "newest"}
    assert (answer["log"], answer["log_start_offset"], answer["high_watermark"]) == ("telemetry", 0, 20)
    code, lines, _ = mosquitto_sub(broker.port, "-t", f"$range/{TOPIC}", "-C", "1")
    assert code == 0
    assert json.loads(lines[0]) == answer
    assert between_ms > 0


def test_log_gives_each_record_its_address(replayed: tuple[BrokerProcess, int]) -> None:
    broker, _ = replayed
    with broker.client("addresses") as client:
        assert client.subscribe(("$log/15/highway/+/telemetry", 1)) == [1]
        got = [(message.topic, message.payload) for message in client.messages(5)]
    assert got == [(f"$log/{n}/highway/A{1 + n % 2}/telemetry", b"%d" % n) for n in range(15, 20)]


def test_a_replay_of_a_persistent_session_does_not_rewind_but_a_new_from_does(own_broker: BrokerProcess) -> None:
    own_broker.start()
    publish_all(own_broker.port, TOPIC, [b"%d" % number for number in range(10)])
    replay = (f"$replay/earliest/{TOPIC}", 1)
    with own_broker.client("reader", clean=False) as client:
        client.subscribe(replay)
        assert [message.payload for message in client.messages(10)] == [b"%d" % number for number in range(10)]
        client.ping()  # the acks have arrived
        client.disconnect()
    publish_all(own_broker.port, TOPIC, [b"10", b"11"])
    own_broker.restart()
    with own_broker.client("reader", clean=False) as client:
        assert client.session_present
        client.subscribe(replay)
        assert [message.payload for message in client.messages(2)] == [b"10", b"11"]
        client.subscribe((f"$replay/-3/{TOPIC}", 1))
        # The hole that the kill left in the offsets is told to a replay, at any time by now; no message comes again.
        rest: list[bytes] = []
        while len(rest) < 3:
            (message,) = client.messages(1)
            assert message.topic in (TOPIC, "$gap/telemetry")
            if message.topic == TOPIC:
                rest.append(message.payload)
        assert rest == [b"9", b"10", b"11"]


def test_unsubscribe_ends_a_replay(own_broker: BrokerProcess) -> None:
    own_broker.start()
    replay = f"$replay/earliest/{TOPIC}"
    with own_broker.client("reader") as client, own_broker.client("publisher") as publisher:
        client.subscribe((replay, 1))
        publisher.publish(TOPIC, b"one")
        assert client.message().payload == b"one"
        client.unsubscribe(replay)
        publisher.publish(TOPIC, b"two")
        assert client.waiting_messages() == []


def test_a_stop_on_sigterm_is_clean_and_keeps_everything(own_broker: BrokerProcess) -> None:
    own_broker.start()
    for topic in ("fast/x", "balanced/x", "safe/x"):
        publish_all(own_broker.port, topic, [b"%d" % number for number in range(500)])
    assert own_broker.stop() == 0
    own_broker.start()
    for topic in ("fast/x", "balanced/x", "safe/x"):
        with RawClient.connected(own_broker.port, "reader") as client:
            client.subscribe((f"$log/earliest/{topic}", 0))
            got = [message.topic for message in client.messages(500)]
        assert got == [f"$log/{number}/{topic}" for number in range(500)], "a clean stop leaves no hole in the offsets"
