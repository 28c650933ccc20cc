"""What can be set about storage: one dataclass for each log, one for the data directory.

Sizes are bytes and times are milliseconds here; the configuration layer turns `64MiB` and `7d` into them and checks
the ranges, so that what arrives here is already sane.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DEFAULT_RETENTION_MS",
    "KIB",
    "MIB",
    "Durability",
    "LogSettings",
    "StorageSettings",
    "find_settings",
    "unconfigured",
]

KIB = 1024
MIB = 1024 * 1024

DAY_MS = 24 * 60 * 60 * 1000
DEFAULT_RETENTION_MS = 7 * DAY_MS


class Durability(enum.IntEnum):
    """When an append counts as accepted; a higher value promises all that a lower one does."""

    FAST = 0  # in memory
    BALANCED = 1  # written to the journal: survives the death of the process
    SAFE = 2  # journal synced and read back: survives the loss of power


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How one log is kept."""

    name: str
    durability: Durability = Durability.BALANCED
    retention_ms: int | None = DEFAULT_RETENTION_MS  # None: kept for ever
    retention_bytes: int | None = None  # None: no bound of its own
    segment_bytes: int = 64 * MIB
    flush_interval_ms: int = 100  # FAST: how long a record may exist in memory only
    flush_bytes: int = 1 * MIB  # a buffer this large becomes a frame
    flush_records: int = 8192
    sync_interval_ms: int = 1000  # FAST and BALANCED: how long a written record may stay unsynced
    sync_bytes: int = 8 * MIB
    compression: Literal["zstd", "none"] = "zstd"
    compression_level: int = 1  # level 3 costs more than it saves on this load
    verify: Literal["cache", "direct", "off"] = "cache"  # how a SAFE sync is read back
    on_corruption: Literal["gap", "refuse"] = "gap"
    delay_ms: int = 0  # held back from subscribers this long; the broker enforces it
    per_topic: bool = False  # no log of this name, but one for each topic: `<name>/<topic>`, with these settings
    max_logs: int = 10_000  # of these
    cleanup: Literal["delete", "compact"] = "delete"  # compact: of each topic the newest record is kept
    tombstone_ms: int = DAY_MS  # compact: an empty record, which says that its topic is gone, stays this long


def unconfigured(name: str) -> LogSettings:
    """How a log is kept that has data and is configured no longer: for ever, as only an operator deletes."""
    return LogSettings(name, retention_ms=None)


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """How the data directory as a whole is kept."""

    journal_file_bytes: int = 64 * MIB
    checkpoint_interval_ms: int = 5000
    checkpoint_bytes: int = 64 * MIB  # journal written since the last checkpoint
    memory_budget: int = 256 * MIB  # tails of all logs together
    cache_bytes: int = 64 * MIB  # decoded frames
    max_backlog_bytes: int = 16 * MIB  # appended and not yet in the journal; above it publishers are paused
    max_bytes: int | None = None  # all logs together, on disk
    reaper_interval_ms: int = 30_000
    reserve_bytes: int = 64 * MIB  # kept back, and given up when the disk is full
    max_record_bytes: int = 256 * MIB  # one record with its head; a frame holds no more
    scrub_rate: int = 4 * MIB  # bytes a second that are read again to find damage; 0: never
    scrub_interval_ms: int = 24 * 60 * 60 * 1000  # from the beginning of a round to that of the next


def find_settings(configured: Mapping[str, LogSettings], name: str) -> LogSettings | None:
    """Return the settings of a log among those by name, which all topics of a `per_topic` entry share; None without."""
    head, _, topic_name = name.partition("/")
    found = configured.get(head)
    return found if found is not None and found.per_topic == bool(topic_name) else None
