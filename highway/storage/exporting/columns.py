"""Rows for tables: what a record is in columns, and the fields of a JSON payload as columns of their own."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from highway.errors import HighwayError
from highway.storage.segment.records import FLAG_QOS_MASK, FLAG_RETAIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from highway.storage.segment.records import Record

__all__ = ["RECORD_COLUMNS", "Column", "as_text", "parse_columns", "payload_fields", "record_fields", "rfc3339"]

# What every row begins with.
RECORD_COLUMNS = ("offset", "time", "time_ms", "topic", "qos", "retain")
_TAKEN = {*RECORD_COLUMNS, "payload", "payload_base64", "payload_bytes", "properties_base64"}


class Column(NamedTuple):
    """A column, and where in the payload its value is."""

    name: str
    path: tuple[str, ...]


def parse_columns(texts: Sequence[str]) -> list[Column]:
    """Return the columns that `FIELD` or `NAME=FIELD` ask for; a FIELD is keys and list indexes, joined by dots.

    HighwayError: an empty part, or a name that is there twice or means something else.
    """
    columns: list[Column] = []
    for text in texts:
        name, _, path = text.rpartition("=")
        column = Column(name or path, tuple(path.split(".")))
        if not all(column.path):
            raise HighwayError(f"{text!r} names no field", "write it as speed_kmh, gps.lat, axles.0 or name=gps.lat")
        if column.name in _TAKEN:
            raise HighwayError(
                f"every row has a column {column.name!r}", f"give the field another name: payload_{column.name}={path}"
            )
        if any(column.name == other.name for other in columns):
            raise HighwayError(f"the column {column.name!r} is asked for twice", "name one of them: other=a.b")
        columns.append(column)
    return columns


def record_fields(record: Record) -> dict[str, Any]:
    """Return the columns that every row begins with."""
    offset, flags, timestamp_ms, topic, _, _ = record
    return {
        "offset": offset,
        "time": rfc3339(timestamp_ms),
        "time_ms": timestamp_ms,
        "topic": topic.decode(errors="replace"),
        "qos": flags & FLAG_QOS_MASK,
        "retain": bool(flags & FLAG_RETAIN),
    }


def payload_fields(payload: bytes, columns: Sequence[Column]) -> list[Any]:
    """Return the values of `columns` in a JSON payload; None for what isn't there, or if it is no JSON."""
    try:
        root = json.loads(payload)
    except (ValueError, RecursionError):
        return [None] * len(columns)
    return [_at(root, column.path) for column in columns]


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isascii() and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def as_text(value: Any) -> str | None:
    """Return a JSON value for a column of text: text as it is, the rest as JSON, None for null."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()  # JSON can escape halves of characters, UTF-8 can't
    return None if value is None else json.dumps(value)


def rfc3339(milliseconds: int) -> str:
    """Return that time in UTC, with milliseconds and `Z`."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
