"""Packets that are encoded once for many readers are those that each would have got by itself."""

from __future__ import annotations

import random

import pytest

from highway.broker.delivery import shared_slices
from highway.broker.sessions.reader import Reader
from highway.storage import Durability
from tests.broker.rig import Rig
from tests.harness import packets, packets5

ENTRIES = ((b"a/#", "a", Durability.FAST),)
TOPICS = ["a/x", "a/y", "a/x/z", "a/" + "long" * 40]


@pytest.fixture
def rig(tmp_path):
    return Rig(tmp_path / "data", ENTRIES, max_inflight=50)


def fill(rig, count, *, qos=None, seed=1):
    """Messages on mixed topics in runs; with `qos` None of mixed QoS as well."""
    chosen = random.Random(seed)
    publisher = rig.connect("publisher")
    for number in range(count):
        level = chosen.randrange(3) if qos is None else qos
        body = (b"%d " % number).ljust(chosen.choice([8, 30, 200]), b".")
        publisher.feed(packets.publish(chosen.choice(TOPICS), body, qos=level, packet_id=number % 60_000 + 1))
    into_one_frame(rig)


def into_one_frame(rig):
    """Make one batch of what was appended: the small ones of a tail are not shared."""
    rig.advance(1.0)
    rig.storage.logs["a"].drain()
    rig.settle()
    assert rig.storage.logs["a"].read(0).count > shared_slices.MIN_RECORDS


def drain(rig, peer):
    """The bytes of every message, acknowledged as they come."""
    got = []
    while batch := peer.take():
        for first, body in batch:
            if first >> 4 == 3:
                got.append((first, body))
                name_end = 2 + int.from_bytes(body[:2], "big")
                if first & 6:
                    peer.feed(packets.ack(0x40 if first & 6 == 2 else 0x50, int.from_bytes(body[name_end:][:2], "big")))
            elif first == 0x62:
                peer.feed(packets.ack(0x70, int.from_bytes(body[:2], "big")))
        rig.settle()
    return got


def replayed(rig, monkeypatch, filters, *, version=4, qos=1, shared):
    if shared:
        monkeypatch.undo()
    else:
        monkeypatch.setattr(Reader, "kind", property(lambda _: None))
    name = f"r-{random.random()}"
    if version == 5:
        peer = rig.connect5(name)
        peer.subscribe(*((f"$replay/earliest/{topic_filter}", qos) for topic_filter in filters))
    else:
        peer = rig.connect(name, clean=qos < 2)  # packet ids of QoS 2 are journaled where the session is kept
        peer.send(packets.subscribe(1, *((f"$replay/earliest/{topic_filter}", qos) for topic_filter in filters)))
    return drain(rig, peer)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2, None])
@pytest.mark.parametrize("filters", [["a/#"], ["a/x"], ["a/y", "a/x/#"], ["a/nothing"]])
def test_same_bytes_as_one_by_one(filters, published, granted, version, rig, monkeypatch):
    fill(rig, 300, qos=published)
    settings = {"version": version, "qos": granted}
    alone = replayed(rig, monkeypatch, filters, shared=False, **settings)
    together = replayed(rig, monkeypatch, filters, shared=True, **settings)
    assert together == alone
    assert bool(alone) == (filters != ["a/nothing"])


def test_slices_are_made_once_for_all_readers_of_a_kind(rig, monkeypatch):
    fill(rig, 200, qos=1)
    made = []
    fill_one = shared_slices.Slice.fill
    monkeypatch.setattr(
        shared_slices.Slice, "fill", lambda self, *args: made.append(1) is not None or fill_one(self, *args)
    )
    for number in range(5):
        peer = rig.connect(f"r{number}")
        peer.send(packets.subscribe(1, ("$replay/earliest/a/#", 1)))
        assert len(drain(rig, peer)) == 200
    assert len(made) == 1


def test_kinds_that_a_batch_keeps_are_bounded(rig):
    fill(rig, 200, qos=1)
    batch = rig.storage.logs["a"].read(0)
    for number in range(20):
        peer = rig.connect(f"r{number}")
        peer.send(packets.subscribe(1, ("$replay/earliest/a/#", 1), (f"$replay/earliest/a/{number}", 0)))
        drain(rig, peer)
        peer.send(packets.subscribe(1, ("a/#", 1), (f"a/{number}", 0)))
    assert 0 < len(batch.encodings) <= shared_slices.MAX_KINDS


def test_what_has_to_be_looked_at_for_each_reader_is_not_shared(rig):
    publisher = rig.connect5("publisher")
    for number in range(50):
        publisher.send(packets5.publish("a/x", b"%d" % number, qos=0, user_property=[("n", str(number))]))
    into_one_frame(rig)
    plain = rig.connect5("plain")
    plain.subscribe(("$replay/earliest/a/#", 0))
    expected = [[("user_property", ("n", str(number)))] for number in range(50)]
    assert [list(message.properties) for message in plain.messages()] == expected
    small = rig.connect5("small", maximum_packet_size=1000)
    small.subscribe(("$replay/earliest/a/#", 0), subscription_identifier=7)
    messages = small.messages()
    assert len(messages) == 50
    assert all(("subscription_identifier", 7) in message.properties for message in messages)


def test_window_that_is_full_waits_where_it_is(rig):
    fill(rig, 200, qos=1)
    peer = rig.connect("r")
    peer.send(packets.subscribe(1, ("$replay/earliest/a/#", 1)))
    first = peer.messages()
    session = rig.broker.sessions["r"]
    assert (len(first), session.quota) == (50, 0)
    assert session.window_full_since_ms == rig.clock.now_ms()
    assert len(drain(rig, peer)) == 0
    for message in first:
        peer.send(packets.ack(0x40, message.packet_id))
    assert len(first) + len(drain(rig, peer)) == 200
    assert session.window_full_since_ms is None
