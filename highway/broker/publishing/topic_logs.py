"""The logs of the broker: one for each topic entry, or with `per_topic` one for each topic that the entry takes.

A topic's log begins with the first message that is published there, is called `<log of the entry>/<topic>`, and is
there again after a restart. Who subscribes with a wildcard reads it from its beginning, online or away.

An entry has `max_logs` of them at most, and none for a topic whose name is too long for a directory. What is published
to other topics then goes to the next entry that matches, and may end in `other`: it is stored all the same.

Owner: the event loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from highway.broker.delivery.delayed_feed import DelayedFeed
from highway.broker.delivery.feed import Feed
from highway.broker.subscriptions.shared import Group
from highway.errors import DiskFullError
from highway.storage.disk.layout import is_whole_in_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from highway.broker.broker import Broker
    from highway.broker.delivery.feed import LiveRun
    from highway.broker.settings import TopicEntry
    from highway.storage import Log

__all__ = ["Logs", "TopicLogs"]

logger = logging.getLogger("highway.broker")


class TopicLogs:
    """The logs of one `per_topic` entry, by topic name."""

    __slots__ = ("_entry", "feeds", "passed_on")

    def __init__(self, entry: TopicEntry) -> None:
        self._entry = entry
        self.feeds: dict[bytes, Feed] = {}
        self.passed_on = 0  # times that a topic without a log was looked up and left to the next entry

    def name_of(self, topic_name: bytes) -> str:
        """The name of a topic's log. Those of entries have no slash in them."""
        return f"{self._entry.log}/{topic_name.decode()}"

    def takes(self, topic_name: bytes) -> bool:
        """Whether a log can begin for a topic that has none."""
        return len(self.feeds) < self._entry.max_logs and is_whole_in_directory(self.name_of(topic_name))

    def pass_on(self, topic_name: bytes) -> None:
        """Count a topic that goes to the next entry; the first is told."""
        if not self.passed_on:
            logger.warning(
                "log %s: %d topics have a log of their own, of %d that may: %r, and what comes after it, goes to the next "
                "entry that matches",
                *(self._entry.log, len(self.feeds), self._entry.max_logs, topic_name.decode()),
            )
        self.passed_on += 1


class Logs:
    """Every log as the broker sees it. `feeds` are by name, `entries` in the order of the configuration."""

    def __init__(self, broker: Broker, deliver: Callable[[LiveRun], None]) -> None:
        self._broker = broker
        self._deliver = deliver
        self.feeds: dict[str, Feed] = {}
        self.entries: list[tuple[bytes, Feed | TopicLogs]] = []
        self.begun = 0  # logs that came since the start
        self._by_topic: dict[str, TopicLogs] = {}  # by the name of the entry's log
        self._settings: dict[str, TopicEntry] = {}  # the same
        self.configure(broker.settings.entries)

    def configure(self, entries: Sequence[TopicEntry]) -> None:
        """Let `entries` decide from now on. A log that none of them names any more takes nothing, and can be read."""
        storage = self._broker.storage
        self._settings = {entry.log: entry for entry in entries}
        self._by_topic = {entry.log: TopicLogs(entry) for entry in entries if entry.per_topic}
        for name, log in storage.logs.items():
            head, _, topic_name = name.partition("/")
            feed = self.feeds.get(name) or self._open(self._settings.get(head), log)
            if topic_name and head in self._by_topic:
                self._by_topic[head].feeds[topic_name.encode()] = feed
        self.entries = [
            (entry.topic_filter, self._by_topic.get(entry.log) or self.feeds[entry.log]) for entry in entries
        ]

    def _open(self, entry: TopicEntry | None, log: Log) -> Feed:
        broker = self._broker
        if entry is not None and entry.delay_ms:
            feed: Feed = DelayedFeed(log, self._deliver, entry.delay_ms, broker.scheduler, broker.clock)
        else:
            feed = Feed(log, self._deliver)
        self.feeds[log.name] = feed
        return feed

    def begin(self, logs: TopicLogs, topic_name: bytes) -> None:
        """Begin the log of a topic, for its first message, and let all who subscribe to it read it from there.

        DiskFullError while the disk takes nothing.
        """
        broker = self._broker
        name = logs.name_of(topic_name)
        if not broker.storage.writable:
            raise DiskFullError(f"log {name!r}: the data directory takes no writes now")
        head = name.partition("/")[0]
        feed = logs.feeds[topic_name] = self._open(self._settings.get(head), broker.storage.add_topic_log(head, name))
        self.begun += 1
        for subscription in broker.router.begin(topic_name):
            reader = subscription.reader
            if not reader.reaches(feed) or feed in reader.cursors:
                continue
            reader.place(feed, 0)
            if isinstance(reader, Group):
                reader.wake()
            else:
                broker.pump_later(reader.session)

    def topics_of(self, name: str) -> list[str]:
        """The topic filters whose messages a log holds, or the one topic."""
        head, _, topic_name = name.partition("/")
        if topic_name:
            return [topic_name]
        entry = self._settings.get(head)
        return [] if entry is None or entry.per_topic else [entry.topic_filter.decode()]

    def place_missing(self) -> None:
        """Let every session and group stand in the logs that began since it was last there."""
        broker = self._broker
        for session in broker.sessions.values():
            session.place_missing()
        for group in broker.groups.values():
            group.place_missing()

    @property
    def passed_on(self) -> int:
        """Times that a topic found no room for a log of its own."""
        return sum(logs.passed_on for logs in self._by_topic.values())
