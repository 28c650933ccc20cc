"""The index of topic filters against the plain rules, its frugality, and its cost by depth and hits."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, strategies as st

from highway.broker.subscriptions.trie import FilterTrie
from tests.broker.naive_matcher import naive_matches, topic_filters, topic_names

keys = st.integers(0, 3)


def matched(trie: FilterTrie[int], topic_name: bytes) -> list[tuple[bytes, object, int]]:
    return sorted(trie.match(topic_name), key=repr)


@given(
    st.lists(st.tuples(st.booleans(), topic_filters, keys, st.integers())),
    st.lists(topic_names, min_size=1, max_size=8),
)
def test_matches_like_the_plain_rules_after_any_adds_and_removes(
    steps: list[tuple[bool, bytes, int, int]], names: list[bytes]
) -> None:
    trie: FilterTrie[int] = FilterTrie()
    model: dict[tuple[bytes, int], int] = {}
    for adds, topic_filter, key, value in steps:
        if adds:
            assert trie.add(topic_filter, key, value) is ((topic_filter, key) not in model)
            model[topic_filter, key] = value
        else:
            assert trie.remove(topic_filter, key) is (model.pop((topic_filter, key), None) is not None)
        assert len(trie) == len(model)
    for name in names:
        expected = [(*pair, value) for pair, value in model.items() if naive_matches(pair[0], name)]
        assert matched(trie, name) == sorted(expected, key=repr)


@given(st.lists(st.tuples(topic_filters, keys), unique=True))
def test_keeps_no_node_when_everything_is_removed(pairs: list[tuple[bytes, int]]) -> None:
    trie: FilterTrie[None] = FilterTrie()
    for topic_filter, key in pairs:
        trie.add(topic_filter, key, None)
    for topic_filter, key in pairs:
        assert trie.remove(topic_filter, key)
    assert trie._root.is_empty()
    assert not trie._exact


@pytest.mark.parametrize(
    ("topic_filter", "topic_name", "matches"),
    [
        (b"#", b"$SYS/broker/uptime", False),
        (b"+/#", b"$SYS/broker/uptime", False),
        (b"+/broker/uptime", b"$SYS/broker/uptime", False),
        (b"$SYS/#", b"$SYS/broker/uptime", True),
        (b"$SYS/+/uptime", b"$SYS/broker/uptime", True),
        (b"a/#", b"a", True),
        (b"a/#", b"a/", True),
        (b"+", b"", True),
        (b"+/+", b"/x", True),
        (b"/+", b"/x", True),
        (b"+", b"/x", False),
        (b"a/+/#", b"a", False),
    ],
)
def test_named_cases_of_the_specification(topic_filter: bytes, topic_name: bytes, *, matches: bool) -> None:
    trie: FilterTrie[int] = FilterTrie()
    trie.add(topic_filter, "session", 1)
    assert trie.match(topic_name) == ([(topic_filter, "session", 1)] if matches else [])


def test_a_second_add_replaces_the_value() -> None:
    trie: FilterTrie[str] = FilterTrie()
    assert trie.add(b"a/+", 1, "old")
    assert not trie.add(b"a/+", 1, "new")
    assert trie.match(b"a/b") == [(b"a/+", 1, "new")]


def test_30_000_levels_neither_recurse_nor_stall() -> None:
    trie: FilterTrie[None] = FilterTrie()
    deep = b"/".join([b"+"] * 30_000)
    trie.add(deep, 1, None)
    assert trie.match(b"/" * 29_999) == [(deep, 1, None)]
    assert trie.remove(deep, 1)
    assert trie._root.is_empty()


def seconds_for_1000_matches(trie: FilterTrie[None], topic_name: bytes) -> float:
    fastest = float("inf")
    for _ in range(5):
        start = time.thread_time()
        for _ in range(1000):
            trie.match(topic_name)
        fastest = min(fastest, time.thread_time() - start)
    return fastest


def test_a_match_costs_the_same_among_100_000_filters() -> None:
    small: FilterTrie[None] = FilterTrie()
    large: FilterTrie[None] = FilterTrie()
    for trie, count in ((small, 10), (large, 100_000)):
        for number in range(count):
            trie.add(b"device/%d/+" % number, number, None)
            trie.add(b"exact/%d/x" % number, number, None)
    assert len(large) == 200_000
    few, many = (seconds_for_1000_matches(trie, b"device/none/x") for trie in (small, large))
    # Field report 69 asks for a factor of 3; the margin is for a busy machine.
    assert many < 5 * few + 0.005
