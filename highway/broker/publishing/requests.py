"""What an MQTT 5 publisher may ask for with user properties on PUBLISH.

    durability: SAFE               more than the topic's mode for this message; it can't ask for less
    producer: <id>                 with `sequence: <n>`: a sequence that this producer already stored in the log is
    sequence: <n>                  acknowledged again and not stored again

Sequences may have gaps and may come out of order, as where a message was refused and those behind it were not, or where a
gateway has several connections: of the last 1024 numbers below the highest it is known which are stored. One that is
further back counts as stored, so that a gateway may send all that it has again; a new message must not come that late.

A producer id is of one user, or of all clients where nobody checks who they are: nobody can use up another's sequences.

Which sequences of a producer a log has stands in the journal frame of their message, so that a gateway that re-sends
after any crash, its own or the broker's, stores each message once.

Owner: the event loop.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from highway.errors import ProtocolError
from highway.mqtt import ReasonCode, publish_properties
from highway.storage import Durability

if TYPE_CHECKING:
    from highway.broker.sessions.session_store import Puts
    from highway.storage import Meta

__all__ = ["NO_REQUESTS", "Producers", "Requests", "requests_of"]

# A producer is forgotten when this many others have published since: its re-sends would be stored again. 100,000 take
# about 20 MB.
MAX_PRODUCERS = 100_000
MAX_PRODUCER_BYTES = 256
# Numbers below the highest sequence of a producer in which one that was left out may still come. More than a client has
# under way, and 128 bytes at most: in order it takes none.
WINDOW = 1024

_REMEMBERED = 1024
_known: dict[bytes, Requests] = {}


class Requests(NamedTuple):
    """What one PUBLISH asks for; `producer` is "" where it isn't idempotent."""

    durability: Durability
    producer: str
    sequence: int

    def by(self, owner: str | None) -> Requests:
        """The same, of a producer that is `owner`'s: another user's may have its name, and has sequences of its own."""
        return self if owner is None or not self.producer else self._replace(producer=f"{owner}\0{self.producer}")


NO_REQUESTS = Requests(Durability.FAST, "", 0)


def requests_of(properties: bytes) -> Requests:
    """The requests in a raw property block. Raises ProtocolError that names the rule."""
    if b"durability" not in properties and b"producer" not in properties:
        return NO_REQUESTS
    known = _known.get(properties)
    if known is not None:
        return known
    given = dict(reversed(publish_properties(properties).user_properties))
    requests = Requests(_durability(given.get("durability")), *_sequence(given))
    if not requests.producer:  # a sequence comes once, so only the others are worth remembering
        if len(_known) >= _REMEMBERED:
            _known.clear()
        _known[properties] = requests
    return requests


def _durability(text: str | None) -> Durability:
    if text is None:
        return Durability.FAST
    try:
        return Durability[text]
    except KeyError:
        raise _refusal(f"durability {text[:40]!r}: FAST, BALANCED or SAFE is wanted") from None


def _sequence(given: dict[str, str]) -> tuple[str, int]:
    producer, text = given.get("producer"), given.get("sequence")
    if producer is None:
        return "", 0
    if not producer or len(producer.encode()) > MAX_PRODUCER_BYTES:
        raise _refusal(f"a producer id has 1 to {MAX_PRODUCER_BYTES} bytes")
    if text is None or not (text.isascii() and text.isdigit() and 0 < len(text) < 19):
        raise _refusal(f"sequence {text!r}: a whole number is wanted beside a producer")
    return producer, int(text)


def _refusal(detail: str) -> ProtocolError:
    return ProtocolError(detail, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)


class Stored(NamedTuple):
    """The sequences of one producer that are in one log: up to `highest`, but for the missing ones.

    Bit n of `missing` stands for the sequence `highest - 1 - n`.
    """

    highest: int
    missing: int

    def has(self, sequence: int) -> bool:
        """Whether a sequence is stored, or too far back to tell."""
        back = self.highest - 1 - sequence
        return back >= -1 and not (back >= 0 and self.missing >> back & 1)

    def plus(self, sequence: int) -> Stored:
        """With a sequence that it hasn't."""
        ahead = sequence - self.highest
        if ahead <= 0:
            return Stored(self.highest, self.missing ^ 1 << -1 - ahead)
        if ahead > WINDOW:
            return Stored(sequence, _ALL_MISSING)
        return Stored(sequence, (self.missing << ahead | (1 << ahead - 1) - 1) & _ALL_MISSING)

    def encode(self) -> bytes:
        """The value in the journal: u64, and the bits if there are any."""
        return self.highest.to_bytes(8, "big") + self.missing.to_bytes((self.missing.bit_length() + 7) // 8, "big")


_ALL_MISSING = (1 << WINDOW) - 1
_NOTHING = Stored(-1, 0)


class Producers:
    """What of every producer is stored, by log."""

    __slots__ = ("_last",)

    def __init__(self, meta: Meta) -> None:
        self._last: OrderedDict[bytes, Stored] = OrderedDict(
            (key, Stored(int.from_bytes(value[:8], "big"), int.from_bytes(value[8:], "big")))
            for key, value in meta.items(b"P/")
        )

    def is_repetition(self, log: str, requests: Requests) -> bool:
        """Whether the message was stored before."""
        key = _key(log, requests.producer)
        last = self._last.get(key)
        if last is None:
            return False
        self._last.move_to_end(key)
        return last.has(requests.sequence)

    def take(self, log: str, requests: Requests) -> Puts:
        """Note a message that is being appended; the changes belong into its journal frame."""
        key = _key(log, requests.producer)
        stored = self._last[key] = self._last.get(key, _NOTHING).plus(requests.sequence)
        self._last.move_to_end(key)
        puts: Puts = [(key, stored.encode())]
        if len(self._last) > MAX_PRODUCERS:
            oldest, _ = self._last.popitem(last=False)
            puts.append((oldest, None))
        return puts

    def take_back(self, log: str, requests: Requests, before: Stored | None) -> None:
        """The append was refused."""
        key = _key(log, requests.producer)
        if before is None:
            self._last.pop(key, None)
        else:
            self._last[key] = before

    def last(self, log: str, requests: Requests) -> Stored | None:
        """What is stored of the producer, None if it is new to the log."""
        return self._last.get(_key(log, requests.producer))


def _key(log: str, producer: str) -> bytes:
    return b"P/%b\0%b" % (log.encode(), producer.encode())
