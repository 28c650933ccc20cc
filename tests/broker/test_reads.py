"""Catching up from disk: few read at a time, nobody waits for one that is stuck, and places are never lost."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from highway.broker.delivery.cursor import Cursor
from highway.broker.delivery.reads import MAX_READS
from highway.errors import StorageError
from highway.storage import Durability
from highway.storage.disk.pool import Pool
from highway.storage.log import view
from highway.storage.segment import records
from tests.broker.rig import FakeLink, Rig
from tests.harness import packets

FRAMES, EACH = 30, 20


@pytest.fixture
def rig(tmp_path):
    """A log of FRAMES frames of EACH messages, of which the cache holds none."""
    rig = Rig(tmp_path / "data", ((b"#", "other", Durability.FAST),), max_inflight=EACH)
    publisher = rig.connect("publisher")
    for frame in range(FRAMES):
        for number in range(EACH):
            publisher.feed(packets.publish("a", b"%d" % (frame * EACH + number), qos=1, packet_id=1))
        rig.advance(1.0)
        rig.storage.logs["other"].drain()
        rig.settle()
    forget_cache(rig)
    return rig


def forget_cache(rig):
    rig.storage._cache.discard_below(rig.storage.logs["other"].log_id, 1 << 60)


@pytest.fixture
def slow_disk(monkeypatch):
    """A context in which nothing that is to be read comes."""

    @contextmanager
    def hold():
        with monkeypatch.context() as patch:
            patch.setattr(Pool, "run_pending", lambda _: False)
            yield

    return hold


def ask(rig, client_id, offset, qos=0, topic_filter="#"):
    """Connect and ask for a replay."""
    peer = rig.connect(client_id)
    peer.send(packets.subscribe(1, (f"$replay/{offset}/{topic_filter}", qos)))
    return peer


def numbers(peer):
    return [int(message.payload) for message in peer.messages()]


def test_only_so_many_read_at_once_and_all_are_served(rig, slow_disk):
    with slow_disk():
        peers = [ask(rig, f"r{frame}", frame * EACH) for frame in range(FRAMES)]
    reads = rig.broker.reads
    assert (reads.held, reads.waiting) == (MAX_READS, FRAMES - MAX_READS)
    rig.settle()
    for frame, peer in enumerate(peers):
        assert numbers(peer) == list(range(frame * EACH, FRAMES * EACH))
    assert (reads.held, reads.waiting) == (0, 0)


def test_who_waits_for_what_another_reads_finds_it_in_memory(rig, slow_disk, monkeypatch):
    read = []
    load_at = view.load_at
    monkeypatch.setattr(
        view, "load_at", lambda segments, offset, *a, **k: read.append(offset) or load_at(segments, offset, *a, **k)
    )
    with slow_disk():
        peers = [ask(rig, f"r{number}", number % EACH) for number in range(2 * EACH)]
    assert not read
    rig.settle()
    assert [numbers(peer) for peer in peers] == [
        list(range(number % EACH, FRAMES * EACH)) for number in range(2 * EACH)
    ]
    # The first frame was asked for by those who had a place; after that, each once.
    assert len(read) == MAX_READS + FRAMES - 1


def test_reader_that_is_stuck_keeps_nobody_from_reading(rig, slow_disk):
    with slow_disk():
        stuck = [ask(rig, f"s{number}", number * EACH) for number in range(MAX_READS)]
        for peer in stuck:
            peer.link.congested = True
        other = ask(rig, "other", 20 * EACH)
    assert rig.broker.reads.held == MAX_READS
    rig.settle()
    assert numbers(other) == list(range(20 * EACH, FRAMES * EACH))
    assert rig.broker.reads.held == 0
    forget_cache(rig)
    for peer in stuck:
        peer.link.congested = False
        rig.broker.drained(peer.client)
    rig.settle()
    for number, peer in enumerate(stuck):
        assert numbers(peer) == list(range(number * EACH, FRAMES * EACH))


def test_readers_that_leave_while_they_wait_leave_no_place_taken(rig, slow_disk):
    with slow_disk():
        peers = [ask(rig, f"r{number}", number % (FRAMES * EACH)) for number in range(1500)]
        assert rig.broker.reads.waiting == 1500 - MAX_READS
        for peer in peers:
            peer.client.lost()
    rig.settle()
    assert (rig.broker.reads.held, rig.broker.reads.waiting) == (0, 0)
    peer = ask(rig, "last", FRAMES * EACH - 1)
    rig.settle()
    assert numbers(peer) == [FRAMES * EACH - 1]


def test_window_that_is_full_gives_its_place_back(rig):
    peer = ask(rig, "r", 0, qos=1)
    rig.settle()
    assert len(peer.messages()) == EACH
    assert rig.broker.reads.held == 0


def test_turns_go_round_among_those_who_catch_up(rig):
    clock = rig.clock
    peers = [rig.connect(f"r{number}") for number in range(4)]
    order = []
    for peer in peers:
        write = peer.link.write
        peer.link.write = lambda data, peer=peer, write=write: (order.append(peer), write(data), clock.advance(0.003))
    for peer in peers:
        peer.feed(packets.subscribe(1, ("$replay/earliest/#", 0)))
    rig.settle()
    for peer in peers:
        assert numbers(peer) == list(range(FRAMES * EACH))
    # Nobody is served for the third time before everybody was for the first: a turn ends when its time is used.
    assert set(order[: 2 * len(peers)]) == set(peers)


@pytest.mark.parametrize("topic_filter", ["$replay/earliest/#", "$share/g/$replay/earliest/#"])
def test_a_read_that_fails_is_tried_again_later_and_not_in_every_turn(rig, monkeypatch, topic_filter):
    asked = []

    def fail(_segments, offset, *_, **__):
        asked.append(offset)
        raise StorageError("the disk is on holiday")

    with monkeypatch.context() as patch:
        patch.setattr(view, "load_at", fail)
        peer = rig.connect("r").send(packets.subscribe(1, (topic_filter, 0)))
        for _ in range(50):
            rig.broker.drained(peer.client)  # whatever pumps it
            rig.settle()
        assert len(asked) == 1
        rig.advance(1.1)
        assert len(asked) == 2
    rig.advance(1.1)
    assert numbers(peer) == list(range(FRAMES * EACH))
    assert (rig.broker.reads.held, rig.broker.reads.waiting) == (0, 0)


def test_readers_of_other_topics_find_in_memory_what_one_of_them_has_read(tmp_path, slow_disk, monkeypatch):
    rig = Rig(tmp_path / "data", ((b"#", "other", Durability.FAST),), max_inflight=EACH)
    topics, each = [f"t/{number}" for number in range(20)], 30
    publisher = rig.connect("publisher")
    for number in range(each):
        for topic in topics:
            publisher.feed(packets.publish(topic, b"%d" % number, qos=1, packet_id=1))
        if number % 10 == 9:  # three frames of 200 records, with ten of each topic
            rig.advance(1.0)
            rig.storage.logs["other"].drain()
            rig.settle()
    forget_cache(rig)
    read = []
    load_at = view.load_at
    monkeypatch.setattr(
        view, "load_at", lambda segments, offset, *a, **k: read.append(offset) or load_at(segments, offset, *a, **k)
    )
    with slow_disk():
        peers = [ask(rig, f"r{topic}", "earliest", 1, topic) for topic in topics]
        pair = rig.connect("pair")
        pair.send(packets.subscribe(1, ("t/3", 1), ("t/7", 0)) + packets.publish("t/7", b"live"))
    rig.settle()
    for topic, peer in zip(topics, peers, strict=True):
        got = peer.messages()
        assert [(m.topic, int(m.payload)) for m in got] == [(topic, number) for number in range(EACH)]  # the window
        peer.send(b"".join(packets.ack(0x40, message.packet_id) for message in got))
        assert [int(m.payload) for m in peer.messages() if m.payload != b"live"] == list(range(EACH, each))
    assert len(read) == 2  # a frame for the first of them, and all others for those who wait
    assert [m.payload for m in pair.messages()] == [b"live"]


def test_herd_whose_topics_share_every_frame_has_each_frame_decoded_about_once(tmp_path, monkeypatch):
    """Beside a cache that holds two of the frames, and with two groups that stand at different places."""
    rig = Rig(tmp_path / "data", ((b"#", "other", Durability.FAST),), max_inflight=1000)
    topics, rounds = [f"t/{number}" for number in range(150)], 60
    publisher = rig.connect("publisher")
    for number in range(rounds):
        for topic in topics:
            publisher.feed(packets.publish(topic, b"%d" % number, qos=1, packet_id=1))
        if number % 3 == 2:
            rig.advance(1.0)
            rig.storage.logs["other"].drain()
            rig.settle()
    log = rig.storage.logs["other"]
    frames = sum(1 for segment in log.writer.segments for _ in segment.frames())
    assert frames >= rounds // 3
    forget_cache(rig)
    rig.storage._cache._limit = 400_000
    decoded, sent = [], []
    decode = records.decode_records
    monkeypatch.setattr(records, "decode_records", lambda data, *rest: decoded.append(len(data)) or decode(data, *rest))
    write = FakeLink.write
    monkeypatch.setattr(FakeLink, "write", lambda link, data: sent.append(link) or write(link, data))
    starts = [0 if number % 2 else 450 for number in range(len(topics))]
    peers = [rig.connect(f"r{topic}") for topic in topics]
    for peer, topic, start in zip(peers, topics, starts, strict=True):
        peer.feed(packets.subscribe(1, (f"$replay/{start}/{topic}", 1)))
    rig.settle()
    for peer, topic, start in zip(peers, topics, starts, strict=True):
        expected = [(topic, number) for number in range(start // len(topics), rounds)]
        assert [(m.topic, int(m.payload)) for m in peer.messages()] == expected
    assert len(decoded) <= 2 * frames + MAX_READS
    assert len(sent) <= 6 * len(topics), "a write for each frame and session"


def test_tail_of_single_messages_is_walked_in_pieces(rig, monkeypatch):
    publisher = rig.connect("publisher")
    for number in range(2000):
        publisher.feed(packets.publish("tail", b"%d" % number, qos=1, packet_id=1))
    rig.settle()
    steps = []
    send = Cursor._send
    monkeypatch.setattr(Cursor, "_send", lambda cursor, *rest: steps.append(cursor) or send(cursor, *rest))
    peers = [ask(rig, f"r{number}", FRAMES * EACH, topic_filter="tail") for number in range(20)]
    assert [numbers(peer) for peer in peers] == [list(range(2000))] * 20
    assert len(steps) <= 5 * len(peers)
