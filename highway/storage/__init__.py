"""The durable log: one journal for the whole broker, one segmented log for each configured topic entry.

What is promised, and how, is in README.md beside this file; the formats are in FORMAT.md.
"""

from __future__ import annotations

from highway.storage.checkpoint.meta import Meta
from highway.storage.disk.descriptors import descriptor_share
from highway.storage.disk.filesystem import FileSystem, OsFileSystem
from highway.storage.engine import Storage
from highway.storage.gaps import Gap
from highway.storage.log.log import Log
from highway.storage.log.retention import Deletion
from highway.storage.recovery.report import RecoveryReport
from highway.storage.segment.records import Record, RecordBatch, RecordHeads
from highway.storage.settings import Durability, LogSettings, StorageSettings

__all__ = [
    "Deletion",
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
