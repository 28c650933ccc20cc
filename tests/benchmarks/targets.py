"""What Highway is to reach: a ratio of medians of one run, or a figure of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RATIO_COLUMNS", "TARGETS", "Target", "ratio"]

RESUME = "resume, 100,000 missed, QoS {}"


class Target(NamedTuple):
    """`mode` of Highway against `peer` in `row`: at least `wanted`, or at most where less is better."""

    group: str
    row: str
    mode: str
    peer: str  # "" for a figure of its own
    wanted: float
    at_most: bool = False

    def __str__(self) -> str:
        against = f" / {self.peer}" if self.peer else ""
        return f"{self.group}: {self.row}, {self.mode}{against}"


_BASE = "QoS 1, 8 x window 100"
TARGETS = [
    *(
        Target("ingest", _BASE, mode, "mosquitto", wanted)
        for mode, wanted in (("FAST", 5), ("BALANCED", 5), ("SAFE", 4))
    ),
    Target("ingest", "QoS 1, 50 x window 20, 50 topics", "SAFE", "mosquitto", 3),
    Target("ingest", "QoS 1, 200 x window 1", "SAFE", "mosquitto", 1),
    Target("ingest", "QoS 1, 8 x window 1", "FAST", "mosquitto", 0.8),
    Target("ingest", "QoS 0, 8 x window 100", "FAST", "mosquitto", 1.5),
    Target("fan-out", "2 to 10, QoS 0", "FAST", "mosquitto", 20),
    Target("fan-out", "2 to 100, QoS 0", "FAST", "mosquitto", 30),
    Target("latency, one in flight", "p50", "FAST", "mosquitto", 1.5, at_most=True),
    Target("catching up", RESUME.format(1), "FAST", "mosquitto", 2),
    Target("catching up", RESUME.format(0), "FAST", "mosquitto", 4),
    Target("ingest", _BASE, "BALANCED", "nats", 2),
    Target("ingest", _BASE, "SAFE", "nats always", 40),
    Target("fan-out", "2 to 10, QoS 0", "FAST", "nats", 1.5),
    Target("catching up", RESUME.format(1), "FAST", "nats", 1.1),
    *(
        Target(group, row, "SAFE" if group == "ingest" else "FAST", peer, 10)
        for peer in ("RabbitMQ", "amqtt")
        for group, row in (("ingest", _BASE), ("fan-out", "2 to 10, QoS 0"), ("catching up", RESUME.format(1)))
    ),
    Target("costs", "idle connection, KiB", "FAST", "", 10.24, at_most=True),
    Target("costs", "processor with all idle, %", "FAST", "", 1, at_most=True),
    Target("costs", "restart after kill -9, s", "SAFE", "", 5, at_most=True),
    Target("costs", "disk, bytes a message", "BALANCED", "", 30, at_most=True),
]

# Which mode is held against whom: what an acknowledgement means comes closest there.
RATIO_COLUMNS = [
    ("FAST", "mosquitto"),
    ("BALANCED", "mosquitto"),
    ("SAFE", "mosquitto"),
    ("BALANCED", "nats"),
    ("SAFE", "nats always"),
    ("SAFE", "RabbitMQ"),
    ("SAFE", "amqtt"),
]


def ratio(figures: Mapping[str, float], mode: str, peer: str) -> float | None:
    """Highway's figure over the other's; None where one is missing."""
    ours, theirs = figures.get(f"Highway {mode}"), figures.get(peer) if peer else 1.0
    return ours / theirs if ours is not None and theirs else None
