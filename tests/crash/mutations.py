"""The mutation check: take one safeguard out of the storage engine at a time, and see that a test fails.

    python tests/crash/mutations.py [NAME ...]

Each mutant is made in a temporary copy of the tree and meets the few fast tests that must catch it, two mutants at a
time, each in a copy of its own; what comes out is told in the order of the table. Exit code 1 if one survives, or if
the tests fail without any mutation; 2 if a mutation doesn't apply any more: then the source it speaks of has changed,
and the table below has to follow.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]
COPIED = ("highway", "tests", "config", "pyproject.toml")
SECONDS = 120
AT_ONCE = 2

CRASHES = "tests/storage/test_crash.py"
ONE_TOPIC = "tests/broker/test_one_topic.py"
COMPACTION = "tests/storage/test_compaction.py"
MANY_LOGS = "tests/storage/test_many_logs.py"
REWRITING = "tests/storage/test_segment_rewriter.py"
PROMISES = "tests/storage/test_promises.py"
POWER_CUT = "tests/crash/test_campaigns.py::test_every_mode_keeps_its_promise_over_20_crashes[power-cut]"


class Mutant(NamedTuple):
    """`before` must stand in `file` exactly `times` times; it becomes `after`."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...] = (CRASHES,)
    times: int = 1


MUTANTS = (
    Mutant(
        "no fdatasync of the journal before the ack",
        "highway/storage/journal/journal.py",
        "self._filesystem.fdatasync(self._file.fd)",
        "pass",
    ),
    Mutant(
        "SAFE acknowledged before the sync",
        "highway/storage/journal/commit.py",
        "self._wait(self._synced_waiters, self.synced, callback)",
        "self._wait(self._written_waiters, self.written, callback)",
        (PROMISES,),
    ),
    Mutant(
        "no sync of the directory of a new journal file",
        "highway/storage/journal/files.py",
        "self._filesystem.sync_dir(self.directory)",
        "pass",
    ),
    Mutant(
        "no sync of the directory of a new segment",
        "highway/storage/segment/segment.py",
        "                filesystem.sync_dir(directory)",
        "                pass",
    ),
    Mutant(
        "no sync of the directory of a log's first segment",
        "highway/storage/segment/segment.py",
        "filesystem.sync_dir(self.path.parent)",
        "pass",
    ),
    Mutant(
        "a checkpoint mentions a segment whose name isn't durable",
        "highway/storage/log/log.py",
        "if segment.named:",
        "if segment:",
        (MANY_LOGS,),
    ),
    Mutant(
        "of a batch from the journal, only the first topic is noted",
        "highway/storage/log/writer.py",
        "topics.update(topics_of(batch.data, batch.count) if batch.topics is None else batch.topics)",
        "topics.update(batch.topics or [batch.records()[0][3]])",
        (ONE_TOPIC,),
    ),
    Mutant(
        "no sync of the file system at a checkpoint of many segments",
        "highway/storage/log/shared_sync.py",
        "self._filesystem.syncfs(self._fd)",
        "pass",
        (MANY_LOGS,),
    ),
    Mutant(
        "segments are trusted although the sync of the file system failed",
        "highway/storage/log/writer.py",
        "active.suspect = True",
        "pass",
        (MANY_LOGS,),
    ),
    Mutant(
        "only segments that took part are suspect after the sync of the file system failed",
        "highway/storage/checkpoint/checkpointer.py",
        "            log.writer.distrust()",
        "            if log.writer.busy:\n                log.writer.distrust()",
        (MANY_LOGS,),
    ),
    Mutant(
        "no sync of the directory of a replaced file",
        "highway/storage/disk/small_files.py",
        "filesystem.sync_dir(path.parent)",
        "pass",
    ),
    Mutant(
        "no sync of segments at a checkpoint",
        "highway/storage/segment/segment.py",
        "            filesystem.fdatasync(fd)\n            if not self.named:",
        "            if not self.named:",
    ),
    Mutant(
        "no sync of a checkpoint before the journal is recycled",
        "highway/storage/checkpoint/checkpoint.py",
        "self._filesystem.fdatasync(fd)",
        "pass",
    ),
    Mutant(
        "no salt in the checksums of segment frames",
        "highway/storage/segment/format.py",
        ", salt)",
        ", 0)",
        ("tests/storage/test_scan.py", "tests/storage/test_segment.py"),
        times=7,
    ),
    Mutant(
        "no salt in the checksums of journal frames",
        "highway/storage/journal/format.py",
        ", salt)",
        ", 0)",
        ("tests/storage/test_journal.py",),
        times=2,
    ),
    Mutant(
        "offsets shown without a durable reservation",
        "highway/storage/log/log.py",
        "level == 2 or end > ceiling or",
        "level == 2 or",
        (PROMISES,),
    ),
    Mutant(
        "SAFE records shown before the sync",
        "highway/storage/log/log.py",
        "level == 2 or end > ceiling or",
        "end > ceiling or",
        (PROMISES,),
    ),
    Mutant(
        "no reserved offsets skipped after an unclean stop",
        "highway/storage/recovery/log_recovery.py",
        "if state.ceiling > recovered:",
        "if state.ceiling < 0:",
    ),
    Mutant(
        "no read-back of what was synced",
        "highway/storage/journal/journal.py",
        "self._read_back(frame)",
        "pass",
        ("tests/storage/test_journal.py",),
    ),
    Mutant(
        "valid frames behind a torn one are kept",
        "highway/storage/journal/reader.py",
        "                _cut(scan, found[index:])\n                return",
        "                pass",
        ("tests/storage/test_journal.py",),
    ),
    Mutant(
        "a segment that was written anew takes its name before it is synced",
        "highway/storage/maintenance/rewriting.py",
        "        filesystem.fsync(self._fd)",
        "        pass",
        (REWRITING,),
    ),
    Mutant(
        "a segment is written anew while a checkpoint may name it as the active one",
        "highway/storage/log/writer.py",
        "SETTLING_CHECKPOINTS = 3",
        "SETTLING_CHECKPOINTS = 0",
    ),
    Mutant(
        "a tombstone goes before what it stands for has gone",
        "highway/storage/maintenance/compaction.py",
        "for segment in self._segments:\n            if segment.base_offset",
        "for segment in reversed(self._segments):\n            if segment.base_offset",
        (COMPACTION,),
    ),
    # The last: it waits for those who mount file systems, and nobody has to wait with it.
    Mutant(
        "no fdatasync at all, in the real broker under a power cut",
        "highway/storage/disk/filesystem.py",
        "        os.fdatasync(fd)",
        "        pass",
        (POWER_CUT,),
    ),
)


# Tests that mount file systems or kill brokers in full traffic would disturb one another.
_alone = threading.Lock()


def run_tests(tree: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    with ExitStack() as stack:
        if any(test.startswith("tests/crash/") for test in tests):
            stack.enter_context(_alone)
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", *tests],
            check=False,
            cwd=tree,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )


def copy_tree(target: Path) -> Path:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
        else:
            shutil.copy(source, target / name)
    return target


def verdict(tree: Path, mutant: Mutant) -> str:
    """Return "killed by ...", "SURVIVED" or "DOES NOT APPLY ..."."""
    path = tree / mutant.file
    original, times = path.read_text(encoding="utf-8"), path.stat()
    if original.count(mutant.before) != mutant.times:
        return f"DOES NOT APPLY: {mutant.file} has {mutant.before!r} {original.count(mutant.before)} times"
    path.write_text(original.replace(mutant.before, mutant.after), encoding="utf-8")
    try:
        done = run_tests(tree, mutant.tests)
    except subprocess.TimeoutExpired:
        return f"DOES NOT APPLY: no verdict within {SECONDS} s"
    finally:
        path.write_text(original, encoding="utf-8")
        # A mutant of the same length and the same second would leave its byte code for the original.
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    if done.returncode == 1:
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR tests"))]
        return "killed by " + failed[0].split(" - ")[0].removeprefix("FAILED ") if failed else "killed"
    if done.returncode == 0:
        return "skipped: " + done.stdout.splitlines()[-1] if " passed" not in done.stdout else "SURVIVED"
    return f"DOES NOT APPLY: pytest ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}"


def unmutated(tree: Path, test: str) -> str:
    """Return what pytest said if a test fails without any mutation, and "" otherwise."""
    done = run_tests(tree, (test,))
    return f"without any mutation:\n{done.stdout}{done.stderr}\n" if done.returncode else ""


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    tests = dict.fromkeys(test for mutant in chosen for test in mutant.tests)
    worst = 0
    with tempfile.TemporaryDirectory(prefix="highway-mutants-") as directory, ThreadPoolExecutor(AT_ONCE) as executor:
        free: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(AT_ONCE):
            free.put(copy_tree(Path(directory, str(number))))

        def told(function: Callable[[Path, Any], str], argument: Any) -> tuple[str, float]:
            tree = free.get()
            started = time.monotonic()
            try:
                return function(tree, argument), time.monotonic() - started
            finally:
                free.put(tree)

        sound = [executor.submit(told, unmutated, test) for test in tests]
        waiting = [(mutant, executor.submit(told, verdict, mutant)) for mutant in chosen]
        outputs = [future.result()[0] for future in sound]
        if any(outputs):
            executor.shutdown(cancel_futures=True)
            sys.stdout.writelines(outputs)
            return 1
        sys.stdout.write("without any mutation all of their tests pass\n")
        for mutant, future in waiting:
            found, seconds = future.result()
            sys.stdout.write(f"{mutant.name}: {found} ({seconds:.1f} s)\n")
            sys.stdout.flush()
            worst = max(worst, {"S": 1, "D": 2}.get(found[0], 0))
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
