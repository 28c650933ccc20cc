"""Where something stands in the configuration, and what is wrong with it.

Everything that reads the configuration adds to one list of problems and goes on, so that an operator sees all of
them at once: `file:line:column: key.path: what is wrong`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["KeyPath", "Mark", "Problem", "did_you_mean", "render_path", "sorted_lines"]

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A place: `line` and `column` count from 1; line 0 stands for a source without lines, such as an environment
    variable or an option of the command line, which `file` then names.
    """

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault: where it stands, which key it is about (empty: none in particular), and a sentence."""

    mark: Mark
    path: KeyPath
    text: str

    def __str__(self) -> str:
        return f"{self.mark}: {render_path(self.path)}: {self.text}" if self.path else f"{self.mark}: {self.text}"


def sorted_lines(problems: Iterable[Problem]) -> list[str]:
    """The problems as lines, in the order of the files, each once."""
    ordered = sorted(problems, key=lambda problem: problem.mark)
    return list(dict.fromkeys(str(problem) for problem in ordered))


def render_path(path: KeyPath) -> str:
    """`topics[2].log` for ("topics", 2, "log")."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def did_you_mean(word: str, known: Iterable[str], others: Iterable[str] = ()) -> str:
    """`; did you mean 'retention'?`, or what there is to choose from where nothing comes near.

    `others` may have been meant as well, and are not to choose from.
    """
    choices = sorted(known)
    folded = {choice.casefold().replace("-", "_"): choice for choice in [*choices, *others]}
    near = difflib.get_close_matches(word.casefold().replace("-", "_"), folded, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {folded[near[0]]!r}?"
    return f"; one of {', '.join(choices)} is wanted" if choices else ""
