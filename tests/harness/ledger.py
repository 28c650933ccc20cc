"""What publishers sent and what was acknowledged, kept outside the broker: the oracle of every crash test."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass, field

__all__ = ["Ledger", "Stored"]


@dataclass(frozen=True, slots=True)
class Stored:
    """One record as the broker gives it back."""

    offset: int
    topic: str
    payload: bytes


@dataclass(slots=True)
class _Sent:
    """One message of a topic, in the order of sending; `acked_at` is monotonic time, None without an ack."""

    payload: bytes
    acked_at: float | None = None


@dataclass
class Ledger:
    """Messages by topic. Payloads must be unique within a topic. Filled by publisher threads, one for each topic."""

    sent: dict[str, list[_Sent]] = field(default_factory=dict)
    _index: dict[tuple[str, bytes], int] = field(default_factory=dict)
    _seen: dict[tuple[str, int], Stored] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add_sent(self, topic: str, payload: bytes) -> int:
        """Note that a message is about to be sent; returns its number within the topic."""
        with self._lock:
            messages = self.sent.setdefault(topic, [])
            assert (topic, payload) not in self._index, "payloads must be unique"
            self._index[topic, payload] = len(messages)
            messages.append(_Sent(payload))
            return len(messages) - 1

    def add_acked(self, topic: str, number: int) -> None:
        self.sent[topic][number].acked_at = time.monotonic()

    def acked(self, topic: str) -> list[bytes]:
        return [message.payload for message in self.sent.get(topic, []) if message.acked_at is not None]

    def add_seen(self, log: str, records: list[Stored]) -> None:
        """Note records that a subscriber was shown; an offset must never carry anything else, crash or not."""
        for record in records:
            before = self._seen.setdefault((log, record.offset), record)
            assert before == record, f"offset {record.offset} of {log} was {before}, and is now {record}"

    def check(self, log: str, topics: list[str], records: list[Stored], *, may_lose_after: float | None = None) -> int:
        """Hold all records of a log against what was sent to its topics; returns how many acked ones are missing.

        Nothing acked may be missing, but with `may_lose_after` (monotonic) what was acked after it, and then only the
        last of what the topic was sent. What wasn't acked may be there or not, and once at most.
        """
        self.add_seen(log, records)
        offsets = [record.offset for record in records]
        assert all(first < second for first, second in itertools.pairwise(offsets)), "offsets don't grow"
        numbers: dict[str, list[int]] = {topic: [] for topic in topics}
        for record in records:
            number = self._index.get((record.topic, record.payload))
            assert number is not None, f"never sent: {record}"
            numbers[record.topic].append(number)
        missing = 0
        for topic, stored in numbers.items():
            assert stored == sorted(set(stored)), f"{topic}: out of order or twice"
            missing += self._check_missing(topic, set(stored), may_lose_after)
        return missing

    def _check_missing(self, topic: str, stored: set[int], may_lose_after: float | None) -> int:
        lost = [
            (number, message)
            for number, message in enumerate(self.sent.get(topic, []))
            if message.acked_at is not None and number not in stored
        ]
        if may_lose_after is None:
            assert not lost, f"{topic}: {len(lost)} acked messages missing, the first is number {lost[0][0]}"
            return 0
        last = max(stored, default=-1)
        for number, message in lost:
            assert number > last, f"{topic}: number {number} is missing although a later one survived"
            assert message.acked_at is not None
            early = may_lose_after - message.acked_at
            assert early <= 0, f"{topic}: number {number} was acked {early:.3f} s before the window, and is missing"
        return len(lost)

    def forget_lost(self, topic: str, stored: set[bytes]) -> None:
        """Take back the acks of messages whose loss was allowed and counted, so that later checks hold the rest."""
        for message in self.sent.get(topic, []):
            if message.payload not in stored:
                message.acked_at = None
