"""T9: the disk refuses an fdatasync of the real broker, by strace. No acknowledgement after it; exit 74; no loss."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from highway.server.daemon import EXIT_DISK_FAILED
from tests.crash.campaign import FLUSH_SECONDS, SLACK_SECONDS, Campaign
from tests.crash.strace import attach, needs_strace

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    import pytest

    from tests.harness.publisher import Publisher

LAST = 20
END_SECONDS = 20.0

ONLY_THE_JOURNAL_SYNCS = {"checkpoint_interval": "1h", "reaper_interval": "1h", "checkpoint_bytes": "1GiB"}
PUBACK_WRITTEN = re.compile(r'\bwrite\(\d+, "@\\2')


pytestmark = needs_strace


class FailingSyncCampaign(Campaign):
    """In each life the n-th fdatasync of a thread fails: strace counts for each thread of the broker apart."""

    kind = "failing sync"
    windows = {"safe": None, "balanced": None, "fast": FLUSH_SECONDS + SLACK_SECONDS}  # noqa: RUF012

    def __init__(self, directory: Path, *, storage: dict[str, str]) -> None:
        super().__init__(directory, seed=0, storage=storage)
        self.trace = directory / "trace"
        self.nth = 0
        self.pubacks_after: list[int] = []
        self._strace: subprocess.Popen[bytes] | None = None

    def before_traffic(self) -> None:
        self.nth += 1
        assert self.broker.process is not None
        self._strace = attach(
            self.broker.process.pid,
            *("-e", "trace=fdatasync,write", "-e", f"inject=fdatasync:error=EIO:when={self.nth}"),
            output=self.trace,
        )

    def until_crash(self, publishers: list[Publisher]) -> None:
        del publishers  # they go on until the broker ends

    def crash(self) -> None:
        assert self.broker.wait(END_SECONDS) == EXIT_DISK_FAILED
        assert self._strace is not None
        self._strace.wait(10)
        calls = self.trace.read_text(encoding="utf-8", errors="replace").splitlines()
        self.pubacks_after.append(pubacks_after_failure(calls))

    def _crash_while_starting(self) -> None:
        """The start isn't what this campaign is about."""


def pubacks_after_failure(calls: list[str]) -> int:
    """How many PUBACKs were written after the journal's sync failed.

    The journal's thread is the one whose syncs come right before PUBACKs. When a sync of another thread fails, the
    broker ends too, but an ack whose own sync succeeded may be on its way at that moment.
    """
    syncing: list[str] = []
    latest = ""
    for call in calls:
        if "fdatasync" in call:
            latest = call.split()[0]
        elif PUBACK_WRITTEN.search(call):
            syncing.append(latest)
    if not syncing:
        return 0
    journal = max(set(syncing), key=syncing.count)
    failed = [place for place, call in enumerate(calls) if "(INJECTED)" in call and call.split()[0] == journal]
    return sum(1 for call in calls[failed[0] :] if PUBACK_WRITTEN.search(call)) if failed else 0


def test_no_ack_follows_a_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The n-th sync of the journal fails, for n = 1 to 20.

    One publisher waits for each ack, so that no ack of an earlier sync can be on its way when one fails.
    """
    with contextlib.closing(FailingSyncCampaign(tmp_path, storage=ONLY_THE_JOURNAL_SYNCS)) as campaign:
        monkeypatch.setattr("tests.crash.campaign.MIXES", [("safe",)])
        monkeypatch.setattr(campaign, "publishers", lambda: [campaign.publisher("safe/a", window=1)])
        campaign.run(LAST)
        assert campaign.pubacks_after == [0] * LAST
        assert not campaign.faults, campaign.faults
        assert campaign.accounts["safe"].figures.acked > LAST


def test_a_checkpoint_that_fails_loses_nothing_either(tmp_path: Path) -> None:
    """The n-th sync of a pool thread fails as well: of a segment, a new journal file, a checkpoint."""
    with contextlib.closing(FailingSyncCampaign(tmp_path, storage={"checkpoint_interval": "100ms"})) as campaign:
        campaign.run(8)
        assert not campaign.faults, campaign.faults
