"""The durable log: one journal for the whole broker, one segmented log for each configured topic entry.

The formats are in FORMAT.md beside this file.
"""

from __future__ import annotations

from highway.storage.filesystem import FileSystem, OsFileSystem
from highway.storage.records import Record, RecordBatch, RecordHeads
from highway.storage.settings import Durability, LogSettings, StorageSettings

__all__ = [
    "Durability",
    "FileSystem",
    "LogSettings",
    "OsFileSystem",
    "Record",
    "RecordBatch",
    "RecordHeads",
    "StorageSettings",
]
