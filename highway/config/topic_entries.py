"""Checks over the list of topic entries as a whole: what no entry can know of itself.

The first entry that matches a topic name decides. So an entry behind a wider one never decides anything, two entries
of one filter contradict each other, and two logs of one name would share a folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from highway.config.problems import KeyPath, Mark, Problem
from highway.errors import MqttError
from highway.mqtt.topics import validate_topic_filter

if TYPE_CHECKING:
    from highway.config.yaml_loader import Document

__all__ = ["OTHER_FILTER", "OTHER_LOG", "Coverage", "check_topic_entries", "log_name"]

OTHER_LOG = "other"
OTHER_FILTER = "#"

_NOT_IN_NAMES = re.compile(r"[^a-z0-9_]+")
_MAX_NAME = 64


class Coverage:
    """A set of topic filters that can tell whether one of them matches everything that another filter matches."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        # Level -> subtree; None -> the filter that ends here. Thousands of entries must not be compared in pairs.
        self._root: dict[str | None, Any] = {}

    def add(self, topic_filter: str) -> None:
        node = self._root
        for level in topic_filter.split("/"):
            node = node.setdefault(level, {})
        node[None] = topic_filter

    def find(self, narrow: str) -> str | None:
        """A filter of the set that, alone or last of two, leaves nothing to `narrow`; or None."""
        # A topic name has a level at least, so that "#" and "+/#" match the same.
        levels = ["+", "#"] if narrow == "#" else narrow.split("/")
        found = self._find_alone(levels)
        if found is None and levels[-1] == "#":
            # "a/#" is "a" and "a/+/#" together, and two filters may have taken one half each.
            found = self._find_alone(levels[:-1]) and self._find_alone([*levels[:-1], "+", "#"])
        return found

    def _find_alone(self, levels: list[str]) -> str | None:
        todo = [(self._root, 0)]
        while todo:
            node, depth = todo.pop()
            if "#" in node:
                return str(node["#"][None])
            if depth == len(levels):
                if None in node:
                    return str(node[None])
            elif levels[depth] != "#":
                todo += [(node[level], depth + 1) for level in {"+", levels[depth]} if level in node]
        return None


@dataclass(slots=True)
class _Seen:
    """What the entries before the present one said."""

    coverage: Coverage = field(default_factory=Coverage)
    filters: dict[str, KeyPath] = field(default_factory=dict)
    logs: dict[str, KeyPath] = field(default_factory=dict)


def check_topic_entries(document: Document, entries: object, *, unmatched: object) -> list[Problem]:
    """The warnings about `entries` (as read, maybe wrong in other ways); errors go to the problems of `document`."""
    seen = _Seen()
    warnings: list[Problem] = []
    for number, entry in enumerate(entries if isinstance(entries, list) else []):
        if isinstance(entry, dict):
            warnings += _check_entry(document, ("topics", number), entry, seen)
    if unmatched == "reject":
        if OTHER_FILTER in seen.filters:
            mark = _mark(document, ("unmatched",))
            warnings.append(
                Problem(mark, ("unmatched",), "has no effect, because the topic entry '#' matches everything")
            )
    elif OTHER_FILTER not in seen.filters and OTHER_LOG in seen.logs:
        text = f"the log {OTHER_LOG!r} is the built-in one for what no entry matches; choose another name"
        document.add((*seen.logs[OTHER_LOG], "log"), text)
    return warnings


def _check_entry(document: Document, path: KeyPath, entry: dict[str, Any], seen: _Seen) -> list[Problem]:
    topic_filter = entry.get("topic")
    key = (*path, "topic")
    if (
        not isinstance(topic_filter, str)
        or not topic_filter
        or any(key == problem.path for problem in document.problems)
    ):
        return []
    fault = _filter_fault(topic_filter)
    if fault:
        document.add(key, fault)
        return []
    _check_name(document, path, entry, topic_filter, seen)
    if topic_filter in seen.filters:
        first = _mark(document, seen.filters[topic_filter])
        document.add(key, f"the filter {topic_filter!r} stands twice; the first is at {first.file}:{first.line}")
        return []
    earlier = seen.coverage.find(topic_filter)
    seen.coverage.add(topic_filter)
    seen.filters[topic_filter] = key
    if earlier is None:
        return []
    mark = _mark(document, seen.filters[earlier])
    text = f"never decides: every topic that {topic_filter!r} matches is taken by {earlier!r} ({mark.file}:{mark.line})"
    return [Problem(_mark(document, key), key, f"{text}; move it up")]


def _filter_fault(topic_filter: str) -> str:
    if topic_filter.startswith("$"):
        return f"{topic_filter!r}: topics that begin with '$' are never logged, so that this entry would do nothing"
    try:
        validate_topic_filter(topic_filter.encode())
    except (MqttError, UnicodeEncodeError) as error:
        return f"{topic_filter!r} is no valid topic filter: {error}"
    return ""


def _check_name(document: Document, path: KeyPath, entry: dict[str, Any], topic_filter: str, seen: _Seen) -> None:
    given = entry.get("log")
    if given is not None and not isinstance(given, str):
        return
    name = given or log_name(topic_filter)
    if name in seen.logs:
        first = _mark(document, (*seen.logs[name], "log"))
        which = f"the log name {name!r}" if given else f"the log name {name!r}, made from the filter,"
        text = f"{which} is already used at {first.file}:{first.line}; give each entry a `log:` of its own"
        document.add((*path, "log"), text)
    seen.logs.setdefault(name, path)


def _mark(document: Document, path: KeyPath) -> Mark:
    return document.mark_of(path) or Mark("configuration")


def log_name(topic_filter: str) -> str:
    """The name of a log whose entry gives none: the literal levels of the filter, joined by dashes."""
    levels = [level for level in topic_filter.lower().split("/") if level not in ("+", "#", "")]
    return _NOT_IN_NAMES.sub("-", "-".join(levels)).strip("-_")[:_MAX_NAME] or "all"
