"""Every error that Highway raises on purpose, as one tree.

    HighwayError                 something that an operator or a caller can act on
    ├── ConfigError              the configuration is wrong; carries every problem found, not only the first
    ├── CertificateError         a file of `tls:` can't be used; carries the key that names it
    ├── ReloadRefusedError       a reload would delete data, and nobody has allowed that, or leave a door open
    ├── StorageError             the durable log can't do what was asked
    │   ├── DataDirectoryError   the directory is of a newer format, incomplete, or can't be written
    │   │   └── DirectoryInUseError   another process has it open
    │   ├── TargetNotEmptyError  a backup, or a restore, would mix with what is there
    │   ├── CorruptionError      bytes below the durable length are damaged: path, position, reason
    │   ├── RecordTooLargeError  a record above the limit; nothing of its append was accepted (also a ValueError)
    │   ├── DiskFullError        ENOSPC: nothing of the batch was accepted
    │   ├── DiskFailedError      a sync failed; what the page cache holds can't be trusted any more
    │   └── OffsetError          an offset can't be read: log, offset, and the range that can
    │       ├── OffsetNotFoundError   outside [log_start_offset, high_watermark)
    │       ├── OffsetGapError        inside a recorded gap
    │       └── OffsetCorruptError    inside a damaged range; carries the next good offset
    └── MqttError                a peer broke the protocol; carries the MQTT 5 reason code
        ├── MalformedPacketError      bytes that can't be parsed
        └── ProtocolError             a well-formed packet where it isn't allowed

`detail` says who, what and where; `hint`, where there is one, says what to do about it.
"""

from __future__ import annotations

__all__ = [
    "CertificateError",
    "ConfigError",
    "CorruptionError",
    "DataDirectoryError",
    "DirectoryInUseError",
    "DiskFailedError",
    "DiskFullError",
    "HighwayError",
    "MalformedPacketError",
    "MqttError",
    "OffsetCorruptError",
    "OffsetError",
    "OffsetGapError",
    "OffsetNotFoundError",
    "ProtocolError",
    "RecordTooLargeError",
    "ReloadRefusedError",
    "StorageError",
    "TargetNotEmptyError",
]


class HighwayError(Exception):
    """The root: a sentence in `detail`, and in `hint` what to do about it (or "")."""

    def __init__(self, detail: str, hint: str = "") -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.detail} ({self.hint})" if self.hint else self.detail


class ConfigError(HighwayError):
    """A configuration that must not take effect; `problems` has one `file:line:column: ...` line for each fault."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class CertificateError(HighwayError):
    """A file of `tls:` can't be used; `key` is the one of the configuration that names it, such as `certfile`."""

    def __init__(self, key: str, detail: str) -> None:
        super().__init__(detail)
        self.key = key


class ReloadRefusedError(HighwayError):
    """A reload would delete stored messages, which nobody has allowed, or leave a door open: nothing has changed."""


class StorageError(HighwayError):
    """The durable log can't do what was asked."""


class DataDirectoryError(StorageError):
    """The data directory is in use, of a newer format, incomplete or not writable."""


class DirectoryInUseError(DataDirectoryError):
    """Another process has the data directory open."""


class TargetNotEmptyError(StorageError):
    """A directory that something is to be written to isn't empty."""


class CorruptionError(StorageError):
    """Damaged bytes where durable data was: `path`, byte `position` and `reason`."""

    def __init__(self, path: str, position: int, reason: str, hint: str = "") -> None:
        super().__init__(f"{path}: at byte {position}: {reason}", hint)
        self.path = path
        self.position = position
        self.reason = reason


class RecordTooLargeError(StorageError, ValueError):
    """A record is larger than storage keeps, or an append larger than a frame."""


class DiskFullError(StorageError):
    """The disk is full; nothing of the batch was accepted."""


class DiskFailedError(StorageError):
    """A sync failed; what was written since the last good one may or may not be on the medium."""


class OffsetError(StorageError):
    """`offset` of `log` can't be read; [`log_start_offset`, `high_watermark`) is the range that can."""

    status = "OFFSET_ERROR"

    def __init__(self, log: str, offset: int, log_start_offset: int, high_watermark: int, detail: str = "") -> None:
        super().__init__(
            detail
            or f"{self.status}: log {log!r} has no offset {offset}; it holds {log_start_offset} to {high_watermark - 1}"
        )
        self.log = log
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark


class OffsetNotFoundError(OffsetError):
    """The offset is outside the range of the log."""

    status = "OFFSET_NOT_FOUND"


class OffsetGapError(OffsetError):
    """The offset is inside a recorded gap: the message is gone for good, or never existed."""

    status = "OFFSET_GAP"


class OffsetCorruptError(OffsetError):
    """The offset is inside a damaged range; `next_offset` is the first good one after it."""

    status = "OFFSET_CORRUPT"

    def __init__(self, log: str, offset: int, log_start_offset: int, high_watermark: int, next_offset: int) -> None:
        super().__init__(log, offset, log_start_offset, high_watermark)
        self.next_offset = next_offset


class MqttError(HighwayError):
    """A peer broke the protocol; `reason_code` is what MQTT 5 calls it.

    `rule` names the statement of the specification, `position` the byte of the packet (0 is its first) that broke it;
    "" and None where the fault has no such thing.
    """

    default_reason_code = 0x80

    def __init__(
        self, detail: str, reason_code: int | None = None, *, rule: str = "", position: int | None = None
    ) -> None:
        super().__init__(detail)
        self.reason_code = self.default_reason_code if reason_code is None else reason_code
        self.rule = rule
        self.position = position
        self.is_answered = True  # whether the peer is sent the reason before the connection is closed

    def __str__(self) -> str:
        where = "" if self.position is None else f"at byte {self.position}: "
        return f"{where}{self.detail}" + (f" ({self.rule})" if self.rule else "")


class MalformedPacketError(MqttError):
    """Bytes that can't be parsed according to the specification."""

    default_reason_code = 0x81


class ProtocolError(MqttError):
    """A well-formed packet, or a value in one, that isn't allowed where it came."""

    default_reason_code = 0x82
