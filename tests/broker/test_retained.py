"""The retained store against a dict and the plain rules, changes while iterating, and cost by depth and hits."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, strategies as st

from highway.broker.publishing.retained import RetainedStore
from tests.broker.naive_matcher import naive_matches, topic_filters, topic_names


@given(
    st.lists(st.tuples(topic_names, st.none() | st.binary(max_size=4)), max_size=40),
    st.lists(topic_filters, min_size=1, max_size=8),
)
def test_holds_what_a_dict_holds_and_matches_like_the_plain_rules(
    steps: list[tuple[bytes, bytes | None]], filters: list[bytes]
) -> None:
    store: RetainedStore[bytes] = RetainedStore()
    model: dict[bytes, bytes] = {}
    for name, value in steps:
        if value is None:
            assert store.delete(name) is (model.pop(name, None) is not None)
        else:
            store.set(name, value)
            model[name] = value
        assert store.get(name) == model.get(name)
    assert len(store) == len(model)
    assert store.size_bytes == sum(len(name) + len(value) for name, value in model.items())
    for topic_filter in filters:
        expected = sorted(item for item in model.items() if naive_matches(topic_filter, item[0]))
        assert sorted(store.match(topic_filter)) == expected


@given(st.lists(topic_names, unique=True))
def test_keeps_no_node_when_everything_is_deleted(names: list[bytes]) -> None:
    store: RetainedStore[bytes] = RetainedStore()
    for name in names:
        store.set(name, b"x")
    for name in names:
        assert store.delete(name)
    assert not store._root.children
    assert store.size_bytes == 0


def test_goes_on_while_messages_come_and_go() -> None:
    store: RetainedStore[bytes] = RetainedStore()
    for name in (b"a/1", b"a/2", b"a/3"):
        store.set(name, b"old")
    matches = store.match(b"a/+")
    first, _ = next(matches)
    deleted, changed = sorted({b"a/1", b"a/2", b"a/3"} - {first})
    store.delete(deleted)
    store.set(changed, b"new")
    store.set(b"a/4", b"too late")
    assert list(matches) == [(changed, b"new")]


def test_counts_the_bytes_of_values_that_are_not_bytes() -> None:
    store: RetainedStore[tuple[int, bytes]] = RetainedStore(size=lambda value: len(value[1]))
    store.set(b"ab", (1, b"cde"))
    store.set(b"ab", (2, b"f"))
    assert store.size_bytes == 3


def test_30_000_levels_neither_recurse_nor_stall() -> None:
    store: RetainedStore[bytes] = RetainedStore()
    deep = b"/" * 30_000
    for name in (deep, deep + b"a", deep + b"b"):
        store.set(name, b"x")
    assert len(list(store.match(b"#"))) == 3
    assert [name for name, _ in store.match(b"+/" * 30_000 + b"a")] == [deep + b"a"]
    for name in (deep, deep + b"a", deep + b"b"):
        assert store.delete(name)
    assert not store._root.children


@pytest.fixture(scope="module")
def hundred_thousand() -> RetainedStore[bytes]:
    store: RetainedStore[bytes] = RetainedStore()
    for number in range(100_000):
        store.set(b"r/%d/x" % number, b"payload")
    return store


@pytest.mark.parametrize(
    ("topic_filter", "hits"), [(b"other/+/y", 0), (b"r/7/+", 1), (b"+/7/x", 1), (b"r/7/x", 1), (b"+/7/y", 0)]
)
def test_a_look_up_among_100_000_topics_takes_far_less_than_5_ms(
    hundred_thousand: RetainedStore[bytes], topic_filter: bytes, hits: int
) -> None:
    fastest = float("inf")
    for _ in range(5):
        start = time.thread_time()
        assert len(list(hundred_thousand.match(topic_filter))) == hits
        fastest = min(fastest, time.thread_time() - start)
    assert fastest < 0.005


def test_a_filter_of_many_plus_levels_visits_a_bushy_tree_once() -> None:
    store: RetainedStore[bytes] = RetainedStore()
    for number in range(4**8 // 8):
        store.set(b"/".join(b"%d" % (number >> shift & 3) for shift in range(0, 16, 2)), b"")
    start = time.thread_time()
    assert len(list(store.match(b"+/+/+/+/+/+/+/+"))) == 4**8 // 8
    assert time.thread_time() - start < 1.0
