"""Exports as one Parquet file, with pyarrow (the extra `[parquet]`).

A Parquet file is readable only when it ends, so that an export which can be gone on with is a folder of complete parts;
the last step makes one file of them. A field has the type of all its values: integers, floats, booleans or text. Where
they differ, integers become floats, and everything else becomes text (JSON).
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from highway.storage.exporting.columns import as_text, payload_fields
from highway.storage.exporting.progress_file import incomplete
from highway.storage.segment.records import FLAG_QOS_MASK, FLAG_RETAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from highway.storage.exporting.columns import Column
    from highway.storage.segment.records import Record

__all__ = ["ParquetSink"]

# Readers skip and share out work by row groups; this is what DuckDB makes itself.
_ROW_GROUP = 122_880


class ParquetSink:
    """Parts in the folder `partial`; the position is how many there are."""

    def __init__(self, partial: Path, columns: Sequence[Column], *, payload: bool) -> None:
        self._partial = partial
        self._columns = columns
        self._payload = payload
        self._parts = 0
        self._pending: list[Record] = []

    def open(self, position: int) -> None:
        self._partial.mkdir(exist_ok=True)
        if not all(self._part(number).exists() for number in range(position)):
            raise incomplete(self._partial)
        self._parts = position

    def _part(self, number: int) -> Path:
        return self._partial / f"{number:08}.parquet"

    def write(self, records: Sequence[Record]) -> None:
        self._pending.extend(records)

    def commit(self) -> int:
        if self._pending:
            with self._part(self._parts).open("wb") as file:
                pq.write_table(self._table(self._pending), file)
                file.flush()
                os.fsync(file.fileno())
            self._parts += 1
            self._pending = []
        return self._parts

    def _table(self, records: Sequence[Record]) -> pa.Table:
        offsets, flags, times, topics, _, payloads = zip(*records, strict=True)
        arrays = {
            "offset": pa.array(offsets, pa.int64()),
            "time": pa.array(times, pa.timestamp("ms", tz="UTC")),
            "time_ms": pa.array(times, pa.int64()),
            "topic": pa.array([topic.decode(errors="replace") for topic in topics], pa.string()),
            "qos": pa.array([each & FLAG_QOS_MASK for each in flags], pa.int8()),
            "retain": pa.array([bool(each & FLAG_RETAIN) for each in flags], pa.bool_()),
        }
        if self._columns:
            fields = zip(*(payload_fields(payload, self._columns) for payload in payloads), strict=True)
            arrays |= {column.name: _array(values) for column, values in zip(self._columns, fields, strict=True)}
        if self._payload:
            texts = list(map(_text, payloads))
            others = [payload if text is None else None for payload, text in zip(payloads, texts, strict=True)]
            arrays["payload"] = pa.array(texts, pa.string())
            arrays["payload_bytes"] = pa.array(others, pa.binary())
        return pa.table(arrays)

    def finish(self, target: Path) -> None:
        tables = [pq.ParquetFile(self._part(number)) for number in range(self._parts)]
        schema = self._schema([part.schema_arrow for part in tables])
        whole = self._partial / "whole"
        with whole.open("wb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for table in _grouped(_read(part, schema) for part in tables):
                writer.write_table(table, row_group_size=_ROW_GROUP)
        for part in tables:
            part.close()
        with whole.open("rb") as written:
            os.fsync(written.fileno())
        whole.replace(target)
        shutil.rmtree(self._partial)

    def _schema(self, found: Sequence[pa.Schema]) -> pa.Schema:
        """Return one schema for all parts: their fields differ in the types of payload fields only."""
        names = {column.name for column in self._columns}
        first = found[0] if found else self._empty_schema()
        return pa.schema(
            [
                pa.field(field.name, _common_type([schema.field(field.name).type for schema in found]))
                if field.name in names
                else field
                for field in first
            ]
        )

    def _empty_schema(self) -> pa.Schema:
        return self._table([(0, 0, 0, b"", b"", b"")]).schema

    def close(self) -> None:
        """Nothing is open between two parts."""


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def _array(values: Sequence[Any]) -> pa.Array:
    """Return the values of a field, as text where no other type holds all of them."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} or kinds == {bool}:
        try:
            return pa.array(values, pa.float64() if float in kinds else None)
        except (pa.ArrowInvalid, OverflowError):
            pass  # an integer of more than 64 bits
    return pa.array([as_text(value) for value in values], pa.string())


def _common_type(types: Sequence[pa.DataType]) -> pa.DataType:
    known = {kind for kind in types if not pa.types.is_null(kind)}
    if len(known) == 1:
        return known.pop()
    return pa.float64() if known == {pa.int64(), pa.float64()} else pa.string()


def _read(part: pq.ParquetFile, schema: pa.Schema) -> pa.Table:
    return part.read().cast(schema)


def _grouped(tables: Iterable[pa.Table]) -> Iterable[pa.Table]:
    """Yield `tables` joined to row groups of the usual size."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= _ROW_GROUP:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)
