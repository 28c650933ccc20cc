"""Everything that a log holds, read back over MQTT with the offset of each record."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

from tests.harness.ledger import Stored
from tests.harness.raw_client import RawClient

__all__ = ["log_range", "parse_log_topic", "read_log"]

_serial = itertools.count()


def log_range(port: int, topic: str) -> dict[str, Any]:
    """The bounds of the topic's log, by `$range`."""
    with RawClient.connected(port, f"range-{next(_serial)}") as client:
        assert client.subscribe((f"$range/{topic}", 0)) == [0]
        answer: dict[str, Any] = json.loads(client.message().payload)
        return answer


def parse_log_topic(topic: str, payload: bytes) -> Stored:
    """A message under `$log/<offset>/<topic>` as the record it is."""
    root, offset, name = topic.split("/", 2)
    assert root == "$log", topic
    return Stored(int(offset), name, payload)


def read_log(port: int, topic_filter: str, *, start: str = "earliest", timeout: float = 60.0) -> list[Stored]:
    """Every record that the filter matches, from `start` up to now.

    A last record of our own, on the topic where the filter has `probe` for its wildcard, marks the end: what the log
    held before it has a lower offset. Such records are left out.
    """
    probe, mark = topic_filter.replace("#", "probe").replace("+", "probe"), b"end %d" % time.monotonic_ns()
    records: list[Stored] = []
    with RawClient.connected(port, f"reader-{next(_serial)}") as client:
        client.publish(probe, mark)
        assert client.subscribe((f"$log/{start}/{topic_filter}", 0)) == [0]
        deadline = time.monotonic() + timeout
        while True:
            message = client.message(timeout=max(0.001, deadline - time.monotonic()))
            if not message.topic.startswith("$log/"):
                continue  # a gap notice
            record = parse_log_topic(message.topic, message.payload)
            if record.topic != probe:
                records.append(record)
            elif record.payload == mark:
                return records
