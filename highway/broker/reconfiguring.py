"""Other settings for a broker that runs: nobody is disconnected whom they know, and nothing that was accepted is lost.

What the settings say of a limit is looked up where it is used, so that most of them count at once, or for the next
connection. Worked out beforehand, and so anew here, are

    the feeds        a log that is new gets one; one that no entry names any more keeps its own, and takes nothing
    the routes       which entry decides about a topic
    the positions    of sessions and groups in logs that their filters reach only now: at the end, as it is now
    the rights       of every client, and with them whatever its readers remember

A topic that goes to another log from now on has its older messages in the log before, where its readers finish them. A
reader that is behind there may see newer messages first: the order of a topic holds within one log.

Owner: the event loop.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from highway.broker.sessions import session_store
from highway.log_lines import about
from highway.mqtt import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from highway.broker.broker import Broker
    from highway.broker.connections.client import Client
    from highway.broker.delivery.feed import Feed
    from highway.broker.sessions.session import Session
    from highway.broker.sessions.session_store import Puts

    from .settings import BrokerSettings

__all__ = ["end_unknown", "reconfigure", "renew_rights"]

logger = logging.getLogger("highway.broker")


def reconfigure(broker: Broker, settings: BrokerSettings) -> None:
    """Go on by `settings`; the logs of its entries are open by now. A delay counts for logs that are new here."""
    before, broker.settings = broker.settings, settings
    if before.entries != settings.entries:
        broker.logs.place_missing()  # of what began until now, all is theirs; of what they reach only now, nothing before
        broker.logs.configure(settings.entries)
        broker.router.reroute(broker.logs.entries)
        _place_readers(broker)
    if (before.max_topic_bytes, before.max_topic_levels) != (settings.max_topic_bytes, settings.max_topic_levels):
        broker.router.forget_all()
    if before.acl != settings.acl:
        renew_rights(broker)


def renew_rights(broker: Broker) -> None:
    """Work out again what every client that is connected may do."""
    for client in broker.clients.values():
        session = client.session
        if session is not None:
            rights = session.rights = broker.lifecycle.rights_for(client)
            _forget(session, client)
            if client.will is not None and rights is not None:
                broker.wills.look_at_rights(client, client.will, rights)
    broker.router.forget_all()


def end_unknown(broker: Broker) -> None:
    """Close the connections of those who would not be let in any more by their name; their sessions stay."""
    for client in list(broker.clients.values()):
        if not broker.authenticator.still_knows(client.identity):
            why = "closed: user %r is not known any more"
            logger.info(why, client.identity.user, extra=about(client=client.client_id, peer=client.link.peer))
            client.end(ReasonCode.NOT_AUTHORIZED)


def _forget(session: Session, client: Client) -> None:
    """Forget the verdicts that the session's readers remember."""
    client.rights_changed()
    for reader in session.readers.values():
        reader.changed()
    for group, _ in session.groups.values():
        group.members[session].plans.clear()


@dataclass(slots=True)
class _Reach:
    """Which feeds some filters reach, remembered: the sessions of a fleet have few kinds of them."""

    broker: Broker
    known: dict[tuple[bytes, ...], set[Feed]]

    def of(self, topic_filters: Iterable[bytes]) -> set[Feed]:
        key = tuple(topic_filters)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.broker.router.feeds_of(key)
        return found


def _place_readers(broker: Broker) -> None:
    """Give every reader and group a position in the logs that it can reach and had none in."""
    reach = _Reach(broker, {})
    puts: Puts = []
    for session in broker.sessions.values():
        if _place(session, reach) and session.persistent:
            puts += session_store.position_puts(session)
    for group in broker.groups.values():
        new = reach.of([group.topic_filter]) - group.cursors.keys()
        for feed in new:
            group.place(feed, feed.accepted)
        if new:
            puts += session_store.group_puts(group)
            group.wake()
    if puts:
        # A session that is away would miss what comes before the next start, or get what came before it subscribed.
        broker.store(puts)


def _place(session: Session, reach: _Reach) -> bool:
    """Whether the session has a new position somewhere."""
    placed = False
    for reader in session.readers.values():
        for feed in reach.of(s.topic_filter for s in reader.subscriptions.values()) - reader.cursors.keys():
            reader.place(feed, feed.accepted)
            placed = True
    if placed and session.link is not None:
        session.broker.pump_later(session)
    return placed
