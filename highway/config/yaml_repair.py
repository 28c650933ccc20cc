"""From a syntax error of PyYAML to a sentence for an operator, and a mended text where the fault is a common one.

PyYAML stops at the first fault. For the faults that people make most (a tab, a value that begins with a character
that YAML reserves, a `#` that swallows the rest of a line) the diagnosis comes with a text in which the fault is gone,
so that the rest of the file can be looked at as well. The mended text is never served: there is a problem by then.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import yaml

__all__ = ["Repair", "diagnose"]

_SHOWN_LENGTH = 40

# The value before it is missing: `key: # ...`, or a list that begins with a comment.
_SWALLOWING_COMMENT = re.compile(r"(?::[ ]+|\[[ ]*)(#)")

_VALUE_END = re.compile(r"[\s,\]}]|$")

_COMMENT_EXPLANATION = "'#' starts a comment in YAML, and the rest of the line is lost; put it in quotes: \"#\""

# What PyYAML says -> what an operator can do about it.
_EXPLANATIONS = {
    "mapping values are not allowed here": "a ':' stands where none can be: check the indentation of this line and the "
    "line above, or put the value in quotes",
    "could not find expected ':'": "a key without a ':' behind it",
    "expected <block end>": "the indentation doesn't fit the lines above, or a quoted value goes on after its quote",
    "expected <document start>": "the indentation doesn't fit the lines above",
    "did not find expected": "the indentation doesn't fit the lines above",
    "while scanning a quoted scalar": "a quote is never closed",
    "expected the node content": "a '{' or '[' above is never closed, or a value is missing",
    "while parsing a flow mapping": "a '}' or ',' is missing",
    "while parsing a flow sequence": "a ']' or ',' is missing",
    "sequence entries are not allowed here": "a list item ('-') stands where none can be",
}


@dataclass(frozen=True, slots=True)
class Repair:
    """A syntax error at `line` and `column` (from 1), explained; `mended_text` is None where reading has to stop.

    `shift` says by how many columns the rest of the line moved to the right in the mended text.
    """

    line: int
    column: int
    explanation: str
    mended_text: str | None = None
    shift: int = 0


def diagnose(text: str, error: yaml.YAMLError) -> Repair:
    """What is wrong with `text`, and the text without it if that can be had."""
    if isinstance(error, yaml.reader.ReaderError):
        return _diagnose_character(text, error)
    if not isinstance(error, yaml.MarkedYAMLError):
        return Repair(1, 1, str(error))
    mark = error.problem_mark or error.context_mark
    if mark is None:
        return Repair(1, 1, str(error.problem or error.context))
    problem = error.problem or ""
    if "cannot start any token" in problem:
        at = mark.index
        return _mend_tab(text, at, mark) if text[at : at + 1] == "\t" else _mend_reserved(text, at, mark)
    context = error.context or ""
    if context.startswith(("while scanning an alias", "while scanning an anchor")) and error.context_mark:
        return _mend_reserved(text, error.context_mark.index, error.context_mark)
    if "flow" in context and (repair := _mend_comment(text, mark.index)):
        return repair
    said = f"{context} {problem}"
    explanation = next((ours for theirs, ours in _EXPLANATIONS.items() if theirs in said), problem or context)
    return Repair(mark.line + 1, mark.column + 1, f"{explanation} (nothing after this was read)")


def _diagnose_character(text: str, error: yaml.reader.ReaderError) -> Repair:
    position = error.position if isinstance(error.position, int) else 0
    before = text[:position]
    column = position - (before.rfind("\n") + 1)
    code = ord(text[position]) if position < len(text) else 0
    return Repair(before.count("\n") + 1, column + 1, f"the control character U+{code:04X} can't stand in YAML")


def _mend_tab(text: str, at: int, mark: yaml.Mark) -> Repair:
    line_start = at - mark.column
    tabs = len(text[at:]) - len(text[at:].lstrip("\t"))
    if text[line_start:at].strip():
        mended, shift = text[:at] + " " * tabs + text[at + tabs :], 0
        explanation = "a tab stands here; YAML wants spaces"
    else:
        indent = _expected_indent(text[:line_start])
        rest = text[at:].lstrip(" \t")
        mended = text[:line_start] + " " * indent + rest
        shift = indent - (len(text) - len(rest) - line_start)
        explanation = "a tab is used for indentation; YAML allows only spaces there"
    return Repair(mark.line + 1, mark.column + 1, explanation, mended, shift)


def _expected_indent(before: str) -> int:
    """How far the line after `before` is probably meant to be indented."""
    for line in reversed(before.splitlines()):
        content = line.split(" #")[0].rstrip()
        if content.strip() and not content.lstrip().startswith("#"):
            indent = len(content) - len(content.lstrip())
            return indent + 2 if content.endswith(":") else indent
    return 0


def _mend_reserved(text: str, at: int, mark: yaml.Mark) -> Repair:
    end = _VALUE_END.search(text, at)
    value = text[at : min(end.start() if end else len(text), at + _SHOWN_LENGTH)]
    explanation = f'a value can\'t begin with {text[at]!r} in YAML; put it in quotes: "{value}"'
    return Repair(mark.line + 1, mark.column + 1, explanation, f"{text[:at]}_{text[at + 1 :]}")


def _mend_comment(text: str, before: int) -> Repair | None:
    """The last `#` before index `before` that hides the end of a flow collection which begins on its line."""
    for number, line in reversed(list(enumerate(text[:before].split("\n"), 1))):
        for comment in _SWALLOWING_COMMENT.finditer(line):
            column = comment.start(1)
            head = line[:column]
            if head.count("{") + head.count("[") > head.count("}") + head.count("]"):
                at = sum(len(above) + 1 for above in text.split("\n")[: number - 1]) + column
                return Repair(number, column + 1, _COMMENT_EXPLANATION, f"{text[:at]}_{text[at + 1 :]}")
    return None
