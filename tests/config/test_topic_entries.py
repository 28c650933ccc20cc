"""Topic entries against each other: covered, repeated, named alike."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, strategies as st

from highway.config.topic_entries import Coverage, check_topic_entries, log_name
from highway.config.yaml_loader import load_yaml
from highway.mqtt.topics import matches

LEVELS = ["a", "b", "+"]
FILTERS = st.lists(st.sampled_from(LEVELS), min_size=0, max_size=3).flatmap(
    lambda levels: st.sampled_from([levels, [*levels, "#"]])
).filter(bool).map("/".join)  # fmt: skip
# "c" stands for every level that no filter names; four levels are one more than the longest filter without "#".
NAMES = ["/".join(levels) for depth in range(1, 5) for levels in product("abc", repeat=depth)]


def covered(*wide, narrow):
    coverage = Coverage()
    for topic_filter in wide:
        coverage.add(topic_filter)
    return coverage.find(narrow)


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        (["#"], "a/b", "#"),
        (["a/#"], "a", "a/#"),
        (["a/#"], "a/+/c", "a/#"),
        (["a/+"], "a/b", "a/+"),
        (["+/#"], "#", "+/#"),
        (["#"], "+/#", "#"),
        (["a", "a/+/#"], "a/#", "a/+/#"),
        (["a/b"], "a/+", None),
        (["a/+/#"], "a/#", None),
        (["a", "a/+"], "a/#", None),
        (["a/#"], "+/#", None),
        ([], "a", None),
    ],
)
def test_covered(wide, narrow, expected):
    assert covered(*wide, narrow=narrow) == expected


@given(FILTERS, FILTERS)
def test_one_filter_covers_another_exactly_if_no_name_tells_them_apart(wide, narrow):
    escaping = [
        name for name in NAMES if matches(narrow.encode(), name.encode()) and not matches(wide.encode(), name.encode())
    ]
    assert (covered(wide, narrow=narrow) is not None) == (not escaping)


@given(st.lists(FILTERS, max_size=5), FILTERS)
def test_what_counts_as_covered_really_is(wide, narrow):
    if covered(*wide, narrow=narrow) is not None:
        for name in NAMES:
            if matches(narrow.encode(), name.encode()):
                assert any(matches(topic_filter.encode(), name.encode()) for topic_filter in wide)


def test_thousands_of_entries_are_compared_quickly():
    coverage = Coverage()
    for number in range(20_000):
        topic_filter = f"site/{number}/+/telemetry"
        assert coverage.find(topic_filter) is None
        coverage.add(topic_filter)
    assert coverage.find("site/7/x/telemetry") == "site/7/+/telemetry"


@pytest.mark.parametrize(
    ("topic_filter", "name"),
    [
        ("highway/+/telemetry", "highway-telemetry"),
        ("highway/A1/#", "highway-a1"),
        ("#", "all"),
        ("+", "all"),
        ("/x", "x"),
        ("Maße/°C", "ma-e-c"),
        ("a/" * 60 + "b", ("a-" * 60)[:64]),
    ],
)
def test_name_of_a_log_without_one(topic_filter, name):
    assert log_name(topic_filter) == name


def check(text, unmatched="store"):
    document = load_yaml(text, "t.yaml", ("topics",))
    warnings = check_topic_entries(document, document.value, unmatched=unmatched)
    return [str(problem) for problem in document.problems], [str(warning) for warning in warnings]


def test_covered_entry_is_warned_of_with_the_place_of_the_wider_one():
    errors, warnings = check("- {topic: a/+, log: x}\n- {topic: a/b, log: y}\n")
    assert errors == []
    assert warnings == [
        "t.yaml:2:11: topics[1].topic: never decides: every topic that 'a/b' matches is taken by 'a/+' (t.yaml:1); move it up"
    ]


def test_same_filter_twice_names_both_places():
    errors, warnings = check("- {topic: a/+, log: x}\n- {topic: a/+, log: y}\n")
    assert errors == ["t.yaml:2:11: topics[1].topic: the filter 'a/+' stands twice; the first is at t.yaml:1"]
    assert warnings == []


def test_same_log_twice_names_both_places():
    errors, _ = check("- {topic: a, log: x}\n- {topic: b, log: x}\n- {topic: c/d}\n- {topic: c/+/d}\n")
    assert errors == [
        "t.yaml:2:19: topics[1].log: the log name 'x' is already used at t.yaml:1; give each entry a `log:` of its own",
        (
            "t.yaml:4:3: topics[3].log: the log name 'c-d', made from the filter, is already used at t.yaml:3; "
            "give each entry a `log:` of its own"
        ),
    ]


@pytest.mark.parametrize(
    ("topic_filter", "rule"),
    [
        ("a/#/b", "is no valid topic filter"),
        ("a+", "is no valid topic filter"),
        ("/" * 201, "is no valid topic filter"),
        ("a\\0b", "is no valid topic filter"),
        ("$SYS/#", "topics that begin with '$' are never logged"),
        ("$share/g/a", "topics that begin with '$' are never logged"),
    ],
)
def test_bad_filter(topic_filter, rule):
    errors, _ = check(f'- topic: "{topic_filter}"\n')
    assert len(errors) == 1
    assert errors[0].startswith("t.yaml:1:10: topics[0].topic: ")
    assert rule in errors[0]


def test_name_of_the_built_in_log_is_taken():
    assert "'other' is the built-in one" in check("- {topic: a, log: other}\n")[0][0]
    assert check('- {topic: "#", log: other}\n') == ([], [])
    assert check("- {topic: a, log: other}\n", unmatched="reject") == ([], [])


def test_reject_behind_a_catch_all_is_warned_of():
    _, warnings = check('- {topic: "#", log: rest}\n', unmatched="reject")
    assert "has no effect, because the topic entry '#' matches everything" in warnings[0]


@pytest.mark.parametrize("entries", [None, "x", [1, None, "a"], [{"topic": 5}], [{"log": []}], {}])
def test_entries_that_are_wrong_otherwise_are_left_to_others(entries):
    document = load_yaml("x: 1\n", "t.yaml")
    assert check_topic_entries(document, entries, unmatched="store") == []
    assert document.problems == []
