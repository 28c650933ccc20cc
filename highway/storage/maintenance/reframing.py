"""Small frames of sealed segments become large ones: a quiet log is drained at every few checkpoints.

Single telemetry records take 190 B each that way, and 20 B in frames of a thousand.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from highway.errors import CorruptionError

from .rewriting import RewriteTask

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from highway.storage.disk.descriptors import Descriptors
    from highway.storage.log.cache import BatchCache
    from highway.storage.log.log import Log
    from highway.storage.segment.index import SparseIndex
    from highway.storage.segment.segment import Segment

__all__ = ["ReframeTask", "has_small_frames"]

_MIN_FRAMES = 16
_SMALL_RECORDS = 256  # a frame, on the average of a segment
_SMALL_BYTES = 16 * 1024
_WORTH_IT = 0.9  # of its length: what saves less than a tenth stays as it is

_logger = logging.getLogger(__name__)


def has_small_frames(index: SparseIndex) -> bool:
    """Return whether larger frames would save space."""
    frames = index.frames
    return (
        frames >= _MIN_FRAMES and index.records < frames * _SMALL_RECORDS and index.end_position < frames * _SMALL_BYTES
    )


class ReframeTask(RewriteTask):
    """Looks at some sealed segments of a log, and writes those anew that have small frames."""

    def __init__(self, log: Log, segments: Sequence[Segment], files: Descriptors, cache: BatchCache) -> None:
        super().__init__(log, files, cache)
        self._segments = segments

    def _run(self) -> Iterator[int]:
        for segment in self._segments:
            try:
                if has_small_frames(segment.index):
                    yield from self._rewrite(segment, lambda done: done.length < done.segment.length * _WORTH_IT)
                segment.tidy = True
            except (CorruptionError, FileNotFoundError) as error:
                _logger.info("log %s: a segment keeps its small frames: %s", self.log.name, error)
                self.abandon()
                segment.tidy = True
            yield 1
