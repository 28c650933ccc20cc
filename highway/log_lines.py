"""What the broker says about itself on standard error: one line each, as text or as JSON.

Whom a line is about stands in fields, not in its sentence: `logger.warning("closed: %s", why, extra=about(client=...,
peer=...))`. From the fields the handler knows that a fault is the same one again, of the same client: it is told once a
minute, with a count. Names that clients choose are made harmless here and nowhere else: no line break, escape sequence
or change of direction in them reaches a terminal or begins a line of its own.

Lines never hold a payload, a password or a token, at any level: nothing that logs is given one.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FORMATS", "LEVELS", "LogLines", "LoggingSettings", "about", "printable"]

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")

# The same fault of the same client is one line in this time.
REPEAT_S = 60.0
# Faults that are remembered at once. Each takes about half a kilobyte; the oldest is told and forgotten.
MAX_FAULTS = 4096
# Lines about clients in that time, whoever they are: names and faults are theirs to make up. Beyond it all those with
# the same sentence are one fault.
MAX_LINES = 600


@dataclass(frozen=True, slots=True)
class LoggingSettings:
    """`logging:` of the configuration: one of FORMATS, and one of LEVELS, below which nothing is said."""

    format: str = "text"
    level: str = "info"


def printable(text: str) -> str:
    """`text` on one line, with characters escaped that a terminal would not just show: a client chooses its names."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def about(
    *,
    client: str | None = None,
    peer: str | None = None,
    topic: bytes | str | None = None,
    log: str | None = None,
) -> dict[str, Any]:
    """The `extra` of a line: whom and what it is about. `client` is a client id, `peer` address and port."""
    if isinstance(topic, bytes):
        topic = topic.decode("utf-8", "backslashreplace")
    fields = {"client": client, "peer": peer, "topic": topic, "log": log}
    return {"about": {name: value for name, value in fields.items() if value is not None}}


def _fields_of(record: logging.LogRecord) -> dict[str, str]:
    fields: dict[str, str] = getattr(record, "about", {})
    return fields


class _TextFormatter(logging.Formatter):
    """`WARNING highway.server: closed: packet id 0 client=sensor-7 peer=10.0.0.7:51234`."""

    def __init__(self, *, with_time: bool) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")
        self._with_time = with_time

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        for name, value in _fields_of(record).items():
            plain = value and value.isprintable() and not any(char in ' "=' for char in value)
            line += f" {name}={value if plain else json.dumps(value, ensure_ascii=False)}"
        if repeated := getattr(record, "repeated", 0):
            line += f" (and {repeated} more times since)"
        if self._with_time:
            line = f"{_timestamp(record)} {line}"
        return printable(line)


class _JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, then whom it is about."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields_of(record),
        }
        if repeated := getattr(record, "repeated", 0):
            line["repeated"] = repeated
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _timestamp(record: logging.LogRecord) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"


@dataclass(slots=True)
class _Fault:
    """A line that was written, and how often it would have been again since."""

    record: logging.LogRecord
    told_at: float
    repeated: int = 0


class LogLines(logging.Handler):
    """Writes the lines of all loggers to one stream. Any thread may log; `flush_repeated` is for the loop thread."""

    def __init__(
        self, stream: TextIO | None = None, *, with_time: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._stream = sys.stderr if stream is None else stream
        self._with_time = with_time
        self._clock = clock
        self._guard = threading.Lock()
        self._faults: dict[tuple[str, ...], _Fault] = {}  # in the order in which they were told
        self._told = 0  # lines about clients since `_counted_from`
        self._counted_from = self._clock()
        self.apply(LoggingSettings())

    def install(self) -> None:
        """Become the one handler of the process."""
        root = logging.getLogger()
        for handler in list(root.handlers):
            root.removeHandler(handler)
        root.addHandler(self)

    def apply(self, settings: LoggingSettings) -> None:
        """Take other settings; every line from now on follows them."""
        self._is_json = settings.format == "json"
        self.setFormatter(_JsonFormatter() if self._is_json else _TextFormatter(with_time=self._with_time))
        level = settings.level.upper()
        logging.getLogger().setLevel(level)
        # The library tells of every connection, and at its lowest level of every frame with its payload.
        logging.getLogger("websockets").setLevel(max(logging.WARNING, getattr(logging, level)))
        logging.getLogger("asyncio").setLevel(max(logging.INFO, getattr(logging, level)))

    def say(self, text: str, level: int = logging.INFO, *, plain: bool = False) -> None:
        """What people and supervisors wait for, at any level: `highway: <text>`; where JSON is asked for, an object.

        `plain` is for a line that scripts know, and that has the same form always.
        """
        if self._is_json and not plain:
            values = {"name": "highway", "levelno": level, "levelname": logging.getLevelName(level), "msg": text}
            self.emit(logging.makeLogRecord(values))
        else:
            self._stream.write(f"highway: {printable(text)}\n")
            self._stream.flush()

    def handle(self, record: logging.LogRecord) -> bool:
        """Write the line, unless its client was told of with the same words less than a minute ago."""
        overdue = self._note(record)
        if overdue is None:
            return False
        for fault in overdue:
            self._write_again(fault)
        return bool(super().handle(record))

    def _note(self, record: logging.LogRecord) -> list[_Fault] | None:
        """None for a repetition; else the faults that have to be told of before `record` is."""
        key = _key(record)
        if key is None:
            return []
        now = self._clock()
        with self._guard:
            if now - self._counted_from >= REPEAT_S:
                self._counted_from, self._told = now, 0
            kept = record
            if self._told >= MAX_LINES and key not in self._faults:
                key, kept = ("", record.name, str(record.msg)), _of_many(record)
            known = self._faults.get(key)
            if known is not None and now - known.told_at < REPEAT_S:
                known.repeated += 1
                return None
            overdue = []
            if known is not None:
                del self._faults[key]
                record.repeated = known.repeated
            elif len(self._faults) >= MAX_FAULTS:
                oldest = self._faults.pop(next(iter(self._faults)))
                overdue = [oldest] if oldest.repeated else []
            self._faults[key] = _Fault(_kept(kept), now)
            self._told += 1
            return overdue

    def flush_repeated(self, *, everything: bool = False) -> None:
        """Tell of the faults that were repeated and whose minute is over, or of all; to be called now and then."""
        now = self._clock()
        with self._guard:
            over = [key for key, fault in self._faults.items() if everything or now - fault.told_at >= REPEAT_S]
            faults = [self._faults.pop(key) for key in over]
        for fault in faults:
            if fault.repeated:
                self._write_again(fault)

    def _write_again(self, fault: _Fault) -> None:
        again = logging.makeLogRecord({**fault.record.__dict__, "created": time.time()})
        again.repeated = fault.repeated
        super().handle(again)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._stream.write(self.format(record) + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            pass  # nobody reads standard error any more: no reason to stop serving
        except Exception:  # noqa: BLE001  a line that can't be made must not end what it is about
            self.handleError(record)


def _kept(record: logging.LogRecord) -> logging.LogRecord:
    """What is remembered of a line: its words, and not the errors they were made of, which hold their frames."""
    lighter = {"msg": record.getMessage(), "args": (), "exc_info": None, "exc_text": None}
    return logging.makeLogRecord({**record.__dict__, **lighter})


def _of_many(record: logging.LogRecord) -> logging.LogRecord:
    """What a line is repeated as where many clients brought it about: what they did, and nothing of one of them."""
    sentence = str(record.msg).replace("%s", "...")
    return logging.makeLogRecord({**record.__dict__, "msg": f"of many clients: {sentence}", "args": (), "about": {}})


def _key(record: logging.LogRecord) -> tuple[str, ...] | None:
    """What makes a fault the same one again; None for a line that is about no client."""
    fields = _fields_of(record)
    who = fields.get("client") or fields.get("peer", "").rpartition(":")[0]
    if not who:
        return None
    return (who, record.name, record.getMessage(), fields.get("topic", ""), fields.get("log", ""))
