"""The run of an export: records of a data directory into a sink, chunk by chunk, to be gone on with after any end.

It only reads the data directory, and sees it as a start at that moment would: beside a running broker, what the broker
has in memory only isn't there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from highway.storage.checking.directory_view import look_at
from highway.storage.checking.dumping import iterate_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from highway.storage.exporting.progress_file import ProgressFile, Reached
    from highway.storage.exporting.text_sinks import Sink
    from highway.storage.log.reader import Lost
    from highway.storage.recovery.log_recovery import RecoveredLog
    from highway.storage.segment.records import Record

__all__ = ["Export", "Exported"]

# A chunk is what a kill costs, and what memory holds: whichever comes first.
_CHUNK_RECORDS = 65_536
_CHUNK_BYTES = 16 * 1024 * 1024


@dataclass(slots=True)
class Exported:
    """What came of it: ranges that can't be read, and those that retention deleted meanwhile; from, to, why."""

    records: int
    lost: list[tuple[int, int, str]]
    trimmed: list[tuple[int, int, str]]


class Export:
    """An export of one log from `reached` on. `wanted` tells which records; `on_progress` is told of offsets passed."""

    def __init__(
        self,
        directory: Path,
        log: str,
        reached: Reached,
        sink: Sink,
        progress_file: ProgressFile | None,
        *,
        wanted: Callable[[Record], bool],
        on_progress: Callable[[int], None],
    ) -> None:
        self._directory = directory
        self._log = log
        self._reached = reached
        self._sink = sink
        self._progress_file = progress_file
        self._wanted = wanted
        self._on_progress = on_progress

    def run(self, log: RecoveredLog, target: Path) -> Exported:
        """Export to the end of the range and put `target` in its place. OSError: what is committed stays."""
        reached = self._reached
        try:
            self._sink.open(reached.position)
            for chunk, following in self._chunks(log, self._lose):
                self._sink.write(chunk)
                self._on_progress(following - reached.next_offset)
                reached.records += len(chunk)
                reached.next_offset = following
                self._commit()
            self._on_progress(reached.until_offset - reached.next_offset)
            reached.next_offset = reached.until_offset
            self._commit()
            self._sink.finish(target)
        finally:
            self._sink.close()
        if self._progress_file is not None:
            self._progress_file.remove()
        return self._judged()

    def _commit(self) -> None:
        self._reached.position = self._sink.commit()
        if self._progress_file is not None:
            self._progress_file.save(self._reached)

    def _chunks(self, log: RecoveredLog, on_lost: Callable[[Lost], None]) -> Iterator[tuple[Sequence[Record], int]]:
        """Yield (records that are wanted, the offset behind those that were looked at)."""
        chunk: list[Record] = []
        seen = size = 0
        for record in iterate_records(log, self._reached.next_offset, self._reached.until_offset, on_lost):
            seen += 1
            if self._wanted(record):
                chunk.append(record)
                size += len(record[5])
            if seen >= _CHUNK_RECORDS or size >= _CHUNK_BYTES:
                yield chunk, record[0] + 1
                chunk = []
                seen = size = 0
        if chunk:
            yield chunk, chunk[-1][0] + 1

    def _lose(self, lost: Lost) -> None:
        self._reached.lost.append((lost.from_offset, lost.to_offset, str(lost.error)))

    def _judged(self) -> Exported:
        """Return the result; what retention has deleted meanwhile isn't damaged."""
        lost = self._reached.lost
        start = 0
        if lost:
            with look_at(self._directory) as view:
                start = view.logs[self._log].state.log_start
        return Exported(
            self._reached.records,
            [each for each in lost if each[1] > start],
            [each for each in lost if each[1] <= start],
        )
