"""Encodings against amqtt's codec of 3.1.1, in both directions."""

from __future__ import annotations

import asyncio

from amqtt.adapters import BufferReader
from amqtt.mqtt.connack import ConnackPacket as TheirConnack
from amqtt.mqtt.connect import ConnectPacket as TheirConnect, ConnectPayload, ConnectVariableHeader
from amqtt.mqtt.packet import PacketIdVariableHeader
from amqtt.mqtt.puback import PubackPacket as TheirPuback
from amqtt.mqtt.pubcomp import PubcompPacket as TheirPubcomp
from amqtt.mqtt.publish import PublishPacket as TheirPublish
from amqtt.mqtt.pubrec import PubrecPacket as TheirPubrec
from amqtt.mqtt.pubrel import PubrelPacket as TheirPubrel
from amqtt.mqtt.suback import SubackPacket as TheirSuback
from amqtt.mqtt.subscribe import SubscribePacket as TheirSubscribe, SubscribePayload
from amqtt.mqtt.unsubscribe import UnsubscribePacket as TheirUnsubscribe, UnubscribePayload
from hypothesis import given, strategies as st

from highway.mqtt import (
    ConnackPacket,
    ConnectPacket,
    PubackPacket,
    PubcompPacket,
    PubrecPacket,
    PubrelPacket,
    SubackPacket,
    SubscribePacket,
    Subscription,
    UnsubscribePacket,
    Will,
    decode_packet,
    encode_publish,
)
from tests.mqtt.strategies import names, packet_ids, payloads, topic_filters, topic_names


def theirs_from(kind, data: bytes):
    return asyncio.run(kind.from_stream(BufferReader(data)))


@given(topic_names, payloads, packet_ids, st.integers(0, 2), st.booleans(), st.booleans())
def test_publish(topic_name, payload, packet_id, qos, retain, dup):
    number = packet_id if qos else None
    dup = dup and qos > 0
    their = TheirPublish.build(topic_name.decode(), payload, number, dup, qos, retain)
    our = encode_publish(4, topic_name, payload, qos=qos, retain=retain, dup=dup, packet_id=packet_id)
    assert our == bytes(their.to_bytes())
    read = theirs_from(TheirPublish, our)
    assert (read.topic_name, bytes(read.data), read.packet_id, read.qos) == (topic_name.decode(), payload, number, qos)


@given(st.lists(st.tuples(topic_filters(), st.integers(0, 2)), min_size=1, max_size=5), packet_ids)
def test_subscribe_and_unsubscribe(topics, packet_id):
    their = TheirSubscribe(
        None, PacketIdVariableHeader(packet_id), SubscribePayload([(one.decode(), qos) for one, qos in topics])
    )
    our = SubscribePacket(packet_id, [Subscription(one, qos) for one, qos in topics])
    assert our.encode(4) == bytes(their.to_bytes())
    their = TheirUnsubscribe(
        None, PacketIdVariableHeader(packet_id), UnubscribePayload([one.decode() for one, _ in topics])
    )
    assert UnsubscribePacket(packet_id, [one for one, _ in topics]).encode(4) == bytes(their.to_bytes())


@given(names.filter(bool), st.booleans(), st.integers(0, 65_535), st.none() | names.filter(bool), payloads, topic_names)
def test_connect(client_id, clean_start, keep_alive, username, payload, topic_name):
    header = ConnectVariableHeader(keep_alive=keep_alive)
    header.clean_session_flag = clean_start
    body = ConnectPayload(client_id, topic_name.decode(), payload or b"x", username, None)
    header.will_flag = True
    header.will_qos = 1
    header.will_retain_flag = True
    header.username_flag = username is not None
    their = TheirConnect(None, header, body)
    our = ConnectPacket(
        4, client_id, clean_start, keep_alive, username, None, Will(topic_name, payload or b"x", 1, retain=True)
    )
    assert our.encode() == bytes(their.to_bytes())
    assert decode_packet(bytes(their.to_bytes()), 4) == our


@given(packet_ids)
def test_acknowledgements(packet_id):
    for our, their in [
        (PubackPacket, TheirPuback),
        (PubrecPacket, TheirPubrec),
        (PubrelPacket, TheirPubrel),
        (PubcompPacket, TheirPubcomp),
    ]:
        assert our(packet_id).encode(4) == bytes(their.build(packet_id).to_bytes())


@given(st.booleans(), st.sampled_from([(0x00, 0), (0x84, 1), (0x85, 2), (0x88, 3), (0x86, 4), (0x87, 5)]))
def test_connack(present, codes):
    reason_code, return_code = codes
    read = theirs_from(TheirConnack, ConnackPacket(session_present=present, reason_code=reason_code).encode(4))
    assert read.return_code == return_code
    assert read.session_parent == int(present and return_code == 0)


@given(packet_ids, st.lists(st.sampled_from([0, 1, 2, 0x80]), min_size=1, max_size=5))
def test_suback(packet_id, codes):
    assert SubackPacket(packet_id, codes).encode(4) == bytes(TheirSuback.build(packet_id, codes).to_bytes())
