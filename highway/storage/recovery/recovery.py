"""Opening a data directory: from what is on the disk to where everything goes on.

1. The newest valid checkpoint says where each log's durable part ends and where the journal has to be read from.
2. Each log's segments are taken as log_recovery.py says; sealed ones aren't read.
3. The newest valid snapshot of the broker's state is loaded.
4. The journal is read from the checkpoint's position: records that no segment has go into the tails, puts into Meta.
   Offsets were given before anything was written, so replaying twice gives the same.
5. What is torn is cut, with a copy in quarantine; what is going to be shown is synced.
6. After an unclean stop each log's epoch grows by one, and FAST and BALANCED logs go on at their reserved ceiling.

Nothing that an interrupted recovery has done changes what the next one concludes: until the checkpoint that Storage
writes at the end, the journal and the old checkpoints are the same, except for tails that were cut already.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from highway.errors import CorruptionError, DataDirectoryError
from highway.storage.checkpoint.checkpoint import Checkpoint, CheckpointSlots, LogState
from highway.storage.checkpoint.meta import Meta, list_snapshots, load_snapshot
from highway.storage.journal.files import list_journal
from highway.storage.journal.format import (
    FILE_HEADER_BYTES,
    DeleteEntry,
    LogEntry,
    PutEntry,
    RecordsEntry,
    ReserveEntry,
    make_position,
    split_position,
)
from highway.storage.journal.journal import JournalStart
from highway.storage.journal.loss import RESERVATION_BOUND, account_for, read_lost
from highway.storage.journal.reader import JournalScan, TornTail, read_frames, scan_journal
from highway.storage.journal.replay import replay_frame
from highway.storage.segment.scan import read_salvaged
from highway.storage.settings import Durability, find_settings

from .log_recovery import RecoveredLog, rebuild_state, recover_segments, sync_segments
from .quarantine import Quarantine
from .report import RecoveryReport

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from highway.storage.disk.descriptors import Descriptors
    from highway.storage.disk.filesystem import FileSystem
    from highway.storage.disk.layout import Layout
    from highway.storage.settings import LogSettings

__all__ = ["Recovered", "recover"]

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Recovered:
    """What Storage goes on with."""

    report: RecoveryReport
    slots: CheckpointSlots
    logs: dict[int, RecoveredLog] = field(default_factory=dict)  # by log id
    meta: Meta = field(default_factory=Meta)
    meta_entry: int = 1  # first journal entry that no snapshot covers
    meta_first_entry: int = 0  # first journal entry that changed meta and that no snapshot covers, 0 without one
    frames: list[tuple[int, int, int]] = field(default_factory=list)  # (last entry, position, sequence)
    start: JournalStart = field(default_factory=lambda: JournalStart(1, 1, 1))
    older_position: int = 0  # where the older valid checkpoint reads the journal from
    newest_position: int = 0  # where the newest does
    unused_files: list[Path] = field(default_factory=list)  # of the journal: ready for recycling
    last_known_ms: int = 0
    highest_log_id: int = 0
    distrusted_below: int = 0  # journal files with a sequence below it are read, and never synced or written again


def recover(
    filesystem: FileSystem,
    layout: Layout,
    configured: Sequence[LogSettings],
    files: Descriptors,
    now_ms: int,
    *,
    rebuild: bool,
    distrust: bool = False,
) -> Recovered:
    """Return the state of a locked data directory; DataDirectoryError or CorruptionError if it must not be opened.

    With `distrust` journal files aren't synced: a sync has failed, and the caller copies what is in them.
    """
    recovery = _Recovery(filesystem, layout, configured, files, now_ms)
    recovery.choose_checkpoint(rebuild=rebuild)
    recovery.take_segments()
    recovery.load_snapshot()
    recovery.replay_journal()
    if not distrust:
        recovery.sync_journal()
    recovery.finish()
    return recovery.result


class _Recovery:
    """The steps, in the order in which `recover` takes them."""

    def __init__(
        self,
        filesystem: FileSystem,
        layout: Layout,
        configured: Sequence[LogSettings],
        files: Descriptors,
        now_ms: int,
    ) -> None:
        self._filesystem = filesystem
        self._layout = layout
        self._configured = {settings.name: settings for settings in configured}
        self._files = files
        self._now_ms = now_ms
        self._quarantine = Quarantine(filesystem, layout.quarantine)
        self._checkpoint = Checkpoint()
        self._rebuild = False
        self._clean = False
        self._scan = JournalScan()
        self._unknown: set[int] = set()  # ids of logs that only the journal's records mention
        self.result = Recovered(RecoveryReport(), CheckpointSlots(filesystem, layout.directory))

    def choose_checkpoint(self, *, rebuild: bool) -> None:
        """Take the newest valid checkpoint."""
        result = self.result
        found = result.slots.load()
        if found:
            self._checkpoint = found[0]
            result.older_position = min(checkpoint.journal_position for checkpoint in found)
            result.newest_position = found[0].journal_position
            for error in result.slots.damaged:
                _logger.warning("%s; the other checkpoint is used", error)
        elif not self._has_data():
            result.report.new = True  # or the first open was interrupted in its first checkpoint
        elif rebuild:
            self._checkpoint = self._rebuilt_checkpoint()
            self._rebuild = result.report.rebuilt = True
            result.report.damaged += result.slots.damaged
        else:
            reason = "; ".join(str(error) for error in result.slots.damaged) or "both are missing"
            raise DataDirectoryError(
                f"{self._layout.directory}: no readable checkpoint: {reason}",
                "highway log repair --apply rebuilds it from all that is there; make a copy of the directory first",
            )
        self._clean = result.report.new or (self._checkpoint.clean and not self._rebuild)
        result.last_known_ms = self._checkpoint.written_ms

    def _has_data(self) -> bool:
        """Return whether anything was ever stored: an open makes journal files before the first checkpoint."""
        if self._filesystem.listdir(self._layout.logs) or self._filesystem.listdir(self._layout.meta):
            return True
        return bool(scan_journal(self._filesystem, self._layout.journal, 0, -1, 1, 0).frames)

    def _rebuilt_checkpoint(self) -> Checkpoint:
        checkpoint = Checkpoint(journal_frame=-1)
        for name in self._filesystem.listdir(self._layout.logs):
            state = rebuild_state(self._layout.logs / name, self._files)
            if state is not None:
                checkpoint.logs.append(state)
        return checkpoint

    def take_segments(self) -> None:
        """Open the segments of every log that the checkpoint knows."""
        report = self.result.report
        for state in self._checkpoint.logs:
            directory = self._layout.log_directory(state.name, state.uuid)
            log = recover_segments(state, directory, self._files, self._quarantine, report, self._now_ms)
            self.result.logs[state.log_id] = log
            self._clean = self._clean and log.intact

    def load_snapshot(self) -> None:
        """Load the newest valid snapshot; one that is older than the checkpoint's means that something is lost."""
        result = self.result
        expected = self._checkpoint.meta_entry
        failed: list[CorruptionError] = []
        for _, path in reversed(list_snapshots(self._filesystem, self._layout.meta)):
            try:
                result.meta_entry, values = load_snapshot(self._filesystem, path)
            except CorruptionError as error:
                _logger.error("%s", error)
                failed.append(error)
                continue
            result.meta = Meta(values)
            break
        if result.meta_entry < expected:
            result.report.damaged += failed or [CorruptionError(str(self._layout.meta), 0, "the snapshot is gone")]
            self._clean = False

    def replay_journal(self) -> None:
        """Read the journal and apply it, unless a clean stop left nothing in it."""
        checkpoint = self._checkpoint
        result = self.result
        trusted = self._clean and checkpoint.journal_frame >= checkpoint.durable_frame
        if result.report.new or trusted:
            self._scan.end_position = checkpoint.journal_position
            self._scan.next_frame = max(checkpoint.journal_frame, 1)
            self._scan.next_entry = checkpoint.next_entry
            self._scan.files = list_journal(self._filesystem, self._layout.journal)
            return
        self._scan = scan = scan_journal(
            self._filesystem,
            self._layout.journal,
            checkpoint.journal_position or make_position(0, FILE_HEADER_BYTES),
            checkpoint.journal_frame,
            checkpoint.next_entry,
            checkpoint.durable_frame,
        )
        for found, body in read_frames(self._filesystem, scan):
            try:
                following = replay_frame(body, found.header.first_entry, str(found.path), result.logs, self._apply)
            except CorruptionError as error:
                scan.damaged.append(error)
            else:
                scan.next_entry = max(scan.next_entry, following)
        result.report.frames_replayed = len(scan.frames)
        following_entries = [frame.header.first_entry for frame in scan.frames[1:]] + [scan.next_entry]
        result.frames = [
            (following - 1, frame.position, frame.header.sequence)
            for frame, following in zip(scan.frames, following_entries, strict=False)
        ]
        if scan.torn is not None:
            self._cut(scan.torn)
        self._clean = self._clean and scan.torn is None and not scan.damaged
        result.report.damaged += scan.damaged

    def _apply(self, number: int, entry: RecordsEntry | PutEntry | DeleteEntry | ReserveEntry | LogEntry) -> None:
        result = self.result
        if isinstance(entry, RecordsEntry):
            log = result.logs.get(entry.log_id) or self._unknown_log(number, entry.log_id)
            if log is not None:
                log.replay(number, entry.batch, result.report, self._now_ms)
        elif isinstance(entry, ReserveEntry):
            log = result.logs.get(entry.log_id)
            if log is not None:
                log.state.ceiling = max(log.state.ceiling, entry.ceiling)
        elif isinstance(entry, LogEntry):
            if entry.log_id not in result.logs:
                state = LogState(entry.log_id, entry.name, entry.uuid)
                directory = self._layout.log_directory(entry.name, entry.uuid)
                result.logs[entry.log_id] = recover_segments(
                    state, directory, self._files, self._quarantine, result.report, self._now_ms
                )
        elif number >= result.meta_entry:
            result.meta.apply(entry.key, entry.value if isinstance(entry, PutEntry) else None)
            result.meta_first_entry = result.meta_first_entry or number

    def _unknown_log(self, number: int, log_id: int) -> RecoveredLog | None:
        """Return a log whose creation is damaged, from its directory if it has one; say so once."""
        if log_id in self._unknown:
            return None
        self._unknown.add(log_id)
        reason = f"entry {number} is of log {log_id}, whose creation is missing"
        self._scan.damaged.append(CorruptionError(str(self._layout.journal), 0, reason))
        for directory in [self._layout.logs / name for name in self._filesystem.listdir(self._layout.logs)]:
            state = rebuild_state(directory, self._files) if directory.name.endswith(f"-{log_id:08x}") else None
            if state is not None:
                log = recover_segments(
                    state, directory, self._files, self._quarantine, self.result.report, self._now_ms
                )
                self.result.logs[log_id] = log
                return log
        return None

    def _highest_log_id(self) -> int:
        """Return an id above which none was ever given: the journal may hold entries of a log that nobody knows."""
        names = self._filesystem.listdir(self._layout.logs)
        ids = [int(name[-8:], 16) for name in names if re.fullmatch(r".*-[0-7][0-9a-f]{7}", name)]
        return max([0, *ids, *self._unknown, *self.result.logs])

    def _cut(self, torn: TornTail) -> None:
        """Cut the journal where it is torn, so that nobody judges these bytes again."""
        for path, offset in [(torn.path, torn.offset), *((path, FILE_HEADER_BYTES) for path in torn.later)]:
            fd = self._filesystem.open(path, write=True)
            try:
                length = torn.length if path == torn.path else self._filesystem.size(fd) - offset
                if length > 0:
                    self._quarantine.keep(path, offset, read_salvaged(self._filesystem, fd, path, length, offset))
                    self.result.report.torn_bytes_cut += length
                self._filesystem.truncate(fd, offset)
                self._filesystem.fsync(fd)
            finally:
                self._filesystem.close(fd)

    def sync_journal(self) -> None:
        """Make durable what a killed process left in the page cache: it is about to be shown."""
        for path in dict.fromkeys(frame.path for frame in self._scan.frames):
            fd = self._filesystem.open(path, write=True)
            try:
                self._filesystem.fdatasync(fd)
            finally:
                self._filesystem.close(fd)

    def finish(self) -> None:
        """Decide where everything goes on; refuse if something is damaged and a log wants that."""
        result, report, scan = self.result, self.result.report, self._scan
        sync_segments(result.logs.values(), self._files, self._layout.logs)
        settings = {log.state.name: find_settings(self._configured, log.state.name) for log in result.logs.values()}
        unreserved = {name for name, found in settings.items() if found and found.durability == Durability.SAFE}
        for lost in scan.lost:
            data = read_lost(self._filesystem, lost)
            self._quarantine.keep(lost.path, lost.offset, data)  # the file is going to be recycled
            account_for(lost, data, result.logs, unreserved)
        for log in result.logs.values():
            if self._rebuild:
                log.state.next_offset = max(log.state.next_offset, log.end)
                log.state.ceiling = max(log.state.ceiling, log.end + RESERVATION_BOUND)
            log.finish(report, self._now_ms, clean=self._clean)
        self._check_refusal()
        result.highest_log_id = self._highest_log_id()
        report.clean = self._clean
        report.logs = len(result.logs)
        sequences = [sequence for sequence, _ in scan.files]
        used = split_position(scan.end_position)[0]
        result.unused_files = [path for sequence, path in scan.files if sequence > used]
        last_sequence = max([split_position(self._checkpoint.journal_position)[0], 0, *sequences])
        result.start = JournalStart(
            last_sequence + 1,
            max(scan.next_frame, 1),
            max(scan.next_entry, self._checkpoint.next_entry, result.meta_entry),
        )

    def _check_refusal(self) -> None:
        damaged = self.result.report.damaged
        lost = {name for name, gap in self.result.report.gaps if gap.reason == "corruption"}
        refusing = [name for name, settings in self._configured.items() if settings.on_corruption == "refuse"]
        if damaged and (refusing if not lost else {name.partition("/")[0] for name in lost} & set(refusing)):
            raise CorruptionError(
                damaged[0].path,
                damaged[0].position,
                damaged[0].reason,
                f"{', '.join(refusing)}: on_corruption is refuse; gap would start and record what is lost",
            )
