"""An active segment whose sync has failed is written anew, from its durable part and the journal.

After a failed sync nobody knows which of the frames above the durable length are on the medium, and the page cache may
show all of them. Nothing is synced twice in the hope that it helps: a new file gets the durable bytes as they are, the
frames behind them are made again from the journal, and when it is synced it takes the old one's name. In a crash:

- before the rename the old segment is what it was; recovery judges its frames above the durable length by their
  checksums, and the journal has all of them;
- after it, the new one is whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from highway.errors import StorageError
from highway.storage.gaps import find_gap
from highway.storage.journal.reader import read_batches
from highway.storage.segment.format import CODECS, MAX_FRAME_BYTES, SEGMENT_HEADER_BYTES, encode_frame
from highway.storage.segment.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from highway.storage.disk.descriptors import Descriptors
    from highway.storage.disk.filesystem import FileSystem
    from highway.storage.gaps import Gap
    from highway.storage.segment.records import RecordBatch
    from highway.storage.settings import LogSettings

__all__ = ["JournalRange", "Rewritten", "fits_behind", "group_batches", "rewrite"]

_COPY_BYTES = 1024 * 1024
_MAX_FRAME_RECORDS = 65_536  # a reader decodes a frame as a whole
_SUFFIX = ".new.tmp"  # recovery removes what ends with .tmp


class JournalRange(NamedTuple):
    """Where the journal has the records that are to be written again."""

    directory: Path
    start_position: int
    end_position: int
    log_id: int
    to_offset: int  # exclusive: where the segment ends
    gaps: Sequence[Gap]


class Rewritten(NamedTuple):
    """The segment that has taken the old one's place; with an error it isn't known to be durable."""

    segment: Segment
    error: OSError | None


def group_batches(batches: Iterable[RecordBatch], limit: int) -> Iterator[list[RecordBatch]]:
    """Yield runs of batches that one frame can take: of one base time, without holes, about `limit` bytes."""
    group: list[RecordBatch] = []
    size = 0
    for batch in batches:
        if group and not fits_behind(group[0], group[-1], batch, size, limit):
            yield group
            group, size = [], 0
        group.append(batch)
        size += len(batch.data)
    if group:
        yield group


def fits_behind(first: RecordBatch, last: RecordBatch, batch: RecordBatch, size: int, limit: int) -> bool:
    """Return whether `batch` can stand in the frame that `first` to `last`, of `size` bytes, are in."""
    return (
        size < limit
        and size + len(batch.data) <= MAX_FRAME_BYTES
        and batch.base_ms == first.base_ms
        and batch.base_offset == last.end_offset
        and batch.end_offset - first.base_offset <= _MAX_FRAME_RECORDS
    )


def rewrite(old: Segment, files: Descriptors, source: JournalRange, settings: LogSettings, epoch: int) -> Rewritten:
    """Replace the file of `old`; with an exception `old` is still there, and still suspect."""
    filesystem = files.filesystem
    batches = _missing_batches(filesystem, source, old.durable_offset)
    temporary = old.path.with_name(old.path.name + _SUFFIX)
    if filesystem.exists(temporary):
        filesystem.unlink(temporary)
    fd = filesystem.open(temporary, create=True)
    try:
        _copy_durable(old, filesystem, fd)
        length = _write_frames(old, filesystem, fd, batches, settings, epoch)
        filesystem.fsync(fd)
    except BaseException:
        filesystem.unlink(temporary)
        raise
    finally:
        filesystem.close(fd)
    old.make_way(temporary)
    error = None
    try:
        filesystem.sync_dir(old.path.parent)
        if not old.named:
            filesystem.sync_dir(old.path.parent.parent)
    except OSError as failure:
        error = failure
    return Rewritten(Segment.take_over(old, files, length, source.to_offset, durable=error is None), error)


def _missing_batches(filesystem: FileSystem, source: JournalRange, from_offset: int) -> list[RecordBatch]:
    """Return the batches from `from_offset` on out of the journal; StorageError unless they are all there."""
    found = read_batches(filesystem, source.directory, source.start_position, source.end_position, source.log_id)
    batches = []
    end = from_offset
    for batch in found:
        if batch.end_offset <= end:
            continue  # durable in the segment
        if batch.base_offset >= source.to_offset:
            break
        if batch.base_offset < end:
            batch = batch.without_head(end - batch.base_offset)  # noqa: PLW2901
        _check_hole(end, batch.base_offset, source)
        batches.append(batch)
        end = batch.end_offset
    _check_hole(end, source.to_offset, source)
    return batches


def _check_hole(start: int, end: int, source: JournalRange) -> None:
    while start < end:
        gap = find_gap(source.gaps, start)
        if gap is None:
            raise StorageError(f"the journal doesn't have the offsets {start} to {end - 1} of log {source.log_id}")
        start = gap.to_offset


def _copy_durable(old: Segment, filesystem: FileSystem, fd: int) -> None:
    """Copy what was synced; what the disk can't read any more stays damaged, and is reported when it is read."""
    filesystem.pwrite(fd, old.header.encode(), 0)
    for position in range(SEGMENT_HEADER_BYTES, old.durable_length, _COPY_BYTES):
        length = min(_COPY_BYTES, old.durable_length - position)
        filesystem.pwrite(fd, old.read_raw(position, length), position)


def _write_frames(
    old: Segment,
    filesystem: FileSystem,
    fd: int,
    batches: list[RecordBatch],
    settings: LogSettings,
    epoch: int,
) -> int:
    """Write `batches` behind the durable part; return where they end."""
    position = old.durable_length
    for group in group_batches(batches, settings.flush_bytes):
        parts = encode_frame(
            b"".join([batch.data for batch in group]),
            count=group[-1].end_offset - group[0].base_offset,
            base_offset=group[0].base_offset,
            min_ms=group[0].base_ms,
            max_ms=group[-1].last_ms,
            epoch=epoch,
            salt=old.header.salt,
            codec=CODECS[settings.compression],
            level=settings.compression_level,
        )
        filesystem.pwritev(fd, parts, position)
        position += sum(map(len, parts))
    return position
