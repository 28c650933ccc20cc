"""The segments of one log at open: which are trusted, which are scanned, what is cut and what is set aside.

Sealed segments are trusted and opened when they are first read. The active one is scanned from its durable length on,
and so is every newer one, which a roll made after the checkpoint. What is torn above the durable length is cut: the
journal has it. Below the durable length nothing is ever cut; what is missing there is a loss, and reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote

from highway.errors import CorruptionError
from highway.storage.checkpoint.checkpoint import NO_SEGMENT, LogState
from highway.storage.disk.medium import can_sync_whole
from highway.storage.gaps import CORRUPTION, UNCLEAN_STOP, Gap, add_gap
from highway.storage.segment.format import SEGMENT_HEADER_BYTES
from highway.storage.segment.segment import INDEX_SUFFIX, SEGMENT_SUFFIX, Segment, segment_path

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from highway.storage.disk.descriptors import Descriptors
    from highway.storage.segment.records import RecordBatch
    from highway.storage.segment.scan import ScanResult

    from .quarantine import Quarantine
    from .report import RecoveryReport

__all__ = ["RecoveredLog", "list_segments", "rebuild_state", "recover_segments", "sync_segments"]

_DIGITS = 20
_MANY = 64  # files: to sync them one by one takes longer than to sync the whole file system (2 ms each against 20)


@dataclass(slots=True)
class RecoveredLog:
    """One log as it goes on: `state` is brought up to date in place."""

    state: LogState
    segments: list[Segment] = field(default_factory=list)
    segment_end: int = 0  # offset after the last record in a segment
    tail: list[tuple[int, RecordBatch]] = field(default_factory=list)  # (journal entry, batch), behind the segments
    intact: bool = True  # every file is as the checkpoint says
    last_entry: int = 0  # of the journal's that were replayed
    unsynced: list[Segment] = field(default_factory=list)  # their frames may be in the page cache only
    unnamed: list[Path] = field(default_factory=list)  # newer than the checkpoint: their names, too

    @property
    def end(self) -> int:
        """Return the offset after the last record."""
        return self.tail[-1][1].end_offset if self.tail else self.segment_end

    def replay(self, entry: int, batch: RecordBatch, report: RecoveryReport, now_ms: int) -> None:
        """Take what the journal says was appended, unless a segment has it."""
        self.last_entry = entry
        if batch.base_offset < self.end:
            if batch.end_offset <= self.end:
                return
            batch = batch.without_head(self.end - batch.base_offset)
        if batch.base_offset > self.end:
            # An unclean open made the log go on exactly at its reserved ceiling.
            reason = UNCLEAN_STOP if batch.base_offset == self.state.ceiling else CORRUPTION
            self.lose(self.end, batch.base_offset, reason, report, now_ms)
        self.tail.append((entry, batch))
        self.state.last_ms = max(self.state.last_ms, batch.last_ms)
        report.records_recovered += batch.count

    def lose(self, from_offset: int, to_offset: int, reason: str, report: RecoveryReport, now_ms: int) -> None:
        """Record a gap, except for what is known to be one."""
        from_offset = max(from_offset, self.state.log_start)
        if from_offset >= to_offset:
            return
        before = self.state.gaps
        self.state.gaps = add_gap(before, Gap(from_offset, to_offset, reason, now_ms))
        if self.state.gaps != before:
            report.gaps.append((self.state.name, Gap(from_offset, to_offset, reason, now_ms)))

    def finish(self, report: RecoveryReport, now_ms: int, *, clean: bool) -> None:
        """Decide where the log goes on, and record the holes that this leaves."""
        state = self.state
        durable_next = max(state.next_offset, self.segment_end)
        if self.end < durable_next:
            self.lose(self.end, durable_next, CORRUPTION, report, now_ms)
        recovered = max(self.end, durable_next)
        state.next_offset = recovered
        if not clean:
            state.epoch += 1
            report.epoch_bumps += 1
            if state.ceiling > recovered:
                self.lose(recovered, state.ceiling, UNCLEAN_STOP, report, now_ms)
                state.next_offset = state.ceiling
        state.ceiling = 0
        state.log_start = min(state.log_start, state.next_offset)
        active = self.segments[-1] if self.segments else None
        state.active_base = NO_SEGMENT if active is None else active.base_offset
        state.durable_length = 0 if active is None else active.durable_length
        state.durable_end = self.segment_end


def list_segments(names: list[str]) -> list[int]:
    """Return the base offsets of the segments among the names of a directory, ascending."""
    return sorted(
        int(name[:_DIGITS])
        for name in names
        if len(name) == _DIGITS + len(SEGMENT_SUFFIX) and name.endswith(SEGMENT_SUFFIX) and name[:_DIGITS].isdecimal()
    )


def recover_segments(
    state: LogState, directory: Path, files: Descriptors, quarantine: Quarantine, report: RecoveryReport, now_ms: int
) -> RecoveredLog:
    """Return the log as its segments show it."""
    log = RecoveredLog(state, segment_end=state.durable_end)
    filesystem = files.filesystem
    if not filesystem.exists(directory):
        if state.active_base != NO_SEGMENT:
            _damaged(log, report, CorruptionError(str(directory), 0, "the log's directory is gone"))
            log.lose(state.log_start, state.durable_end, CORRUPTION, report, now_ms)
        return log
    bases = list_segments(_tidy(directory, files))
    for index, base in enumerate(bases):
        path = segment_path(directory, base)
        if base < state.active_base:
            if index + 1 < len(bases) and bases[index + 1] <= state.log_start:
                Segment.open_sealed(path, files).delete()  # retention was on its way
            else:
                log.segments.append(Segment.open_sealed(path, files))
            continue
        _recover_open(log, path, files, quarantine, report, now_ms)
    if state.active_base != NO_SEGMENT and state.active_base not in bases:
        _damaged(
            log, report, CorruptionError(str(segment_path(directory, state.active_base)), 0, "the segment is gone")
        )
        log.lose(state.active_base, state.durable_end, CORRUPTION, report, now_ms)
    if log.segments and log.segments[-1].sealed:
        _reopen_last(log)
    return log


def sync_segments(logs: Collection[RecoveredLog], files: Descriptors, logs_directory: Path) -> None:
    """Make durable what is going to be shown: the process may have been killed before it did that itself."""
    unsynced = [segment for log in logs for segment in log.unsynced]
    unnamed = [path for log in logs for path in log.unnamed]
    filesystem = files.filesystem
    if len(unsynced) + len(unnamed) > _MANY and can_sync_whole(filesystem, logs_directory):
        fd = filesystem.open_directory(logs_directory)
        try:
            filesystem.syncfs(fd)
        finally:
            filesystem.close(fd)
        for segment in unsynced:
            segment.mark_durable(segment.length, segment.next_offset)
        return
    for path in unnamed:
        with files.use(path) as fd:
            filesystem.fsync(fd)
        filesystem.sync_dir(path.parent)
        filesystem.sync_dir(path.parent.parent)
    for segment in unsynced:
        segment.sync()
        filesystem.sync_dir(
            segment.path.parent
        )  # it may have been written anew, and the name still lead to the old file


def _reopen_last(log: RecoveredLog) -> None:
    """Take the newest sealed segment as the active one, whose file is gone: appends only roll away from it."""
    segment = log.segments[-1]
    try:
        _ = segment.index
    except CorruptionError:
        return  # its header is damaged: it is read as far as it can be, and the first append makes a new segment
    log.segment_end = max(log.segment_end, segment.next_offset)


def _tidy(directory: Path, files: Descriptors) -> list[str]:
    """Remove what an interrupted roll or deletion left; return the other names."""
    names = files.filesystem.listdir(directory)
    present = set(names)
    kept = []
    for name in names:
        orphan = name.endswith(INDEX_SUFFIX) and name[: -len(INDEX_SUFFIX)] + SEGMENT_SUFFIX not in present
        if name.endswith(".tmp") or orphan:
            files.filesystem.unlink(directory / name)
        else:
            kept.append(name)
    return kept


def _recover_open(
    log: RecoveredLog, path: Path, files: Descriptors, quarantine: Quarantine, report: RecoveryReport, now_ms: int
) -> None:
    """Take a segment that was open for appends when the checkpoint was written, or is newer."""
    state = log.state
    is_active = int(path.name[:_DIGITS]) == state.active_base
    if not is_active and not log.intact:
        # What is before it was cut, so that it no longer continues anything: the journal has all of it.
        _set_aside(log, path, files, quarantine, report)
        return
    try:
        if is_active:
            segment, result = Segment.open_active(
                path, files, position=state.durable_length, next_offset=state.durable_end
            )
        else:
            segment, result = Segment.open_active(path, files)
            log.unnamed.append(path)
    except CorruptionError as error:
        if is_active:
            _recover_short(log, path, error, files, quarantine, report, now_ms)
        else:
            _set_aside(log, path, files, quarantine, report)  # a roll that didn't come to its end
        return
    _take(log, segment, result, quarantine, report)


def _take(
    log: RecoveredLog, segment: Segment, result: ScanResult, quarantine: Quarantine, report: RecoveryReport
) -> None:
    """Add a scanned segment: cut its torn tail, and note whether it has to be synced."""
    size = segment.file_size()
    if size > segment.length:
        log.intact = False
        cut = size - segment.length
        report.torn_bytes_cut += cut
        quarantine.keep(segment.path, segment.length, segment.read_raw(segment.length, cut))
        segment.cut_tail()
    if log.segments and not log.segments[-1].sealed:
        log.segments[-1].seal()
    if result.frames:
        log.intact = False
        log.state.last_ms = max(log.state.last_ms, result.last_ms)
        log.state.epoch = max(log.state.epoch, result.epoch)
        log.unsynced.append(segment)
    log.segments.append(segment)
    log.segment_end = max(log.segment_end, segment.next_offset)


def _recover_short(
    log: RecoveredLog,
    path: Path,
    error: CorruptionError,
    files: Descriptors,
    quarantine: Quarantine,
    report: RecoveryReport,
    now_ms: int,
) -> None:
    """Take the active segment although durable bytes of it are missing: what is valid from its start on."""
    state = log.state
    _damaged(log, report, error)
    files.forget(path)
    try:
        segment, result = Segment.open_active(path, files)
    except CorruptionError:
        log.lose(int(path.name[:_DIGITS]), state.durable_end, CORRUPTION, report, now_ms)
        _set_aside(log, path, files, quarantine, report)
        return
    log.lose(segment.next_offset, state.durable_end, CORRUPTION, report, now_ms)
    segment.durable_length = SEGMENT_HEADER_BYTES
    _take(log, segment, result, quarantine, report)


def _set_aside(
    log: RecoveredLog, path: Path, files: Descriptors, quarantine: Quarantine, report: RecoveryReport
) -> None:
    log.intact = False
    with files.use(path) as fd:
        report.torn_bytes_cut += files.filesystem.size(fd)
    files.forget(path)
    quarantine.move(path)


def _damaged(log: RecoveredLog, report: RecoveryReport, error: CorruptionError) -> None:
    log.intact = False
    report.damaged.append(error)


def rebuild_state(directory: Path, files: Descriptors) -> LogState | None:
    """Return what can be known of a log without a checkpoint: everything above the segments' headers is scanned."""
    encoded, _, uuid8 = directory.name.rpartition("-")
    try:
        log_id = int(uuid8, 16)
    except ValueError:
        return None
    state = LogState(log_id, unquote(encoded), log_id.to_bytes(4, "big") + bytes(12))
    bases = list_segments(files.filesystem.listdir(directory))
    if not bases:
        return state
    for base in bases:
        try:
            header = Segment.open_sealed(segment_path(directory, base), files).header
        except CorruptionError:
            continue
        if header.log_uuid[:4].hex() == uuid8:
            state.uuid = header.log_uuid
        state.epoch = max(state.epoch, header.epoch)
    state.log_start = bases[0]
    state.active_base = bases[-1]
    state.durable_length = SEGMENT_HEADER_BYTES
    state.durable_end = bases[-1]
    return state
