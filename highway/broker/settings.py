"""What can be set about the broker: which topics go to which log, and the limits that it holds clients to.

The configuration layer fills these in and checks the ranges. Everything has a default, so that a test names only what
it is about.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .token_bucket import Rate

if TYPE_CHECKING:
    from .authorisation import AclRule

__all__ = ["BrokerSettings", "TopicEntry"]

_DAY_MS = 24 * 60 * 60 * 1000

# A client that comes back so often gains nothing by it, and each time costs a third of a millisecond and a line in the
# log: 300 in a minute is more than any that is only unlucky.
_RECONNECTS = Rate(300, 60)
_CONNECTS = Rate(60_000, 60)  # of one address, at a third of a millisecond each: a third of the core
# Each costs a look at every entry and subscription, 30 us with few of them: a gateway names its 200,000 at once, and
# one that makes up names for ever takes a tenth of the core.
_NEW_TOPICS = Rate(200_000, 60)


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """A topic filter and the log that takes what matches it; the first entry that matches a topic name decides."""

    topic_filter: bytes
    log: str
    delay_ms: int = 0  # subscribers see a message this long after its commit time
    per_topic: bool = False  # each topic has a log of its own, `<log>/<topic>`
    max_logs: int = 10_000  # of these; what comes to other topics then goes to the next entry that matches


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """How the broker as a whole behaves."""

    entries: tuple[TopicEntry, ...] = (TopicEntry(b"#", "other"),)
    unmatched_reject: bool = False  # True: a topic that no entry matches is refused; entries then has no catch-all
    anonymous: bool = True  # clients may connect without a user name
    acl: tuple[AclRule, ...] | None = None  # the first that matches decides, and none means no; None: all is allowed
    acl_denied_closes: bool = False  # a publish without a right closes a 3.1.1 connection, which can't be told
    max_connections: int = 10_000
    # As many as there are altogether: behind Docker's proxy, a NAT or a load balancer a whole fleet has one address.
    max_connections_per_address: int = 10_000
    # Enough for a fleet behind one address that comes back at once: a CONNECT follows its connection at once, too.
    max_half_open_per_address: int = 1000
    reconnect_rate: Rate | None = _RECONNECTS
    connect_rate_per_address: Rate | None = _CONNECTS
    max_packet_bytes: int = 1024 * 1024  # a whole control packet, fixed header included
    # Before the client is known. A CONNECT with a long password (a JWT) and a will of some kilobytes fits.
    max_connect_packet_bytes: int = 64 * 1024
    max_topic_bytes: int = 65_535  # all that the protocol can say
    max_topic_levels: int = 201  # mosquitto's limit; real topics have under 20
    # A disk takes what it takes, and publishers wait for it when it is behind: so there is no rate but where an
    # operator knows what is right for his devices.
    publish_rate: Rate | None = None
    publish_bytes: Rate | None = None
    new_topics: Rate | None = _NEW_TOPICS
    catchup_bytes: Rate | None = None  # those who catch up take turns, so that none is in the way of another
    connect_timeout_s: float = 10.0  # from accept to a complete CONNECT
    # Sent to one client at QoS > 0 and not yet acknowledged. With 100 a client that catches up waits for us, and we for
    # it, in turns: 1000 took it from 130,000 to 250,000 messages a second on a busy machine. MQTT 5 clients lower it.
    max_inflight: int = 1000
    # QoS 1 and 2 messages that an MQTT 5 client may have under way. Each is handed to the disk as it comes, so that
    # there is nothing to hold back, and the default is as many as there are packet ids.
    receive_maximum: int = 65_535
    max_keep_alive_s: int = 0  # MQTT 5 clients that ask for more, or for none, are given this; 0: what they ask for
    max_subscriptions: int = 10_000  # of one session
    # A retained message is held in memory twice and is in every checkpoint: half a gigabyte with both at their limit.
    max_retained: int = 250_000
    max_retained_bytes: int = 128 * 1024 * 1024
    max_sessions: int = 250_000  # a few kilobytes each while its client is away
    # A 3.1.1 client can't say how long its session should live, so the broker does. 90 days outlive the longest
    # retention of the shipped topics: a session must not forget its position while the messages are still there.
    # None: for ever.
    session_expiry_ms: int | None = 90 * _DAY_MS
    write_buffer_bytes: int = 256 * 1024  # unsent bytes above which a subscriber reads from the log instead
    sys_interval_s: float = 10.0  # between two rounds of $SYS, as mosquitto's default
    is_metered: bool = field(init=False)  # whether what clients send is counted against a rate

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_metered", self.publish_rate is not None or self.publish_bytes is not None)
