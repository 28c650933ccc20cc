"""YAML text -> plain values, with the line and column of every key path, and without a guess.

PyYAML's parser is used for its events only; what a scalar means is decided here. A plain scalar is a boolean only as
`true` or `false`, and a number only in decimal digits without a leading zero (YAML 1.2's core schema, less hexadecimal,
octal and floats, for which no setting has a use). Everything else is text: `off`, `no`, `0644`, `12:30`, `1e6`, which
PyYAML alone would read as False, False, 420, 750 and text. What the setting then makes of the text is its own matter.

Refused, and explained at their place: duplicate keys (PyYAML keeps the last in silence), empty values (`topic: #` is a
comment to YAML), tabs, anchors, aliases, tags, merge keys, several documents.

A fault of syntax usually hides whatever comes after it. Those that people make most often are therefore recorded,
mended in the text in memory, and the text is read again, so that all problems of a file show at once.

A text without a fault is read by libyaml first, where there is one: ten times faster, which counts in a reload of a
long list while publishers wait. What is wrong with a text, PyYAML's own parser alone tells.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from highway.config.problems import KeyPath, Mark, Problem
from highway.config.yaml_repair import diagnose

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Document", "Value", "load_yaml", "resolve_plain"]

Value = None | bool | int | str | list[Any] | dict[str, Any]

# Our deepest key is at level 4; a file nested deeper than this is an attack or an accident.
MAX_DEPTH = 20

# A text that needs more mending than this is no configuration of ours.
MAX_REPAIRS = 100

# libyaml, and what it takes otherwise than PyYAML's own parser does: tabs and rare line breaks, and outside of comments
# explicit keys, tags, blocks of text and the like.
_QUICK: Any = getattr(yaml, "CSafeLoader", None)
_NOT_QUICK = re.compile(r"[\t\r\x85\u2028\u2029\ufeff]|^(?! *#).*[?!&*|>%]", re.MULTILINE)

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})", re.ASCII)
_COMMENT_ONLY = re.compile(r"[ ]*(#.*)")


@dataclass(slots=True)
class Document:
    """What a YAML text says, where each part of it stands, and what is wrong with it.

    `value` holds only dict, list, str, int, bool and None; it is None where nothing could be read. `marks` says where
    the value of a key path begins, `key_marks` where its key stands, and `raw` how a plain scalar was spelt.
    """

    value: Value = None
    marks: dict[KeyPath, Mark] = field(default_factory=dict)
    key_marks: dict[KeyPath, Mark] = field(default_factory=dict)
    raw: dict[KeyPath, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def mark_of(self, path: KeyPath) -> Mark | None:
        """Where the value of `path` stands, or the nearest section around it."""
        while path and path not in self.marks:
            path = path[:-1]
        return self.marks.get(path)

    def key_mark_of(self, path: KeyPath) -> Mark | None:
        """Where the key of `path` stands, or else its value, as in a list."""
        return self.key_marks.get(path) or self.mark_of(path)

    def forget(self, path: KeyPath) -> None:
        """Drop what is known about `path` and everything below it, because its value is replaced."""
        depth = len(path)
        for known in (self.marks, self.key_marks, self.raw):
            for below in [below for below in known if below[:depth] == path]:
                del known[below]
        self.problems = [problem for problem in self.problems if problem.path[:depth] != path]

    def add(self, path: KeyPath, text: str, mark: Mark | None = None) -> None:
        """Record a problem about `path`."""
        self.problems.append(Problem(mark or self.mark_of(path) or Mark("configuration"), path, text))


def load_yaml(text: str, file: str, root: KeyPath = ()) -> Document:
    """The document in `text`; its problems are in the result, and nothing is raised.

    `file` stands in the marks. `root` is the key path that the document itself is the value of.
    """
    text = text.removeprefix("\ufeff")
    quick = _load_quickly(text, file, root)
    if quick is not None:
        return quick
    document = Document()
    shifts: Counter[int] = Counter()
    for _ in range(MAX_REPAIRS):
        try:
            events = _parse(text, yaml.SafeLoader)
        except yaml.YAMLError as error:
            repair = diagnose(text, error)
            mark = Mark(file, repair.line, repair.column - shifts[repair.line])
            document.problems.append(Problem(mark, (), repair.explanation))
            if repair.mended_text is None:
                break
            text = repair.mended_text
            shifts[repair.line] += repair.shift
            continue
        _Builder(document, text, file, shifts).build(iter(events), root)
        _name_repaired_keys(document)
        return document
    document.marks[root] = Mark(file, 1, 1)
    return document


def _load_quickly(text: str, file: str, root: KeyPath) -> Document | None:
    """The document as libyaml reads it; None where something is wrong with it, or not sure to be the same."""
    if _QUICK is None or _NOT_QUICK.search(text):
        return None
    document = Document()
    try:
        _Builder(document, text, file, Counter()).build(iter(_parse(text, _QUICK)), root)
    except yaml.YAMLError:
        return None
    return None if document.problems else document


def resolve_plain(text: str) -> bool | int | str | None:
    """What a plain (unquoted) scalar means."""
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    return int(text) if _INTEGER.fullmatch(text) else text


def _name_repaired_keys(document: Document) -> None:
    """Give the problems that were found before there were key paths the path that they turned out to be about."""
    paths = {mark: path for path, mark in document.marks.items()}
    document.problems = [
        problem if problem.path else Problem(problem.mark, paths.get(problem.mark, ()), problem.text)
        for problem in document.problems
    ]


class _Builder:
    """Turns the events of one document into values, and writes down marks and problems on the way."""

    def __init__(self, document: Document, text: str, file: str, shifts: Counter[int]) -> None:
        self._document = document
        self._lines = text.splitlines()
        self._file = file
        self._shifts = shifts  # line -> how many columns its end was moved to the right by mending

    def build(self, events: Iterator[yaml.Event], root: KeyPath) -> None:
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents == 2:
                    self._problem(event, (), "a second document begins here (`---`); one file holds one document")
                    return
            elif not isinstance(event, yaml.StreamStartEvent | yaml.StreamEndEvent | yaml.DocumentEndEvent):
                self._document.marks[root] = self._mark(event)
                self._document.value = self._value(event, events, root)
        if not documents:
            self._document.marks[root] = Mark(self._file, 1, 1)
            self._document.add(root, "the file is empty, or holds only comments")

    def _value(self, event: yaml.Event, events: Iterator[yaml.Event], path: KeyPath) -> Value:
        self._document.marks.setdefault(path, self._mark(event))
        if isinstance(event, yaml.AliasEvent):
            self._problem(event, path, f"'*' starts a YAML alias, which isn't used here; quote it: \"*{event.anchor}\"")
            return None
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, path)
        self._refuse_properties(event, path)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(events, path)
        return self._mapping(events, path)

    def _sequence(self, events: Iterator[yaml.Event], path: KeyPath) -> list[Any]:
        items: list[Any] = []
        for event in events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            items.append(self._value(event, events, (*path, len(items))))
        return items

    def _mapping(self, events: Iterator[yaml.Event], path: KeyPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for event in events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            key = self._key(event, path)
            if key is None:
                _skip(event, events)
                _skip(next(events), events)
                continue
            child = (*path, key)
            if key in mapping:
                first = self._document.key_marks[child]
                self._problem(event, child, f"the key stands twice here; the first is in line {first.line}")
                _skip(next(events), events)
                continue
            self._document.key_marks[child] = self._mark(event)
            mapping[key] = self._value(next(events), events, child)
        return mapping

    def _key(self, event: yaml.Event, path: KeyPath) -> str | None:
        """The key that `event` is, or None with the problem written down."""
        if not isinstance(event, yaml.ScalarEvent):
            self._problem(event, path, "a key has to be a word, not a section, a list or an alias")
            return None
        if not event.style and event.value == "<<":
            self._problem(event, path, "merge keys (`<<`) aren't used here: write the keys out")
            return None
        if not event.style and not isinstance(resolve_plain(event.value), str):
            self._problem(event, path, f"the key {event.value!r} isn't text to YAML; put it in quotes")
            return None
        self._refuse_properties(event, (*path, event.value))
        return str(event.value)

    def _scalar(self, event: yaml.ScalarEvent, path: KeyPath) -> Value:
        self._refuse_properties(event, path)
        if event.style:  # quoted; libyaml says "" of what isn't, and PyYAML None
            return str(event.value)
        self._document.raw[path] = event.value
        value = resolve_plain(event.value)
        if value is None:
            self._explain_missing(event, path)
        return value

    def _explain_missing(self, event: yaml.ScalarEvent, path: KeyPath) -> None:
        number, column = _position(event)
        line = self._lines[number] if number < len(self._lines) else ""
        comment = None if event.value else _COMMENT_ONLY.match(line, column)
        if comment is None:
            self._problem(event, path, f"{event.value} is no value here" if event.value else "the value is missing")
            return
        text = comment.group(1).rstrip()
        mark = Mark(self._file, number + 1, comment.start(1) + 1)
        self._document.marks[path] = mark
        meant = f'; if {text} is meant, put it in quotes: "{text}"' if " " not in text else ""
        self._document.add(path, f"the value is missing, because '#' starts a comment in YAML{meant}", mark)

    def _refuse_properties(self, event: yaml.Event, path: KeyPath) -> None:
        if getattr(event, "anchor", None):
            self._problem(
                event, path, "'&' starts a YAML anchor, which isn't used here: write the value out or quote it"
            )
        if getattr(event, "tag", None):
            self._problem(event, path, "'!' starts a YAML tag, which isn't used here; quote it if it is meant")

    def _problem(self, event: yaml.Event, path: KeyPath, text: str) -> None:
        self._document.add(path, text, self._mark(event))

    def _mark(self, event: yaml.Event) -> Mark:
        line, column = _position(event)
        return Mark(self._file, line + 1, column + 1 - self._shifts[line + 1])


def _position(event: yaml.Event) -> tuple[int, int]:
    """Line and column of `event`, from 0. Its type allows an event without a place; the parser makes none."""
    mark = event.start_mark
    return (mark.line, mark.column) if mark is not None else (0, 0)


def _parse(text: str, loader: Any) -> list[yaml.Event]:
    """The events of `text` by one of two parsers. Stops at MAX_DEPTH, where PyYAML would go on in quadratic time."""
    events: list[yaml.Event] = []
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        events.append(event)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                problem = f"nested more than {MAX_DEPTH} levels deep"
                mark: Any = event.start_mark  # the stubs mix in the marks of the C parser
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
    return events


def _skip(event: yaml.Event, events: Iterator[yaml.Event]) -> None:
    """Read past the value that `event` begins."""
    depth = 0
    while True:
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth == 0:
            return
        event = next(events)
