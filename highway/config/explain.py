"""What pydantic finds wrong, said to an operator: what stands there, what is wanted, and what was probably meant.

pydantic knows the value; the document knows how it was spelt, which is what an operator recognises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from highway.config.limits import LimitsSection
from highway.config.problems import KeyPath, did_you_mean, render_path
from highway.config.schema import (
    AclRuleSection,
    AuthSection,
    ConfigFile,
    HttpSection,
    ListenerSection,
    LoggingSection,
    LogKeys,
    ReloadSection,
    StorageSection,
    TlsSection,
    TopicSection,
)

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from highway.config.sections import Section
    from highway.config.yaml_loader import Document

__all__ = ["add_model_problems"]

_SECTIONS: dict[str, type[Section]] = {
    "http": HttpSection,
    "limits": LimitsSection,
    "logging": LoggingSection,
    "reload": ReloadSection,
    "auth": AuthSection,
    "defaults": LogKeys,
    "storage": StorageSection,
}

_SECTION_TEXT = "a section with keys of its own is wanted here, not {!r}"

# Type of a pydantic error -> what to say, with the value as it was spelt.
_FIXED_TEXTS = {
    "missing": "this key is missing, and has no default",
    "string_pattern_mismatch": "{!r} is no name here: up to 64 of a-z, 0-9, '-' and '_', the first a letter or digit",
    "string_too_short": "an empty text is no value here",
    "too_short": "nothing is listed here; one is wanted at least",
    "model_type": _SECTION_TEXT,
    "model_attributes_type": _SECTION_TEXT,
    "dict_type": _SECTION_TEXT,
}

_SWITCH_WORDS = {"on": "true", "yes": "true", "y": "true", "off": "false", "no": "false", "n": "false"}


def add_model_problems(document: Document, error: ValidationError) -> None:
    """Add everything in `error` to the problems of `document`, but what is already explained there."""
    explained = {problem.path for problem in document.problems if problem.mark == document.mark_of(problem.path)}
    for detail in error.errors(include_url=False):
        path: KeyPath = tuple(part for part in detail["loc"] if part != "[key]")
        if path not in explained:
            about_key = path != detail["loc"] or detail["type"] == "extra_forbidden"
            mark = document.key_mark_of(path) if about_key else document.mark_of(path)
            document.add(path, _explain(document, path, detail), mark)


def _explain(document: Document, path: KeyPath, detail: ErrorDetails) -> str:
    kind = detail["type"]
    value = detail["input"]
    spelt = document.raw.get(path, str(value))
    context: dict[str, Any] = detail.get("ctx") or {}
    if kind in _FIXED_TEXTS:
        return _FIXED_TEXTS[kind].format(spelt)
    match kind:
        case "extra_forbidden":
            return _explain_key(path)
        case "value_error":
            return str(context["error"])
        case "string_type":
            return _explain_text(value, spelt)
        case "bool_type":
            return _explain_switch(value, spelt)
        case "int_type":
            return _explain_number(value, spelt)
        case "literal_error":
            return _explain_word(path, value, spelt)
        case "greater_than_equal":
            return f"{spelt} is too small: at least {context['ge']}"
        case "less_than_equal":
            return f"{spelt} is too large: at most {context['le']}"
        case "list_type":
            return f"a list is wanted here (items that begin with '-'), not {_kind(value)}"
    return detail["msg"]


def _section_at(path: KeyPath) -> type[Section]:
    """The model of the section whose keys have the parent path `path`."""
    match path:
        case ("listeners", _):
            return ListenerSection
        case ("listeners", _, "tls"):
            return TlsSection
        case ("auth", "acl", _):
            return AclRuleSection
        case ("topics", _):
            return TopicSection
        case (str(name),) if name in _SECTIONS:
            return _SECTIONS[name]
    return ConfigFile


def _explain_key(path: KeyPath) -> str:
    section = _section_at(path[:-1])
    key = str(path[-1])
    if key in section.LATER:
        return "not supported by this version yet"
    elsewhere = [
        render_path((name,))
        for name, other in _SECTIONS.items()
        if key in other.model_fields and key not in ListenerSection.model_fields  # `port` alone is a listener's
    ]
    if elsewhere:
        return f"unknown key here; {key!r} belongs under {' or '.join(elsewhere)}"
    return f"unknown key{did_you_mean(key, section.model_fields, section.LATER)}"


def _explain_word(path: KeyPath, value: object, spelt: str) -> str:
    section = _section_at(path[:-1])
    words = [str(word) for word in get_args(section.model_fields[str(path[-1])].annotation)]
    if isinstance(value, bool):
        return f"YAML reads {spelt} as a switch; one of {', '.join(words)} is wanted"
    hint = did_you_mean(spelt, words)
    wanted = "" if "one of" in hint else f": one of {', '.join(words)} is wanted"
    return f"{spelt!r} is no value here{wanted}{hint}"


def _explain_text(value: object, spelt: str) -> str:
    if isinstance(value, bool | int):
        kind = "a switch" if isinstance(value, bool) else "a number"
        return f'text is wanted, and YAML reads {spelt} as {kind}; put it in quotes: "{spelt}"'
    return f"text is wanted here, not {_kind(value)}"


def _explain_switch(value: object, spelt: str) -> str:
    if isinstance(value, str):
        if spelt.lower() in ("true", "false"):
            return f"{spelt!r} in quotes is text; write {spelt.lower()} without them"
        if spelt.lower() in _SWITCH_WORDS:
            return f"{spelt!r} is neither true nor false; write {_SWITCH_WORDS[spelt.lower()]}"
    return f"true or false is wanted here, not {spelt!r}"


def _explain_number(value: object, spelt: str) -> str:
    if isinstance(value, str):
        digits = spelt.replace("_", "").lstrip("0") or "0"
        if digits.isascii() and digits.isdecimal():
            return (
                f"{spelt!r} is not a plain whole number; write {digits}, without quotes, underscores or zeros in front"
            )
    return f"a whole number is wanted here, not {spelt if isinstance(value, str | bool) else _kind(value)!r}"


def _kind(value: object) -> str:
    match value:
        case dict():
            return "a section"
        case list():
            return "a list"
        case None:
            return "nothing"
    return repr(value)
