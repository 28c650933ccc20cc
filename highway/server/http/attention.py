"""What an operator should look at, worst first; empty when all is well.

Each item is a plain dict: `level` (error or warning), `kind` (a fixed word), `text` (a sentence), and where it concerns
one, `log`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from highway.broker import Broker
    from highway.server.condition import Condition

__all__ = ["CERTIFICATE_WARNING_S", "DISK_WARNING_DAYS", "attention"]

_DAY_S = 86_400.0
CERTIFICATE_WARNING_S = 14 * _DAY_S
DISK_WARNING_DAYS = 3.0
BRIDGE_LAG_S = 60.0  # a bridge that sends in turns is behind for some seconds, always
WINDOW_FULL_S = 60.0  # a client that acknowledges nothing for so long is not slow but stuck
_MAX_STUCK = 3  # by name; more of them are one line

ERROR, WARNING = "error", "warning"
# Gaps that mean lost messages. Retention does what it was told, and after an unclean stop offsets are skipped unused.
_LOST = "corruption"


def attention(broker: Broker, condition: Condition, days_left: float | None) -> list[dict[str, Any]]:
    """Every item, errors first. `days_left`: until the disk is full, None where it isn't filling."""
    items = [*_disk(broker, days_left), *_damage(broker), *_outside(broker, condition), *_readers(broker)]
    return sorted(items, key=lambda item: item["level"] != ERROR)


def _item(level: str, kind: str, text: str, **members: Any) -> dict[str, Any]:
    return {"level": level, "kind": kind, "text": text, **members}


def _disk(broker: Broker, days_left: float | None) -> Iterator[dict[str, Any]]:
    storage = broker.storage
    if not storage.writable:
        yield _item(ERROR, "read-only", f"No message is accepted: {storage.fault}")
    if days_left is not None and days_left < DISK_WARNING_DAYS:
        yield _item(WARNING, "disk", f"The disk is full in {days_left:.1f} days if logs grow on like this")


def _damage(broker: Broker) -> Iterator[dict[str, Any]]:
    for feed in broker.feeds.values():
        log = feed.log
        for gap in log.gaps:
            if gap.reason == _LOST:
                count = gap.to_offset - gap.from_offset
                lost = f"{count:,} messages are" if count > 1 else "1 message is"
                text = f"Log {log.name}: {lost} damaged, offsets {gap.from_offset} to {gap.to_offset - 1}"
                yield _item(ERROR, "damaged", text, log=log.name, when_ms=gap.when_ms)


def _outside(broker: Broker, condition: Condition) -> Iterator[dict[str, Any]]:
    now_ms = broker.clock.now_ms()
    if condition.reload_error is not None:
        text = f"The last reload failed, and the configuration before it is in force: {condition.reload_error}"
        yield _item(ERROR, "reload", text, when_ms=condition.reload_failed_ms)
    for listener, end in condition.certificates().items():
        left = end - now_ms / 1000
        if not end:
            text = f"The certificate of listener {listener} is not valid yet: is the clock right?"
            yield _item(WARNING, "certificate", text)
        elif left < 0:
            yield _item(ERROR, "certificate", f"The certificate of listener {listener} has expired")
        elif left < CERTIFICATE_WARNING_S:
            days = left / _DAY_S
            yield _item(WARNING, "certificate", f"The certificate of listener {listener} expires in {days:.0f} days")
    for bridge in condition.bridges():
        if bridge.seconds > BRIDGE_LAG_S:
            state = "" if bridge.connected else ", and not connected"
            text = f"Bridge {bridge.name} is {bridge.records:,} messages ({bridge.seconds:.0f} s) behind{state}"
            yield _item(WARNING, "bridge", text)


def _readers(broker: Broker) -> Iterator[dict[str, Any]]:
    counters = broker.counters
    if counters.gap_messages:
        text = f"Subscribers met {counters.gap_messages:,} messages that were gone before they read them"
        yield _item(WARNING, "missed", text)
    limit = broker.clock.now_ms() - WINDOW_FULL_S * 1000
    stuck = [
        client_id
        for client_id, client in broker.clients.items()
        if client.session is not None and (client.session.window_full_since_ms or limit) < limit
    ]
    for client_id in stuck[:_MAX_STUCK]:
        yield _item(WARNING, "stuck", f"Client {client_id} has acknowledged nothing for more than a minute")
    if len(stuck) > _MAX_STUCK:
        yield _item(WARNING, "stuck", f"{len(stuck) - _MAX_STUCK} more clients acknowledge nothing")
