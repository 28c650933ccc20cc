"""`conf.d/`: files beside the configuration that are laid over it, in the order of their names.

So a package can ship the configuration, and the machine's own settings stand in files that no upgrade touches. Sections
are joined key by key, lists are made longer (topic entries, access rules), and of single values the later one counts;
`highway config show --effective` says where each came from. Only `*.yaml` counts: what editors and package managers
leave beside it doesn't.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from highway.config.problems import KeyPath
    from highway.config.yaml_loader import Document

__all__ = ["FOLDER", "drop_ins", "lay_over"]

FOLDER = "conf.d"


def drop_ins(file: Path) -> list[Path]:
    """The files that are laid over the configuration in `file`, in their order. OSError if the folder can't be read."""
    folder = file.parent / FOLDER
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix == ".yaml" and not path.name.startswith("."))


def lay_over(document: Document, part: Document) -> None:
    """Put what `part` says into `document`, with its marks and its problems."""
    document.problems += part.problems
    if isinstance(part.value, dict) and isinstance(document.value, dict):
        _join(document, document.value, part, part.value, ())


def _join(document: Document, below: dict[str, Any], part: Document, above: dict[str, Any], path: KeyPath) -> None:
    for key, value in above.items():
        child = (*path, key)
        there = below.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            _join(document, there, part, value, child)
        elif isinstance(value, list) and isinstance(there, list):
            for number in range(len(value)):
                _copy_marks(document, part, (*child, number), (*child, len(there) + number))
            there += value
        else:
            document.forget(child)
            _copy_marks(document, part, child, child)
            below[key] = value


def _copy_marks(document: Document, part: Document, source: KeyPath, target: KeyPath) -> None:
    """Let what is known about `source` in `part` be known about `target` in `document`."""
    depth = len(source)
    moved = {path: (*target, *path[depth:]) for path in (*part.marks, *part.key_marks) if path[:depth] == source}
    for path, here in moved.items():
        if path in part.marks:
            document.marks[here] = part.marks[path]
        if path in part.key_marks:
            document.key_marks[here] = part.key_marks[path]
        if path in part.raw:
            document.raw[here] = part.raw[path]
    document.problems = [
        type(problem)(problem.mark, (*target, *problem.path[depth:]), problem.text)
        if problem in part.problems and problem.path[:depth] == source
        else problem
        for problem in document.problems
    ]
