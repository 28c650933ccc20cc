"""What an MQTT 5 client may ask for with user properties on SUBSCRIBE: comfort, never a capability of its own.

    replay-from: <from>     start there, as `$replay/<from>/<filter>` does; `latest` where only others are given
    replay-until: <from>    end there: the message at that offset or time is not delivered any more, and the
                            subscription ends with a marker on `$end/<log>`
    replay-rate: 500/s      at most so many messages a second
    with-offset: 1          every delivery carries user properties `offset` and `timestamp` (ms)

They hold for every filter of the packet.

Owner: the event loop.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from highway.errors import ProtocolError
from highway.mqtt import PropertyId, ReasonCode
from highway.mqtt.wire import encode_string

from .grammar import From, FromKind, parse_from

if TYPE_CHECKING:
    from highway.mqtt import Properties

__all__ = ["NO_OPTIONS", "ReplayOptions", "options_of", "user_property"]

_RATE = re.compile(r"([0-9]{1,9})/s")
_USER_PROPERTY = bytes((PropertyId.USER_PROPERTY,))


LATEST = From(FromKind.LATEST)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The options of one SUBSCRIBE; `start_text` is what stood in `replay-from`, "" where it wasn't given."""

    start: From = LATEST
    start_text: bytes = b""
    until: From | None = None
    rate: int = 0  # messages a second; 0: as fast as they can be taken
    with_offset: bool = False


NO_OPTIONS = ReplayOptions()


def options_of(properties: Properties, now_ms: int) -> ReplayOptions:
    """The options in the properties of a SUBSCRIBE. Raises ProtocolError that names the rule."""
    if PropertyId.USER_PROPERTY not in properties:
        return NO_OPTIONS
    given = dict(reversed(properties.user_properties))
    start_text, until_text = given.get("replay-from"), given.get("replay-until")
    return ReplayOptions(
        LATEST if start_text is None else parse_from(start_text.encode(), now_ms),
        b"" if start_text is None else start_text.encode(),
        None if until_text is None else parse_from(until_text.encode(), now_ms),
        _rate(given.get("replay-rate")),
        given.get("with-offset", "0") == "1",
    )


def _rate(text: str | None) -> int:
    if text is None:
        return 0
    match = _RATE.fullmatch(text)
    if match is None or not int(match[1]):
        raise ProtocolError(
            f"replay-rate {text[:40]!r} is refused: messages a second, as in 500/s", ReasonCode.TOPIC_FILTER_INVALID
        )
    return int(match[1])


def user_property(name: str, value: str) -> bytes:
    """One user property as raw bytes."""
    return _USER_PROPERTY + encode_string(name) + encode_string(value)
