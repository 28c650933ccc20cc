"""Who gets in: places for connections, and how long those that are not logged in may keep one.

A connection takes a place when it is accepted, before its TLS handshake. Until its client is logged in it is half open,
and may have to make room: when all places are taken, or those of its address, the oldest half-open connection goes. So
whoever opens connections and says nothing, from however many addresses, keeps nobody out: a client that says CONNECT at
once is never the oldest of thousands.

Owner: the event loop.
"""

from __future__ import annotations

import ipaddress
import logging
from typing import TYPE_CHECKING, Any

from highway.broker.token_bucket import TokenBuckets
from highway.log_lines import about

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from highway.broker import Broker

__all__ = ["HURRIED_S", "STRANGERS_BYTES", "Admission", "Place", "format_address"]

logger = logging.getLogger("highway.server")

# Time for the CONNECT of an address that has many half-open connections. It follows its connection at once, but a fleet
# that comes back in one moment has to be read first.
HURRIED_S = 2.0
# What all half-open connections together may make us hold of packets that are not complete. A CONNECT that came whole
# doesn't count, and nearly all come so.
STRANGERS_BYTES = 64 * 1024 * 1024


class Place:
    """The place of one connection. `turn_out` is called when it has to make room, and must end the connection."""

    __slots__ = ("host", "peer", "turn_out")

    def __init__(self, host: str, peer: str, turn_out: Callable[[], object]) -> None:
        self.host = host
        self.peer = peer  # address and port, for logs
        self.turn_out = turn_out


class _Host:
    """The connections of one IP address."""

    __slots__ = ("half_open", "taken")

    def __init__(self) -> None:
        self.taken = 0
        self.half_open: dict[Place, None] = {}  # in the order in which they came


class Admission:
    """The places of the process."""

    __slots__ = ("_broker", "_half_open", "_holders", "_hosts", "_rates", "_taken", "held_bytes")

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._taken: set[Place] = set()
        self._half_open: dict[Place, None] = {}  # in the order in which they came
        self._hosts: dict[str, _Host] = {}
        self._holders: dict[Place, int] = {}  # bytes of incomplete packets, of those that are half open
        self._rates = TokenBuckets()  # by host
        self.held_bytes = 0  # of all of them

    def __len__(self) -> int:
        """Places that are taken."""
        return len(self._taken)

    @property
    def half_open(self) -> int:
        """Connections that are not logged in."""
        return len(self._half_open)

    def enter(self, address: Sequence[Any] | None, turn_out: Callable[[], object]) -> Place | None:
        """The place of a new connection from an address of the socket module; None where there is no place.

        At a limit the oldest half-open connection makes room, if there is one.
        """
        settings = self._broker.settings
        place = Place(host_of(address), format_address(*address[:2]) if address else "?", turn_out)
        ours = self._hosts.get(place.host) or _Host()
        if ours.taken >= settings.max_connections_per_address and not self._make_room(
            "max_connections_per_address", place, ours.half_open
        ):
            return None
        if len(self._taken) >= settings.max_connections and not self._make_room(
            "max_connections", place, self._half_open
        ):
            return None
        self._hosts[place.host] = ours
        ours.taken += 1
        ours.half_open[place] = None
        self._taken.add(place)
        self._half_open[place] = None
        return place

    def _make_room(self, limit: str, newcomer: Place, candidates: dict[Place, None]) -> bool:
        self._broker.counters.limited[limit] += 1
        if not candidates:
            logger.warning("refused: limits.%s is reached", limit, extra=about(peer=newcomer.peer))
            return False
        self._turn_out(next(iter(candidates)), limit)
        return True

    def _turn_out(self, place: Place, why: str) -> None:
        logger.warning("closed: not logged in, and others need its place (%s)", why, extra=about(peer=place.peer))
        turn_out = place.turn_out
        self.leave(place)
        turn_out()

    def wait_s(self, place: Place, now: float) -> float:
        """How long a newcomer has to wait before it is listened to, as its address connects more often than it may."""
        settings = self._broker.settings
        rate = settings.connect_rate_per_address
        return self._rates.wait_s(place.host, rate, now, settings.connect_timeout_s)

    def patience_s(self, place: Place) -> float:
        """How long a connection may be half open."""
        settings = self._broker.settings
        if len(self._hosts[place.host].half_open) <= settings.max_half_open_per_address:
            return settings.connect_timeout_s
        self._broker.counters.limited["max_half_open_per_address"] += 1
        return min(HURRIED_S, settings.connect_timeout_s)

    def holds(self, place: Place, size: int) -> None:
        """A half-open connection makes us hold so many bytes: where all of them hold too much, the oldest go."""
        self.held_bytes += size - self._holders.pop(place, 0)
        if size:
            self._holders[place] = size
        while self.held_bytes > STRANGERS_BYTES:
            self._broker.counters.limited["max_connect_packet"] += 1
            self._turn_out(next(iter(self._holders)), "memory")

    def logged_in(self, place: Place) -> None:
        """The place is its client's now, until it leaves."""
        if self._half_open.pop(place, self) is None:
            self._hosts[place.host].half_open.pop(place)
            self.held_bytes -= self._holders.pop(place, 0)

    def leave(self, place: Place) -> None:
        """The connection is gone, or about to be. Idempotent."""
        if place not in self._taken:
            return
        self.logged_in(place)
        self._taken.remove(place)
        place.turn_out = _nobody  # or else the connection would hold itself
        known = self._hosts[place.host]
        known.taken -= 1
        if not known.taken:
            del self._hosts[place.host]


def _nobody() -> None:
    """Turned out of a place that was left."""


def host_of(address: Sequence[Any] | None) -> str:
    """What counts as one IP address: of IPv6 the network, as each customer of a provider has one with 2**64 of them."""
    if not address:
        return "?"
    host = str(address[0])
    if ":" not in host:
        return host
    return ipaddress.IPv6Address(host.partition("%")[0]).exploded[:19]


def format_address(host: str, port: int) -> str:
    """`127.0.0.1:1883` or `[::1]:1883`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
