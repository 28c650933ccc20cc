from __future__ import annotations

import gc
import time
import weakref

import pytest
from hypothesis import given, strategies as st

from highway.errors import MalformedPacketError, ProtocolError
from highway.mqtt import (
    PINGREQ,
    AuthPacket,
    ConnectPacket,
    DisconnectPacket,
    PingreqPacket,
    Properties,
    PubackRun,
    PublishRun,
    PubrelPacket,
    ServerProtocol,
    State,
    SubscribePacket,
    Subscription,
    encode_publish,
)
from highway.mqtt.acks import PubackPacket, PubcompPacket, PubrecPacket
from tests.mqtt.strategies import (
    acknowledgements,
    connects,
    disconnects,
    message_blocks,
    packet_ids,
    payloads,
    subscribes,
    topic_names,
    unsubscribes,
    versions,
)


def flat(events):
    """Events with the runs taken apart, so that streams compare whatever pieces they came in."""
    for event in events:
        if isinstance(event, PublishRun):
            ids = event.packet_ids or [b""] * len(event.payloads)
            for packet_id, payload in zip(ids, event.payloads, strict=True):
                yield (event.topic_name, event.qos, event.retain, event.dup, packet_id, event.properties, payload)
        elif isinstance(event, PubackRun):
            for packet_id in event.packet_ids:
                yield (PubackPacket, packet_id, event.reason_code, event.properties or {})
        else:
            yield event


def connected(version: int = 4, **options) -> ServerProtocol:
    protocol = ServerProtocol(**options)
    assert len(protocol.receive_data(ConnectPacket(version, "x").encode())) == 1
    return protocol


@st.composite
def publishes(draw, version):
    qos = draw(st.integers(0, 2))
    return encode_publish(
        version,
        draw(st.one_of(st.sampled_from([b"a/b", b"highway/A1/telemetry"]), topic_names)),
        draw(payloads),
        qos=qos,
        retain=draw(st.booleans()),
        dup=qos > 0 and draw(st.booleans()),
        packet_id=draw(packet_ids),
        properties=draw(message_blocks(version)),
    )


@st.composite
def streams(draw):
    """(version, the packets of a whole valid connection)."""
    version = draw(versions)
    kinds = [PubackPacket, PubrecPacket, PubrelPacket, PubcompPacket]
    control = st.one_of(
        subscribes(version),
        unsubscribes(version),
        st.just(PingreqPacket()),
        *(acknowledgements(version, kind) for kind in kinds),
    ).map(lambda packet: packet.encode(version))
    middle = draw(st.lists(st.one_of(publishes(version), publishes(version), control), max_size=15))
    first = draw(connects(version, with_method=False)).encode()
    return [first, *middle, draw(disconnects(version)).encode(version)]


@given(streams(), st.data())
def test_any_split_of_a_valid_stream_gives_the_same_events(stream, data):
    joined = b"".join(stream)
    whole = ServerProtocol()
    expected = list(flat(whole.receive_data(joined)))
    assert whole.error is None
    assert whole.state is State.CLOSED
    assert len(expected) == len(stream)

    cuts = sorted(data.draw(st.sets(st.integers(0, len(joined)), max_size=8)))
    split = ServerProtocol()
    actual = []
    for start, stop in zip([0, *cuts], [*cuts, len(joined)], strict=True):
        actual += split.receive_data(joined[start:stop])
    assert list(flat(actual)) == expected
    assert split.error is None

    bytewise = ServerProtocol()
    actual = [event for byte in joined for event in bytewise.receive_data(bytes((byte,)))]
    assert list(flat(actual)) == expected
    assert bytewise.error is None


@pytest.mark.parametrize("max_events", [1, 2, 7])
def test_a_flood_is_worked_off_in_parts_with_the_same_result(max_events):
    stream = ConnectPacket(4, "c").encode() + b"".join(
        PINGREQ + PubrelPacket(number).encode(4) + b"\x40\x02\0\1" * 3 + encode_publish(4, b"t", b"x") * 2
        for number in range(1, 20)
    )
    whole, parts = ServerProtocol(), ServerProtocol(max_events=max_events)
    expected = whole.receive_data(stream)
    got = parts.receive_data(stream[:-2])
    calls = 1
    while parts.has_more:
        calls += 1
        found = parts.receive_data(b"")
        assert len(found) <= max_events
        got += found
    got += parts.receive_data(stream[-2:])
    while parts.has_more:
        got += parts.receive_data(b"")
    assert list(flat(got)) == list(flat(expected))
    assert calls >= len(expected) // max_events
    assert (parts.error, parts.pending_bytes) == (None, 0)
    parts.receive_data(b"\xe0\0" + PINGREQ * 10)
    assert not parts.has_more


def test_one_byte_per_segment():
    stream = bytes.fromhex("101000044d5154540402003c000462797465820800010003622f740030070003622f746869")
    protocol = ServerProtocol()
    events = [event for byte in stream for event in protocol.receive_data(bytes((byte,)))]
    assert events[0].client_id == "byte"
    assert events[1].subscriptions == [Subscription(b"b/t")]
    assert (events[2].topic_name, events[2].payloads) == (b"b/t", [b"hi"])


def test_a_large_publish_in_small_pieces_with_a_packet_behind_it_in_the_last():
    payload = bytes(range(256)) * 1200
    data = encode_publish(4, b"big", payload, qos=1, packet_id=7) + PINGREQ
    protocol = connected()
    events = []
    for start in range(0, len(data), 1460):
        events += protocol.receive_data(data[start : start + 1460])
    assert [type(event) for event in events] == [PublishRun, PingreqPacket]
    assert events[0].payloads == [payload]
    assert protocol.pending_bytes == 0


@pytest.mark.parametrize("version", [4, 5])
def test_the_cost_of_an_incomplete_packet_is_linear_in_its_size(version):
    def seconds(size: int) -> float:
        data = encode_publish(version, b"big", bytes(size), properties=b"\x26\0\1k\0\1v" if version == 5 else b"")
        protocol = connected(version)
        started = time.process_time()
        for start in range(0, len(data), 64):
            protocol.receive_data(data[start : start + 64])
        assert protocol.error is None
        assert protocol.pending_bytes == 0
        return time.process_time() - started

    small = min(seconds(125_000) for _ in range(3))
    large = min(seconds(1_000_000) for _ in range(3))
    assert large < 24 * small  # 8 times the bytes; quadratic would be 64


def test_a_large_subscribe_in_small_pieces_is_linear_too():
    def seconds(count: int) -> float:
        packet = SubscribePacket(1, [Subscription(b"a/%d" % number) for number in range(count)]).encode(4)
        protocol = connected()
        started = time.process_time()
        events = []
        for start in range(0, len(packet), 16):
            events += protocol.receive_data(packet[start : start + 16])
        assert len(events[0].subscriptions) == count
        return time.process_time() - started

    assert min(seconds(8000) for _ in range(2)) < 24 * min(seconds(1000) for _ in range(3))


def test_events_before_the_error_are_returned_and_nothing_after_it():
    protocol = connected()
    events = protocol.receive_data(PINGREQ + PubrelPacket(1).encode(4) + b"\x36\x00" + PINGREQ)
    assert [type(event) for event in events] == [PingreqPacket, PubrelPacket]
    assert isinstance(protocol.error, MalformedPacketError)
    assert protocol.state is State.CLOSED
    assert protocol.receive_data(PINGREQ) == []


def test_nothing_is_read_after_disconnect():
    protocol = connected()
    events = protocol.receive_data(DisconnectPacket().encode(4) + PINGREQ + b"\xff\xff")
    assert [type(event) for event in events] == [DisconnectPacket]
    assert protocol.state is State.CLOSED
    assert protocol.error is None
    assert protocol.pending_bytes == 0


def test_lengths_are_judged_before_a_byte_of_the_body_is_there():
    protocol = ServerProtocol(max_connect_bytes=100, max_packet_bytes=1000)
    protocol.receive_data(b"\x10\x63")
    assert protocol.error is not None
    assert protocol.error.reason_code == 0x95
    protocol = connected(max_connect_bytes=100, max_packet_bytes=1000)
    assert protocol.receive_data(b"\x30\xe5\x07") == []
    assert protocol.error is None  # 1000 bytes in all
    protocol = connected(max_connect_bytes=100, max_packet_bytes=1000)
    protocol.receive_data(b"\x30\xe6\x07")
    assert protocol.error is not None
    assert (protocol.error.reason_code, protocol.error.position) == (0x95, 1)


def test_a_limit_below_the_two_byte_lengths_holds_for_the_followers_of_a_run_too():
    protocol = connected(max_packet_bytes=100)
    good = encode_publish(4, b"t", bytes(95))
    bad = encode_publish(4, b"t", bytes(96))
    events = protocol.receive_data(good + good + bad)
    assert len(list(flat(events))) == 2
    assert protocol.error is not None
    assert protocol.error.reason_code == 0x95


def test_the_error_says_byte_and_rule():
    protocol = connected()
    protocol.receive_data(b"\x30\x06\x00\x03a/+x")
    assert str(protocol.error) == (
        "at byte 4: a wildcard in a topic name ([MQTT-3.3.2-2], 3.1.1 [MQTT-4.7.1-1], 5.0 [MQTT-4.7.0-1])"
    )


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        ("100c00044d5154540400003c0000", "20020002"),  # empty client id, clean session 0
        ("100e00064d51497364700302003c0000", "20020002"),  # the same in 3.1, which knows no empty ids
        ("100d00044d5154540202003c000161", "20020001"),
        ("100d00044d5154540602003c000161", "2003008400"),
        ("100f00064d51497364700402003c000161", "20020001"),
        ("100d00044d5154550402003c000161", ""),  # not MQTT: nothing that it could understand
        ("100d00044d5154540403003c000161", ""),  # 3.1.1 closes without CONNACK
        ("100e00044d5154540503003c00000161", "2003008100"),
        ("101100044d5154540502003c03210000000161", "2003008200"),
        ("c000", ""),
    ],
)
def test_the_answer_to_a_wrong_connect(data, reply):
    protocol = ServerProtocol()
    assert protocol.receive_data(bytes.fromhex(data)) == []
    assert protocol.error is not None
    assert protocol.error_reply(connack_sent=False).hex() == reply


def test_a_version_that_is_not_served():
    protocol = ServerProtocol(versions=(3, 4))
    protocol.receive_data(ConnectPacket(5, "x").encode())
    assert protocol.error_reply(connack_sent=False).hex() == "2003008400"


def test_the_answer_to_a_later_error():
    for version, sent, reply in [(4, True, ""), (4, False, ""), (5, True, "e00181"), (5, False, "2003008100")]:
        protocol = connected(version)
        assert protocol.error_reply() == b""
        protocol.receive_data(b"\x36\x00")
        assert protocol.error_reply(connack_sent=sent).hex() == reply


def test_three_byte_and_padded_lengths():
    data = encode_publish(4, b"t", bytes(20_000)) + b"\x30\x84\x80\x80\x00\x00\x01tx" + encode_publish(4, b"t", b"")
    protocol = connected()
    assert [len(item[-1]) for item in flat(protocol.receive_data(data))] == [20_000, 1, 0]
    protocol = connected(5)
    protocol.receive_data(b"\x30\x85\x80\x80\x00\x00\x01t\x00x")
    assert isinstance(protocol.error, MalformedPacketError)


def test_authentication_with_a_method():
    properties = Properties({0x15: "SCRAM"})
    connect = ConnectPacket(5, "x", properties=properties).encode()
    auth = AuthPacket(0x18, properties).encode(5)

    protocol = ServerProtocol()
    assert len(protocol.receive_data(connect + auth)) == 2
    assert protocol.state is State.AUTHENTICATING
    protocol.receive_data(PINGREQ)
    assert protocol.error is not None
    assert protocol.error.rule == "5.0 [MQTT-3.1.2-30]"

    protocol = ServerProtocol()
    protocol.receive_data(connect)
    protocol.authenticated()
    assert protocol.state is State.CONNECTED
    assert len(protocol.receive_data(PINGREQ + auth)) == 2

    protocol.receive_data(AuthPacket(0x19, Properties({0x15: "other"})).encode(5))
    assert protocol.error is not None
    assert protocol.error.rule == "5.0 [MQTT-4.12.1-1]"


def test_a_session_expiry_in_disconnect_is_for_sessions_that_had_one():
    disconnect = DisconnectPacket(0, Properties({0x11: 60})).encode(5)
    protocol = ServerProtocol()
    protocol.receive_data(ConnectPacket(5, "x", properties=Properties({0x11: 1})).encode())
    assert protocol.receive_data(disconnect) == [DisconnectPacket(0, Properties({0x11: 60}))]
    protocol = connected(5)
    assert protocol.receive_data(disconnect) == []
    assert isinstance(protocol.error, ProtocolError)


def test_pubacks_with_reasons_are_runs_of_one():
    data = PubackPacket(1).encode(5) + PubackPacket(2).encode(5)
    data += PubackPacket(3, 0x87, Properties({0x1F: "no"})).encode(5) + PubackPacket(4).encode(5)
    events = connected(5).receive_data(data)
    assert [event.packet_ids for event in events] == [[1, 2], [3], [4]]
    assert (events[1].reason_code, events[1].properties.reason_string) == (0x87, "no")


def test_a_fault_does_not_keep_what_it_was_found_in():
    protocol = ServerProtocol()
    protocol.receive_data(b"\x00" * 10)
    assert protocol.error is not None
    reference = weakref.ref(protocol.error)
    gc.disable()
    try:
        del protocol
        assert reference() is None
    finally:
        gc.enable()
