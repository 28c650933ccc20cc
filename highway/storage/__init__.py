"""The durable log: one journal for the whole broker, one segmented log for each configured topic entry.

What is promised, and how, is in README.md beside this file; the formats are in FORMAT.md.
"""

from __future__ import annotations

from highway.storage.checkpoint import Gap
from highway.storage.descriptors import descriptor_share
from highway.storage.engine import Storage
from highway.storage.filesystem import FileSystem, OsFileSystem
from highway.storage.log import Log
from highway.storage.meta import Meta
from highway.storage.records import Record, RecordBatch, RecordHeads
from highway.storage.report import RecoveryReport
from highway.storage.settings import Durability, LogSettings, StorageSettings

__all__ = [
    "Durability",
    "FileSystem",
    "Gap",
    "Log",
    "LogSettings",
    "Meta",
    "OsFileSystem",
    "Record",
    "RecordBatch",
    "RecordHeads",
    "RecoveryReport",
    "Storage",
    "StorageSettings",
    "descriptor_share",
]
