"""mosquitto's ACL file -> our rules, and what can't be said in them.

    topic [read|write|readwrite|deny] <filter>      of anonymous clients, or of the user of the `user` line above
    user <name>
    pattern [read|write|readwrite|deny] <filter>    of everybody, with %c and %u

`read` is to subscribe and `write` to publish; replay and fetch are rights of their own here, and mosquitto knows of
none, so that nobody gets them by an import. mosquitto looks at all rules and lets `deny` win, so that those come first.
Its rules without a user are for clients without a name only, which ours can't say: they are left out, and said to be.
"""

from __future__ import annotations

from typing import Any

from highway.errors import MqttError
from highway.mqtt.topics import validate_topic_filter

__all__ = ["import_acl"]

_RIGHTS = {
    "read": ["subscribe"],
    "write": ["publish"],
    "readwrite": ["publish", "subscribe"],
    "deny": ["publish", "subscribe", "replay", "fetch"],
}


def import_acl(text: str) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    """(rules as they stand under `acl:`, (line, what of it couldn't be carried over))."""
    denies: list[dict[str, Any]] = []
    allows: list[dict[str, Any]] = []
    faults: list[tuple[int, str]] = []
    user: str | None = None
    for number, raw in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        if word == "user":
            user = rest or None
            if user is None:
                faults.append((number, "`user` without a name: the rules below it are left out"))
            continue
        if word not in ("topic", "pattern"):
            faults.append((number, f"{word!r} is no word of an ACL file"))
            continue
        access, topic = _split(rest)
        fault = _fault(word, topic, user)
        if fault:
            faults.append((number, fault))
            continue
        rule: dict[str, Any] = {"deny" if access == "deny" else "allow": _RIGHTS[access], "topic": topic}
        if word == "topic":
            rule["user"] = user
        (denies if access == "deny" else allows).append(rule)
    return denies + allows, faults


def _split(rest: str) -> tuple[str, str]:
    """(access, filter) of what follows `topic` or `pattern`. A filter may have spaces in it."""
    access, _, topic = rest.partition(" ")
    return (access, topic.strip()) if access in _RIGHTS and topic else ("readwrite", rest)


def _fault(word: str, topic: str, user: str | None) -> str:
    """Why a rule can't be carried over, "" where it can."""
    if word == "topic" and user is None:
        return f"{topic!r} is for clients without a user name only, which a rule here can't say: left out"
    for level in topic.split("/"):
        if ("%c" in level or "%u" in level) and (word == "topic" or level not in ("%c", "%u")):
            return f"{level!r}: %c and %u stand for a whole level, and in a `pattern` only: left out"
    try:
        validate_topic_filter(topic.encode())
    except (MqttError, UnicodeEncodeError) as error:
        return f"{topic!r} is no valid topic filter: {error}: left out"
    if topic.partition("/")[0] in ("$share", "$replay", "$log", "$fetch", "$range"):
        return f"{topic!r}: rights are about topics, without {topic.partition('/')[0]} in front: left out"
    return ""
