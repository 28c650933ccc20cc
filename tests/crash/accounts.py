"""The books of a crash campaign, kept outside the broker: what each life of it took in, and what the next one has.

They are settled after each crash and hold one life at a time, and of the lives before it 16 bytes a record.
Nothing is asserted here: faults are counted and described, and whoever runs the campaign decides.

What is held against each log, after each crash:

- everything in it was sent to it in the life before, to that topic, with those bytes, once, in the order of sending;
- everything acknowledged is in it, except what its mode may lose: acknowledged within the window before the crash, and
  behind all that survived;
- an offset that a subscriber was shown belongs to that message for ever, also when the message is lost;
- offsets that hold nothing lie in gaps that the broker reports.

At the end the whole log is read once more: it must be what the lives left, one by one, as far as retention kept it.
"""

from __future__ import annotations

import threading
import time
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crc32c import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.harness.ledger import Stored

__all__ = ["Account", "Accounts", "Figures"]

_SHOWN_FAULTS = 20


@dataclass
class Figures:
    """What a campaign found."""

    acked: int = 0
    stored: int = 0
    lost: int = 0  # acknowledged and gone
    lost_too_early: int = 0  # of these, what the mode's promise covers
    longest_window: float = 0.0  # seconds before the crash of the oldest acknowledgement that was lost
    wrong: int = 0
    reused: int = 0
    faults: list[str] = field(default_factory=list)  # the first of them, in words

    def fault(self, text: str) -> None:
        if len(self.faults) < _SHOWN_FAULTS:
            self.faults.append(text)


@dataclass(slots=True)
class _Sent:
    payload: bytes
    acked_at: float | None = None


class Account:
    """One log."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.others: set[str] = set()  # topics whose messages somebody else accounts for
        self.figures = Figures()
        self.next_offset = 0  # below it everything is settled
        self._offsets = array("q")  # of the settled records
        self._sums = array("L")
        self._sent: dict[str, list[_Sent]] = {}  # this life's, by topic
        self._numbers: dict[tuple[str, bytes], int] = {}
        self._shown: dict[int, Stored] = {}  # to subscribers in this life
        self._ghosts: dict[int, Stored] = {}  # shown in a life, and lost: their offsets are used up for ever

    def add_sent(self, topic: str, payload: bytes) -> int:
        messages = self._sent.setdefault(topic, [])
        self._numbers[topic, payload] = len(messages)
        messages.append(_Sent(payload))
        return len(messages) - 1

    def add_acked(self, topic: str, number: int) -> None:
        self._sent[topic][number].acked_at = time.monotonic()
        self.figures.acked += 1

    def add_shown(self, records: list[Stored]) -> None:
        """Note what a live subscriber was shown."""
        for record in records:
            if record.offset < self.next_offset:
                self._reused(record, f"an offset below {self.next_offset}, which was settled after the last crash")
            self._compare(record, self._ghosts)
            self._compare(record, self._shown)
            self._shown[record.offset] = record

    def settle(self, records: list[Stored], crashed_at: float, window: float | None) -> None:
        """Hold what the log has from `next_offset` on against the life that has ended; begin a new one.

        `window`: how many seconds before the crash an acknowledged message may have been lost; None: never.
        """
        numbers: dict[str, list[int]] = {topic: [] for topic in self._sent}
        for record in records:
            self._compare(record, self._ghosts)
            self._compare(record, self._shown)
            if record.offset < self.next_offset:
                self.wrong(f"offset {record.offset} follows {self.next_offset - 1}")
            self.next_offset = record.offset + 1
            self._offsets.append(record.offset)
            self._sums.append(_sum(record))
            if record.topic in self.others:
                continue
            number = self._numbers.get((record.topic, record.payload))
            if number is None:
                self.wrong(f"{record} was never sent, or is settled already")
                continue
            before = numbers[record.topic]
            if before and number <= before[-1]:
                self.wrong(f"{record}: number {number} of its topic comes behind number {before[-1]}")
            before.append(number)
        self.figures.stored += len(records)
        for topic, stored in numbers.items():
            self._count_lost(topic, stored, crashed_at, window)
        kept = {record.offset for record in records}
        self._ghosts.update((offset, record) for offset, record in self._shown.items() if offset not in kept)
        self._sent, self._numbers, self._shown = {}, {}, {}

    def _count_lost(self, topic: str, stored: list[int], crashed_at: float, window: float | None) -> None:
        survived, last = set(stored), max(stored, default=-1)
        for number, message in enumerate(self._sent[topic]):
            if message.acked_at is None or number in survived:
                continue
            age = crashed_at - message.acked_at
            self.figures.lost += 1
            self.figures.longest_window = max(self.figures.longest_window, age)
            if window is None or age > window or number < last:
                self.figures.lost_too_early += 1
                self.figures.fault(
                    f"{self.name}: number {number} of {topic}, acknowledged {age:.3f} s before the crash, is lost"
                    f"; the last that survived is number {last}"
                )

    def settle_gaps(self, records: list[Stored], gaps: list[tuple[int, int]], start: int) -> None:
        """Hold the holes between `records`, the first of which may be at `start`, against the reported gaps."""
        reported = sorted(gaps)
        expected = start
        for record in records:
            hole, expected = (expected, record.offset), record.offset + 1
            at = hole[0]
            for first, behind in reported:
                if first <= at < behind:
                    at = behind
            if at < hole[1]:
                self.wrong(f"offsets {at} to {hole[1] - 1} hold nothing, and no gap says so")

    def check_whole(self, records: Iterable[Stored], log_start: int) -> None:
        """Hold a reading of the whole log against all that was settled; what is below `log_start` retention took."""
        index = bisect_left(self._offsets, log_start)
        for record in records:
            if index >= len(self._offsets):
                return  # of the life at hand
            if (record.offset, _sum(record)) != (self._offsets[index], self._sums[index]):
                self.wrong(f"{record} is read where offset {self._offsets[index]} was settled")
                return
            index += 1
        if index < len(self._offsets):
            self.wrong(f"reading ends before offset {self._offsets[index]}, which was settled")

    def _compare(self, record: Stored, others: dict[int, Stored]) -> None:
        other = others.get(record.offset)
        if other is not None and other != record:
            self._reused(record, f"this offset was {other}")

    def _reused(self, record: Stored, why: str) -> None:
        self.figures.reused += 1
        self.figures.fault(f"{self.name}: {record}: {why}")

    def wrong(self, text: str) -> None:
        """Count a fault."""
        self.figures.wrong += 1
        self.figures.fault(f"{self.name}: {text}")


def _sum(record: Stored) -> int:
    return crc32c(record.payload, crc32c(record.topic.encode()))


class Accounts(dict[str, Account]):
    """An account for each log; the log of a topic is its first level. Publishers take this for a ledger."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__((name, Account(name)) for name in names)
        self._lock = threading.Lock()

    def add_sent(self, topic: str, payload: bytes) -> int:
        with self._lock:
            return self[topic.partition("/")[0]].add_sent(topic, payload)

    def add_acked(self, topic: str, number: int) -> None:
        with self._lock:
            self[topic.partition("/")[0]].add_acked(topic, number)
