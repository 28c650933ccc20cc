from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from highway.errors import CorruptionError, DataDirectoryError, StorageError
from highway.storage.disk.descriptors import Descriptors
from highway.storage.disk.filesystem import OsFileSystem
from highway.storage.segment.format import (
    CODEC_NONE,
    CODEC_ZSTD,
    FRAME_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    encode_frame,
)
from highway.storage.segment.index import IndexFile
from highway.storage.segment.records import RecordHeads, encode_records
from highway.storage.segment.segment import INDEX_SUFFIX, Segment, segment_path
from tests.storage.simulated_filesystem import Failure, SimulatedFileSystem

ROOT = Path("/data")
BASE = 1000
SALT = 0xC0FFEE01
UUID = bytes(range(16))


def create(files: Descriptors, *, root: Path = ROOT, base_offset: int = BASE, salt: int | None = SALT) -> Segment:
    return Segment.create(root, files, log_uuid=UUID, base_offset=base_offset, epoch=1, created_ms=1_000_000, salt=salt)


def append(segment: Segment, payloads: list[bytes], *, now: int = 0, codec: int = CODEC_NONE, **values) -> int:
    """Append a frame of records of topic `t`; the default time is the segment's next offset."""
    now = now or segment.next_offset
    data = encode_records([(b"t", 1, i, b"", payload) for i, payload in enumerate(payloads)])
    base_offset = values.pop("base_offset", segment.next_offset)
    times = {"min_ms": now, "max_ms": now + len(payloads) - 1, "epoch": 1}
    return segment.append_frame(data, count=len(payloads), base_offset=base_offset, codec=codec, **times | values)


def fill(segment: Segment, frames: int, *, codec: int = CODEC_NONE) -> dict[int, bytes]:
    """Append frames of one, two, three, one ... records; return payload by offset."""
    written = {}
    for number in range(frames):
        payloads = [b"payload %d.%d" % (number, i) for i in range(1 + number % 3)]
        written |= dict(enumerate(payloads, segment.next_offset))
        append(segment, payloads, codec=codec)
    return written


def read_all(segment: Segment) -> dict[int, bytes]:
    """Return payload by offset of every record that can be read, going around damage the way the log does."""
    found = {}
    offset = segment.base_offset
    while True:
        try:
            batch = segment.read_at(offset)
        except CorruptionError as error:
            damage = segment.damage_at(error.position)
            if damage.to_offset is None or damage.to_offset <= offset:
                return found
            offset = damage.to_offset
            continue
        if batch is None:
            return found
        found |= {record[0]: record[5] for record in batch.records()}
        offset = batch.end_offset


def reopened(content: bytes, index: bytes | None = None, *, base_offset: int = BASE) -> tuple[Path, Descriptors]:
    """Return a path and descriptors of a new disk that has a segment file of these bytes."""
    fs = SimulatedFileSystem()
    path = segment_path(ROOT, base_offset)
    fs.overwrite(path, content)
    if index is not None:
        fs.overwrite(path.with_suffix(INDEX_SUFFIX), index)
    return path, Descriptors(fs)


# Create, append, sync, seal.


def test_a_new_segment_is_durable_before_it_is_used(fs, files):
    segment = create(files)
    assert segment.path == ROOT / "00000000000000001000.log"
    assert [operation.kind for operation in fs.operations] == ["create", "pwrite", "fsync", "sync_dir"]
    assert fs.is_durable(segment.path)
    assert (segment.length, segment.next_offset, segment.durable_length) == (64, BASE, 64)
    with pytest.raises(FileExistsError):
        create(files)


def test_salts_differ(files):
    salts = {create(files, base_offset=number, salt=None).header.salt for number in range(8)}
    assert len(salts) == 8
    assert 0 not in salts


def test_frames_go_one_behind_the_other_and_are_durable_after_sync(fs, files):
    segment = create(files)
    first = append(segment, [b"a"])
    second = append(segment, [b"b", b"c"])
    assert first == SEGMENT_HEADER_BYTES
    assert second == first + FRAME_HEADER_BYTES + 16
    assert [record[5] for record in segment.read_at(BASE + 1).records()] == [b"b", b"c"]
    assert segment.next_offset == BASE + 3
    assert segment.durable_length == 64
    assert not fs.is_durable(segment.path)
    segment.sync()
    assert segment.durable_length == segment.length == fs.size(files.acquire(segment.path))
    assert fs.is_durable(segment.path)
    count = len(fs.operations)
    segment.sync()
    assert len(fs.operations) == count


def test_an_offset_below_the_end_is_refused(files):
    segment = create(files)
    append(segment, [b"a", b"b"])
    with pytest.raises(StorageError, match="offset 1002 or later expected, a frame of offset 1001 given"):
        append(segment, [b"c"], base_offset=BASE + 1)
    append(segment, [b"c"], base_offset=BASE + 50)
    assert segment.next_offset == BASE + 51


def test_a_sealed_segment_takes_no_more(fs, files):
    segment = create(files)
    fill(segment, 3)
    segment.seal()
    with pytest.raises(StorageError, match="sealed"):
        append(segment, [b"x"])
    assert fs.is_durable(segment.path)
    assert fs.is_durable(segment.path.with_suffix(INDEX_SUFFIX))
    kinds = [(operation.kind, operation.path.suffix) for operation in fs.operations]
    assert kinds.index(("fdatasync", ".log")) < kinds.index(("create", ".tmp"))
    assert kinds[-3:] == [("fsync", ".tmp"), ("rename", ".tmp"), ("sync_dir", "")]


def test_a_segment_is_sealed_also_without_room_for_its_index(fs, files):
    segment = create(files)
    written = fill(segment, 3)
    fs.fail(1, Failure.ENOSPC, kinds={"create"})
    segment.seal()
    assert segment.sealed
    assert fs.is_durable(segment.path)
    assert fs.listdir(ROOT) == [segment.path.name], "and leaves no half of it"
    assert read_all(Segment.open_sealed(segment.path, files)) == written


@pytest.mark.parametrize("failure", [Failure.ENOSPC, Failure.SHORT_WRITE, Failure.EIO])
def test_a_failed_append_changes_nothing_and_the_next_one_overwrites_what_it_left(fs, files, failure):
    segment = create(files)
    written = fill(segment, 2)
    before = segment.length, segment.next_offset
    fs.fail(1, failure, kinds={"pwrite"})
    with pytest.raises(OSError, match=r"space|error"):
        append(segment, [b"a long payload that is not going to be in the file"])
    assert (segment.length, segment.next_offset) == before
    append(segment, [b"x"])
    segment.seal()
    assert segment.file_size() == segment.length
    assert read_all(Segment.open_sealed(segment.path, files)) == written | {BASE + 3: b"x"}


def test_seal_cuts_what_a_failed_append_left(fs, files):
    segment = create(files)
    written = fill(segment, 2)
    fs.fail(1, Failure.SHORT_WRITE, kinds={"pwrite"})
    with pytest.raises(OSError, match="space"):
        append(segment, [b"x" * 300])
    assert segment.file_size() > segment.length
    segment.seal()
    sealed = Segment.open_sealed(segment.path, files)
    assert sealed.verify().intact
    assert read_all(sealed) == written


def test_a_failed_sync_is_not_counted(fs, files):
    segment = create(files)
    fill(segment, 1)
    fs.fail(1, Failure.EIO, kinds={"fdatasync"})
    with pytest.raises(OSError, match="Input/output"):
        segment.sync()
    assert segment.durable_length == SEGMENT_HEADER_BYTES
    syncs = len([operation for operation in fs.operations if operation.kind == "fdatasync"])
    for again in (segment.sync, segment.seal, lambda: append(segment, [b"x"])):
        with pytest.raises(StorageError, match="written anew"):
            again()
    assert syncs == len([operation for operation in fs.operations if operation.kind == "fdatasync"])


def test_an_unsynced_file_keeps_its_descriptor(fs):
    files = Descriptors(fs, limit=1)
    one, two = create(files), create(files, base_offset=5000)
    append(one, [b"a"])
    append(two, [b"b"])
    assert fs.open_descriptors() == 2
    one.sync()
    two.mark_durable(two.length, two.next_offset)
    assert fs.open_descriptors() == 1
    append(one, [b"c"])
    one.close()
    two.close()
    assert fs.open_descriptors() == 0


def test_delete_removes_both_files(fs, files):
    segment = create(files)
    fill(segment, 1)
    segment.seal()
    other = create(files, base_offset=2000)
    fill(other, 1)
    segment.delete()
    other.delete()
    assert fs.listdir(ROOT) == []
    assert fs.open_descriptors() == 0


# Reading.


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 3), st.integers(0, 2000), st.integers(0, 4)),
        min_size=1,
        max_size=25,
    ),
    st.sampled_from([CODEC_NONE, CODEC_ZSTD]),
    st.sampled_from(["active", "sealed", "without index"]),
)
def test_every_record_is_found_by_offset_by_time_and_backwards(drawn, codec, state):
    fs = SimulatedFileSystem()
    files = Descriptors(fs)
    segment = create(files)
    records = []
    now = 10_000
    for count, hole, length, since in drawn:
        base_offset = segment.next_offset + hole
        now += since
        records += [(base_offset + i, now + i, b"%d" % i * length) for i in range(count)]
        append(segment, [b"%d" % i * length for i in range(count)], now=now, base_offset=base_offset, codec=codec)
        now += count - 1
    if state != "active":
        segment.seal()
        if state == "without index":
            fs.unlink(segment.path.with_suffix(INDEX_SUFFIX))
        segment = Segment.open_sealed(segment.path, files)
    for offset in range(BASE - 1, records[-1][0] + 2):
        following = [record for record in records if record[0] >= offset]
        batch = segment.read_at(offset)
        assert (batch is None) == (not following)
        if batch is not None:
            first = next(record for record in batch.records() if record[0] >= offset)
            assert (first[0], first[2], first[5]) == following[0]
        before = [record for record in records if record[0] < offset]
        batch = segment.read_before(offset)
        assert (batch is None) == (not before)
        if batch is not None:
            last = [record for record in batch.records() if record[0] < offset][-1]
            assert (last[0], last[2], last[5]) == before[-1]
    for timestamp_ms in range(9_999, now + 2):
        expected = next((offset for offset, at, _ in records if at >= timestamp_ms), None)
        assert segment.offset_at(timestamp_ms) == expected


def test_an_empty_segment_has_nothing(files):
    segment = create(files)
    assert segment.read_at(BASE) is None
    assert segment.read_before(BASE + 1) is None
    assert segment.offset_at(0) is None
    segment.seal()
    sealed = Segment.open_sealed(segment.path, files)
    assert sealed.read_at(BASE) is None
    assert (sealed.length, sealed.next_offset) == (SEGMENT_HEADER_BYTES, BASE)
    assert sealed.verify().intact


def test_opening_a_sealed_segment_reads_nothing(fs, files):
    segment = create(files)
    written = fill(segment, 5)
    segment.seal()
    segment.close()
    sealed = Segment.open_sealed(segment.path, files)
    assert fs.open_descriptors() == 0
    assert (sealed.base_offset, sealed.sealed) == (BASE, True)
    assert sealed.index == segment.index
    assert (sealed.length, sealed.next_offset) == (segment.length, segment.next_offset)
    assert read_all(sealed) == written


def test_an_active_segment_goes_on_after_reopening(files):
    segment = create(files)
    written = fill(segment, 5)
    segment.sync()
    again, result = Segment.open_active(segment.path, files)
    assert result.intact
    assert (result.frames, result.records, result.next_offset) == (5, 9, segment.next_offset)
    assert result.last_ms == segment.index.last_ms
    assert again.length == segment.length
    more = fill(again, 3)
    assert again.index.records == 9 + 6
    assert read_all(again) == written | more


def test_reopening_from_the_durable_length_reads_only_what_follows(files):
    segment = create(files)
    fill(segment, 5)
    segment.sync()
    position, next_offset = segment.durable_length, segment.next_offset
    fill(segment, 2)
    again, result = Segment.open_active(segment.path, files, position=position, next_offset=next_offset)
    assert (result.frames, again.length, again.next_offset) == (2, segment.length, segment.next_offset)
    assert again.durable_length == position
    again.sync()
    assert again.durable_length == again.length


def test_a_file_shorter_than_its_durable_length_is_loud(fs, files):
    segment = create(files)
    fill(segment, 5)
    with pytest.raises(CorruptionError, match=r"00001000.log: at byte \d+: file of \d+ B; 5000 B of it were durable"):
        Segment.open_active(segment.path, files, position=5000, next_offset=2000)


def test_a_passing_read_error_is_passed_over_and_a_lasting_one_is_corruption(files):
    class Sick(SimulatedFileSystem):
        errors = 0

        def pread(self, fd, length, position):
            if self.errors:
                self.errors -= 1
                raise OSError(5, "Input/output error")
            return super().pread(fd, length, position)

    fs = Sick()
    files = Descriptors(fs)
    segment = create(files)
    written = fill(segment, 2)
    fs.errors = 1
    assert segment.read_at(BASE).records()[0][5] == written[BASE]
    fs.errors = 20
    with pytest.raises(CorruptionError):
        segment.read_at(BASE)
    with pytest.raises(CorruptionError, match="can't read it"):
        Segment.open_sealed(segment.path, files).read_at(BASE)
    fs.errors = 0
    assert read_all(segment) == written


class BadSectors(SimulatedFileSystem):
    """A disk that can't read one range of the segment any more."""

    bad = range(0)

    def pread(self, fd, length, position):
        wanted = range(position, min(position + length, self.size(fd)))
        if max(wanted.start, self.bad.start) < min(wanted.stop, self.bad.stop):
            raise OSError(5, "Input/output error")
        return super().pread(fd, length, position)


@pytest.mark.parametrize("with_index", [True, False])
def test_bad_sectors_cost_the_frames_on_them(with_index):
    fs = BadSectors()
    segment = create(Descriptors(fs))
    written = {}
    for number in range(120):
        written[segment.next_offset] = b"%d" % number * 300
        append(segment, [written[segment.next_offset]])
    segment.seal()
    if not with_index:
        fs.unlink(segment.path.with_suffix(INDEX_SUFFIX))
    for start in (4096, 8192, 40_960):
        fs.bad = range(start, start + 4096)
        again = Segment.open_sealed(segment.path, Descriptors(fs))
        found = read_all(again)
        result = again.verify()
        (lost,) = result.damaged
        assert sorted(written.keys() - found.keys()) == list(range(lost.from_offset, lost.to_offset))
        assert 4 <= len(written) - len(found) <= 20
        assert found.items() <= written.items()


def test_readers_and_the_writer_at_the_same_time(tmp_path):
    files = Descriptors(OsFileSystem(), limit=1)
    segment = create(files, root=tmp_path)
    faults = []
    done = threading.Event()

    def read():
        rng = random.Random(1)
        while not done.is_set():
            end = segment.next_offset
            if end == BASE:
                continue
            offset = rng.randrange(BASE, end)
            batch = segment.read_at(offset)
            if batch is None or batch.record_at(offset)[0] != offset:
                faults.append((offset, batch))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    written = fill(segment, 400, codec=CODEC_ZSTD)
    segment.seal()
    done.set()
    for thread in threads:
        thread.join()
    assert faults == []
    assert read_all(Segment.open_sealed(segment.path, files)) == written
    files.close()


# Torn tails: every length of a segment of 12 frames, with four things behind the tear.


def twelve_frames() -> tuple[bytes, list[tuple[int, int, dict[int, bytes]]]]:
    """Return a segment's bytes and, for each number of whole frames, (length, next offset, payload by offset)."""
    fs = SimulatedFileSystem()
    segment = create(Descriptors(fs))
    states = [(segment.length, segment.next_offset, {})]
    for number in range(12):
        payloads = [b"%d" % number * (i * 7) for i in range(number % 3 + 1)]
        written = states[-1][2] | dict(enumerate(payloads, segment.next_offset))
        append(segment, payloads, codec=number % 2)
        states.append((segment.length, segment.next_offset, written))
    return fs.content(segment.path), states


def behind_the_tear(kind: str, content: bytes, length: int, rng: random.Random) -> bytes:
    missing = len(content) - length
    if kind == "zeros":
        return bytes(missing)
    if kind == "random":
        return rng.randbytes(missing)
    if kind == "stale":  # older frames of the same segment, as a copy of them starts anywhere
        return content[SEGMENT_HEADER_BYTES:][:missing]
    if kind == "misaligned":
        return content[SEGMENT_HEADER_BYTES + 1 :][:missing]
    return b""


@pytest.mark.parametrize("kind", ["nothing", "zeros", "random", "stale", "misaligned"])
def test_a_tear_at_every_byte_keeps_every_whole_frame_and_nothing_else(kind):
    content, states = twelve_frames()
    rng = random.Random(7)
    for length in range(SEGMENT_HEADER_BYTES, len(content)):
        torn = content[:length] + behind_the_tear(kind, content, length, rng)
        # What is behind the tear may happen to be what was there.
        same = next((at for at in range(length, len(torn)) if torn[at] != content[at]), len(torn))
        valid_length, next_offset, written = [state for state in states if state[0] <= same][-1]
        path, files = reopened(torn)
        segment, result = Segment.open_active(path, files)
        assert (result.valid_length, result.next_offset) == (valid_length, next_offset)
        assert (result.tail is None) == (len(torn) == valid_length)
        assert read_all(segment) == written
        segment.cut_tail()
        append(segment, [b"after"])
        segment.sync()
        _, again = Segment.open_active(path, files)
        assert again.intact
        assert again.next_offset == next_offset + 1


@pytest.mark.parametrize("length", range(SEGMENT_HEADER_BYTES))
def test_a_tear_in_the_segment_header_is_reported(length):
    content, _ = twelve_frames()
    for torn in (content[:length], content[:length] + bytes(200)):
        path, files = reopened(torn)
        if length >= 60 and torn[:64] == content[:64]:
            continue
        with pytest.raises(CorruptionError, match="segment header"):
            Segment.open_active(path, files)


def test_whatever_a_power_cut_leaves_synced_frames_are_there_and_unsynced_ones_whole_or_not():
    fs = SimulatedFileSystem()
    rng = random.Random(3)
    states = []

    def cut(_operation):
        states.extend(
            (segment.durable_length, dict(synced), dict(written), after)
            for _, after in fs.crash_states(rng, samples=2, single=3)
        )

    segment = create(Descriptors(fs))
    synced: dict[int, bytes] = {}
    written: dict[int, bytes] = {}
    fs.on_operation = cut
    for round_ in range(4):
        for _ in range(3):
            payloads = [rng.randbytes(rng.randrange(900)) for _ in range(2)]
            written |= dict(enumerate(payloads, segment.next_offset))
            append(segment, payloads)
        if round_ < 3:
            segment.sync()
            synced |= written
    segment.seal()
    assert len(states) > 150
    for durable_length, promised, sent, after in states:
        again, result = Segment.open_active(segment.path, Descriptors(after))
        assert result.valid_length >= durable_length
        found = read_all(again)
        assert promised.items() <= found.items() <= sent.items()
        assert sorted(found) == list(range(BASE, BASE + len(found)))


# Damage: every byte of a small segment and of its index, flipped four ways.


def sealed_segment() -> tuple[bytes, bytes, dict[int, bytes]]:
    fs = SimulatedFileSystem()
    segment = create(Descriptors(fs))
    written = fill(segment, 3, codec=CODEC_NONE) | fill(segment, 1, codec=CODEC_ZSTD) | fill(segment, 2)
    segment.seal()
    return fs.content(segment.path), fs.content(segment.path.with_suffix(INDEX_SUFFIX)), written


def flips(data: bytes):
    for at in range(len(data)):
        for mask in (0x01, 0x20, 0x80, 0xFF):
            yield data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


@pytest.mark.parametrize("with_index", [True, False])
def test_a_flipped_byte_of_a_segment_costs_one_frame_and_says_which(with_index):
    content, index, written = sealed_segment()
    for damaged in flips(content):
        path, files = reopened(damaged, index if with_index else None)
        segment = Segment.open_sealed(path, files)  # a damaged header is made good by the index, or by the first frame
        found = read_all(segment)
        assert found.items() <= written.items()
        lost = written.keys() - found.keys()
        result = segment.verify()
        assert (damaged[64:] == content[64:]) == result.intact == (not lost)
        ranges = [*result.damaged, *([] if result.tail is None else [result.tail])]
        reported = {
            offset
            for gap in ranges
            for offset in range(gap.from_offset, BASE + len(written) if gap.to_offset is None else gap.to_offset)
        }
        assert reported == lost
        assert len(lost) <= 3
        for offset in lost:
            with pytest.raises(CorruptionError):
                segment.read_at(offset)
            with pytest.raises(CorruptionError):
                segment.read_before(offset + 1)


def test_a_flipped_byte_of_an_index_costs_nothing():
    content, index, written = sealed_segment()
    for damaged in flips(index):
        path, files = reopened(content, damaged)
        segment = Segment.open_sealed(path, files)
        assert read_all(segment) == written
        assert segment.damaged == []


@pytest.mark.parametrize("kind", ["empty", "other segment", "older"])
def test_an_index_that_does_not_belong_is_not_used(kind):
    content, index, written = sealed_segment()
    if kind == "empty":
        index = b""
    elif kind == "other segment":
        other = create(Descriptors(SimulatedFileSystem()), salt=77)
        append(other, [b"x" * (len(content) - SEGMENT_HEADER_BYTES - FRAME_HEADER_BYTES - 15)])
        assert other.length == len(content)
        index = IndexFile(other.header.encode(), other.index).encode()
    else:
        path, files = reopened(content[:-100])
        shorter, _ = Segment.open_active(path, files)
        shorter.cut_tail()
        index = IndexFile(shorter.header.encode(), shorter.index).encode()
    path, files = reopened(content, index)
    segment = Segment.open_sealed(path, files)
    assert read_all(segment) == written
    assert segment.index.records == len(written)


def test_damage_in_the_index_rebuild_is_kept_for_the_report():
    content, _, written = sealed_segment()
    damaged = content[:64] + b"\0" + content[65:]
    path, files = reopened(damaged)
    segment = Segment.open_sealed(path, files)
    assert len(segment.index) == 1
    (lost,) = segment.damaged
    assert (lost.position, lost.from_offset, lost.to_offset) == (64, BASE, BASE + 1)
    assert "magic 00fe" in lost.reason
    assert read_all(segment) == {offset: written[offset] for offset in written if offset != BASE}


def test_a_read_error_that_passed_is_no_damage(files):
    segment = create(files)
    fill(segment, 3)
    damage = segment.damage_at(SEGMENT_HEADER_BYTES)
    assert damage.from_offset == damage.to_offset


def test_a_segment_of_another_name_is_refused():
    content, _, _ = sealed_segment()
    path, files = reopened(content, base_offset=BASE + 1)
    with pytest.raises(CorruptionError, match="base offset 1000, by its name 1001"):
        Segment.open_active(path, files)


def test_a_segment_of_a_newer_format_is_refused_as_that(monkeypatch):
    monkeypatch.setattr("highway.storage.segment.format.FORMAT_VERSION", 2)
    content, index, _ = sealed_segment()
    monkeypatch.undo()
    path, files = reopened(content, index)
    with pytest.raises(DataDirectoryError, match="segment format 2"):
        Segment.open_active(path, files)


# Payloads that look like frames.


def test_a_published_frame_is_never_taken_for_one_behind_damage():
    """Without the salt the scan behind a damaged header would find the forgery first: offsets and epoch are right."""
    fs = SimulatedFileSystem()
    segment = create(Descriptors(fs))
    forgery = RecordHeads(b"t", 1, 0).encode([b"forged"])
    for guess in (0, 1, SALT ^ 1, 0xFFFF_FFFF):
        values = {"count": 1, "base_offset": BASE + 1, "min_ms": 1, "max_ms": 1, "epoch": 1, "salt": guess}
        payload = b"".join(encode_frame(forgery, codec=CODEC_NONE, **values)) * 3
        append(segment, [payload, payload])
    append(segment, [b"good"])
    last = segment.next_offset - 1
    content = bytearray(fs.content(segment.path))
    for entry in range(4):
        content[segment_position(bytes(content), entry)] ^= 0xFF
    path, files = reopened(bytes(content))
    damaged = Segment.open_sealed(path, files)
    assert read_all(damaged) == {last: b"good"}
    # With the right salt it is one: this is what the salt prevents.
    assert not damaged.verify().intact


def segment_position(content: bytes, number: int) -> int:
    """Return the position of a frame, by its number, in a segment whose frames are all intact from there on."""
    position = SEGMENT_HEADER_BYTES
    for _ in range(number):
        position += FRAME_HEADER_BYTES + int.from_bytes(content[position + 19 : position + 23], "big")
    return position


def test_the_same_payload_with_the_right_salt_would_be_taken():
    """The test above proves something only if nothing but the salt stands in the way."""
    fs = SimulatedFileSystem()
    segment = create(Descriptors(fs))
    values = {"count": 1, "base_offset": BASE + 1, "min_ms": 1, "max_ms": 1, "epoch": 1, "salt": SALT}
    forgery = b"".join(encode_frame(RecordHeads(b"t", 1, 0).encode([b"forged"]), codec=CODEC_NONE, **values))
    append(segment, [forgery, forgery])
    content = bytearray(fs.content(segment.path))
    content[SEGMENT_HEADER_BYTES] ^= 0xFF
    path, files = reopened(bytes(content))
    assert read_all(Segment.open_sealed(path, files)) == {BASE + 1: b"forged"}


@pytest.mark.parametrize(
    "payload",
    [
        b"\xca\xfe" * 3000,
        (b"\xca\xfe\x20" + b"\x7f" * 48) * 100,
        (b"\xca\xfe\x00\x00\x00\x00\x01" + bytes(8) + b"\x0f\xff\xff\xff" * 2 + bytes(4)) * 200,  # without extension
        b"\xca" * 2000,
    ],
)
def test_runs_of_magic_behind_damage_are_searched_and_not_believed(payload):
    fs = SimulatedFileSystem()
    segment = create(Descriptors(fs))
    append(segment, [payload])
    append(segment, [b"good"])
    content = bytearray(fs.content(segment.path))
    content[SEGMENT_HEADER_BYTES + 2] ^= 0x01
    path, files = reopened(bytes(content))
    damaged = Segment.open_sealed(path, files)
    assert read_all(damaged) == {BASE + 1: b"good"}
    result = damaged.verify()
    assert [(gap.from_offset, gap.to_offset) for gap in result.damaged] == [(BASE, BASE + 1)]
    assert result.tail is None
