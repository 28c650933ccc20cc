"""What MQTT 5 adds to replay and publishing: options, addresses on deliveries, gaps, idempotent publishers, fetches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st

from highway.broker.publishing.requests import WINDOW, Stored
from highway.errors import DiskFullError
from highway.mqtt import (
    V5,
    ConnectPacket,
    PacketType,
    Properties,
    SubscribePacket,
    Subscription,
    decode_packet,
    decode_properties,
    encode_properties,
    encode_publish,
)
from highway.mqtt.packets import PubackPacket, SubackPacket
from highway.storage import Durability
from tests.broker.rig import Peer, Rig
from tests.harness import packets

if TYPE_CHECKING:
    from pathlib import Path

T = b"t"


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, ((b"safe", "safe", Durability.SAFE), (b"#", "other", Durability.FAST)))


def user(**pairs: str) -> Properties:
    properties = Properties()
    for name, value in pairs.items():
        properties.add_user_property(name.replace("_", "-"), value)
    return properties


def connect(rig: Rig, client_id: str, *, expiry: int = 0, clean: bool = True, **pairs: str) -> Peer:
    properties = user(**pairs)
    properties.session_expiry_interval = expiry
    packet = ConnectPacket(V5, client_id, clean, 0, properties=properties)
    peer = Peer(rig, client_id, clean=clean, connect=packet.encode())
    peer.link.written.clear()
    return peer


def subscribe(peer: Peer, topic_filter: str = "t", qos: int = 1, **pairs: str) -> int:
    """Subscribe with options; returns the reason code. Messages stay in the link."""
    packet = SubscribePacket(1, [Subscription(topic_filter.encode(), qos)], user(**pairs))
    peer.send(packet.encode(V5))
    first, body = packets.PacketSplitter().feed(bytes(peer.link.written))[0]
    suback = decode_packet(packets.packet(first, body), V5)
    assert isinstance(suback, SubackPacket)
    return suback.reason_codes[0]


def received(peer: Peer) -> list[tuple[str, bytes, dict[str, str]]]:
    """(topic, payload, user properties) of the messages that came; QoS 1 is acknowledged."""
    found = []
    for first, body in peer.take():
        if first >> 4 != PacketType.PUBLISH:
            continue
        message = packets.parse_publish(first, body)
        length = message.payload[0]
        assert length < 0x80
        raw, payload = message.payload[1 : 1 + length], message.payload[1 + length :]
        found.append((message.topic, payload, dict(decode_properties(raw, PacketType.PUBLISH).user_properties)))
        if message.qos:
            peer.send(packets.ack(0x40, message.packet_id))
    return found


def publish(rig: Rig, first: int, count: int, topic: bytes = T) -> None:
    publisher = rig.connect("publisher")
    publisher.send(
        b"".join(packets.publish(topic, b"%d" % n, qos=1, packet_id=n + 1) for n in range(first, first + count))
    )
    publisher.drop()


def send(peer: Peer, packet_id: int, payload: bytes, topic: bytes = T, **pairs: str) -> PubackPacket:
    raw = encode_properties(user(**pairs), PacketType.PUBLISH)
    peer.send(encode_publish(V5, topic, payload, qos=1, packet_id=packet_id, properties=raw))
    ((first, body),) = peer.take()
    packet = decode_packet(packets.packet(first, body), V5)
    assert isinstance(packet, PubackPacket)
    return packet


def test_replay_from_and_with_offset(rig: Rig) -> None:
    publish(rig, 0, 5)
    reader = connect(rig, "r")
    assert subscribe(reader, replay_from="3", with_offset="1") == 1
    publish(rig, 5, 1)
    got = received(reader)
    now = str(rig.clock.now_ms())
    assert got == [
        ("t", b"3", {"offset": "3", "timestamp": now}),
        ("t", b"4", {"offset": "4", "timestamp": now}),
        ("t", b"5", {"offset": "5", "timestamp": now}),
    ]


def test_with_offset_alone_starts_now(rig: Rig) -> None:
    publish(rig, 0, 2)
    reader = connect(rig, "r")
    subscribe(reader, with_offset="1")
    publish(rig, 2, 1)
    assert [(payload, pairs["offset"]) for _, payload, pairs in received(reader)] == [(b"2", "2")]


def test_replay_until_ends_with_a_marker_and_no_subscription(rig: Rig) -> None:
    publish(rig, 0, 10)
    reader = connect(rig, "r")
    subscribe(reader, replay_from="2", replay_until="5")
    assert [(topic, payload) for topic, payload, _ in received(reader)] == [
        ("t", b"2"),
        ("t", b"3"),
        ("t", b"4"),
        ("$end/other", b'{"until":5}'),
    ]
    assert list(rig.broker.sessions["r"].subscriptions()) == []
    publish(rig, 10, 1)
    assert received(reader) == []


def test_replay_rate_paces_messages(rig: Rig) -> None:
    publish(rig, 0, 100)
    reader = connect(rig, "r")
    subscribe(reader, qos=0, replay_from="earliest", replay_rate="10/s")
    got = received(reader)
    assert len(got) <= 1
    for _ in range(20):
        rig.advance(0.1)
        got += received(reader)
    assert 18 <= len(got) <= 22
    assert [int(payload) for _, payload, _ in got] == list(range(len(got)))


@pytest.mark.parametrize(
    "bad",
    [
        {"replay_from": "soon"},
        {"replay_rate": "fast"},
        {"replay_rate": "0/s"},
        {"replay_from": "99"},
        {"replay_until": "x"},
    ],
)
def test_options_that_do_not_parse_are_refused_with_a_reason(rig: Rig, bad: dict[str, str]) -> None:
    publish(rig, 0, 3)
    reader = connect(rig, "r")
    assert subscribe(reader, **bad) == 0x8F
    assert b"refused" in reader.link.written or b"beyond" in reader.link.written
    assert list(rig.broker.sessions["r"].subscriptions()) == []


def test_options_survive_a_restart(rig: Rig) -> None:
    reader = connect(rig, "r", expiry=300, clean=False)
    subscribe(reader, with_offset="1", replay_from="earliest")
    reader.drop()
    rig.restart()
    publish(rig, 0, 1)
    back = connect_and_keep(rig, "r")
    assert [(payload, pairs["offset"]) for _, payload, pairs in received(back)] == [(b"0", "0")]


def connect_and_keep(rig: Rig, client_id: str) -> Peer:
    properties = Properties()
    properties.session_expiry_interval = 300
    return Peer(
        rig, client_id, clean=False, connect=ConnectPacket(V5, client_id, False, 0, properties=properties).encode()
    )


def test_a_gap_is_told_with_the_next_delivery(rig: Rig) -> None:
    publish(rig, 0, 3)
    rig.advance(2)
    rig.kill()
    first = rig.storage.logs["other"].log_end_offset
    assert first > 3
    publish(rig, 3, 2)
    reader = connect(rig, "r")
    subscribe(reader, replay_from="earliest")
    assert [(payload, pairs) for _, payload, pairs in received(reader)] == [
        (b"0", {}),
        (b"1", {}),
        (b"2", {}),
        (b"3", {"gap": f"3-{first - 1}", "gap-reason": "unclean-stop"}),
        (b"4", {}),
    ]


def test_acknowledgements_carry_the_offset_when_asked_for(rig: Rig) -> None:
    publisher = connect(rig, "p", ack_offsets="1")
    send(publisher, 1, b"first", topic=T)  # waits for a block of offsets
    assert dict(send(publisher, 2, b"a").properties.user_properties) == {"offset": "1", "durability": "FAST"}
    puback = send(publisher, 3, b"b", topic=b"safe")
    assert dict(puback.properties.user_properties) == {"offset": "0", "durability": "SAFE"}


def test_a_message_may_ask_for_more_durability_and_never_gets_less(rig: Rig) -> None:
    publisher = connect(rig, "p", ack_offsets="1")
    assert dict(send(publisher, 1, b"a", durability="SAFE").properties.user_properties)["durability"] == "SAFE"
    puback = send(publisher, 2, b"b", topic=b"safe", durability="FAST")
    assert dict(puback.properties.user_properties)["durability"] == "SAFE"
    raw = encode_properties(user(durability="SAFE"), PacketType.PUBLISH)
    packet = encode_publish(V5, T, b"c", qos=1, packet_id=3, properties=raw)
    publisher.client.handle(publisher.protocol.receive_data(packet))
    assert publisher.take() == [], "not before the sync"
    rig.settle()
    assert len(publisher.take()) == 1


def test_a_sequence_is_stored_once_across_kills(rig: Rig) -> None:
    for _ in range(3):
        publisher = connect(rig, "p")
        for number in range(5):
            puback = send(publisher, number + 1, b"%d" % number, topic=b"safe", producer="gw", sequence=str(number))
            assert puback.reason_code < 0x80
        rig.kill()
    reader = rig.connect("r").send(packets.subscribe(1, ("$replay/earliest/safe", 0)))
    assert [message.payload for message in reader.messages()] == [b"0", b"1", b"2", b"3", b"4"]


def test_producers_do_not_mix_and_logs_neither(rig: Rig) -> None:
    publisher = connect(rig, "p")
    send(publisher, 1, b"a", producer="one", sequence="5")
    send(publisher, 2, b"b", producer="two", sequence="5")
    send(publisher, 3, b"c", topic=b"safe", producer="one", sequence="5")
    send(publisher, 4, b"d", producer="one", sequence="4")
    assert rig.storage.logs["other"].log_end_offset == 3
    assert rig.storage.logs["safe"].log_end_offset == 1


def test_a_producer_of_another_user_uses_up_no_sequence(rig: Rig) -> None:
    evil, gateway = connect(rig, "evil"), connect(rig, "gateway")
    for _ in range(2):
        rig.broker.sessions["evil"].owner, rig.broker.sessions["gateway"].owner = "mallory", "gw"
        send(evil, 1, b"evil", producer="gw", sequence="9" * 17)
        send(gateway, 1, b"good", producer="gw", sequence="1")
        rig.restart()
        evil, gateway = connect(rig, "evil"), connect(rig, "gateway")
    assert rig.storage.logs["other"].log_end_offset == 2


def test_sequences_out_of_order_and_with_gaps_are_stored_once_each(rig: Rig) -> None:
    order = [7, 5, 6, 1000, 999, 2022, 1001, 998, 10**17, 3]
    expected = [b"%d" % number for number in order[:-1]]  # 3 comes when it is too far back to tell from a repetition
    for _ in range(3):
        publisher = connect(rig, "p")
        for number in [*order, *reversed(order)]:
            puback = send(publisher, 1, b"%d" % number, topic=b"safe", producer="gw", sequence=str(number))
            assert puback.reason_code < 0x80
        rig.kill()
        reader = rig.connect("r").send(packets.subscribe(1, ("$replay/earliest/safe", 0)))
        assert [message.payload for message in reader.messages()] == expected


def test_a_message_that_was_refused_is_stored_when_it_comes_behind_those_that_were_not(rig: Rig) -> None:
    publisher = connect(rig, "p")
    send(publisher, 1, b"1", producer="gw", sequence="1")
    rig.storage._committer.fault = DiskFullError("no space")
    refused = encode_properties(user(producer="gw", sequence="2"), PacketType.PUBLISH)
    publisher.send(encode_publish(V5, T, b"2", qos=1, packet_id=2, properties=refused))
    rig.storage._committer.fault = None
    publisher = connect(rig, "p")
    for sequence in (3, 2, 3, 2, 1):
        send(publisher, 1, b"%d" % sequence, producer="gw", sequence=str(sequence))
    reader = rig.connect("r").send(packets.subscribe(1, ("$replay/earliest/#", 0)))
    assert [message.payload for message in reader.messages()] == [b"1", b"3", b"2"]


@given(st.lists(st.integers(0, 3000), max_size=60))
def test_what_is_stored_of_a_producer_is_what_a_set_would_say(sequences: list[int]) -> None:
    stored, model = Stored(-1, 0), set[int]()
    for sequence in sequences:
        too_late = bool(model) and sequence < max(model) - WINDOW
        assert stored.has(sequence) == (sequence in model or too_late)
        if not stored.has(sequence):
            stored = stored.plus(sequence)
            model.add(sequence)
        encoded = stored.encode()
        assert len(encoded) <= 8 + WINDOW // 8
        assert Stored(int.from_bytes(encoded[:8], "big"), int.from_bytes(encoded[8:], "big")) == stored


@pytest.mark.parametrize("bad", [{"producer": "x"}, {"producer": "x", "sequence": "-1"}, {"durability": "MAYBE"}])
def test_requests_that_do_not_parse_end_the_connection(rig: Rig, bad: dict[str, str]) -> None:
    publisher = connect(rig, "p")
    raw = encode_properties(user(**bad), PacketType.PUBLISH)
    publisher.send(encode_publish(V5, T, b"c", qos=1, packet_id=3, properties=raw))
    assert publisher.take() == [(0xE0, b"\x83")]
    assert rig.storage.logs["other"].log_end_offset == 0


def test_fetch_by_request_and_response(rig: Rig) -> None:
    publish(rig, 0, 3)
    client = connect(rig, "c")
    subscribe(client, "answers")
    client.take()
    for offset, status in (("1", "OK"), ("7", "OFFSET_NOT_FOUND")):
        properties = Properties()
        properties.response_topic = b"answers"
        properties.correlation_data = b"id"
        raw = encode_properties(properties, PacketType.PUBLISH)
        client.send(encode_publish(V5, f"$fetch/{offset}/t".encode(), b"", qos=0, properties=raw))
        ((topic, payload, pairs),) = received(client)
        assert (topic, payload) == ("answers", b"1" if status == "OK" else b"")
        assert pairs["status"] == status
        assert pairs["offset"] == offset
        assert (pairs["log-start"], pairs["high-watermark"]) == ("0", "3")
    assert rig.storage.logs["other"].log_end_offset == 3, "neither the request nor the answer is stored"
