"""What each client sends, against the rates of its limits: whoever is beyond one isn't read from until it is paid.

A chunk is handled first and counted then, so that nothing is dropped and a message costs nothing: what was too much is
owed. The account outlives the connection, as a client that comes back has not paid by it.

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from highway.broker.token_bucket import TokenBuckets

if TYPE_CHECKING:
    from highway.broker.broker import Broker

__all__ = ["Accounts"]


class Accounts:
    """The accounts of all clients, by client id."""

    __slots__ = ("_broker", "_buckets", "new_topics")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._buckets = {limit: TokenBuckets() for limit in ("publish_rate", "publish_bytes", "new_topics")}
        self.new_topics = broker.router.new_topics  # of which somebody was charged

    def take_new_topics(self) -> int:
        """Topic names that came up since the last call, which follows each chunk that had any."""
        now = self._broker.router.new_topics
        count, self.new_topics = now - self.new_topics, now
        return count

    def charge(self, client_id: str, messages: int, size: int, topics: int, now: float) -> tuple[float, str]:
        """Take what came; returns how many seconds it takes to be paid, and the limit that this is for."""
        settings = self._broker.settings
        rates = (settings.publish_rate, settings.publish_bytes, settings.new_topics)
        wait_s, why = 0.0, ""
        for (limit, buckets), rate, amount in zip(self._buckets.items(), rates, (messages, size, topics), strict=True):
            if rate is not None and (needed := buckets.of(client_id, rate, now).take(amount, now)) > wait_s:
                wait_s, why = needed, limit
        return wait_s, why
