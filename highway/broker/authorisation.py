"""Who may do what: the rules of `auth: acl:`, and what they come to for one connection.

    publish     PUBLISH, and the will of a CONNECT
    subscribe   SUBSCRIBE, shared or not, and each message that comes of it
    replay      the same through $replay, $log and `replay-from`
    fetch       one stored message or the bounds of its log: $fetch, $range

The first rule about a right that matches decides; where none does, the answer is no. Without rules all is allowed, and
costs one look at an attribute. With them each verdict is worked out once and remembered by topic, in `Rights` and in
the plans of subscribers: what a message costs does not depend on the number of rules.

A topic filter is allowed by a rule that covers all of it, and refused by one that does. A rule that denies a part of it
only is passed over here and bears on the messages: each is looked at again before it leaves.

`%c` and `%u` stand for the client id and the user name, literally and as one level. A name that is empty or has one of
`+ # /` in it can't be one, nor one with `$` in front the first: a rule that allows is then of no use to its bearer, and
a rule that denies counts for every name.

Owner: the event loop.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from highway.log_lines import about
from highway.mqtt import parse_shared
from highway.mqtt.topics import levels_cover, levels_match, split_levels

from .remembered import Remembered

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CLIENT_ID", "USERNAME", "AclRule", "Right", "Rights", "is_reserved", "right_to_read", "rights_of"]

logger = logging.getLogger("highway.broker")

CLIENT_ID, USERNAME = b"%c", b"%u"

# Topics that the broker itself speaks on, or that are requests to it: a client can't publish there, whatever its rights.
RESERVED = (
    b"$SYS/",
    b"$CONTROL/",
    b"$replay/",
    b"$log/",
    b"$fetch/",
    b"$range/",
    b"$gap/",
    b"$end/",
    b"$share/",
)

# Topics whose verdict a connection remembers, of each right.
MAX_REMEMBERED = 4096


class Right(enum.IntEnum):
    """What a rule is about."""

    PUBLISH = 0
    SUBSCRIBE = 1
    REPLAY = 2
    FETCH = 3


@dataclass(frozen=True, slots=True)
class AclRule:
    """One rule: what it allows or denies, and whom it is about; None stands for anybody."""

    allow: bool
    rights: frozenset[Right]
    topic_filter: bytes  # levels of it may be CLIENT_ID or USERNAME
    user: str | None = None
    client: str | None = None
    where: str = field(default="", compare=False)  # file:line, for whoever asks why


class Rights:
    """What one client may do on one connection."""

    __slots__ = ("_known", "_rules")

    def __init__(self, rules: list[tuple[AclRule, list[bytes]]]) -> None:
        """`rules` are those about the client, with the levels of their filters after names were put in."""
        self._rules = {
            right: [(rule.allow, levels) for rule, levels in rules if right in rule.rights] for right in Right
        }
        self._known: list[Remembered[bool]] = [Remembered(MAX_REMEMBERED) for _ in Right]

    def may(self, right: Right, topic_name: bytes) -> bool:
        """Whether a topic is within a right."""
        known = self._known[right]
        verdict = known.get(topic_name)
        if verdict is None:
            name = split_levels(topic_name)
            verdict = known.remember(
                topic_name, next((allow for allow, levels in self._rules[right] if levels_match(levels, name)), False)
            )
        return verdict

    def may_select(self, right: Right, topic_filter: bytes) -> bool:
        """Whether a subscription to a topic filter is within a right."""
        narrow = split_levels(topic_filter)
        return next((allow for allow, levels in self._rules[right] if levels_cover(levels, narrow)), False)


def rights_of(rules: Sequence[AclRule] | None, user: str | None, client_id: str) -> Rights | None:
    """The rights of a client that says it is `user`; None where everything is allowed."""
    if rules is None:
        return None
    names = {CLIENT_ID: client_id.encode(), USERNAME: (user or "").encode()}
    mine = []
    for rule in rules:
        if rule.user not in (None, user) or rule.client not in (None, client_id):
            continue
        levels = _fill_in(rule, names)
        if levels is None:
            logger.info(
                "user %r: no use of the rule about %r, where the name can't be a level",
                *(user, rule.topic_filter.decode()),
                extra=about(client=client_id),
            )
        else:
            mine.append((rule, levels))
    return Rights(mine)


def _fill_in(rule: AclRule, names: dict[bytes, bytes]) -> list[bytes] | None:
    """The levels of a rule's filter with the names in their places; None where one can't be, and the rule allows."""
    levels: list[bytes] = []
    for level in split_levels(rule.topic_filter):
        name = names.get(level, level)
        if name is not level and not _is_level(name, is_first=not levels):
            if rule.allow:
                return None
            name = b"+"
        levels.append(name)
    return levels


def _is_level(name: bytes, *, is_first: bool) -> bool:
    """Whether a name is one level, and means no more than itself there: a first level with `$` is the broker's."""
    return bool(name) and not any(byte in b"+#/\0" for byte in name) and not (is_first and name.startswith(b"$"))


def right_to_read(name: bytes) -> Right:
    """The right that messages of a subscription are looked at with, by the name of the subscription or its source."""
    shared = parse_shared(name)
    inner = name if shared is None else shared.topic_filter
    return Right.REPLAY if inner.startswith((b"$replay/", b"$log/")) else Right.SUBSCRIBE


def is_reserved(topic_name: bytes) -> bool:
    """Whether no client may publish to that topic.

    `$SYS/broker/connection/<name>/state` is not: a bridge of mosquitto says there whether it is connected.
    """
    if not topic_name.startswith(RESERVED):
        return False
    levels = topic_name.split(b"/", 5)
    return levels[:3] != [b"$SYS", b"broker", b"connection"] or len(levels) != 5 or levels[4] != b"state"
