"""What each byte of a data directory is, and what may be lost when it is damaged: the oracle of the flips.

directory = DirectoryMap(filesystem)
directory.places                     # {class: [(path, position), ...]}, every byte of every file
directory.may_lose(path, position)   # {log: offsets} that were in the damaged frame; nothing for all other bytes
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass, field

from highway.storage.checkpoint.checkpoint import CheckpointSlots
from highway.storage.journal.format import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES as JOURNAL_FRAME_HEADER_BYTES,
    RecordsEntry,
    decode_entries,
    make_position,
    split_position,
)
from highway.storage.journal.reader import scan_journal
from highway.storage.segment.format import FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader
from highway.storage.segment.scan import FrameWalk, Window
from tests.storage.rig import DIRECTORY


@dataclass
class Unit:
    """A frame: what is damaged as a whole when one of its bytes is."""

    start: int
    end: int
    lost: dict[str, set[int]] = field(default_factory=dict)
    known_durable: bool = True


class DirectoryMap:
    """See the module's text."""

    def __init__(self, filesystem):
        self.filesystem = filesystem
        self.places = defaultdict(list)
        self.checkpoints = CheckpointSlots(filesystem, DIRECTORY).load()
        self.names = {state.log_id: state.name for state in self.checkpoints[0].logs}
        self._units = defaultdict(list)
        for path in sorted(path for path, node in filesystem._names.items() if node is not None):
            kind = path.suffix.lstrip(".") if path.parent != DIRECTORY else path.name.partition(".")[0]
            getattr(self, f"_map_{kind.lower()}")(path, filesystem.content(path))
        self._map_journal()

    def unit(self, path, position):
        return next((unit for unit in self._units[path] if unit.start <= position < unit.end), None)

    def may_lose(self, path, position):
        unit = self.unit(path, position)
        if unit is None:
            return {}
        lost = {name: set(offsets) for name, offsets in unit.lost.items()}
        if not unit.known_durable:  # then it is a torn write, and ends the journal
            for later in self._units[path]:
                if later.start > position:
                    for name, offsets in later.lost.items():
                        lost.setdefault(name, set()).update(offsets)
        return lost

    def _add(self, name, path, start, end):
        self.places[name] += [(path, position) for position in range(start, end)]

    def _map_lock(self, path, data):
        self._add("LOCK", path, 0, len(data))

    def _map_format(self, path, data):
        self._add("FORMAT", path, 0, len(data))

    def _map_reserve(self, path, data):
        self._add("RESERVE", path, 0, 64)  # nobody reads any of it

    def _map_checkpoint(self, path, data):
        newest = path.name == f"CHECKPOINT.{self._newest_slot()}"
        end = 76 + struct.unpack_from(">I", data, 12)[0] + 4
        self._add(f"checkpoint header, {'newest' if newest else 'older'}", path, 0, 76)
        self._add(f"checkpoint body, {'newest' if newest else 'older'}", path, 76, end)
        self._add("checkpoint, unused", path, end, len(data))

    def _newest_slot(self):
        slots = {
            struct.unpack_from(">Q", self.filesystem.content(DIRECTORY / f"CHECKPOINT.{slot}"), 16)[0]: slot
            for slot in "ab"
        }
        return slots[max(slots)]

    def _map_snap(self, path, data):
        self._add("snapshot", path, 0, len(data))

    def _map_copy(self, path, data):
        self._add("snapshot copy", path, 0, len(data))

    def _map_idx(self, path, data):
        self._add("index header", path, 0, 76)
        self._add("index body", path, 76, len(data))

    def _map_log(self, path, data):
        header = SegmentHeader.decode(data, str(path))
        state = next(state for state in self.checkpoints[0].logs if state.uuid == header.log_uuid)
        sealed = "sealed" if header.base_offset < state.active_base else "active"
        self._add(f"segment header, {sealed}", path, 0, SEGMENT_HEADER_BYTES)
        walk = FrameWalk(
            Window(lambda length, position: data[position : position + length], len(data)),
            header.salt,
            position=SEGMENT_HEADER_BYTES,
            next_offset=header.base_offset,
        )
        while (frame := walk.step()) is not None:
            start = walk.position - frame.frame_length
            lost = {state.name: set(range(frame.base_offset, frame.end_offset))}
            self._units[path].append(Unit(start, walk.position, lost))
            self._add(f"segment frame header, {sealed}", path, start, start + FRAME_HEADER_BYTES)
            self._add(f"segment payload, {sealed}", path, start + FRAME_HEADER_BYTES, walk.position)

    def _map_wal(self, path, data):
        """Mapped as a whole by `_map_journal`."""

    def _map_journal(self):
        newest, older = self.checkpoints[0], self.checkpoints[-1]
        first = split_position(older.journal_position)[0]
        needed = self._scan(newest.journal_position, newest.journal_frame)
        known = max([newest.durable_frame, *(frame.header.durable_frame for frame in needed.frames)])
        ends = defaultdict(lambda: FILE_HEADER_BYTES)
        for frame in needed.frames:
            self._map_frame(frame, frame.header.sequence < known)
            ends[frame.path] = split_position(frame.end)[1]
        # What only the older checkpoint would need. Nobody misses the first frame: none before it tells of it.
        for frame in self._scan(make_position(first, FILE_HEADER_BYTES), -1).frames[1:]:
            start, end = split_position(frame.position)[1], split_position(frame.end)[1]
            if frame not in needed.frames:
                self._add("journal, for the older checkpoint", frame.path, start, end)
                ends[frame.path] = max(ends[frame.path], end)
        for sequence, path in needed.files:
            size = len(self.filesystem.content(path))
            if sequence >= first:
                self._add("journal file header", path, 0, FILE_HEADER_BYTES)
                self._add("journal, unused", path, ends[path], min(size, ends[path] + 2000))
            else:
                self._add("journal, unused", path, 0, size)

    def _scan(self, position, frame):
        durable_frame = self.checkpoints[0].durable_frame
        scan = scan_journal(self.filesystem, DIRECTORY / "journal", position, frame, 1, durable_frame)
        assert not scan.damaged
        return scan

    def _map_frame(self, frame, known_durable):
        start = split_position(frame.position)[1]
        body = start + JOURNAL_FRAME_HEADER_BYTES
        end = body + frame.header.length
        lost = defaultdict(set)
        for entry in decode_entries(self.filesystem.content(frame.path)[body:end], ""):
            if isinstance(entry, RecordsEntry):
                lost[self.names[entry.log_id]] |= set(range(entry.batch.base_offset, entry.batch.end_offset))
        self._units[frame.path].append(Unit(start, end, dict(lost), known_durable))
        self._add("journal frame header", frame.path, start, body)
        self._add("journal entries", frame.path, body, end)
