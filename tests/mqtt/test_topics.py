from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from paho.mqtt.client import topic_matches_sub

from highway.errors import MalformedPacketError, MqttError, ProtocolError
from highway.mqtt.topics import (
    MAX_LEVELS,
    SharedFilter,
    filters_intersect,
    has_wildcard,
    levels_cover,
    matches,
    parse_shared,
    split_levels,
    validate_topic_filter,
    validate_topic_name,
)

# Few distinct levels, so that names and filters meet often.
level = st.sampled_from(["a", "b", "", "$x", "ab"])
small_names = st.lists(level, min_size=1, max_size=4).map("/".join).filter(bool)


@st.composite
def small_filters(draw):
    levels = draw(st.lists(st.one_of(level, st.just("+")), min_size=1, max_size=4))
    if draw(st.booleans()):
        levels[-1] = "#"
    return "/".join(levels) or "+"


@pytest.mark.parametrize("name", ["a", "/", "//", "a/b", "a b", "$SYS/x", "ä/ö", "\ufeff", "a" * 65_535, "/" * 127])
def test_good_names(name):
    validate_topic_name(name.encode())
    validate_topic_filter(name.encode())


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        (b"", "4.7.3-1"),
        (b"a/+", "3.3.2-2"),
        (b"#", "3.3.2-2"),
        (b"a+b", "3.3.2-2"),
        (b"a\0", "1.5.3-2"),
        (b"\xff", "1.5.3-1"),
        (b"a" * 65_536, "4.7.3-3"),
        (b"/" * MAX_LEVELS, ""),
    ],
)
def test_bad_names(name, rule):
    with pytest.raises(MqttError) as raised:
        validate_topic_name(name)
    assert rule in raised.value.rule


@pytest.mark.parametrize(
    "topic_filter", ["#", "+", "+/+", "/+", "a/#", "a/+/b", "+/#", "//#", "$share/g/a/#", "$share"[:-1]]
)
def test_good_filters(topic_filter):
    validate_topic_filter(topic_filter.encode())


@pytest.mark.parametrize(
    ("topic_filter", "rule"),
    [
        ("", "4.7.3-1"),
        ("##", "4.7.1-2"),
        ("a#", "4.7.1-2"),
        ("#/a", "4.7.1-2"),
        ("a/#/b", "4.7.1-2"),
        ("+#", "4.7.1-2"),
        ("a+", "4.7.1-3"),
        ("a/+b", "4.7.1-3"),
        ("++", "4.7.1-3"),
        ("a/b+/c", "4.7.1-3"),
        ("$share", "4.8.2-1"),
        ("$share/", "4.8.2-1"),
        ("$share//t", "4.8.2-1"),
        ("$share/g", "4.8.2-2"),
        ("$share/g/", "4.8.2-2"),
        ("$share/+/t", "4.8.2-2"),
    ],
)
def test_bad_filters(topic_filter, rule):
    with pytest.raises(ProtocolError) as raised:
        validate_topic_filter(topic_filter.encode())
    assert rule in raised.value.rule
    assert raised.value.reason_code == 0x8F


def test_a_filter_that_is_too_deep_is_malformed():
    validate_topic_filter(b"+/" * (MAX_LEVELS - 1) + b"+")
    with pytest.raises(MalformedPacketError):
        validate_topic_filter(b"+/" * MAX_LEVELS + b"+")


@pytest.mark.parametrize(
    ("topic_filter", "name", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/x", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/x", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("+/#", "$x/y", False),
        ("a/+", "a/$x", True),
        ("#", "/", True),
        ("ACCOUNTS", "Accounts", False),
        ("a//#", "a//b", True),
    ],
)
def test_matching_as_the_specification_says(topic_filter, name, expected):
    assert matches(topic_filter.encode(), name.encode()) is expected


@given(small_filters(), small_names)
def test_matching_agrees_with_another_client(topic_filter, name):
    assert matches(topic_filter.encode(), name.encode()) == topic_matches_sub(topic_filter, name)


def names_under(topic_filter: str) -> list[str]:
    """A few names that the filter may match, with what it does not name filled in."""
    bases = [""]
    for number, part in enumerate(topic_filter.split("/")):
        choices = ["a", "b", "", "ab"] if part == "+" else [part]
        slash = "/" if number else ""
        if part == "#":
            bases = bases + [base + slash + more for base in bases for more in ("a", "a/b", "b/a/b", "", "a/ab/a/b")]
        else:
            bases = [base + slash + choice for base in bases for choice in choices]
    return bases


@given(small_filters(), small_filters())
def test_filters_intersect_when_a_name_falls_under_both(left, right):
    found = any(
        matches(left.encode(), name.encode()) and matches(right.encode(), name.encode())
        for name in {*names_under(left), *names_under(right)}
        | {f"{n}/{m}" for n in names_under(left) for m in ("a", "")}
        if name
    )
    if found:
        assert filters_intersect(left.encode(), right.encode())
    assert filters_intersect(left.encode(), right.encode()) == filters_intersect(right.encode(), left.encode())


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("#", "a", True),
        ("#", "+/+", True),
        ("a/#", "a", True),
        ("a/#", "+", True),
        ("a/#", "+/b/c", True),
        ("a/+", "+/b", True),
        ("a/+", "a", False),
        ("a/+", "b/#", False),
        ("a/b", "a/c", False),
        ("+/b/#", "a/+", True),
        ("a/+/c", "a/b/d", False),
        ("#", "$SYS/#", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/+/x", True),
        ("#", "#", True),
        ("a/b/c/#", "a/b", False),
        ("a/b/c/#", "a/b/c", True),
        ("+/+/+", "+/+", False),
        ("/#", "+/a", True),
    ],
)
def test_intersections(left, right, expected):
    assert filters_intersect(left.encode(), right.encode()) is expected


@given(small_filters(), small_names)
def test_a_filter_intersects_a_name_when_it_matches_it(topic_filter, name):
    assert filters_intersect(topic_filter.encode(), name.encode()) == matches(topic_filter.encode(), name.encode())


def test_shared():
    assert parse_shared(b"$share/g/a/+/#") == SharedFilter(b"g", b"a/+/#")
    assert parse_shared(b"$share/g/$replay/earliest/#") == SharedFilter(b"g", b"$replay/earliest/#")
    assert parse_shared(b"$share/g//") == SharedFilter(b"g", b"/")
    assert parse_shared(b"$shared/g/a") is None
    assert parse_shared(b"a/$share/g/a") is None


def test_deep_topics_are_walked_without_recursion():
    deep = b"/".join([b"a"] * MAX_LEVELS)
    assert matches(b"/".join([b"+"] * MAX_LEVELS), deep)
    assert filters_intersect(b"/".join([b"+"] * 60_000), b"/".join([b"a"] * 60_000))
    assert len(split_levels(deep)) == MAX_LEVELS


def test_wildcards():
    assert has_wildcard(b"a/+")
    assert has_wildcard(b"a#")
    assert not has_wildcard(b"a/b")


@given(small_filters(), small_filters(), small_names)
def test_a_filter_covers_another_if_it_matches_all_that_it_matches(wide, narrow, name):
    if levels_cover(wide.encode().split(b"/"), narrow.encode().split(b"/")) and matches(narrow.encode(), name.encode()):
        assert matches(wide.encode(), name.encode())


@pytest.mark.parametrize(
    ("wide", "narrow", "covers"),
    [
        ("#", "a/+/#", True),
        ("a/#", "a", True),
        ("a/#", "a/#", True),
        ("a/+", "a/+", True),
        ("a/+", "a/#", False),
        ("a/b", "a/+", False),
        ("+", "#", False),
        ("a/+/c", "a/b", False),
        ("#", "$SYS/#", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/x/+", True),
    ],
)
def test_what_a_filter_covers(wide, narrow, covers):
    assert levels_cover(wide.encode().split(b"/"), narrow.encode().split(b"/")) is covers
