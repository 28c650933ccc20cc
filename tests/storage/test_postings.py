from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from highway.errors import CorruptionError
from highway.storage.segment import postings as topic_postings
from highway.storage.segment.postings import ANYWHERE, StoredPostings, TopicPostings, entries_with

TOPICS = [b"t/%d" % number for number in range(40)]

# Which topics the frames hold; several frames in a row may belong to one entry.
frames = st.lists(
    st.tuples(st.booleans(), st.sets(st.sampled_from(TOPICS), min_size=1, max_size=12)), min_size=1, max_size=80
)


def build(drawn):
    """Return postings, and the set of topics of each entry."""
    postings = TopicPostings()
    entries = []
    for shares_entry, topics in drawn:
        if not (shares_entry and entries):
            entries.append(set())
        postings.add(len(entries) - 1, topics)
        entries[-1] |= topics
    return postings, entries


def stored(postings, entries, at=7):
    """Return the postings as they are read back, from somewhere in a file."""
    data = bytes(at) + postings.encode(entries)
    return StoredPostings(lambda length, position: data[position : position + length], at, "x.idx")


def read_from(data):
    return StoredPostings(lambda length, position: data[position : position + length], 0, "x.idx")


@given(frames, st.sets(st.sampled_from(TOPICS), min_size=1, max_size=3), st.integers(0, 60), st.integers(0, 80))
def test_the_entries_of_a_topic_are_those_that_hold_it(drawn, wanted, first, end):
    postings, entries = build(drawn)
    expected = [n for n in range(first, min(end, len(entries))) if entries[n] & wanted]
    read_back = stored(postings, len(entries))
    assert list(entries_with(postings, wanted, first, end)) == expected
    assert list(entries_with(read_back, wanted, first, end)) == expected
    assert list(entries_with(TopicPostings.of(read_back), wanted, first, end)) == expected
    assert read_back.entries == len(entries)


@pytest.mark.parametrize(("topics", "pairs"), [(10, 1 << 30), (1 << 30, 25), (10, 25)])
def test_what_gets_too_much_is_made_coarser_and_forgets_nothing(monkeypatch, topics, pairs):
    monkeypatch.setattr(topic_postings, "MAX_TOPICS", topics)
    monkeypatch.setattr(topic_postings, "MAX_PAIRS", pairs)
    monkeypatch.setattr(topic_postings, "_COARSE_BITS", 3)
    drawn = [(False, {TOPICS[(n * n + k * 7) % 40] for k in range(3)}) for n in range(100)]
    postings, entries = build(drawn)
    bits, shift, lists = postings._state
    assert len(lists) <= min(topics, 40)
    assert sum(map(len, lists.values())) <= pairs or len(lists) == sum(map(len, lists.values()))
    for form in (postings, stored(postings, len(entries))):
        for topic in TOPICS:
            found = list(entries_with(form, [topic], 0, len(entries)))
            assert {n for n in range(len(entries)) if topic in entries[n]} <= set(found)
            assert found == sorted(set(found))
            part = list(entries_with(form, [topic], 37, 71))
            assert part == [n for n in found if 37 <= n < 71]
    assert (bits, shift) != (32, 0)


def test_a_topic_that_is_nowhere_has_no_entries():
    postings, entries = build([(False, {b"a"}), (False, {b"b"})])
    assert list(entries_with(postings, [b"c"], 0, 2)) == []
    assert list(entries_with(stored(postings, len(entries)), [b"c"], 0, 2)) == []
    assert list(entries_with(ANYWHERE, [b"c"], 1, 4)) == [1, 2, 3]


def test_far_apart_entries_come_back():
    postings = TopicPostings()
    for entry in (0, 255, 256, 512, 70_000, 70_001):
        postings.add(entry, [b"far"])
    assert list(entries_with(stored(postings, 70_002), [b"far"], 0, 80_000)) == [0, 255, 256, 512, 70_000, 70_001]


def test_a_look_up_reads_a_small_part():
    postings = TopicPostings()
    for entry in range(200):
        postings.add(entry, [b"sensor/%d" % ((entry * 97 + k * 13) % 5000) for k in range(300)])
    data = postings.encode(200)
    got = []

    def read(length, position):
        got.append(length)
        return data[position : position + length]

    read_back = StoredPostings(read, 0, "x.idx")
    assert entries_with(read_back, [b"sensor/123"], 0, 200)
    assert sum(got) < len(data) / 20
    del got[:]
    entries_with(read_back, [b"sensor/123"], 0, 200)
    assert not got, "it is remembered"


def test_every_damaged_byte_is_noticed_or_harmless():
    postings, entries = build([(False, {TOPICS[n % 40], TOPICS[n * n % 40]}) for n in range(90)])
    good = postings.encode(len(entries))
    expected = {topic: list(entries_with(postings, [topic], 0, 90)) for topic in TOPICS}
    refused = 0
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x41
        data = bytes(bad)
        for topic in TOPICS:
            try:
                found = StoredPostings(lambda length, position, data=data: data[position : position + length], 0, "x")
                entries_of = list(entries_with(found, [topic], 0, 90))
            except CorruptionError:
                refused += 1
            else:
                assert entries_of == expected[topic]
    assert refused >= len(good)
    for length in range(len(good)):
        with pytest.raises(CorruptionError):
            TopicPostings.of(read_from(good[:length]))


def test_an_absurd_number_of_buckets_is_refused_before_it_is_read():
    head = (1).to_bytes(4, "big") + bytes((32, 0)) + (31).to_bytes(2, "big")
    data = topic_postings._sealed(head)
    with pytest.raises(CorruptionError, match="2\\^31 buckets"):
        StoredPostings(lambda length, position: data[position : position + length], 0, "x")
