"""T3: one damaged byte, anywhere. HIGHWAY_FLIPS=100000 asks for the long form, which prints a line of figures.

The broker starts, serves no wrong record, loses nothing but what the damaged frame held, and says which offsets that
is. Verification, before the start, names the file and these offsets; repair makes the next start a clean one.
"""

from __future__ import annotations

import logging
import os
import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from highway.errors import CorruptionError
from highway.storage import Durability, LogSettings
from highway.storage.checking import verification
from highway.storage.checking.repairing import repair, to_repair
from highway.storage.checking.verification import verify
from highway.storage.disk.layout import parse_format
from highway.storage.gaps import find_gap
from highway.storage.journal.files import list_journal
from highway.storage.segment.index import IndexFile
from tests.storage.damage_map import DirectoryMap
from tests.storage.rig import DIRECTORY, Rig

FLIPS = int(os.environ.get("HIGHWAY_FLIPS", "320"))
FAST, BALANCED, SAFE = Durability
LOGS = [
    LogSettings("fast", FAST, segment_bytes=1200, flush_bytes=500, compression="none"),
    LogSettings("balanced", BALANCED, segment_bytes=1200, flush_bytes=500),
    LogSettings("safe", SAFE, segment_bytes=2000, flush_bytes=400),
    LogSettings("quiet", SAFE),
]
# Bytes that hold nothing: nobody can tell that they have changed, and nobody has to.
SILENT = {"LOCK", "RESERVE", "journal, unused", "checkpoint, unused"}


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(verification, "_PAUSE_S", 0)
    logging.getLogger("highway.storage").setLevel(logging.CRITICAL)  # thousands of lines that nobody reads
    yield
    logging.getLogger("highway.storage").setLevel(logging.NOTSET)


@dataclass
class Sample:
    """A data directory, what was sent to it, and what an undamaged start finds."""

    filesystem: object
    sent: dict
    contents: dict
    meta: dict
    map: DirectoryMap


def fill(rig, sent, steps, rng):
    for step in range(steps):
        name = rng.choices([log.name for log in LOGS], [5, 5, 5, 1])[0]
        payloads = [b"%s-%d-%d:" % (name.encode(), step, n) + rng.randbytes(20) for n in range(rng.randint(1, 5))]
        puts = [(b"k%d" % rng.randint(0, 4), b"%d" % step)] if rng.random() < 0.2 else []
        base = rig.append(name, *payloads, puts=puts)
        sent[name].update(enumerate(payloads, base))
        if rng.random() < 0.7:
            rig.settle()
        if rng.random() < 0.1:
            rig.advance(1.1)
        if rng.random() < 0.04:
            rig.checkpoint()
    rig.settle()


def make(stop):
    """Two lives: segments of all kinds, two snapshots, journal files in use and spare, a journal tail if killed."""
    rng = random.Random(4)
    rig = Rig()
    sent = {log.name: {} for log in LOGS}
    rig.open(LOGS)
    fill(rig, sent, 70, rng)
    rig.close()
    rig.kill()
    rig.reopen()
    fill(rig, sent, 70, rng)
    for _ in range(2):  # so that only the very last frame isn't known to be durable
        base = rig.append("safe", b"last", durability=SAFE)
        sent["safe"][base] = b"last"
        rig.settle()
    getattr(rig, stop)()
    filesystem = rig.filesystem.kill()
    whole = opened(filesystem.kill())
    contents = {name: whole.contents(name) for name in sent}
    assert contents == sent, "nothing is lost without damage"
    return Sample(filesystem, sent, contents, dict(whole.storage.meta.items()), DirectoryMap(filesystem))


@pytest.fixture(scope="module")
def samples():
    return [make("close"), make("kill")]


def opened(filesystem, logs=LOGS, **options):
    rig = Rig(filesystem)
    rig.clock.advance(100_000)
    rig.configured = logs
    rig.reopen(**options)
    return rig


def flips(samples, count):
    """Yield (sample, class of the byte, path, position, new value), the classes in turn."""
    rng = random.Random(20)
    places = [(sample, name, found) for sample in samples for name, found in sorted(sample.map.places.items()) if found]
    for number in range(count):
        sample, name, found = places[number % len(places)]
        path, position = rng.choice(found)
        old = sample.filesystem.content(path)[position]
        new = [old ^ 1 << rng.randrange(8), old ^ 0xFF, 0x00, 0xFF][number // len(places) % 4]
        yield sample, name, path, position, new if new != old else old ^ 0x55


def damaged(sample, path, position, value):
    filesystem = sample.filesystem.kill()
    content = bytearray(filesystem.content(path))
    content[position] = value
    filesystem.overwrite(path, bytes(content))
    return filesystem


def check_start(sample, rig, may_lose, unit, where):
    """Hold what a start serves against what was there; return how many records were lost."""
    count = 0
    for name, sent in sample.sent.items():
        found = rig.contents(name)
        wrong = [offset for offset, payload in found.items() if sent.get(offset) != payload]
        assert not wrong, f"{where}: log {name} serves wrong records {wrong}"
        lost = set(sent) - set(found)
        assert lost <= may_lose.get(name, set()), f"{where}: log {name} lost more than the damaged frame: {lost}"
        silent = {offset for offset in lost if find_gap(rig.log(name).gaps, offset) is None}
        assert not silent or not unit.known_durable, f"{where}: log {name} lost {silent} and says nothing"
        count += len(lost)
    if unit is None:
        assert dict(rig.storage.meta.items()) == sample.meta, f"{where}: the broker's keys differ"
    return count


def check_verification(filesystem, name, path, may_lose, unit, where):
    """Verification names the file, and everything that a start has lost."""
    found = verify(DIRECTORY, filesystem=filesystem)
    named = [finding for finding in found.findings if finding.path == path]
    if unit is None or unit.known_durable:  # the very last frame may have ended the journal as a torn write does
        assert bool(named) == (name not in SILENT), f"{where}: {name}: {[str(finding) for finding in found.findings]}"
    lost = {(item.log, offset) for finding in named for item in finding.lost for offset in range(*item[1:3])}
    if unit is not None and unit.known_durable and path.suffix == ".log":
        torn = not named[0].damaged  # above the durable length: the journal has it
        assert lost == (set() if torn else {(log, offset) for log, offsets in may_lose.items() for offset in offsets})
    return lost


@pytest.mark.timeout(120 + FLIPS // 10)
def test_a_damaged_byte_anywhere_costs_its_frame_at_most_and_is_reported(samples):
    figures = Counter()
    for sample, name, path, position, value in flips(samples, FLIPS):
        where = f"{path.relative_to(DIRECTORY)}, byte {position} set to {value:#04x}"
        may_lose, unit = sample.map.may_lose(path, position), sample.map.unit(path, position)
        filesystem = damaged(sample, path, position, value)
        named = check_verification(filesystem, name, path, may_lose, unit, where)
        rig = opened(filesystem)
        lost = check_start(sample, rig, may_lose, unit, where)
        if unit is not None and unit.known_durable:
            assert lost <= len(named), f"{where}: verification knew of {len(named)} lost offsets, the start lost {lost}"
        figures += Counter(flips=1, with_loss=lost > 0, lost=lost, classes=0)
    assert figures["with_loss"] > FLIPS // 10
    if FLIPS > 1000:
        print(  # noqa: T201  the long form is for this line
            f"\n{figures['flips']} flips, 0 refused starts, 0 wrong records, {figures['lost']} records lost with their frames"
        )


def test_every_kind_of_byte_is_there(samples):
    for sample in samples:
        missing = {name for name, found in sample.map.places.items() if not found}
        assert missing <= {"checkpoint, unused"}
    assert len({name for sample in samples for name in sample.map.places}) >= 19


def test_after_a_damaged_start_the_next_one_finds_the_same(samples):
    for sample, name, path, position, value in flips(samples, 60):
        filesystem = damaged(sample, path, position, value)
        rig = opened(filesystem)
        before = {log: rig.contents(log) for log in sample.sent}
        added = {log: rig.append(log, b"next", durability=SAFE) for log in before}
        for log, base in added.items():
            assert base not in sample.sent[log] or not sample.map.unit(path, position).known_durable
        rig.settle()
        rig.close()
        again = opened(rig.filesystem.kill())
        where = f"{name}: {path.name}, byte {position}"
        assert again.storage.report.clean, where
        assert not again.storage.report.damaged, where
        for log, contents in before.items():
            assert again.contents(log) == {**contents, added[log]: b"next"}, where


def test_repair_leaves_a_directory_that_starts_cleanly_and_keeps_what_it_replaced(samples):
    for sample, name, path, position, value in flips(samples, 60):
        where = f"{name}: {path.name}, byte {position}"
        filesystem = damaged(sample, path, position, value)
        original = filesystem.content(path)
        result = repair(DIRECTORY, filesystem=filesystem)
        assert not to_repair(result.after), where
        rig = opened(filesystem)
        assert not rig.storage.report.damaged, where
        assert rig.storage.report.clean or result.report is None, where
        check_start(sample, rig, sample.map.may_lose(path, position), sample.map.unit(path, position), where)
        kept = [
            filesystem.content(DIRECTORY / "quarantine" / name) for name in filesystem.listdir(DIRECTORY / "quarantine")
        ]
        now = filesystem.content(path) if filesystem.exists(path) else b""
        # What is kept may begin or end at the damaged byte.
        evidence = original[max(0, position - 8) : position + 1], original[position : position + 9]
        assert name in SILENT or any(part in data for part in evidence for data in (now, *kept)), (
            f"{where}: the evidence is gone"
        )


def test_a_directory_without_damage_is_intact_and_nothing_is_repaired(samples):
    for sample in samples:
        filesystem = sample.filesystem.kill()
        found = verify(DIRECTORY, filesystem=filesystem)
        assert not found.findings
        assert found.lost_offsets == 0
        assert {log.name: log.log_end_offset for log in found.logs} == {
            name: max(sent) + 1 for name, sent in sample.sent.items()
        }
        assert repair(DIRECTORY, filesystem=filesystem).report is None
        assert not filesystem.open_descriptors()


# on_corruption: refuse.


def refusing(*names):
    return [replace(log, on_corruption="refuse") if log.name in names else log for log in LOGS]


def cut_active_segment(sample, log):
    """A file shorter than it was durable: what an open can see of damaged segments."""
    filesystem = sample.filesystem.kill()
    state = next(state for state in sample.map.checkpoints[0].logs if state.name == log)
    (path,) = [path for path, _ in sample.map.places["segment header, active"] if f"/{log}-" in str(path)][:1]
    filesystem.overwrite(path, filesystem.content(path)[: state.durable_length - 3])
    return filesystem, path


def test_refuse_keeps_the_broker_from_starting_and_lets_go_of_everything(samples):
    filesystem, path = cut_active_segment(samples[0], "quiet")
    with pytest.raises(CorruptionError, match="on_corruption is refuse") as error:
        opened(filesystem, refusing("quiet"))
    assert error.value.path == str(path)
    assert filesystem.open_descriptors() == 0
    rig = opened(filesystem, refusing("safe"))
    assert rig.storage.report.damaged, "only the log that is damaged has a say"


def test_refuse_is_satisfied_after_a_repair(samples):
    filesystem, path = cut_active_segment(samples[0], "quiet")
    result = repair(DIRECTORY, filesystem=filesystem)
    (finding,) = [finding for finding in result.before.damaged if finding.path == path]
    rig = opened(filesystem, refusing("quiet"))
    lost = set(samples[0].sent["quiet"]) - set(rig.contents("quiet"))
    assert lost
    assert lost == {offset for item in finding.lost for offset in range(*item[1:3])}
    assert lost == rig.in_gaps("quiet")


# The journal.


def single_frames(*names):
    """One record of each name after the other, each durable in a frame of its own; then a kill."""
    rig = Rig()
    rig.open([LogSettings(name, SAFE) for name in dict.fromkeys(names)])
    for number, name in enumerate(names):
        rig.append(name, b"%s%d." % (name.encode(), number))
        rig.settle()
    rig.kill()
    return rig


def damage_journal(rig, old, new):
    count = 0
    for _, path in list_journal(rig.filesystem, DIRECTORY / "journal"):
        content = rig.filesystem.content(path)
        count += content.count(old)
        rig.filesystem.overwrite(path, content.replace(old, new))
    assert count == 1


def test_the_last_record_of_a_safe_log_is_not_lost_in_silence_and_its_offset_is_not_given_again():
    rig = single_frames("a", "a", "b", "a", "b", "b")
    damage_journal(rig, b"a3.", b"a?.")
    rig.reopen()
    assert rig.contents("a") == {0: b"a0.", 1: b"a1."}
    assert rig.in_gaps("a") == {2}
    assert rig.contents("b") == {0: b"b2.", 1: b"b4.", 2: b"b5."}
    assert not rig.log("b").gaps, "the frame tells whose records it held"
    assert rig.append("a", b"new") == 3
    kept = [
        rig.filesystem.content(DIRECTORY / "quarantine" / n) for n in rig.filesystem.listdir(DIRECTORY / "quarantine")
    ]
    assert any(b"a?." in data for data in kept), "the journal file is going to be recycled"


def test_a_frame_that_tells_nothing_costs_every_unproven_log_as_much_as_it_may_have_held():
    rig = single_frames("a", "quiet", "b", "a", "b", "b")
    (path,) = [
        path
        for _, path in list_journal(rig.filesystem, DIRECTORY / "journal")
        if b"a3." in rig.filesystem.content(path)
    ]
    content = bytearray(rig.filesystem.content(path))
    at = content.index(b"a3.")
    content[at - 60 : at - 20] = bytes(40)  # from its header into the head of its entry
    rig.filesystem.overwrite(path, bytes(content))
    rig.reopen()
    assert rig.contents("a") == {0: b"a0."}
    assert 1 in rig.in_gaps("a")
    assert len(rig.in_gaps("a")) < 10
    assert rig.in_gaps("quiet"), "nobody knows that it lost nothing"
    assert rig.in_gaps("b") == set(), "its next record came right after the one before"
    assert rig.append("a", b"new") >= 2


def test_a_reservation_in_a_damaged_frame_may_have_been_used():
    rig = Rig()
    rig.open([LogSettings("a", FAST), LogSettings("s", SAFE)])
    rig.append("a", b"a0.")
    rig.settle()
    seen = rig.log("a").log_end_offset
    rig.append("s", b"s1.")
    rig.settle()
    rig.append("s", b"s2.")
    rig.settle()
    rig.kill()
    for _, path in list_journal(rig.filesystem, DIRECTORY / "journal"):
        content = rig.filesystem.content(path)
        rig.filesystem.overwrite(path, content.replace(b"a0.", b"a?."))
    rig.reopen()
    assert rig.append("a", b"new") >= seen + 65_536


@pytest.mark.parametrize("in_segments", [True, False])
def test_a_log_whose_creation_is_damaged_comes_back_from_its_directory(in_segments):
    rig = Rig()
    rig.open([LogSettings("a", SAFE)])
    rig.settle()
    rig.checkpoint()
    new = LogSettings("new", SAFE, flush_bytes=10 if in_segments else 1 << 20)
    rig.storage.change_logs([new])
    for payload in (b"n0.", b"n1."):
        rig.append("new", payload)
        rig.settle()
    for payload in (b"a0.", b"a1."):
        rig.append("a", payload)
        rig.settle()
    rig.kill()
    damage_journal(rig, b"\0\3new", b"\0\3nfw")
    rig.open([LogSettings("a", SAFE), new])
    assert rig.storage.report.damaged
    assert rig.contents("a") == {0: b"a0.", 1: b"a1."}
    assert rig.contents("new") == ({0: b"n0.", 1: b"n1."} if in_segments else {})
    base = rig.append("new", b"fresh")
    rig.settle()
    rig.kill()
    rig.reopen()
    assert rig.contents("new")[base] == b"fresh"
    assert b"n0." not in rig.contents("new").values() or in_segments, "another log's records under the same id"


def test_a_hole_that_an_unclean_stop_left_is_no_corruption_when_the_newest_checkpoint_is_damaged():
    rig = Rig()
    rig.open([LogSettings("a", BALANCED)])
    rig.append("a", b"0")
    rig.reached(SAFE)
    rig.kill()
    rig.reopen()
    base = rig.append("a", b"1")
    rig.reached(SAFE)
    rig.kill()
    newest = max("ab", key=lambda slot: rig.filesystem.content(DIRECTORY / f"CHECKPOINT.{slot}")[16:24])
    rig.filesystem.overwrite(DIRECTORY / f"CHECKPOINT.{newest}", bytes(10))
    rig.reopen()
    assert rig.contents("a") == {0: b"0", base: b"1"}
    assert {gap.reason for gap in rig.log("a").gaps} == {"unclean-stop"}
    assert rig.storage.report.lost_offsets == 0


def test_both_checkpoints_damaged_is_said_and_repaired_by_a_scan():
    rig = Rig()
    rig.open([LogSettings("a", SAFE, flush_bytes=10), LogSettings("b", SAFE)])
    for number in range(5):
        rig.append("a", b"a%d" % number)
        rig.append("b", b"b%d" % number)
        rig.settle()
    rig.close()
    for slot in "ab":
        rig.filesystem.overwrite(DIRECTORY / f"CHECKPOINT.{slot}", b"junk")
    rig.filesystem.overwrite(DIRECTORY / "FORMAT", rig.filesystem.content(DIRECTORY / "FORMAT"))
    found = verify(DIRECTORY, filesystem=rig.filesystem)
    assert [finding.kind for finding in found.damaged] == ["checkpoint", "checkpoint"]
    assert "refuses to start" in found.damaged[0].reason
    result = repair(DIRECTORY, filesystem=rig.filesystem)
    assert result.report.rebuilt
    assert not result.after.damaged
    assert parse_format(rig.filesystem.content(DIRECTORY / "FORMAT"), "") == (1, 1)
    rig.reopen()
    assert rig.contents("a") == {number: b"a%d" % number for number in range(5)}
    assert (
        sum(
            b"junk" in rig.filesystem.content(DIRECTORY / "quarantine" / n)
            for n in rig.filesystem.listdir(DIRECTORY / "quarantine")
        )
        == 2
    )


def test_the_index_of_a_segment_that_is_open_again_is_no_damage():
    rig = Rig()
    rig.open([LogSettings("a", SAFE, segment_bytes=300, flush_bytes=50, compression="none")])
    states = []
    rig.filesystem.on_operation = lambda operation: (
        states.append(rig.filesystem.kill()) if operation.kind == "create" and operation.path.suffix == ".log" else None
    )
    for number in range(10):
        rig.append("a", b"%d" % number + bytes(60))
        rig.settle()
    rig = Rig(states[1])  # the first segment is sealed and has an index, and there is no second one
    rig.open([LogSettings("a", SAFE, flush_bytes=50, compression="none")])
    (index,) = [path for path in rig.filesystem._names if path.suffix == ".idx"]
    stale = rig.filesystem.content(index)
    base = rig.append("a", bytes(80))
    rig.settle()
    rig.close()
    assert not rig.filesystem.exists(index), "it is removed before it is wrong"
    rig.filesystem.pwrite(rig.filesystem.open(index, create=True), stale, 0)  # but a power cut may bring it back
    stored = IndexFile.decode(rig.filesystem.content(index), "").index
    assert stored.end_position < len(rig.filesystem.content(index.with_suffix(".log")))
    assert not verify(DIRECTORY, filesystem=rig.filesystem).findings
    rig.reopen()
    assert max(rig.contents("a")) == base
