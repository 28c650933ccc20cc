"""The `$SYS/broker/...` topics: mosquitto's names, so that existing dashboards work, and our own below `highway/`.

A table says which name shows what; load averages are computed as mosquitto does it: an exponentially weighted
average over 1, 5 and 15 minutes of a rate per minute. Nothing here is stored or logged: `$` topics never are.
"""

from __future__ import annotations

import math
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from highway import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from highway.clock import Clock

__all__ = ["LIMITS", "SYS_TOPICS", "Counters", "sys_messages"]

PREFIX = b"$SYS/broker/"

# The limits that a client is held to, by their keys in the configuration.
LIMITS = (
    "catchup_bytes",
    "connect_rate_per_address",
    "connect_timeout",
    "max_connect_packet",
    "max_connections",
    "max_connections_per_address",
    "max_half_open_per_address",
    "max_inflight",
    "max_packet",
    "max_retained",
    "max_retained_bytes",
    "max_sessions",
    "max_subscriptions",
    "max_topic_bytes",
    "max_topic_levels",
    "new_topics",
    "publish_bytes",
    "publish_rate",
    "receive_maximum",
    "reconnect_rate",
)


class Counters:
    """What the broker counts, all since its start; the event loop owns it and adds to the fields directly."""

    __slots__ = (
        "acl_denied",  # publishes acked or dropped for want of a right
        "bytes_received",  # on all connections, MQTT headers included
        "bytes_sent",
        "catchup_fallbacks",  # LIVE subscriptions that read too slowly and went back to the log
        "clients_connected",  # now
        "clients_disconnected",  # sessions without a connection, now
        "clients_expired",  # sessions ended by their expiry
        "clients_maximum",  # most connections at one time
        "connections",  # sockets accepted
        "connections_open",  # now, with those that have not sent their CONNECT
        "connects",  # answers to CONNECT, by result: "accepted", or the reason code's name in small letters
        "control_sent",  # control packets of every type but PUBLISH
        "dropped_slow",  # messages that no log holds, to a reader that could not take them then
        "dropped_too_large",  # for one reader, by its maximum packet size or the length of an addressed topic
        "dropped_unmatched",  # published to a topic that no entry takes
        "gap_messages",  # offsets that a subscriber was entitled to and that are gone
        "gap_notices_dropped",  # gaps that an MQTT 5 client could not be told of
        "limited",  # how often each limit bit, by its key in the configuration
        "live_switches",  # subscriptions that came from CATCHUP to LIVE
        "loads",
        "malformed_packets",  # connections closed for a protocol fault
        "messages_received",  # control packets of every type
        "offset_not_found",  # fetches of an offset that is not there, by MQTT or HTTP
        "publish_bytes_received",  # payloads of PUBLISH packets, as mosquitto counts them
        "publish_bytes_sent",
        "publish_received",
        "publish_sent",
        "retained",  # retained messages, now
        "shared_subscriptions",  # of those, to `$share/...`
        "stored_bytes",  # that the logs take on the disk, now
        "stored_messages",  # records that the logs hold, now
        "subscriptions",  # of all sessions, now
    )

    def __init__(self) -> None:
        self.acl_denied = 0
        self.bytes_received = 0
        self.bytes_sent = 0
        self.catchup_fallbacks = 0
        self.clients_connected = 0
        self.clients_disconnected = 0
        self.clients_expired = 0
        self.clients_maximum = 0
        self.connections = 0
        self.connections_open = 0
        self.connects = {"accepted": 0}
        self.control_sent = 0
        self.dropped_slow = 0
        self.dropped_too_large = 0
        self.dropped_unmatched = 0
        self.gap_messages = 0
        self.gap_notices_dropped = 0
        self.limited: dict[str, int] = dict.fromkeys(LIMITS, 0)
        self.live_switches = 0
        self.malformed_packets = 0
        self.messages_received = 0
        self.offset_not_found = 0
        self.publish_bytes_received = 0
        self.publish_bytes_sent = 0
        self.publish_received = 0
        self.publish_sent = 0
        self.retained = 0
        self.shared_subscriptions = 0
        self.stored_bytes = 0
        self.stored_messages = 0
        self.subscriptions = 0
        self.loads: dict[bytes, _Load] = {name: _Load() for name in LOADS}

    def connected(self, result: str) -> None:
        """Count an answer to CONNECT."""
        self.connects[result] = self.connects.get(result, 0) + 1

    @property
    def messages_sent(self) -> int:
        """Control packets of every type."""
        return self.control_sent + self.publish_sent

    @property
    def publish_dropped(self) -> int:
        """Messages that somebody should have got and did not, for whatever reason."""
        return self.dropped_slow + self.dropped_too_large + self.dropped_unmatched

    @property
    def clients_total(self) -> int:
        """Sessions known, with a connection or without."""
        return self.clients_connected + self.clients_disconnected


class _Load:
    """The load averages of one counter."""

    __slots__ = ("averages", "last_total", "updated")

    def __init__(self) -> None:
        self.averages = [0.0] * len(LOAD_MINUTES)
        self.last_total = 0
        self.updated: float | None = None  # monotonic seconds

    def update(self, total: int, now: float, since: float) -> None:
        """Bring the averages to `now`, the counter being at `total`; `since` is when counting began."""
        elapsed = now - (since if self.updated is None else self.updated)
        if elapsed <= 0:
            return
        rate_per_minute = (total - self.last_total) * 60.0 / elapsed
        for position, minutes in enumerate(LOAD_MINUTES):
            decay = math.exp(-elapsed / (minutes * 60.0))
            self.averages[position] = rate_per_minute + decay * (self.averages[position] - rate_per_minute)
        self.last_total = total
        self.updated = now


# Below `$SYS/broker/`. Exporters make metric names of these: letters, digits, `_`, `/` and spaces only. `active` and
# `inactive` are mosquitto's older words for connected and disconnected.
SYS_TOPICS: dict[bytes, Callable[[Counters], int]] = {
    b"clients/total": lambda counters: counters.clients_total,
    b"clients/maximum": lambda counters: counters.clients_maximum,
    b"clients/connected": lambda counters: counters.clients_connected,
    b"clients/active": lambda counters: counters.clients_connected,
    b"clients/disconnected": lambda counters: counters.clients_disconnected,
    b"clients/inactive": lambda counters: counters.clients_disconnected,
    b"clients/expired": lambda counters: counters.clients_expired,
    b"subscriptions/count": lambda counters: counters.subscriptions,
    b"shared_subscriptions/count": lambda counters: counters.shared_subscriptions,
    b"retained messages/count": lambda counters: counters.retained,
    b"messages/stored": lambda counters: counters.stored_messages,
    b"store/messages/count": lambda counters: counters.stored_messages,
    b"store/messages/bytes": lambda counters: counters.stored_bytes,
    b"messages/received": lambda counters: counters.messages_received,
    b"messages/sent": lambda counters: counters.messages_sent,
    b"publish/messages/dropped": lambda counters: counters.publish_dropped,
    b"publish/messages/received": lambda counters: counters.publish_received,
    b"publish/messages/sent": lambda counters: counters.publish_sent,
    b"publish/bytes/received": lambda counters: counters.publish_bytes_received,
    b"publish/bytes/sent": lambda counters: counters.publish_bytes_sent,
    b"bytes/received": lambda counters: counters.bytes_received,
    b"bytes/sent": lambda counters: counters.bytes_sent,
    b"connections/socket/count": lambda counters: counters.connections_open,
    b"heap/current": lambda _: _resident_bytes(),
    b"heap/maximum": lambda _: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    b"highway/connections/accepted": lambda counters: counters.connections,
    b"highway/connections/malformed": lambda counters: counters.malformed_packets,
    b"highway/publish/dropped/slow": lambda counters: counters.dropped_slow,
    b"highway/publish/dropped/too_large": lambda counters: counters.dropped_too_large,
    b"highway/publish/dropped/unmatched": lambda counters: counters.dropped_unmatched,
    b"highway/publish/denied": lambda counters: counters.acl_denied,
    b"highway/replay/live_switches": lambda counters: counters.live_switches,
    b"highway/replay/catchup_fallbacks": lambda counters: counters.catchup_fallbacks,
    b"highway/replay/offset_not_found": lambda counters: counters.offset_not_found,
    b"highway/replay/gap_messages": lambda counters: counters.gap_messages,
    b"highway/replay/gap_notices_dropped": lambda counters: counters.gap_notices_dropped,
}

LOAD_MINUTES = (1, 5, 15)
LOADS: dict[bytes, Callable[[Counters], int]] = {
    b"load/messages/received": lambda counters: counters.messages_received,
    b"load/messages/sent": lambda counters: counters.messages_sent,
    b"load/publish/dropped": lambda counters: counters.publish_dropped,
    b"load/publish/received": lambda counters: counters.publish_received,
    b"load/publish/sent": lambda counters: counters.publish_sent,
    b"load/bytes/received": lambda counters: counters.bytes_received,
    b"load/bytes/sent": lambda counters: counters.bytes_sent,
    b"load/sockets": lambda counters: counters.connections,
    b"load/connections": lambda counters: counters.connects["accepted"],
}


def _resident_bytes() -> int:
    """Memory that the process has in use: the interpreter does not tell its heap apart from the rest."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()


def sys_messages(counters: Counters, clock: Clock, since: float) -> list[tuple[bytes, bytes]]:
    """Return every `$SYS` topic name with its payload, and bring the load averages up to now.

    `since` is the clock's monotonic time at the broker's start. The caller keeps them as retained messages and sends
    on those that changed.
    """
    now = clock.monotonic()
    messages = [
        (PREFIX + b"version", b"highway version " + __version__.encode()),
        (PREFIX + b"uptime", b"%d seconds" % (now - since)),
    ]
    messages.extend((PREFIX + name, b"%d" % value(counters)) for name, value in SYS_TOPICS.items())
    for name, total in LOADS.items():
        load = counters.loads[name]
        load.update(total(counters), now, since)
        messages.extend(
            (PREFIX + name + b"/%dmin" % minutes, b"%.2f" % average)
            for minutes, average in zip(LOAD_MINUTES, load.averages, strict=True)
        )
    return messages
