"""T11: the real broker dies at one system call after the other of its start, and then starts and has everything."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from typing import TYPE_CHECKING

from tests.crash.campaign import KillCampaign
from tests.crash.loop_disk import wait_stopped
from tests.crash.strace import attach, needs_strace

if TYPE_CHECKING:
    from pathlib import Path

KILLS = 20
# What a start does to the disk, and how often at least. strace counts for each thread apart.
POINTS = (
    *(("ftruncate", nth) for nth in (1, 2)),
    *(("pwrite64", nth) for nth in (1, 2, 3)),
    *(("fdatasync", nth) for nth in (1, 2, 3, 4)),
    *(("fsync", nth) for nth in (1, 2, 3)),
    ("rename", 1),
)


class InterruptedRecoveryCampaign(KillCampaign):
    """Each kill is followed by starts that die before their first, second, ... call of a kind."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, seed=0)
        self.points = itertools.cycle(POINTS)

    def crash(self) -> None:
        super().crash()
        for call, nth in itertools.islice(self.points, KILLS // 2):
            self.crashes_while_starting += self.start_and_die(call, nth)

    def start_and_die(self, call: str, nth: int) -> bool:
        """Start with a kill before the n-th such call; return False if the broker got ready without it."""
        broker, mark = self.broker, len(self.broker.stderr)
        broker.nursery = self.nursery
        broker.spawn(stopped=True)
        assert broker.process is not None
        pid = broker.process.pid
        wait_stopped(pid)
        strace = attach(pid, "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={nth}")
        os.kill(pid, signal.SIGCONT)
        with contextlib.suppress(AssertionError):  # it ends without this line
            broker.wait_for_line("^highway: ready", since=mark, timeout=20)
            broker.kill()
            strace.wait(10)
            return False
        assert broker.wait(10) == -signal.SIGKILL
        strace.wait(10)
        return True

    def _crash_while_starting(self) -> None:
        """Every crash of this campaign has been one already."""


@needs_strace
def test_a_recovery_that_dies_at_any_change_of_the_disk_changes_nothing(tmp_path: Path) -> None:
    with contextlib.closing(InterruptedRecoveryCampaign(tmp_path)) as campaign:
        campaign.run(2)
        assert not campaign.faults, campaign.faults
        assert campaign.crashes_while_starting >= KILLS // 2
