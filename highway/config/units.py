"""Durations, sizes and rates as people write them: `7d`, `1h30m`, `100ms`; `64MiB`, `10GB`; `1000/s`, `64KiB/s`.

A bare number is refused, because a reader can't tell milliseconds from seconds, nor MB from MiB. So is anything that
another tool would read in its own way (`1:30:00`, `1e6`, `64M`): the error quotes it and proposes what is meant.
`unlimited`, where a setting allows it, is the one word for "no bound".
"""

from __future__ import annotations

import re
from itertools import pairwise

from highway.broker.token_bucket import Rate

__all__ = ["UNLIMITED", "format_duration", "format_rate", "format_size", "parse_duration", "parse_rate", "parse_size"]

UNLIMITED = "unlimited"

_DURATION_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_UNITS = {
    "B": 1,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}

_RATE_UNITS = {"s": 1, "m": 60, "h": 3600}

_DURATION = re.compile(r"(?:\d{1,12}(?:ms|[smhd]))+", re.ASCII)
_DURATION_PART = re.compile(r"(\d+)(ms|[smhd])", re.ASCII)
_SIZE = re.compile(r"(\d{1,19}) ?([A-Za-z]{1,3})", re.ASCII)
_NUMBER = re.compile(r"-?\d[\d_]*(\.\d+)?", re.ASCII)
_CLOCK = re.compile(r"\d+(:\d{2}){1,2}", re.ASCII)

# What people write when they mean one of ours.
_SIZE_SPELLINGS = {
    "b": "B", "k": "KiB", "kb": "kB", "kib": "KiB", "m": "MiB", "mb": "MB", "mib": "MiB",
    "g": "GiB", "gb": "GB", "gib": "GiB", "t": "TiB", "tb": "TB", "tib": "TiB",
}  # fmt: skip

_DURATION_FORM = "a number with ms, s, m, h or d, such as 100ms, 30s, 1h30m or 7d"
_SIZE_FORM = "a number with B, KiB, MiB, GiB or TiB (or kB, MB, GB, TB), such as 64MiB or 10GB"
_RATE_FORM = "a number for each s, m or h, such as 1000/s or 300/m"
_BYTE_RATE_FORM = "a size for each s, m or h, such as 64KiB/s or 1GiB/h"


def parse_duration(text: object) -> int:
    """Milliseconds of `text`; ValueError says what is wrong and what to write."""
    if isinstance(text, bool) or not isinstance(text, int | str):
        raise ValueError(f"a duration is wanted here: {_DURATION_FORM}")  # noqa: TRY004  pydantic takes ValueError
    if not isinstance(text, str) or _NUMBER.fullmatch(text):
        raise ValueError(_bare_number(text, ("ms", "s", "m", "h", "d"), _DURATION_FORM))
    if not _DURATION.fullmatch(text):
        if _CLOCK.fullmatch(text):
            hours, minutes, *_ = text.split(":")
            raise ValueError(f"{text!r} is a time of day or a duration, nobody can tell; write {hours}h{minutes}m")
        raise ValueError(f"{text!r} is not a duration: write {_DURATION_FORM}")
    parts = _DURATION_PART.findall(text)
    sizes = [_DURATION_UNITS[unit] for _, unit in parts]
    if any(after >= before for before, after in pairwise(sizes)):
        raise ValueError(f"{text!r} names its units out of order: from large to small, each once, such as 1d12h")
    return sum(int(number) * _DURATION_UNITS[unit] for number, unit in parts)


def parse_size(text: object) -> int:
    """Bytes of `text`; ValueError says what is wrong and what to write."""
    if isinstance(text, bool) or not isinstance(text, int | str):
        raise ValueError(f"a size is wanted here: {_SIZE_FORM}")  # noqa: TRY004  pydantic takes ValueError
    if not isinstance(text, str) or _NUMBER.fullmatch(text):
        raise ValueError(_bare_number(text, ("B", "KiB", "MiB", "GiB"), _SIZE_FORM))
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size: write {_SIZE_FORM}")
    number, unit = match.groups()
    if unit not in _SIZE_UNITS:
        meant = _SIZE_SPELLINGS.get(unit.lower())
        proposal = f"did you mean {number}{meant}?" if meant else f"write {_SIZE_FORM}"
        raise ValueError(f"{text!r} has no unit that is known here; {proposal}")
    return int(number) * _SIZE_UNITS[unit]


def parse_rate(text: object, *, of_bytes: bool = False) -> Rate:
    """The rate in `text`, of bytes or of what is counted; ValueError says what is wrong and what to write."""
    form = _BYTE_RATE_FORM if of_bytes else _RATE_FORM
    if isinstance(text, bool) or not isinstance(text, int | str):
        raise ValueError(f"a rate is wanted here: {form}")  # noqa: TRY004  pydantic takes ValueError
    amount, slash, unit = str(text).partition("/")
    if not slash or unit not in _RATE_UNITS:
        proposal = f"; write {amount}/s, {amount}/m or {amount}/h" if _NUMBER.fullmatch(amount) and not of_bytes else ""
        raise ValueError(f"{text!r} is not a rate: {form}{proposal}")
    if of_bytes:
        return Rate(parse_size(amount), _RATE_UNITS[unit])
    if not re.fullmatch(r"\d{1,12}", amount, re.ASCII):
        raise ValueError(f"{text!r} is not a rate: {form}")
    return Rate(int(amount), _RATE_UNITS[unit])


def format_rate(rate: Rate, *, of_bytes: bool = False) -> str:
    """The text that `parse_rate` reads back as `rate`."""
    unit = next(unit for unit, seconds in _RATE_UNITS.items() if seconds == rate.seconds)
    return f"{format_size(rate.amount) if of_bytes else rate.amount}/{unit}"


def format_duration(milliseconds: int) -> str:
    """The shortest text that `parse_duration` reads back as `milliseconds`."""
    parts = []
    for unit, size in reversed(_DURATION_UNITS.items()):
        number, milliseconds = divmod(milliseconds, size)
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts) or "0s"


def format_size(size: int) -> str:
    """The shortest text that `parse_size` reads back as `size`; binary units, whole numbers."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _SIZE_UNITS[unit] == 0:
            return f"{size // _SIZE_UNITS[unit]}{unit}"
    return f"{size}B"


def _bare_number(number: object, units: tuple[str, ...], form: str) -> str:
    text = str(number)
    if text.startswith("-"):
        return f"{text} is negative; write {form}"
    *most, last = (f"{text.replace('_', '')}{unit}" for unit in units)
    if "." in text:
        return f"{text} has no unit; write a whole number with one: {form}"
    return f"{text} has no unit; write {', '.join(most)} or {last}"
