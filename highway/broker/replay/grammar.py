"""The grammar of `<from>`, and of the topic filters that are requests: `$replay`, `$log`, `$fetch` and `$range`.

    <from>                        starts at
    earliest, latest              the log's start, now
    1234                          offset 1234, inclusive
    -100                          the last 100 matching messages
    @1790000000000                the first message at or after that time, Unix milliseconds
    @2026-11-29T18:00:00Z         the same as RFC 3339
    90s, 15m, 2h, 7d              that long ago

The same words are used in MQTT, on the command line and over HTTP. What doesn't parse is refused with the rule that
it broke: a replay that silently started somewhere else would look like lost messages. A `+` can't stand inside a
level of a topic filter, so that over MQTT a time east of Greenwich is written in UTC.
"""

from __future__ import annotations

import datetime as dt
import enum
import re
from dataclasses import dataclass

from highway.errors import ProtocolError

__all__ = [
    "FetchRequest",
    "From",
    "FromKind",
    "RangeRequest",
    "ReplayRequest",
    "Special",
    "parse_from",
    "parse_special",
    "source_of",
]

TOPIC_FILTER_INVALID = 0x8F  # the MQTT 5 reason code; in a 3.1.1 SUBACK it becomes 0x80

# Offsets are unsigned 64-bit on disk; nobody reaches the sign bit, and the tools of others may have one.
MAX_OFFSET = 2**63 - 1

_FROM_RULE = (
    "<from> is earliest, latest, an offset (1234), the last n (-100), a time (@ and Unix milliseconds or RFC 3339) "
    "or an age (90s, 15m, 2h, 7d)"
)
_DIGITS = re.compile(rb"[0-9]{1,19}")
_AGE = re.compile(rb"([0-9]{1,12})([smhd])")
_RFC3339 = re.compile(
    r"(\d{4}-\d{2}-\d{2})[Tt](\d{2}:\d{2}):(\d{2})(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d{2}):(\d{2}))", re.ASCII
)
_UNIT_MS = {b"s": 1000, b"m": 60_000, b"h": 3_600_000, b"d": 86_400_000}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class FromKind(enum.Enum):
    """What `From.value` counts."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    LAST = "last"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class From:
    """Where a replay starts; `value` is the offset, the number of messages or the Unix milliseconds, else 0."""

    kind: FromKind
    value: int = 0


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """`$replay/<from>/<filter>`, or with `with_offset` `$log/<from>/<filter>`; `start_text` is `<from>` as written."""

    start: From
    start_text: bytes
    topic_filter: bytes
    with_offset: bool


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """`$fetch/<offset>/<topic>`: one record of the log that the topic belongs to."""

    offset: int
    topic_name: bytes


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """`$range/<topic>`: the bounds of the log that the topic belongs to."""

    topic_name: bytes


Special = ReplayRequest | FetchRequest | RangeRequest


def parse_from(text: bytes, now_ms: int) -> From:
    """Return what `text` means at `now_ms`: an age becomes a time. Raises ProtocolError that names the rule."""
    if text == b"earliest":
        return From(FromKind.EARLIEST)
    if text == b"latest":
        return From(FromKind.LATEST)
    if text.startswith(b"-"):
        count = _number(text[1:], "the number of messages after `-`", text)
        if count == 0:
            raise _refusal("the number of messages after `-` must be at least 1", text)
        return From(FromKind.LAST, count)
    if text.startswith(b"@"):
        return From(FromKind.TIME, _time_ms(text))
    age = _AGE.fullmatch(text)
    if age:
        return From(FromKind.TIME, max(0, now_ms - int(age[1]) * _UNIT_MS[age[2]]))
    if text[:1].isdigit():
        return From(FromKind.OFFSET, _number(text, "an offset", text))
    raise _refusal(_FROM_RULE, text)


def _number(digits: bytes, what: str, text: bytes) -> int:
    if not _DIGITS.fullmatch(digits) or (number := int(digits)) > MAX_OFFSET:
        raise _refusal(f"{what} must be a whole number up to {MAX_OFFSET}; {_FROM_RULE}", text)
    return number


def _time_ms(text: bytes) -> int:
    """Unix milliseconds of `@<milliseconds>` or `@<RFC 3339>`."""
    if text[1:].isdigit():
        return _number(text[1:], "a time in Unix milliseconds", text)
    match = _RFC3339.fullmatch(text[1:].decode("ascii", "replace"))
    if match is None:
        raise _refusal("a time is @ and Unix milliseconds, or @ and RFC 3339 as in @2026-11-29T18:00:00Z", text)
    day, minute, second, fraction, sign, offset_hours, offset_minutes = match.groups()
    # RFC 3339 lets a leap second be written as :60, which is the same instant as :00 of the next minute.
    seconds, offset = int(second), int(offset_hours or 0) * 60 + int(offset_minutes or 0)
    try:
        moment = dt.datetime.fromisoformat(f"{day}T{minute}:00+00:00")
    except ValueError as error:
        raise _refusal(f"no such time: {error}", text) from None
    if seconds > 60 or int(offset_hours or 0) > 23 or int(offset_minutes or 0) > 59:
        raise _refusal("no such time: seconds go to 60, an offset to 23:59", text)
    since_epoch = (moment - _EPOCH) // dt.timedelta(milliseconds=1)
    shift = -offset if sign == "+" else offset
    return max(0, since_epoch + shift * 60_000 + seconds * 1000 + int((fraction or "0").ljust(3, "0")[:3]))


def parse_special(topic_filter: bytes, now_ms: int) -> Special | None:
    """Return the request that a topic filter of SUBSCRIBE stands for, None for an ordinary filter.

    Wildcards are taken to be legal, as the protocol layer has checked the whole filter. Raises ProtocolError (reason
    code 0x8F) that names the rule.
    """
    if not topic_filter.startswith(b"$"):
        return None
    keyword, _, rest = topic_filter.partition(b"/")
    if keyword in (b"$replay", b"$log"):
        start_text, _, inner = rest.partition(b"/")
        start = parse_from(start_text, now_ms)
        _check_logged(inner, keyword + b"/<from>/<filter>", topic_filter)
        return ReplayRequest(start, start_text, inner, keyword == b"$log")
    if keyword == b"$fetch":
        offset_text, _, inner = rest.partition(b"/")
        _check_topic_name(inner, b"$fetch/<offset>/<topic>", topic_filter)
        return FetchRequest(_number(offset_text, "<offset> of $fetch/<offset>/<topic>", topic_filter), inner)
    if keyword == b"$range":
        _check_topic_name(rest, b"$range/<topic>", topic_filter)
        return RangeRequest(rest)
    return None


def source_of(name: bytes) -> bytes:
    """The name of the positions of a replay that was subscribed to as `name`: without its `<from>`, which may change.

    A filter without a keyword is one that MQTT 5's `replay-from` was given for.
    """
    keyword, _, rest = name.partition(b"/")
    if keyword in (b"$replay", b"$log"):
        return keyword + b"/" + rest.partition(b"/")[2]
    return b"$replay/" + name


def _check_logged(inner: bytes, shape: bytes, text: bytes) -> None:
    if not inner:
        raise _refusal(f"the form is {shape.decode()}", text)
    if inner.startswith(b"$"):
        raise _refusal("messages under $ topics are never stored, so that nothing can be read back from there", text)


def _check_topic_name(inner: bytes, shape: bytes, text: bytes) -> None:
    _check_logged(inner, shape, text)
    if b"+" in inner or b"#" in inner:
        raise _refusal(f"{shape.decode()} takes a topic name, without wildcards", text)


def _refusal(rule: str, text: bytes) -> ProtocolError:
    shown = text.decode("utf-8", "replace")
    return ProtocolError(f"{shown[:80]!r} is refused: {rule}", TOPIC_FILTER_INVALID)
