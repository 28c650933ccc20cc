"""Looking at segments without opening the data directory."""

from __future__ import annotations

import pytest

from highway.storage.checking.inspection import inspect_log, list_log_directories
from highway.storage.disk.descriptors import Descriptors
from highway.storage.disk.filesystem import OsFileSystem
from highway.storage.segment.format import SEGMENT_HEADER_BYTES
from highway.storage.segment.records import RecordHeads
from highway.storage.segment.segment import Segment
from tests.cli.data_directory import flip

START_MS = 1_790_000_000_000


@pytest.fixture
def files():
    descriptors = Descriptors(OsFileSystem())
    yield descriptors
    descriptors.close()


@pytest.fixture
def directory(tmp_path):
    folder = tmp_path / "logs" / "telemetry-01020304"
    folder.mkdir(parents=True)
    return folder


def append(segment, count, epoch=1):
    """One frame of `count` records; returns its position."""
    heads = RecordHeads(b"highway/A1/telemetry", 1, 0)
    data = heads.encode([b'{"reading": %d}' % number for number in range(count)])
    return segment.append_frame(
        data, count=count, base_offset=segment.next_offset, min_ms=START_MS, max_ms=START_MS + count, epoch=epoch
    )


def create(directory, files, base_offset=0):
    return Segment.create(
        directory, files, log_uuid=b"\1" * 16, base_offset=base_offset, epoch=1, created_ms=START_MS, salt=7
    )


def test_frames_of_a_sealed_and_of_the_active_segment(directory, files):
    sealed = create(directory, files)
    append(sealed, 10)
    append(sealed, 20)
    sealed.seal()
    append(create(directory, files, 30), 5)
    log = inspect_log("telemetry", directory, verify=True)
    assert [segment.sealed for segment in log.segments] == [True, False]
    assert [[header.record_count for _, header in segment.frames] for segment in log.segments] == [[10, 20], [5]]
    first = log.segments[0]
    assert first.records == 30
    assert first.raw_bytes > first.stored_bytes
    assert first.stored_bytes == first.file_bytes - SEGMENT_HEADER_BYTES
    assert first.frames[0][0] == SEGMENT_HEADER_BYTES
    assert not log.damaged


def test_torn_end_of_the_active_segment_is_a_tail_and_no_damage(directory, files):
    segment = create(directory, files)
    append(segment, 10)
    position = append(segment, 10)
    with segment.path.open("r+b") as file:
        file.truncate(segment.length - 3)
    log = inspect_log("telemetry", directory)
    (found,) = log.segments
    assert (found.records, found.damaged, found.tail.position) == (10, [], position)
    assert not log.damaged


def test_torn_end_of_an_older_segment_is_damage(directory, files):
    append(create(directory, files), 10)
    append(create(directory, files, 20), 10)
    oldest = directory / f"{0:020}.log"
    with oldest.open("r+b") as file:
        file.truncate(oldest.stat().st_size - 3)
    assert inspect_log("telemetry", directory).damaged


def test_damage_in_the_middle_is_placed_exactly(directory, files):
    segment = create(directory, files)
    append(segment, 10)
    position = append(segment, 10)
    end = append(segment, 10)
    flip(segment.path, end - 1)
    assert not inspect_log("telemetry", directory).damaged, "headers alone don't show a damaged payload"
    log = inspect_log("telemetry", directory, verify=True)
    (damage,) = log.segments[0].damaged
    assert (damage.position, damage.end_position, damage.from_offset, damage.to_offset) == (position, end, 10, 20)
    assert log.segments[0].records == 20
    assert log.damaged


def test_damaged_segment_header_is_made_good_by_the_index_or_the_first_frame_or_reported(directory, files):
    segment = create(directory, files)
    append(segment, 10)
    segment.seal()
    flip(segment.path, 20)
    assert inspect_log("telemetry", directory).segments[0].records == 10
    segment.path.with_suffix(".idx").unlink()
    assert inspect_log("telemetry", directory).segments[0].records == 10
    flip(segment.path, segment.length - 1)
    log = inspect_log("telemetry", directory)
    assert "checksum" in log.segments[0].fault
    assert log.damaged


def test_folders_are_found_under_their_log_names(directory):
    (directory.parent / "a%2Fb-0000ffff").mkdir()
    (directory.parent / "stray file").write_text("")
    data = directory.parents[1]
    assert list_log_directories(data) == {"telemetry": directory, "a/b": directory.parent / "a%2Fb-0000ffff"}
    assert list_log_directories(data / "nowhere") == {}
    assert inspect_log("a/b", directory.parent / "a%2Fb-0000ffff").segments == []
