"""What each client sends, against the rates of its limits: whoever is beyond one isn't read from until it is paid.

A chunk is handled first and counted then, so that nothing is dropped and a message costs nothing: what was too much is
owed. The account outlives the connection, as a client that comes back has not paid by it.

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from highway.broker.token_bucket import TokenBucket

if TYPE_CHECKING:
    from highway.broker import BrokerSettings
    from highway.broker.broker import Broker
    from highway.broker.token_bucket import Rate

__all__ = ["Account", "Accounts"]

# Accounts of clients that are gone, beyond which those that owe nothing are looked for.
MANY_ACCOUNTS = 10_000


class Account:
    """The rates of one client."""

    __slots__ = ("_buckets", "settings")

    def __init__(self, settings: BrokerSettings, now: float) -> None:
        self.settings = settings
        rates: dict[str, Rate | None] = {
            "publish_rate": settings.publish_rate,
            "publish_bytes": settings.publish_bytes,
            "new_topics": settings.new_topics,
        }
        self._buckets = {limit: None if rate is None else TokenBucket(rate, now) for limit, rate in rates.items()}

    def charge(self, messages: int, size: int, topics: int, now: float) -> tuple[float, str]:
        """Take what came; returns how many seconds it takes to be paid, and the limit that this is for."""
        wait_s, why = 0.0, ""
        for (limit, bucket), amount in zip(self._buckets.items(), (messages, size, topics), strict=True):
            if bucket is not None and (needed := bucket.take(amount, now)) > wait_s:
                wait_s, why = needed, limit
        return wait_s, why

    def is_settled(self, now: float) -> bool:
        """Whether it is as good as a new one."""
        return all(bucket is None or bucket.is_full(now) for bucket in self._buckets.values())


class Accounts:
    """The accounts of all clients that were ever near a limit, by client id."""

    __slots__ = ("_broker", "_known", "new_topics")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._known: dict[str, Account] = {}
        self.new_topics = broker.router.new_topics  # of which somebody was charged

    def take_new_topics(self) -> int:
        """Topic names that came up since the last call, which follows each chunk that had any."""
        now = self._broker.router.new_topics
        count, self.new_topics = now - self.new_topics, now
        return count

    def of(self, client_id: str, now: float) -> Account:
        """The account of a client, under the limits that are in force."""
        account = self._known.get(client_id)
        if account is None or account.settings is not self._broker.settings:
            account = self._known[client_id] = Account(self._broker.settings, now)
        return account

    def gone(self, client_id: str, now: float) -> None:
        """A connection of the client ended."""
        account = self._known.get(client_id)
        if account is not None and account.is_settled(now):
            del self._known[client_id]
        if len(self._known) > MANY_ACCOUNTS:
            self._known = {known: other for known, other in self._known.items() if not other.is_settled(now)}
