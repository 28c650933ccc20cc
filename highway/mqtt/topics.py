"""Topic names and topic filters, as bytes: what is valid, what matches what.

No function here recurses, and the depth of a topic is bounded, so that no name and no filter, however made, costs more
than a walk over its levels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from highway.errors import MalformedPacketError, ProtocolError
from highway.mqtt.reason_codes import ReasonCode
from highway.mqtt.wire import text_fault

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "MAX_LEVELS",
    "SHARE_PREFIX",
    "SharedFilter",
    "concrete_names",
    "filters_intersect",
    "has_wildcard",
    "levels_cover",
    "levels_intersect",
    "levels_match",
    "matches",
    "parse_shared",
    "split_levels",
    "validate_topic_filter",
    "validate_topic_name",
]

# Trees and matchers walk one step for each level. Real topics have under 20; this is mosquitto's limit, 200 slashes, so
# that whatever worked there works here.
MAX_LEVELS = 201
SHARE_PREFIX = b"$share/"
MAX_TOPIC_BYTES = 65_535


class SharedFilter(NamedTuple):
    """What `$share/<share_name>/<topic_filter>` is made of."""

    share_name: bytes
    topic_filter: bytes


def _check_text(text: bytes, what: str, reason_code: ReasonCode) -> None:
    if not text:
        raise ProtocolError(f"an empty {what}", reason_code, rule="[MQTT-4.7.3-1]")
    if len(text) > MAX_TOPIC_BYTES:
        raise ProtocolError(f"a {what} of {len(text)} bytes", reason_code, rule="[MQTT-4.7.3-3]")
    if (fault := text_fault(text)) is not None:
        # The null character has a rule of its own for topics: [MQTT-4.7.3-2].
        raise MalformedPacketError(f"{fault[0]} in a {what}", rule=fault[1])
    if text.count(b"/") >= MAX_LEVELS:
        raise MalformedPacketError(f"a {what} of {text.count(b'/') + 1} levels, where {MAX_LEVELS} is the limit")


def has_wildcard(text: bytes) -> bool:
    """Whether `text` has a "+" or "#" in it, wherever."""
    return b"+" in text or b"#" in text


def concrete_names(topic_filters: Iterable[bytes]) -> frozenset[bytes]:
    """The only topic names that the filters match; empty where one of them has a wildcard, so that there may be others."""
    names = frozenset(topic_filters)
    return frozenset() if any(map(has_wildcard, names)) else names


def validate_topic_name(topic_name: bytes) -> None:
    """Return if `topic_name` may be published to; raise MqttError with the rule that it breaks."""
    _check_text(topic_name, "topic name", ReasonCode.TOPIC_NAME_INVALID)
    if has_wildcard(topic_name):
        raise ProtocolError(
            "a wildcard in a topic name",
            ReasonCode.TOPIC_NAME_INVALID,
            rule="[MQTT-3.3.2-2], 3.1.1 [MQTT-4.7.1-1], 5.0 [MQTT-4.7.0-1]",
        )


def validate_topic_filter(topic_filter: bytes) -> None:
    """Return if `topic_filter` may be subscribed to; raise MqttError with the rule that it breaks."""
    _check_text(topic_filter, "topic filter", ReasonCode.TOPIC_FILTER_INVALID)
    if has_wildcard(topic_filter):
        levels = topic_filter.split(b"/")
        for number, level in enumerate(levels):
            if b"#" in level and (level != b"#" or number != len(levels) - 1):
                raise ProtocolError(
                    "a '#' that is not alone in the last level",
                    ReasonCode.TOPIC_FILTER_INVALID,
                    rule="3.1.1 [MQTT-4.7.1-2], 5.0 [MQTT-4.7.1-1]",
                )
            if b"+" in level and level != b"+":
                raise ProtocolError(
                    "a '+' that is not alone in its level",
                    ReasonCode.TOPIC_FILTER_INVALID,
                    rule="3.1.1 [MQTT-4.7.1-3], 5.0 [MQTT-4.7.1-2]",
                )
    parse_shared(topic_filter)


def parse_shared(topic_filter: bytes) -> SharedFilter | None:
    """The share name and the filter in `$share/<name>/<filter>`, None for a filter that is not shared.

    Raises ProtocolError for a share name that is empty or has a wildcard, and for a missing filter.
    """
    if not topic_filter.startswith(SHARE_PREFIX) and topic_filter != b"$share":
        return None
    share_name, slash, rest = topic_filter[len(SHARE_PREFIX) :].partition(b"/")
    if not share_name:
        raise ProtocolError("an empty share name", ReasonCode.TOPIC_FILTER_INVALID, rule="5.0 [MQTT-4.8.2-1]")
    if has_wildcard(share_name) or not slash or not rest:
        raise ProtocolError(
            "a shared subscription that is not $share/<name>/<filter>",
            ReasonCode.TOPIC_FILTER_INVALID,
            rule="5.0 [MQTT-4.8.2-2]",
        )
    return SharedFilter(share_name, rest)


def split_levels(topic: bytes) -> list[bytes]:
    """The levels of a name or filter; adjacent, leading and trailing slashes make empty levels, which count."""
    return topic.split(b"/")


def levels_match(filter_levels: list[bytes], name_levels: list[bytes]) -> bool:
    """Whether a filter matches a name, both split. Bytes are compared as they are: [MQTT-4.7.3-4]."""
    # "The Server MUST NOT match Topic Filters starting with a wildcard character with Topic Names beginning with a $
    # character" [MQTT-4.7.2-1].
    if name_levels[0][:1] == b"$" and filter_levels[0] in (b"+", b"#"):
        return False
    depth = len(name_levels)
    for number, level in enumerate(filter_levels):
        if level == b"#":
            return True  # also matches the parent: "a/#" matches "a"
        if number == depth or (level not in (b"+", name_levels[number])):
            return False
    return len(filter_levels) == depth


def matches(topic_filter: bytes, topic_name: bytes) -> bool:
    """Whether `topic_name` falls under `topic_filter` (both valid, neither shared)."""
    if topic_filter == topic_name:
        return True
    return levels_match(topic_filter.split(b"/"), topic_name.split(b"/"))


def levels_intersect(left: list[bytes], right: list[bytes]) -> bool:
    """Whether some topic name falls under both filters, both split."""
    for one, other in ((left, right), (right, left)):
        if one[0] in (b"+", b"#") and other[0][:1] == b"$":
            return False  # [MQTT-4.7.2-1]: no "$" name falls under the first
    for level, opposite in zip(left, right, strict=False):
        if b"#" in (level, opposite):
            return True
        if level != opposite and b"+" not in (level, opposite):
            return False
    # All common levels agree. The longer one still has a name of that depth only if what follows is "#" (the parent).
    shorter, longer = sorted((left, right), key=len)
    return len(shorter) == len(longer) or longer[len(shorter)] == b"#"


def levels_cover(wide: list[bytes], narrow: list[bytes]) -> bool:
    """Whether one filter alone matches every topic name that another matches, both split. A name is a filter, too."""
    if narrow[0][:1] == b"$" and wide[0] in (b"+", b"#"):
        return False  # [MQTT-4.7.2-1]
    depth = len(narrow)
    for number, level in enumerate(wide):
        if level == b"#":
            return True
        if number == depth or narrow[number] == b"#" or level not in (b"+", narrow[number]):
            return False
    return len(wide) == depth


def filters_intersect(left: bytes, right: bytes) -> bool:
    """Whether some topic name falls under both `left` and `right` (valid filters, neither shared)."""
    return levels_intersect(left.split(b"/"), right.split(b"/"))
