from __future__ import annotations

from hypothesis import given, strategies as st

from highway.errors import ProtocolError
from highway.mqtt import (
    PACKET_IDS,
    ConnectPacket,
    PublishHeads,
    PublishRun,
    ServerProtocol,
    encode_publish,
    encode_qos,
    encode_qos0,
    property_block,
    publish,
    publish_first_byte,
    topic_alias_block,
)
from highway.mqtt.wire import encode_varint
from tests.mqtt.strategies import message_blocks, topic_names

sizes = st.one_of(st.integers(0, 300), st.sampled_from([100, 101, 102, 103, 104, 105, 16_370, 16_384, 70_000]))
batches = st.lists(
    st.tuples(
        st.integers(1, 65_535),
        sizes.map(lambda size: bytes(range(256)) * (size // 256 + 1)).flatmap(
            lambda data: st.integers(0, len(data)).map(lambda size: data[:size])
        ),
    ),
    min_size=1,
    max_size=12,
)


def events_of(data: bytes, version: int = 4, **options) -> tuple[list, ServerProtocol]:
    protocol = ServerProtocol(**options)
    protocol.receive_data(ConnectPacket(version, "x").encode())
    return protocol.receive_data(data), protocol


@given(topic_names, batches, st.integers(1, 2))
def test_a_batch_goes_out_and_comes_in_as_one_run(topic_name, batch, qos):
    ids = [PACKET_IDS[number] for number, _ in batch]
    payloads = [payload for _, payload in batch]
    heads = PublishHeads(0x30 | qos << 1, topic_name, 2)
    data = encode_qos(heads, ids, payloads)
    assert data == b"".join(
        encode_publish(4, topic_name, payload, qos=qos, packet_id=number) for number, payload in batch
    )
    events, protocol = events_of(data)
    assert protocol.error is None
    assert b"".join(b"".join(event.packet_ids) for event in events) == b"".join(ids)
    assert [payload for event in events for payload in event.payloads] == payloads
    assert [event.payload_bytes for event in events] == [sum(map(len, event.payloads)) for event in events]
    assert {(event.topic_name, event.qos) for event in events} == {(topic_name, qos)}
    if len({len(head) for head in map(heads.__getitem__, map(len, payloads))}) == 1 and len(topic_name) < 200:
        assert len(events) == 1  # another length of the remaining length makes another run


@given(topic_names, batches, message_blocks(5), st.integers(0, 2))
def test_a_batch_of_5_0_with_properties(topic_name, batch, raw, qos):
    block = property_block(raw)
    payloads = [payload for _, payload in batch]
    first = publish_first_byte(qos, retain=True)
    if qos:
        heads = PublishHeads(first, topic_name, 2 + len(block))
        data = encode_qos(heads, [PACKET_IDS[number] for number, _ in batch], payloads, block)
    else:
        data = encode_qos0(PublishHeads(first, topic_name, suffix=block), payloads)
    assert data == b"".join(
        encode_publish(5, topic_name, payload, qos=qos, packet_id=number, retain=True, properties=raw)
        for number, payload in batch
    )
    events, protocol = events_of(data, 5)
    assert protocol.error is None
    assert [payload for event in events for payload in event.payloads] == payloads
    assert [event.payload_bytes for event in events] == [sum(map(len, event.payloads)) for event in events]
    assert {(event.topic_name, event.qos, event.retain, event.properties) for event in events} == {
        (topic_name, qos, True, raw)
    }


def test_runs_end_where_first_byte_topic_or_properties_change():
    packets = [
        encode_publish(5, b"a", b"1", qos=1, packet_id=1),
        encode_publish(5, b"a", b"2", qos=1, packet_id=2),
        encode_publish(5, b"a", b"3", qos=1, packet_id=3, dup=True),
        encode_publish(5, b"ab", b"4", qos=1, packet_id=4),
        encode_publish(5, b"ab", b"5", qos=1, packet_id=5, properties=b"\x01\x01"),
        encode_publish(5, b"ab", b"6", qos=1, packet_id=6, properties=b"\x01\x01"),
        encode_publish(5, b"ab", b"7"),
    ]
    events, _ = events_of(b"".join(packets), 5)
    assert [event.payloads for event in events] == [[b"1", b"2"], [b"3"], [b"4"], [b"5", b"6"], [b"7"]]
    assert [event.dup for event in events] == [False, True, False, False, False]
    assert [event.topic_name for event in events] == [b"a", b"a", b"ab", b"ab", b"ab"]
    assert events[-1].packet_ids == []
    assert repr(events[0]).startswith("PublishRun(topic_name=b'a', qos=1")


def test_a_follower_shorter_than_the_key_is_judged_by_itself():
    good = encode_publish(4, b"topic", b"x", qos=1, packet_id=1)
    events, protocol = events_of(good + good + b"\x32\x04\x00\x05to" + b"pic")
    assert [len(event.payloads) for event in events] == [2]
    assert protocol.error is not None


def test_a_payload_that_looks_like_the_next_packet():
    inner = encode_publish(4, b"t", b"boo", qos=1, packet_id=9)
    payloads = [inner, inner * 3, b"", inner[:-1], b"\x00\x01t" * 5]
    data = b"".join(encode_publish(4, b"t", payload, qos=1, packet_id=5) for payload in payloads * 10)
    events, _ = events_of(data)
    assert [payload for event in events for payload in event.payloads] == payloads * 10


def test_packet_id_0_in_the_middle_of_a_run():
    ids = [1, 2, 0, 3]
    data = b"".join(encode_publish(4, b"t", b"%d" % number, qos=1, packet_id=number) for number in ids)
    events, protocol = events_of(data)
    assert [event.payloads for event in events] == [[b"1", b"2"]]
    assert isinstance(protocol.error, ProtocolError)
    assert "packet id 0" in str(protocol.error)


def test_topic_aliases():
    data = [
        encode_publish(5, b"t/1", b"1", properties=b"\x23\0\1"),
        encode_publish(5, b"", b"2", properties=b"\x23\0\1"),
        encode_publish(5, b"", b"3", properties=b"\x23\0\1"),
        encode_publish(5, b"t/2", b"4", properties=b"\x23\0\1\x26\0\1k\0\1v"),
        encode_publish(5, b"", b"5", qos=1, packet_id=1, properties=b"\x23\0\1"),
    ]
    events, protocol = events_of(b"".join(data), 5, topic_alias_maximum=1)
    assert protocol.error is None
    assert [(event.topic_name, event.payloads) for event in events] == [
        (b"t/1", [b"1"]),
        (b"t/1", [b"2", b"3"]),
        (b"t/2", [b"4"]),
        (b"t/2", [b"5"]),
    ]
    assert [event.properties for event in events] == [b"", b"", b"\x26\0\1k\0\1v", b""]
    other, protocol = events_of(data[1], 5, topic_alias_maximum=1)
    assert other == []
    assert protocol.error is not None


def test_messages_of_a_long_topic_behind_an_alias_are_no_run():
    """Each is stored with the topic, so that a read of 250 KiB would become gigabytes if it were taken as one."""
    alias = property_block(b"\x23\0\1")
    for size, runs in ((200, 1), (1000, 50)):
        first = b"\x30" + encode_varint(2 + size + len(alias)) + size.to_bytes(2, "big") + b"t" * size + alias
        short = b"\x30" + encode_varint(2 + len(alias)) + b"\0\0" + alias
        events, protocol = events_of(first + short * 50, 5, topic_alias_maximum=1)
        assert protocol.error is None
        assert (len(events), sum(len(event.payloads) for event in events)) == (1 + runs, 51)


def test_the_alias_block_of_the_other_direction():
    block = topic_alias_block(7, b"\x01\x01")
    data = encode_qos0(PublishHeads(0x30, b"t", suffix=block), [b"x"]) + encode_qos0(
        PublishHeads(0x30, b"", suffix=topic_alias_block(7)), [b"y"]
    )
    events, _ = events_of(data, 5, topic_alias_maximum=7)
    assert [(event.topic_name, event.properties) for event in events] == [(b"t", b"\x01\x01"), (b"t", b"")]


def test_what_is_remembered_stays_bounded(monkeypatch):
    monkeypatch.setattr(publish, "_MAX_REMEMBERED", 10)
    monkeypatch.setattr(publish, "_MAX_TOPICS", 10)
    for number in range(50):
        name = b"bounded/%d" % number
        raw = b"\x26\0\2%02d\0\1v" % number
        events, _ = events_of(encode_publish(5, name, b"", properties=raw), 5)
        assert (events[0].topic_name, events[0].properties) == (name, raw)
        assert len(publish._known_topics) <= 11
        assert len(publish._known_properties) <= 11
    events_of(encode_publish(5, b"t" * 1000, b"", properties=b"\x26\3\xe8" + b"k" * 1000 + b"\0\1v"), 5)
    assert b"t" * 1000 not in publish._known_topics
    assert all(len(raw) <= 256 for raw in publish._known_properties)


def test_heads_stay_bounded():
    heads = PublishHeads(0x30, b"t")
    for size in range(PublishHeads.MAX_SIZES + 10):
        assert heads[size] == encode_publish(4, b"t", b"")[:1] + encode_publish(4, b"t", bytes(size))[1 : -size or None]
    assert len(heads) <= PublishHeads.MAX_SIZES


def test_first_bytes():
    assert publish_first_byte(0, dup=True) == 0x30
    assert publish_first_byte(2, retain=True, dup=True) == 0x3D
    run = PublishRun(b"t", 0x3D, [], [])
    assert (run.qos, run.retain, run.dup) == (2, True, True)
