"""Crash after crash of the real broker in full traffic, SAFE, BALANCED and FAST at once, against books outside it.

    make crash CYCLES=1000          both kinds; one line of figures for each
    python -m tests.crash.campaign kill|power-cut|both CYCLES [SEED]

One cycle: the broker starts and recovers; what it has of the life before is read back and settled; then publishers and
live subscribers keep it busy until a random moment, at which it is killed or loses its power. Every fourth crash is
followed by another one while the broker starts. Exit code 1 if any promise was broken, with the first faults in words.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from tests.crash.accounts import Accounts
from tests.crash.crash_broker import CrashBroker
from tests.crash.follower import Follower
from tests.crash.gateway import Gateway
from tests.crash.loop_disk import LoopDisk, loop_disk_missing
from tests.crash.reading import Reading, shown_to
from tests.harness.broker_process import wait_until
from tests.harness.log_reader import log_range
from tests.harness.nursery import Nursery
from tests.harness.publisher import Publisher
from tests.harness.raw_client import RawClient, close_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.ledger import Ledger

__all__ = ["MODES", "Campaign", "KillCampaign", "PowerCutCampaign"]

MODES = ("safe", "balanced", "fast")
# Shorter than the defaults, so that most lives are longer than the windows and a loss before them would be seen.
FLUSH_SECONDS = 0.05
SYNC_SECONDS = 0.15
# What a busy machine adds to a timer of the loop, a write and a sync before the window ends for the broker, and to the
# ack's way before it begins for the publisher.
SLACK_SECONDS = 0.5
LONGEST_LIFE_SECONDS = 0.4
REAL_START_EVERY = 10
# In one life of two, or so, a crash comes between an acknowledgement and the write or sync that was to follow it.
MORE_LIVES = 40
DISK_BYTES = 2 << 30  # of address space: the file is sparse

# Everything that happens now and then happens often.
STORAGE = {
    "checkpoint_interval": "200ms",
    "checkpoint_bytes": "2MiB",
    "journal_file_bytes": "1MiB",
    "reaper_interval": "300ms",
}

# What has traffic in a life: the syncs of SAFE would otherwise cover for all the rest.
MIXES = (
    (*MODES, "gateway"),
    (*MODES, "gateway"),
    ("balanced", "fast"),
    ("balanced",),
    ("fast",),
    ("safe",),
    ("gateway",),
    ("gateway",),
)

_serial = itertools.count()


def _topics() -> list[dict[str, str]]:
    windows = {"flush_interval": f"{FLUSH_SECONDS * 1000:.0f}ms", "sync_interval": f"{SYNC_SECONDS * 1000:.0f}ms"}
    # Small segments and frames, so that rolls and drains are among what a crash interrupts.
    sizes = {"segment_bytes": "128KiB", "flush_bytes": "32KiB", "retention_bytes": "4MiB"}
    return [{"topic": f"{mode}/#", "log": mode, "durability": mode.upper(), **windows, **sizes} for mode in MODES]


class Campaign:
    """The cycle; the two kinds of crash are the subclasses."""

    kind = ""
    windows: dict[str, float | None]
    at_risk: tuple[str, ...] = ()  # the modes that such a crash takes something from, sooner or later

    def __init__(
        self, directory: Path, seed: int, *, data: Path | None = None, storage: dict[str, str] | None = None
    ) -> None:
        self.choose = random.Random(seed)
        self.accounts = Accounts(MODES)
        self.nursery = Nursery()
        self.broker = CrashBroker(
            directory,
            data=data,
            topics=_topics(),
            storage={**STORAGE, **(storage or {})},
        )
        self.mix: tuple[str, ...] = ()  # of this life
        self.followers = [Follower("safe/#", qos) for qos in (1, 2)]
        self.gateway = Gateway("safe/gateway", window=self.choose.choice((1, 4)))
        self.accounts["safe"].others.add(self.gateway.topic)
        self.cycles = 0
        self.crashed_at = 0.0
        self.crashes_while_starting = 0
        self.torn_tails = 0  # recoveries that had to cut some

    def close(self) -> None:
        if self.broker.process is not None:
            self.broker.kill()
        self.nursery.close()

    def crash(self) -> None:
        """End the broker in the manner of this campaign."""
        raise NotImplementedError

    def run(self, cycles: int, progress: Callable[[int], None] = lambda _: None) -> None:
        """Run so many cycles, then settle the last and read everything once more."""
        for number in range(cycles):
            self._start(number)
            self._settle()
            self._live(self.choose.choice(MIXES))
            self.cycles += 1
            if number % 4 == 3:
                self._crash_while_starting()
            progress(number + 1)
        self._start(0)
        self._settle()
        for mode in self.at_risk:
            self._until_lost(mode)
        self._read_whole()
        self.broker.kill()

    def _until_lost(self, mode: str) -> None:
        """Go on with the traffic of one mode until a crash took some: where nothing was at risk nothing is proved."""
        for _ in range(MORE_LIVES):
            if self.accounts[mode].figures.lost:
                return
            self._live((mode,))
            self.cycles += 1
            self._start(1)
            self._settle()

    def _start(self, number: int) -> None:
        self.broker.nursery = None if number % REAL_START_EVERY == 0 else self.nursery
        self.broker.start()
        self.torn_tails += bool(self.broker.lines("recovery: .* torn bytes cut"))
        self.broker.stderr.clear()

    def _crash_while_starting(self) -> None:
        """What recovery has done when it is interrupted must not matter to the next one."""
        self.broker.nursery = self.nursery
        self.broker.spawn()
        assert self.broker.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.broker.process.wait(self.choose.uniform(0.0, 0.12))
            raise AssertionError(f"the broker ended by itself with {code}:\n" + "\n".join(self.broker.stderr[-30:]))
        self.crash()
        self.crashes_while_starting += 1

    def _settle(self) -> None:
        for follower in self.followers:
            follower.connect(self.broker.port)
        for mode, account in self.accounts.items():
            with Reading(self.broker.port, mode, account.next_offset) as reading:
                records = list(reading)
            assert reading.mark is not None
            account.settle_gaps([*records, reading.mark], reading.gaps, account.next_offset)
            account.settle(records, self.crashed_at, self.windows[mode])
            if mode == "safe":
                for follower in self.followers:
                    follower.settle(records, reading.mark, account)
                self.gateway.settle(records, account)
            # The mark belongs to the life that begins.
            number = account.add_sent(reading.mark.topic, reading.mark.payload)
            account.add_acked(reading.mark.topic, number)
        close_all()

    def _read_whole(self) -> None:
        for mode, account in self.accounts.items():
            log_start = log_range(self.broker.port, f"{mode}/x")["log_start_offset"]
            with Reading(self.broker.port, mode, log_start) as reading:
                account.check_whole(reading, log_start)
        close_all()

    def _live(self, mix: tuple[str, ...]) -> None:
        watchers = {mode: RawClient.connected(self.broker.port, f"watcher-{next(_serial)}") for mode in MODES}
        for mode, watcher in watchers.items():
            assert watcher.subscribe((f"$log/latest/{mode}/#", 0)) == [0]
        for follower in self.followers:
            follower.connect(self.broker.port)
        self.mix = mix
        publishers = self.publishers()
        if "gateway" in self.mix:
            self.gateway.connect(self.broker.port)
        self.before_traffic()  # the broker may end from now on
        for publisher in publishers:
            publisher.start()
        if "gateway" in self.mix:
            self.gateway.start()
        self.until_crash(publishers)
        self.crashed_at = time.monotonic()
        self.crash()
        for publisher in publishers:
            publisher.finish()
        for follower in self.followers:
            follower.crashed()
        self.gateway.crashed()
        for mode, watcher in watchers.items():
            self.accounts[mode].add_shown(shown_to(watcher))
        close_all()

    def publishers(self) -> list[Publisher]:
        """Return the publishers of a life, each with a topic of its own."""
        window = self.choose.choice((1, 8, 32))
        return [self.publisher(f"{mode}/{half}", window) for mode in MODES if mode in self.mix for half in ("a", "b")]

    def before_traffic(self) -> None:
        """Do what has to be done between the broker's start and its traffic; nothing, in most campaigns."""

    def until_crash(self, publishers: list[Publisher]) -> None:
        """Return at the moment of the crash: a random one."""
        life = self.choose.uniform(0.0, LONGEST_LIFE_SECONDS)
        began = time.monotonic()
        wait_until(
            lambda: time.monotonic() - began >= life and all(publisher.acked for publisher in publishers),
            timeout=30,
            what="traffic",
        )

    def publisher(self, topic: str, window: int) -> Publisher:
        ledger = cast("Ledger", self.accounts)  # it has what publishers use of one
        return Publisher(self.broker.port, topic, ledger, window=window, size=self.choose.choice((40, 40, 400, 5000)))

    def line(self) -> str:
        """All figures, as one line."""
        figures = {mode: account.figures for mode, account in self.accounts.items()}
        lost = ", ".join(f"{found.lost} {mode.upper()}{self._window_text(mode)}" for mode, found in figures.items())
        return (
            f"{self.kind}: {self.cycles} cycles and {self.crashes_while_starting} crashes while starting, "
            f"{self.torn_tails} torn tails, "
            f"{sum(found.acked for found in figures.values()) + self.gateway.received} acked, lost {lost}, "
            f"{sum(found.lost_too_early for found in figures.values())} lost against a promise, "
            f"{sum(found.wrong for found in figures.values())} wrong, "
            f"{sum(found.reused for found in figures.values())} reused offsets, "
            f"longest recovery {self.broker.longest_start:.2f} s"
        )

    def _window_text(self, mode: str) -> str:
        window, found = self.windows[mode], self.accounts[mode].figures
        if window is None:
            return ""
        return f" (oldest {max(0.0, found.longest_window):.2f} s of {window - SLACK_SECONDS:.2f})"

    @property
    def faults(self) -> list[str]:
        """Every promise broken, in words."""
        found = [account.figures for account in self.accounts.values()]
        return [text for figures in found for text in figures.faults]


class KillCampaign(Campaign):
    """`kill -9`."""

    kind = "kill -9"
    windows = {"safe": None, "balanced": None, "fast": FLUSH_SECONDS + SLACK_SECONDS}  # noqa: RUF012
    at_risk = ("fast",)

    def crash(self) -> None:
        self.broker.kill()


class PowerCutCampaign(Campaign):
    """The file system under the broker stops as it stands."""

    kind = "power cut"
    windows = {  # noqa: RUF012
        "safe": None,
        "balanced": SYNC_SECONDS + SLACK_SECONDS,
        "fast": FLUSH_SECONDS + SYNC_SECONDS + SLACK_SECONDS,
    }
    at_risk = ("balanced", "fast")

    def __init__(self, directory: Path, seed: int, disk: LoopDisk) -> None:
        super().__init__(directory, seed, data=disk.mount_point / "data")
        self.disk = disk

    def crash(self) -> None:
        assert self.broker.process is not None
        self.disk.cut(self.broker.process.pid, self.choose)
        self.broker.wait(10)
        self.disk.restore()


def run_campaign(kind: str, cycles: int, seed: int, progress: Callable[[int], None] = lambda _: None) -> Campaign:
    """Run one campaign in a directory of its own; the caller looks at its figures."""
    with tempfile.TemporaryDirectory(prefix="highway-crash-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        campaign: Campaign
        if kind == "kill":
            campaign = KillCampaign(directory, seed)
        else:
            campaign = PowerCutCampaign(directory, seed, stack.enter_context(LoopDisk(directory, DISK_BYTES)))
        stack.callback(campaign.close)
        campaign.run(cycles, progress)
        return campaign


def main() -> int:
    """Run the campaigns that the command line asks for; 1 if a promise was broken or one of them can't be run."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.campaign")
    parser.add_argument("kind", choices=("kill", "power-cut", "both"))
    parser.add_argument("cycles", type=int)
    parser.add_argument("seed", type=int, nargs="?", default=random.randrange(2**32))
    arguments = parser.parse_args()
    kinds = ("kill", "power-cut") if arguments.kind == "both" else (arguments.kind,)
    return max(_run_and_report(kind, arguments.cycles, arguments.seed) for kind in kinds)


def _run_and_report(kind: str, cycles: int, seed: int) -> int:
    reason = loop_disk_missing() if kind == "power-cut" else ""
    if reason:
        click.echo(f"{PowerCutCampaign.kind}: not possible here: {reason}")
        return 1

    def progress(done: int) -> None:
        if sys.stderr.isatty():
            click.echo(f"\r{kind}: {done} of {cycles}\r", err=True, nl=False)

    campaign = run_campaign(kind, cycles, seed, progress)
    click.echo(f"{campaign.line()}, seed {seed}")
    for fault in campaign.faults:
        click.echo(f"  {fault}", err=True)
    return 1 if campaign.faults else 0


if __name__ == "__main__":
    sys.exit(main())
