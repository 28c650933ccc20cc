"""Data directories that look as after a year: gigabytes in sealed segments, in valid frames that are holes on the disk.

python -m tests.crash.stored <data directory> <log>...      appends small records as fast as it can, then dies
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from highway.clock import SystemClock
from highway.storage import Durability, LogSettings, RecordHeads, Storage, StorageSettings
from highway.storage.checkpoint.checkpoint import CheckpointSlots, LogState, encode_log_state
from highway.storage.disk.descriptors import Descriptors
from highway.storage.disk.filesystem import OsFileSystem
from highway.storage.disk.layout import Layout
from highway.storage.segment.format import CODEC_NONE
from highway.storage.segment.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["APPENDED", "PAYLOAD_BYTES", "add_stored_logs"]

PAYLOAD_BYTES = 256 * 1024
RECORDS_A_FRAME = 4
APPENDED = 400_000  # single records: near what a journal of 64 MiB holds between two checkpoints

_BLOCK = 4096


class SparseFileSystem(OsFileSystem):
    """Leaves the blocks of zeros in a write as holes: they read the same, and take no space."""

    def pwritev(self, fd: int, parts: Sequence[bytes], position: int) -> None:
        data = b"".join(parts)
        end = position + len(data)
        if self.size(fd) < end:
            self.truncate(fd, end)
        zeros = bytes(_BLOCK)
        # Every payload but its first and last block is zeros: what stands between them needn't be looked at twice.
        for start in range(0, len(data), _BLOCK):
            block = data[start : start + _BLOCK]
            if block != zeros[: len(block)]:
                self.pwrite(fd, block, position + start)


def add_stored_logs(directory: Path, names: list[str], total_bytes: int, segment_bytes: int) -> int:
    """Give a data directory that was stopped in order logs of together `total_bytes`; returns the records of each.

    Record n of a log has topic `<name>/bulk`; its payload is n as 8 bytes and zeros.
    """
    filesystem = SparseFileSystem()
    layout = Layout(directory)
    slots = CheckpointSlots(filesystem, directory)
    checkpoint = slots.load()[0]
    assert checkpoint.clean
    records = total_bytes // len(names) // PAYLOAD_BYTES // RECORDS_A_FRAME * RECORDS_A_FRAME
    first_id = max((state.log_id for state in checkpoint.logs), default=0) + 1
    states = list(checkpoint.logs)
    for log_id, name in enumerate(names, first_id):
        state = LogState(log_id, name, log_id.to_bytes(4, "big") + os.urandom(12), last_ms=checkpoint.written_ms)
        filesystem.mkdir(layout.log_directory(name, state.uuid))
        _write_segments(filesystem, layout, state, records, segment_bytes)
        states = [known for known in states if known.name != name] + [state]
    slots.write(checkpoint, [encode_log_state(state) for state in states])
    return records


def _write_segments(
    filesystem: OsFileSystem, layout: Layout, state: LogState, records: int, segment_bytes: int
) -> None:
    files = Descriptors(filesystem)
    heads = RecordHeads(f"{state.name}/bulk".encode(), 1, 0)
    rest = bytes(PAYLOAD_BYTES - 8)
    directory = layout.log_directory(state.name, state.uuid)
    segment: Segment | None = None
    for offset in range(0, records, RECORDS_A_FRAME):
        if segment is None or segment.length >= segment_bytes:
            if segment is not None:
                segment.seal()
            segment = Segment.create(
                directory, files, log_uuid=state.uuid, base_offset=offset, epoch=1, created_ms=state.last_ms
            )
        data = heads.encode([(offset + number).to_bytes(8, "big") + rest for number in range(RECORDS_A_FRAME)])
        segment.append_frame(
            data,
            count=RECORDS_A_FRAME,
            base_offset=offset,
            min_ms=state.last_ms,
            max_ms=state.last_ms,
            epoch=1,
            codec=CODEC_NONE,
        )
    assert segment is not None
    segment.sync()
    state.active_base, state.durable_length = segment.base_offset, segment.length
    state.durable_end = state.next_offset = segment.next_offset
    segment.close()
    files.close()


async def append_and_die(directory: Path, names: list[str]) -> None:
    """Fill the journal with as many entries as one can hold between two checkpoints, and end without a word."""
    loop = asyncio.get_running_loop()
    logs = [LogSettings(name, Durability.BALANCED, retention_ms=None) for name in names]
    never = StorageSettings(checkpoint_interval_ms=3_600_000, checkpoint_bytes=1 << 40, reaper_interval_ms=3_600_000)
    storage = Storage.open(directory, logs, scheduler=loop, clock=SystemClock(), settings=never)
    opened = [storage.logs[name] for name in names]
    started = time.monotonic()
    for number in range(APPENDED):
        log = opened[number % len(opened)]
        heads = RecordHeads(b"%s/small" % log.name.encode(), 1, log.delta_ms())
        log.append(heads.encode([b"%d" % number]), 1)
        if number % 256 == 0:
            await asyncio.sleep(0)  # the loop takes what the journal thread has posted
    done = loop.create_future()
    storage.after(Durability.BALANCED, done.set_result)
    assert await done is None
    sys.stdout.write(f"{APPENDED} appended in {time.monotonic() - started:.1f} s\n")
    sys.stdout.flush()
    os._exit(9)


if __name__ == "__main__":
    asyncio.run(append_and_die(Path(sys.argv[1]), sys.argv[2:]))
