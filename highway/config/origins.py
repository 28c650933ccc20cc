"""Where each value of a configuration came from: a place in a file, a variable, an option, or nowhere: the default."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from highway.config.rendering import to_tree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from highway.config.models import Settings
    from highway.config.problems import KeyPath
    from highway.config.yaml_loader import Document

__all__ = ["DEFAULT", "annotated_yaml", "origins"]

DEFAULT = "default"
_BUILT_IN = "built in: what no entry matches"


def origins(settings: Settings, document: Document) -> Iterator[tuple[KeyPath, Any, str]]:
    """(key path, value, origin) of every value in force, in the order of `to_tree`."""
    for path, value in _leaves(to_tree(settings), ()):
        yield path, value, _origin(path, document)


def annotated_yaml(settings: Settings, document: Document) -> str:
    """The configuration in force as a file, with the origin of each value as a comment behind it."""
    lines: list[tuple[str, str]] = []
    before: KeyPath = ()
    for path, value, origin in origins(settings, document):
        common = next((n for n, (one, other) in enumerate(zip(before, path, strict=False)) if one != other), 0)
        sections = [depth for depth in range(common, len(path) - 1) if not isinstance(path[depth], int)]
        lines += [(f"{_indent(path[:depth])}{path[depth]}:", "") for depth in sections]
        lines.append((f"{_indent(path[:-1], first=path[:-1] != before[: len(path) - 1])}{_item(path, value)}", origin))
        before = path
    width = min(60, max(len(text) for text, _ in lines))
    return "".join(f"{text:<{width}}  # {origin}\n" if origin else f"{text}\n" for text, origin in lines)


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for number, item in enumerate(value):
            yield from _leaves(item, (*path, number))
    else:
        yield path, value


def _origin(path: KeyPath, document: Document) -> str:
    mark = document.key_marks.get(path) or document.marks.get(path)
    if mark is None and path[0] == "topics" and len(path) > 2:
        if path[:2] not in document.marks:
            return _BUILT_IN
        mark = document.key_marks.get(("defaults", *path[2:]))
    if mark is None and path[:-1] in (("http",), ("listeners", "local")):
        mark = next((m for m in [document.marks.get(path[:-1])] if m is not None and not m.line), None)  # an option
    return DEFAULT if mark is None else str(mark)


def _indent(path: KeyPath, *, first: bool = False) -> str:
    """Two blanks for each section around, and the dash of a list where its item begins here."""
    text = "  " * len(path)
    if path and isinstance(path[-1], int):
        return text[:-2] + ("- " if first else "  ")
    return text


def _item(path: KeyPath, value: Any) -> str:
    return f"{path[-1]}: {json.dumps(value, ensure_ascii=False)}"
