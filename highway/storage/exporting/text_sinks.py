"""Exports as text: JSON Lines and CSV, into a file that can be gone on with or into a stream."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
from typing import IO, TYPE_CHECKING, Any, Protocol

from highway.storage.exporting.columns import RECORD_COLUMNS, as_text, payload_fields, record_fields
from highway.storage.exporting.progress_file import incomplete

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from highway.storage.exporting.columns import Column
    from highway.storage.segment.records import Record

__all__ = ["FileSink", "Sink", "StreamSink", "csv_encoder", "csv_header", "jsonl_encoder"]


class Sink(Protocol):
    """Where rows go. `commit` makes what was written durable and returns the position that `open` goes on at."""

    def open(self, position: int) -> None: ...

    def write(self, records: Sequence[Record]) -> None: ...

    def commit(self) -> int: ...

    def finish(self, target: Path) -> None:
        """Put the complete export in its place, and close it."""

    def close(self) -> None:
        """Let go of it, as far as it is."""


def jsonl_encoder(columns: Sequence[Column], *, payload: bool) -> Callable[[Sequence[Record]], bytes]:
    """Return what makes lines of JSON: the record, its fields, and the payload as text or as base64."""

    def encode(records: Sequence[Record]) -> bytes:
        lines = []
        for record in records:
            row = record_fields(record)
            row.update(zip((column.name for column in columns), payload_fields(record[5], columns), strict=True))
            if payload:
                text, encoded = _text_or_base64(record[5])
                row.update({"payload": text} if encoded is None else {"payload_base64": encoded})
                if record[4]:
                    row["properties_base64"] = base64.b64encode(record[4]).decode()
            lines.append(json.dumps(row, ensure_ascii=False))
        lines.append("")
        return "\n".join(lines).encode(errors="replace")

    return encode


def csv_encoder(columns: Sequence[Column], *, payload: bool) -> Callable[[Sequence[Record]], bytes]:
    """Return what makes lines of CSV (RFC 4180, with line feeds) in the order of `csv_header`."""

    def encode(records: Sequence[Record]) -> bytes:
        rows = []
        for record in records:
            row: list[Any] = [_cell(value) for value in record_fields(record).values()]
            row += map(_cell, payload_fields(record[5], columns))
            if payload:
                row += _text_or_base64(record[5])
            rows.append(row)
        return _csv(rows)

    return encode


def csv_header(columns: Sequence[Column], *, payload: bool) -> bytes:
    """Return the first line."""
    names = [*RECORD_COLUMNS, *(column.name for column in columns)]
    return _csv([[*names, "payload", "payload_base64"] if payload else names])


def _csv(rows: Sequence[Sequence[Any]]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode(errors="replace")


def _cell(value: Any) -> Any:
    return as_text(value) if isinstance(value, bool | dict | list) else value


def _text_or_base64(payload: bytes) -> tuple[str | None, str | None]:
    try:
        return payload.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(payload).decode()


class FileSink:
    """A file that grows; the position is its length."""

    def __init__(self, partial: Path, encode: Callable[[Sequence[Record]], bytes], header: bytes = b"") -> None:
        self._partial = partial
        self._encode = encode
        self._header = header
        self._file: IO[bytes] | None = None

    def open(self, position: int) -> None:
        self._file = self._partial.open("r+b" if position and self._partial.exists() else "w+b")
        if self._file.seek(0, os.SEEK_END) < position:
            raise incomplete(self._partial)
        self._file.truncate(position)
        self._file.seek(position)
        if not position:
            self._file.write(self._header)

    def write(self, records: Sequence[Record]) -> None:
        assert self._file is not None
        self._file.write(self._encode(records))

    def commit(self) -> int:
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def finish(self, target: Path) -> None:
        self.close()
        self._partial.replace(target)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class StreamSink:
    """Standard output: nothing to go on with."""

    def __init__(self, stream: IO[bytes], encode: Callable[[Sequence[Record]], bytes], header: bytes = b"") -> None:
        self._stream = stream
        self._encode = encode
        self._header = header

    def open(self, position: int) -> None:
        assert position == 0
        self._stream.write(self._header)

    def write(self, records: Sequence[Record]) -> None:
        self._stream.write(self._encode(records))

    def commit(self) -> int:
        self._stream.flush()
        return 0

    def finish(self, target: Path) -> None:
        """Nothing: it was shown as it came."""

    def close(self) -> None:
        """Nothing: the stream is the caller's."""
