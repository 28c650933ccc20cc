"""`HIGHWAY__LISTENERS__LOCAL__PORT=1884`: one setting from the environment, on top of the file.

Two underscores separate the parts of the key path, and a number is the place in a list (`HIGHWAY__TOPICS__0__LOG`). A
value means what it would mean unquoted in the file, except that `#`, `%` and the like need no quotes: the environment
has no comments. One that begins with `[` or `{` is read as YAML.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from highway.config.problems import KeyPath, Mark, render_path
from highway.config.yaml_loader import Document, Value, load_yaml, resolve_plain

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PREFIX", "apply_environment"]

PREFIX = "HIGHWAY__"


def apply_environment(document: Document, environ: Mapping[str, str]) -> None:
    """Lay every `HIGHWAY__*` variable over `document`; what can't be laid there becomes a problem of it."""
    for name in sorted(environ):
        if name.startswith(PREFIX):
            _apply(document, name, environ[name])


def _apply(document: Document, name: str, text: str) -> None:
    mark = Mark(f"environment {name}")
    words = name.removeprefix(PREFIX).lower().split("__")
    if not all(words):
        document.add((), "the key path has an empty part", mark)
        return
    path, container = _descend(document, words, mark)
    if container is None:
        return
    document.forget(path)
    value = _read(document, path, text, mark)
    document.marks[path] = document.key_marks[path] = mark
    container[path[-1]] = value


def _descend(document: Document, words: list[str], mark: Mark) -> tuple[KeyPath, Any]:
    """The key path that `words` name, and the dict or list that holds its last part; None after a problem."""
    path: KeyPath = ()
    here: Any = document.value
    for position, word in enumerate(words):
        part: str | int = word
        if isinstance(here, list):
            if not word.isdecimal() or int(word) >= len(here):
                document.add(
                    (*path, word), f"a number from 0 to {len(here) - 1} is wanted instead of {word.upper()}", mark
                )
                return path, None
            part = int(word)
        elif not isinstance(here, dict):
            document.add((*path, word), f"{render_path(path)} is no section, so that it has no such key", mark)
            return path, None
        path = (*path, part)
        if position == len(words) - 1:
            break
        if isinstance(here, dict) and here.get(word) is None:
            here[word] = {}
            document.marks.setdefault(path, mark)
            document.key_marks.setdefault(path, mark)
        here = here[part]
    return path, here


def _read(document: Document, path: KeyPath, text: str, mark: Mark) -> Value:
    if text.startswith(("[", "{")):
        part = load_yaml(text, mark.file, path)
        document.problems += part.problems
        document.marks |= dict.fromkeys(part.marks, mark)
        document.key_marks |= dict.fromkeys(part.key_marks, mark)
        document.raw |= part.raw
        return part.value
    value = resolve_plain(text)
    document.raw[path] = text
    if value is None:
        document.add(path, f"{text} is no value here" if text else "the value is missing", mark)
    return value
