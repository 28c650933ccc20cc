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
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from highway.log_lines import about
from highway.mqtt import parse_shared
from highway.mqtt.topics import levels_cover, levels_match, split_levels

from .remembered import MAX_NAME_BYTES, Remembered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "CLIENT_ID",
    "USERNAME",
    "AclRule",
    "Judge",
    "Question",
    "Right",
    "Rights",
    "Undecided",
    "deciding_rule",
    "is_reserved",
    "right_to_read",
    "rights_of",
]

logger = logging.getLogger("highway.broker")

CLIENT_ID, USERNAME = b"%c", b"%u"

# Topics that the broker itself speaks on, or that are requests to it: no client can publish there, whatever its rights.
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


class Judge(Protocol):
    """Has a say about one client beside the rules, and takes its time: plugins."""

    def decide(self, question: Question, done: Callable[[bool], None]) -> None:
        """Answer in a later turn of the loop."""


class Question(NamedTuple):
    """Whether a topic is within a right, or (`selects`) all that a topic filter matches."""

    right: Right
    topic: bytes
    selects: bool = False


class Undecided(Exception):  # noqa: N818  no error: it is asked, and the packet waits
    """What has to be known before a packet can be handled."""

    def __init__(self, *questions: Question) -> None:
        super().__init__()
        self.questions = questions


class Rights:
    """What one client may do on one connection: what the rules allow, and then the judge, if there is one."""

    __slots__ = ("_asked", "_judge", "_known", "_rules", "_selectable")

    def __init__(self, rules: list[tuple[AclRule, list[bytes]]] | None, judge: Judge | None = None) -> None:
        """`rules` are those about the client, with the levels of their filters, names put in; None allow all."""
        self._rules = (
            None
            if rules is None
            else {right: [(rule.allow, levels) for rule, levels in rules if right in rule.rights] for right in Right}
        )
        self._judge = judge
        self._known: list[Remembered[bool]] = [Remembered(MAX_REMEMBERED) for _ in Right]
        self._selectable: list[Remembered[bool]] = [Remembered(MAX_REMEMBERED) for _ in Right]
        self._asked: dict[Question, list[Callable[[], None]]] = {}

    @property
    def has_judge(self) -> bool:
        """Whether a verdict may have to be waited for."""
        return self._judge is not None

    def may(self, right: Right, topic_name: bytes) -> bool:
        """Whether a topic is within a right. Raises Undecided where the judge has to be asked first."""
        verdict = self.verdict(right, topic_name)
        if verdict is None:
            raise Undecided(Question(right, topic_name))
        return verdict

    def verdict(self, right: Right, topic_name: bytes) -> bool | None:
        """`may`; None where the judge has to be asked first."""
        known = self._known[right]
        verdict = known.get(topic_name)
        if verdict is None:
            verdict = self._by_rules(right, levels_match, topic_name)
            if verdict and self._judge is not None:
                # A name that is too long to be remembered would have to be asked for with each message.
                return None if len(topic_name) <= MAX_NAME_BYTES else False
            known.remember(topic_name, verdict)
        return verdict

    def may_select(self, right: Right, topic_filter: bytes) -> bool:
        """Whether a subscription to a topic filter is within a right. Raises Undecided as `may` does."""
        verdict = self._by_rules(right, levels_cover, topic_filter)
        if not verdict or self._judge is None:
            return verdict
        known = self._selectable[right].get(topic_filter) if len(topic_filter) <= MAX_NAME_BYTES else False
        if known is None:
            raise Undecided(Question(right, topic_filter, selects=True))
        return known

    def _by_rules(self, right: Right, test: Callable[[list[bytes], list[bytes]], bool], topic: bytes) -> bool:
        if self._rules is None:
            return True
        split = split_levels(topic)
        return next((allow for allow, levels in self._rules[right] if test(levels, split)), False)

    def ask(self, questions: Iterable[Question], done: Callable[[], None]) -> None:
        """Put questions to the judge, and call `done` when all are answered: `may` knows then."""
        judge = self._judge
        assert judge is not None
        left = [*questions]

        def answered() -> None:
            left.pop()
            if not left:
                done()

        for question in [*left]:
            waiting = self._asked.setdefault(question, [])
            waiting.append(answered)
            if len(waiting) == 1:
                judge.decide(question, partial(self._decided, question))

    def ask_once(self, question: Question, done: Callable[[], None]) -> None:
        """`ask`, if that isn't under way: for who comes back until it is answered."""
        if question not in self._asked:
            self.ask([question], done)

    def _decided(self, question: Question, verdict: bool) -> None:  # noqa: FBT001  the answer itself
        table = self._selectable if question.selects else self._known
        table[question.right].remember(question.topic, verdict)
        for done in self._asked.pop(question):
            done()


def rights_of(
    rules: Sequence[AclRule] | None, user: str | None, client_id: str, judge: Judge | None = None
) -> Rights | None:
    """The rights of a client that is `user`; None where everything is allowed."""
    if rules is None:
        return None if judge is None else Rights(None, judge)
    return Rights(_rules_about(rules, user, client_id), judge)


def _rules_about(rules: Iterable[AclRule], user: str | None, client_id: str) -> list[tuple[AclRule, list[bytes]]]:
    """The rules about one client, with the levels of their filters after names were put in."""
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
    return mine


def deciding_rule(
    rules: Iterable[AclRule], user: str | None, client_id: str, right: Right, topic: bytes
) -> AclRule | None:
    """The rule that decides about a topic, or a filter with wildcards in it; None where none does, which is no."""
    split = split_levels(topic)
    test = levels_cover if b"+" in split or b"#" in split else levels_match
    mine = _rules_about(rules, user, client_id)
    return next((rule for rule, levels in mine if right in rule.rights and test(levels, split)), None)


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
