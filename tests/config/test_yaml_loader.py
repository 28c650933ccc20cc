"""YAML as it is written, and as it goes wrong: nothing is guessed, everything is placed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml
from hypothesis import given, strategies as st

from highway.config import yaml_loader
from highway.config.yaml_loader import MAX_DEPTH, load_yaml, resolve_plain

SHIPPED = [path.read_text() for path in sorted(Path(__file__).parents[2].glob("config/*.yaml"))]


def lines_of(text):
    return [str(problem) for problem in load_yaml(text, "f.yaml").problems]


@pytest.mark.parametrize(
    "text",
    # What PyYAML alone reads as False, False, 420, 5400, 1350, 1.1, 1000, infinity, a date, and an octal or hex number.
    [
        "off",
        "no",
        "0644",
        "1:30:00",
        "22:30",
        "1.10",
        "1_000",
        ".inf",
        "2026-11-29",
        "0o17",
        "0x1F",
        "+5",
        "1e6",
        "7d",
        "+/x",
    ],
)
def test_plain_scalar_stays_text(text):
    assert load_yaml(f"key: {text}\n", "f.yaml").value == {"key": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("True", True),
        ("FALSE", False),
        ("0", 0),
        ("-7", -7),
        ("1884", 1884),
        ('"1884"', "1884"),
        ("'true'", "true"),
    ],
)
def test_plain_scalar_with_a_meaning(text, value):
    found = load_yaml(f"key: {text}\n", "f.yaml").value["key"]
    assert (found, type(found)) == (value, type(value))


def test_number_too_long_for_any_setting_stays_text():
    assert resolve_plain("9" * 5000) == "9" * 5000


def test_values_and_places():
    document = load_yaml("a:\n  b: [x, {c: 1}]\n# end\nd: 'q'\n", "f.yaml")
    assert document.value == {"a": {"b": ["x", {"c": 1}]}, "d": "q"}
    assert not document.problems
    assert str(document.mark_of(("a", "b", 1, "c"))) == "f.yaml:2:14"
    assert str(document.key_mark_of(("a", "b", 1, "c"))) == "f.yaml:2:11"
    assert str(document.mark_of(("a", "b", 0))) == "f.yaml:2:7"
    assert str(document.mark_of(("d", "not", "there"))) == "f.yaml:4:4"
    assert document.raw["a", "b", 1, "c"] == "1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: a: the key stands twice here; the first is in line 1"),
        ("topic: #\n", ("f.yaml:1:8: topic: the value is missing, because '#' starts a comment in YAML; "
         'if # is meant, put it in quotes: "#"')),
        ("topic: #/x\n", 'if #/x is meant, put it in quotes: "#/x"'),
        ("limits: # later\n", "f.yaml:1:9: limits: the value is missing, because '#' starts a comment in YAML"),
        ("a:\nb: 1\n", "f.yaml:1:3: a: the value is missing"),
        ("a: ~\n", "f.yaml:1:4: a: ~ is no value here"),
        ("a: null\n", "f.yaml:1:4: a: null is no value here"),
        ("a:\n\tb: 1\n", "f.yaml:2:1: a tab is used for indentation; YAML allows only spaces there"),
        ("a:\tb\n", "f.yaml:1:3: a tab stands here; YAML wants spaces"),
        ("topic: %u/#\n", "f.yaml:1:8: topic: a value can't begin with '%' in YAML; put it in quotes: \"%u/#\""),
        ("topic: @x\n", "f.yaml:1:8: topic: a value can't begin with '@' in YAML; put it in quotes: \"@x\""),
        ("topic: *x\n", "f.yaml:1:8: topic: '*' starts a YAML alias, which isn't used here; quote it: \"*x\""),
        ("topic: */x\n", "f.yaml:1:8: topic: a value can't begin with '*' in YAML; put it in quotes: \"*/x\""),
        ("a: &b c\n", "f.yaml:1:4: a: '&' starts a YAML anchor"),
        ("a: !!int '3'\n", "f.yaml:1:4: a: '!' starts a YAML tag"),
        ("a: {<<: b}\n", "f.yaml:1:5: a: merge keys (`<<`) aren't used here"),
        ("1883: x\n", "f.yaml:1:1: the key '1883' isn't text to YAML; put it in quotes"),
        ("? [a]\n: b\n", "f.yaml:1:3: a key has to be a word"),
        ("- {topic: #, log: a}\n- {topic: b}\n", "f.yaml:1:11: [0].topic: '#' starts a comment in YAML, and the rest of"),
        ("a: 1\n---\nb: 2\n", "f.yaml:2:1: a second document begins here"),
        ("", "f.yaml:1:1: the file is empty, or holds only comments"),
        ("# nothing\n", "f.yaml:1:1: the file is empty, or holds only comments"),
        ("a: \x01\n", "f.yaml:1:4: the control character U+0001 can't stand in YAML"),
        ("a: 'x\nb: 1\n", "a quote is never closed (nothing after this was read)"),
        ("a: b: c\n", "f.yaml:1:5: a ':' stands where none can be"),
        ("a:\n  b: 1\n c: 2\n", "f.yaml:3:2: the indentation doesn't fit the lines above"),
        ("a: [\n", "f.yaml:2:1: a '{' or '[' above is never closed"),
        ("a: {b: 1 c: 2}\n", "f.yaml:1:11: a '}' or ',' is missing"),
    ],
)  # fmt: skip
def test_fault_is_placed_and_explained(text, expected):
    found = lines_of(text)
    assert len(found) == 1
    assert expected in found[0]


def test_one_syntax_error_does_not_hide_the_next():
    text = "a:\n\tb: %x\n\tc: {d: #, e: 1}\nf: *y\nf: 2\n"
    assert [line.split(": ")[0] for line in lines_of(text)] == [
        "f.yaml:2:1",
        "f.yaml:2:5",
        "f.yaml:3:1",
        "f.yaml:3:9",
        "f.yaml:4:4",
        "f.yaml:5:1",
    ]


def test_value_after_a_mended_tab_keeps_its_column():
    document = load_yaml("a:\n\tb: 1\n", "f.yaml")
    assert document.value == {"a": {"b": 1}}
    assert str(document.mark_of(("a", "b"))) == "f.yaml:2:5"


def test_legal_comments_in_flow_collections_are_left_alone():
    document = load_yaml("a: [\n  x, # first\n  y # second\n]\nb: {\n  c: 1, # third\n}\n", "f.yaml")
    assert document.value == {"a": ["x", "y"], "b": {"c": 1}}
    assert not document.problems


def test_depth_is_bounded():
    assert lines_of("[" * MAX_DEPTH + "]" * MAX_DEPTH) == []
    expected = "nested more than 20 levels deep (nothing after this was read)"
    assert lines_of("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)) == [f"f.yaml:1:21: {expected}"]
    assert lines_of("[" * 50_000) == [f"f.yaml:1:21: {expected}"]


def test_windows_line_ends_and_byte_order_mark():
    assert load_yaml("\ufeffa: 1\r\nb: 2\r\n", "f.yaml").value == {"a": 1, "b": 2}


@given(st.text(alphabet="ab:#-*&!%@`'\"[]{},| \t\n\r~0>?", max_size=60))
def test_any_text_gives_a_value_or_a_problem(text):
    document = load_yaml(text, "f.yaml")
    assert document.problems or document.value is not None
    for problem in document.problems:
        assert problem.mark.line >= 1
        assert problem.mark.column >= 1
        assert problem.text


scalars = st.text(max_size=10) | st.integers(-(10**12), 10**12) | st.booleans()


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.recursive(
            scalars,
            lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3),
            max_leaves=8,
        ),
        min_size=1,
        max_size=4,
    )
)
def test_what_pyyaml_writes_is_read_back(value):
    document = load_yaml(yaml.safe_dump(value), "f.yaml")
    assert not [str(problem) for problem in document.problems if "&" not in problem.text]
    assert document.value == value


_SAMPLES = [
    "listeners: {a: {bind: 127.0.0.1, port: 1}, b: {tls: {certfile: 'it''s'}}}\ntopics:\n  - {topic: a/+, log: x}\n",
    'auth:\n  acl:\n  - allow: [publish, subscribe]\n    topic: "a/\\u00e9"\n  -   deny:\n      - replay # why\n',
    '{"a": [1, 2, {"b": "c\\n"}], "t": "x/#", "n": "two\n  lines"}\n',
    "a: two\n  lines\nb:\n- - x\n- []\n",
]
_PIECES = [
    *" \n:-?#[]{},'\"|>&*!%@`~ab01./+$\\_=<\té\u2028\x85😀",
    "---",
    "...",
    "- ",
    ": ",
    "? ",
    "\n  ",
    " #",
    "\r\n",
]


def _mutated(chance):
    """A part of a file, with some mistakes in it, or none."""
    lines = chance.choice([*SHIPPED, *_SAMPLES]).splitlines(keepends=True)
    first = chance.randrange(len(lines)) if len(lines) > 10 else 0
    text = "".join(lines[first : first + chance.randrange(5, 25)])
    for _ in range(chance.randrange(4)):
        place = chance.randrange(len(text) + 1)
        text = text[:place] + chance.choice(["", *_PIECES]) + text[place + chance.randrange(2) :]
    return text


@pytest.mark.skipif(not hasattr(yaml, "CSafeLoader"), reason="PyYAML is built without libyaml")
def test_both_parsers_make_the_same_of_a_text_without_fault(monkeypatch):
    chance = random.Random(7)
    texts = [*SHIPPED, *_SAMPLES, *(_mutated(chance) for _ in range(4000))]
    quick = {text: yaml_loader._load_quickly(text, "f.yaml", ()) for text in texts}
    taken = {text: document for text, document in quick.items() if document is not None}
    assert {*SHIPPED, *_SAMPLES} <= taken.keys()
    assert 400 < len(taken) < len(quick) - 400
    monkeypatch.setattr(yaml_loader, "_QUICK", None)
    for text, document in taken.items():
        assert load_yaml(text, "f.yaml") == document, text
