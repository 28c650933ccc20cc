from __future__ import annotations

import random
from pathlib import Path

import pytest

from highway.clock import ManualClock
from highway.errors import CorruptionError, DiskFailedError, DiskFullError
from highway.storage.journal.files import JournalFiles, journal_path, list_journal
from highway.storage.journal.format import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    DeleteEntry,
    FileHeader,
    LogEntry,
    PutEntry,
    RecordsEntry,
    ReserveEntry,
    decode_entries,
    encode_file_header,
    encode_frame_header,
    encode_log,
    encode_put,
    encode_records_head,
    encode_reserve,
    make_position,
    parse_file_header,
    parse_frame_header,
    split_position,
)
from highway.storage.journal.journal import VERIFY_DIRECT, VERIFY_OFF, Journal, JournalStart
from highway.storage.journal.reader import read_frames, scan_journal
from highway.storage.journal.replay import replay_frame
from highway.storage.segment.records import RecordBatch
from tests.storage.simulated_filesystem import Failure, SimulatedFileSystem

ROOT = Path("/data")
FILE_BYTES = 4096
START = make_position(1, FILE_HEADER_BYTES)


class JournalRig:
    """A journal on the simulated disk; rounds run when the test says so."""

    def __init__(self, filesystem=None):
        self.filesystem = filesystem or SimulatedFileSystem(ROOT)
        self.commits = []
        self.spares = []
        files = JournalFiles(self.filesystem, ROOT, FILE_BYTES, ManualClock())
        self.journal = Journal(
            self.filesystem,
            files,
            JournalStart(1, 1, 1),
            post=self.commits.append,
            request_spare=self.spares.append,
            file_bytes=FILE_BYTES,
        )
        self.files = files
        self.entry = 0

    def put(self, key, value=b""):
        self.entry += 1
        self.journal.queue.append((0, None, [encode_put(key, value)]))
        return self.entry

    def write(self, key, value=b"", *, sync=False):
        """Write, and maybe sync, one frame with one put."""
        entry = self.put(key, value)
        (self.journal.want_synced if sync else self.journal.want_written)(entry)
        self.journal.run_once()

    def scan(self, filesystem=None, **options):
        filesystem = filesystem or self.filesystem
        options = {"start_position": START, "next_frame": 1, "next_entry": 1, "durable_frame": 1, **options}
        return scan_journal(filesystem, ROOT, **options)

    def keys(self, scan, filesystem=None):
        return [entry.key for entry in entries_of(filesystem or self.filesystem, scan)]


def entries_of(filesystem, scan):
    found = []
    for frame, body in read_frames(filesystem, scan):
        replay_frame(body, frame.header.first_entry, str(frame.path), {}, lambda _, entry: found.append(entry))
    return found


def test_every_kind_of_entry_comes_back_as_it_was():
    batch = RecordBatch(7, 2, 1000, 1005, b"records")
    body = b"".join(
        (
            encode_records_head(3, batch),
            batch.data,
            encode_put(b"key", b"value"),
            encode_put(b"", b""),
            encode_put(b"gone", None),
            encode_reserve(3, 70_000),
            encode_log(3, bytes(range(16)), "größe"),
        )
    )
    records, *others = decode_entries(body, "x")
    assert isinstance(records, RecordsEntry)
    assert records.log_id == 3
    assert (records.batch.base_offset, records.batch.count, records.batch.data) == (7, 2, b"records")
    assert (records.batch.base_ms, records.batch.last_ms) == (1000, 1005)
    assert others == [
        PutEntry(b"key", b"value"),
        PutEntry(b"", b""),
        DeleteEntry(b"gone"),
        ReserveEntry(3, 70_000),
        LogEntry(3, bytes(range(16)), "größe"),
    ]
    for unreadable in (body + b"\x09", body[:-1], b"\x01", b"\x02\x00\x00\x00\x09"):
        with pytest.raises(CorruptionError):
            list(decode_entries(unreadable, "x"))


@pytest.mark.parametrize("damaged", [range(64), range(64, 128), range(60, 68)])
def test_a_file_header_survives_damage_to_one_copy_only(damaged):
    data = encode_file_header(FileHeader(5, 0xDEADBEEF, 1234))
    assert len(data) == FILE_HEADER_BYTES
    changed = bytearray(data)
    for position in damaged:
        changed[position] ^= 0xFF
    if damaged == range(60, 68):
        with pytest.raises(CorruptionError, match="both copies"):
            parse_file_header(bytes(changed), "x")
    else:
        assert parse_file_header(bytes(changed), "x") == FileHeader(5, 0xDEADBEEF, 1234)


def test_a_frame_header_is_believed_only_with_the_right_salt():
    header = encode_frame_header(b"body", 9, 4, 3, salt=77)
    assert len(header) == FRAME_HEADER_BYTES
    assert parse_frame_header(header, 0, 77)[:4] == (4, 9, 4, 3)
    assert parse_frame_header(header, 0, 78) is None
    assert parse_frame_header(header[:-1], 0, 77) is None
    for position in range(36):
        changed = bytearray(header)
        changed[position] ^= 1
        assert parse_frame_header(bytes(changed), 0, 77) is None
    assert parse_frame_header(bytes(64), 0, 0) is None, "zeros are no frame"


def test_positions_grow_across_files():
    assert make_position(2, 128) > make_position(1, 0xFFFF_FFFF)
    assert split_position(make_position(7, 999)) == (7, 999)


def test_one_round_is_one_write_and_one_sync_whatever_is_in_it():
    rig = JournalRig()
    before = len(rig.filesystem.operations)
    batch = RecordBatch(0, 1, 0, 0, b"r" * 20)
    for log_id in range(50):
        rig.journal.queue.append((log_id, batch, [encode_put(b"%d" % log_id, b"")]))
    rig.journal.want_synced(100)
    rig.journal.run_once()
    assert [operation.kind for operation in rig.filesystem.operations[before:]] == ["pwrite", "fdatasync"]
    assert [(c.written, c.synced, c.record_bytes) for c in rig.commits] == [(100, 100, 1000)]


def test_a_commit_is_posted_for_each_stage_that_somebody_waits_for():
    rig = JournalRig()
    rig.put(b"a")
    rig.journal.want_written(1)
    rig.put(b"b")
    rig.journal.want_synced(2)
    stages = []
    rig.filesystem.on_operation = lambda operation: stages.append(operation.kind)
    rig.journal._post = lambda commit: stages.append((commit.written, commit.synced))
    rig.journal.run_once()
    assert stages == ["pwrite", (2, 0), "fdatasync", (2, 2)]
    rig.put(b"c")
    rig.journal.want_synced(3)
    rig.journal.run_once()
    assert stages[4:] == ["pwrite", "fdatasync", (3, 3)], "nobody waits for the write alone"


def test_unsynced_bytes_force_a_sync_at_their_limit():
    rig = JournalRig()
    rig.journal.sync_bytes = 300
    for number in range(6):
        rig.write(b"%d" % number, bytes(100))
    assert [commit.synced for commit in rig.commits if commit.synced] != []
    assert max(commit.unsynced_bytes for commit in rig.commits) < 300 + 200


def test_files_roll_and_go_on_in_the_next():
    rig = JournalRig()
    for number in range(60):
        rig.write(b"%d" % number, bytes(200), sync=number % 7 == 0)
    assert len(list_journal(rig.filesystem, ROOT)) > 3
    scan = rig.scan()
    assert rig.keys(scan) == [b"%d" % number for number in range(60)]
    assert not scan.damaged
    assert scan.torn is None
    assert scan.next_frame == 61


def test_a_record_larger_than_a_file_gets_a_file_of_its_own():
    rig = JournalRig()
    rig.write(b"small")
    rig.write(b"large", bytes(3 * FILE_BYTES))
    rig.write(b"after")
    assert rig.keys(rig.scan()) == [b"small", b"large", b"after"]


def test_a_recycled_file_never_shows_frames_of_its_former_life():
    rig = JournalRig()
    for number in range(40):
        rig.write(b"old%d" % number, bytes(200))
    rig.files.recycle(3)
    current = rig.commits[-1].end_position >> 32
    rig.files.prepare(current + 1)
    while rig.commits[-1].end_position >> 32 == current:
        rig.write(b"new", bytes(200), sync=True)
    path = journal_path(ROOT, current + 1)
    data = rig.filesystem.read_direct(path, 1 << 20, 0)
    assert data.count(b"old") > 5, "this test is about stale frames"
    found = rig.keys(rig.scan(start_position=make_position(current + 1, FILE_HEADER_BYTES), next_frame=-1))
    assert found == [b"new"]


def test_the_header_of_a_recycled_file_is_durable_before_its_first_frame():
    rig = JournalRig()
    for number in range(40):
        rig.write(b"%d" % number, bytes(200))
    rig.files.recycle(3)
    rig.files.prepare((rig.commits[-1].end_position >> 32) + 1)
    path = list_journal(rig.filesystem, ROOT)[-1][1]
    assert rig.filesystem.is_durable(path)


def journal_of(sizes, *, synced):
    """A journal in one file whose frames have these value sizes; `synced` are those after which a sync came."""
    rig = JournalRig()
    for number, size in enumerate(sizes):
        rig.write(b"%d" % number, b"\xff" * size, sync=number in synced)
    return rig


@pytest.mark.parametrize("fill", ["cut", "zeros", "noise", "stale"])
def test_a_tear_at_every_byte_keeps_exactly_the_whole_frames(fill):
    rig = journal_of([3, 40, 0, 17, 5], synced=())
    path = journal_path(ROOT, 1)
    data = bytes(rig.filesystem._names[path].cached)
    ends = [split_position(frame.end)[1] for frame in rig.scan().frames]
    noise = random.Random(1).randbytes(len(data))
    stale = (FRAME_MAGIC + noise[:60]) * (len(data) // 64 + 1)
    for tear in range(FILE_HEADER_BYTES, ends[-1] + 1):
        rest = {"cut": b"", "zeros": bytes(len(data) - tear), "noise": noise[tear:], "stale": stale[: len(data) - tear]}
        rig.filesystem.overwrite(path, data[:tear] + rest[fill])
        scan = rig.scan()
        whole = sum(end <= tear for end in ends)
        assert rig.keys(scan) == [b"%d" % number for number in range(whole)], tear
        assert not scan.damaged, f"a tear at {tear} is no corruption"


def test_a_flip_of_every_byte_is_torn_or_loud_and_never_a_wrong_entry():
    rig = journal_of([3, 40, 0, 17, 5], synced=(0, 1, 2, 3))
    path = journal_path(ROOT, 1)
    data = bytes(rig.filesystem._names[path].cached)
    frames = rig.scan().frames
    end = split_position(frames[-1].end)[1]
    for position in range(FILE_HEADER_BYTES, end):
        changed = bytearray(data)
        changed[position] ^= 0x10
        rig.filesystem.overwrite(path, bytes(changed))
        scan = rig.scan()
        hit = next(number for number, frame in enumerate(frames) if position < split_position(frame.end)[1])
        assert rig.keys(scan) == [b"%d" % number for number in range(5) if number != hit], position
        # The last frame's sync is known to nobody, so its damage can't be told from a torn write.
        assert bool(scan.damaged) == (hit < 4), position


def test_valid_frames_behind_a_tear_that_nobody_knows_synced_are_cut_with_it():
    rig = journal_of([3, 40, 0, 17, 5], synced=(1,))
    path = journal_path(ROOT, 1)
    data = bytearray(rig.filesystem._names[path].cached)
    frames = rig.scan().frames
    data[split_position(frames[3].position)[1] + FRAME_HEADER_BYTES] ^= 1
    rig.filesystem.overwrite(path, bytes(data))
    scan = rig.scan()
    assert rig.keys(scan) == [b"0", b"1", b"2"]
    assert not scan.damaged
    assert scan.torn.offset == split_position(frames[3].position)[1]
    assert scan.torn.length == split_position(frames[4].end)[1] - scan.torn.offset


def test_damage_that_a_later_frame_knows_synced_is_reported_and_read_past():
    rig = journal_of([3, 40, 0, 17, 5], synced=(3,))
    path = journal_path(ROOT, 1)
    data = bytearray(rig.filesystem._names[path].cached)
    frames = rig.scan().frames
    data[split_position(frames[1].position)[1] + FRAME_HEADER_BYTES] ^= 1
    rig.filesystem.overwrite(path, bytes(data))
    scan = rig.scan()
    assert rig.keys(scan) == [b"0", b"2", b"3", b"4"]
    assert [error.position for error in scan.damaged] == [split_position(frames[1].position)[1]]
    assert scan.torn is None


def test_damage_that_the_checkpoint_knows_synced_is_reported():
    rig = journal_of([3, 40], synced=(1,))
    path = journal_path(ROOT, 1)
    data = bytearray(rig.filesystem._names[path].cached)
    data[split_position(rig.scan().frames[1].position)[1]] ^= 1
    rig.filesystem.overwrite(path, bytes(data))
    assert not rig.scan(durable_frame=2).damaged
    assert "frames 2 to 2" in rig.scan(durable_frame=3).damaged[0].reason


def test_a_first_frame_lost_in_a_new_file_is_torn_although_the_old_file_was_synced():
    rig = JournalRig()
    number = 0
    while rig.commits[-1:] == [] or rig.commits[-1].end_position >> 32 == 1:
        rig.write(b"%d" % number, bytes(200))
        number += 1
    rig.write(b"last", b"")
    path = journal_path(ROOT, 2)
    data = bytearray(rig.filesystem._names[path].cached)
    data[FILE_HEADER_BYTES] ^= 1
    rig.filesystem.overwrite(path, bytes(data))
    scan = rig.scan()
    assert len(rig.keys(scan)) == number - 1
    assert not scan.damaged
    assert scan.torn.later == [path]


def test_a_damaged_file_header_is_loud():
    rig = journal_of([3, 40], synced=(1,))
    path = journal_path(ROOT, 1)
    data = bytearray(rig.filesystem._names[path].cached)
    data[:FILE_HEADER_BYTES] = bytes(FILE_HEADER_BYTES)
    rig.filesystem.overwrite(path, bytes(data))
    assert "header" in rig.scan().damaged[0].reason


def test_a_payload_that_is_a_frame_is_not_taken_for_one():
    forged = encode_frame_header(encode_put(b"forged", b""), 2, 2, 1, salt=0) + encode_put(b"forged", b"")
    rig = JournalRig()
    rig.write(b"honest", forged * 3)
    path = journal_path(ROOT, 1)
    data = bytearray(rig.filesystem._names[path].cached)
    data[FILE_HEADER_BYTES + 8] ^= 1
    rig.filesystem.overwrite(path, bytes(data))
    assert rig.keys(rig.scan()) == []


def test_a_full_disk_accepts_nothing_and_goes_on_where_it_was():
    rig = JournalRig()
    rig.write(b"a", sync=True)
    rig.put(b"b", b"\xff" * 100)
    rig.journal.want_synced(2)
    rig.filesystem.fail(1, Failure.SHORT_WRITE)
    rig.journal.run_once()
    assert isinstance(rig.commits[-1].error, DiskFullError)
    assert (rig.commits[-1].written, rig.commits[-1].synced) == (1, 1)
    assert rig.journal.stuck
    assert rig.keys(rig.scan()) == [b"a"], "half a frame is no frame"
    rig.journal.run_once()
    assert len(rig.commits) == 2, "it waits for `retry`"
    rig.journal.retry()
    rig.journal.run_once()
    assert rig.commits[-1][:2] == (2, 2)
    assert rig.keys(rig.scan()) == [b"a", b"b"]


def test_no_space_for_the_next_file_accepts_nothing_and_leaves_no_litter():
    rig = JournalRig()
    while rig.commits == [] or split_position(rig.commits[-1].end_position)[1] < FILE_BYTES - 400:
        rig.write(b"k", bytes(200))
    rig.filesystem.fail(1, Failure.ENOSPC, kinds={"allocate"})
    rig.write(b"next", bytes(600), sync=True)
    assert isinstance(rig.commits[-1].error, DiskFullError)
    assert [name for name in rig.filesystem.listdir(ROOT) if name.endswith(".tmp")] == []
    rig.journal.retry()
    rig.journal.run_once()
    assert rig.commits[-1].error is None
    assert rig.keys(rig.scan())[-1] == b"next"
    assert [name for name in rig.filesystem.listdir(ROOT) if name.endswith(".tmp")] == []


@pytest.mark.parametrize("kind", ["fdatasync", "pwrite"])
def test_an_error_that_is_not_about_space_ends_the_journal(kind):
    rig = JournalRig()
    rig.filesystem.fail(1, Failure.EIO, kinds={kind})
    rig.write(b"a", sync=True)
    assert isinstance(rig.commits[-1].error, DiskFailedError)
    syncs = [operation for operation in rig.filesystem.operations if operation.kind == "fdatasync"]
    rig.write(b"b", sync=True)
    assert len(rig.commits) == 1, "nothing is written any more"
    assert syncs == [operation for operation in rig.filesystem.operations if operation.kind == "fdatasync"]


def test_a_sync_out_of_space_is_not_tried_again_either():
    rig = JournalRig()
    rig.filesystem.fail(1, Failure.ENOSPC, kinds={"fdatasync"})
    rig.write(b"a", sync=True)
    assert isinstance(rig.commits[-1].error, DiskFailedError)


@pytest.mark.parametrize("mode", [None, VERIFY_DIRECT])
def test_a_frame_that_reads_back_differently_is_never_acknowledged(mode):
    rig = JournalRig()
    if mode is not None:
        rig.journal.verify = mode

    def damage(operation):
        if operation.kind == "fdatasync":
            node = rig.filesystem._names[journal_path(ROOT, 1)]
            position = FILE_HEADER_BYTES + FRAME_HEADER_BYTES + 3
            node.cached[position] ^= 1
            node.pending.clear()
            node.durable[:] = node.cached

    rig.filesystem.on_operation = damage
    rig.write(b"a", bytes(50), sync=True)
    assert isinstance(rig.commits[-1].error, DiskFailedError)
    assert "reads back" in str(rig.commits[-1].error)


def test_without_verification_nothing_is_read_back():
    rig = JournalRig()
    rig.journal.verify = VERIFY_OFF
    rig.filesystem.pread = None
    rig.write(b"a", sync=True)
    assert rig.commits[-1].synced == 1


def test_the_journal_thread_does_the_same(tmp_path):
    from queue import SimpleQueue

    from highway.storage.disk.filesystem import OsFileSystem

    commits = SimpleQueue()
    filesystem = OsFileSystem()
    files = JournalFiles(filesystem, tmp_path, FILE_BYTES, ManualClock())
    journal = Journal(
        filesystem,
        files,
        JournalStart(1, 1, 1),
        file_bytes=FILE_BYTES,
        post=commits.put,
        request_spare=files.prepare,
    )
    journal.start()
    for entry in range(1, 101):
        journal.queue.append((0, None, [encode_put(b"%d" % entry, bytes(100))]))
        journal.want_synced(entry)
        if entry % 10 == 0:
            while commits.get(timeout=10).synced < entry:
                pass
    journal.stop()
    scan = scan_journal(filesystem, tmp_path, START, 1, 1, 1)
    assert [entry.key for entry in entries_of(filesystem, scan)] == [b"%d" % entry for entry in range(1, 101)]
