"""The retained messages that a SUBSCRIBE is answered with, pulled one at a time and as they are when they leave.

A snapshot outlives the connection, like everything else that a session was promised: in memory it goes on where it
was, after a restart of the broker it starts over.

Owner: the event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .encoding import Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from highway.broker.message import Message
    from highway.broker.publishing.retained import RetainedStore
    from highway.broker.sessions.reader import Subscription

__all__ = ["Snapshot"]


class Snapshot:
    """What is still to be sent for one subscription. `plan` says how: with RETAIN 1, whatever its options say.

    `starts` says where a new subscription began, by log. A message that came later is left out here, as it comes from
    the log, behind others that are older: values must not go backwards.
    """

    __slots__ = ("_held", "_messages", "_starts", "plan", "subscription")

    def __init__(self, subscription: Subscription, starts: dict[str, int]) -> None:
        self.subscription = subscription
        self._starts = starts
        self.plan = Plan(b"", [subscription])
        # A message sent for the subscription itself keeps RETAIN: 3.1.1 [MQTT-3.3.1-8].
        self.plan.retain_as_published = True
        self._messages: Iterator[tuple[bytes, Message]] | None = None
        self._held: Message | None = None  # put back

    def next(self, store: RetainedStore[Message]) -> Message | None:
        """The next message, None behind the last."""
        if self._held is not None:
            held, self._held = self._held, None
            return held
        if self._messages is None:
            self._messages = store.match(self.subscription.topic_filter)
        starts = self._starts
        for _, message in self._messages:
            if message.offset < starts.get(message.log, _NEVER):
                return message
        return None

    def put_back(self, message: Message) -> None:
        """Let a message that can't be sent now come again."""
        self._held = message


_NEVER = 1 << 64
