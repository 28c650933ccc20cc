"""What the broker shows of a log: all of it up to now, or what it showed to somebody until it died."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Self

from tests.harness import packets
from tests.harness.log_reader import parse_log_topic
from tests.harness.raw_client import PUBLISH, RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from tests.harness.ledger import Stored

__all__ = ["Reading", "shown_to"]

READ_SECONDS = 30.0  # for the next record: a test machine may be busy

_serial = itertools.count()


class Reading:
    """What a log holds from an offset on, up to a record of our own that is published first: the mark.

    Iterate for the records. After that `mark` is the mark as it was read, and `gaps` what the broker said is gone.
    """

    def __init__(self, port: int, mode: str, start: int) -> None:
        self.mark: Stored | None = None
        self.gaps: list[tuple[int, int]] = []
        self._mode = mode
        self._payload = b"mark %d" % next(_serial)
        self._client = RawClient.connected(port, f"reader-{next(_serial)}")
        self._client.publish(f"{mode}/mark", self._payload)
        assert self._client.subscribe((f"$log/{start}/{mode}/#", 0)) == [0]

    def __iter__(self) -> Iterator[Stored]:
        while True:
            message = self._client.message(timeout=READ_SECONDS)
            if message.topic == f"$gap/{self._mode}":
                gap = json.loads(message.payload)
                self.gaps.append((gap["from"], gap["to"] + 1))
                continue
            record = parse_log_topic(message.topic, message.payload)
            if record.payload == self._payload:
                self.mark = record
                return
            yield record

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()


def shown_to(watcher: RawClient) -> list[Stored]:
    """All that a subscriber was shown before its connection ended."""
    shown = []
    for first_byte, body in watcher.expect_closed(within=10):
        if first_byte & 0xF0 == PUBLISH:
            message = packets.parse_publish(first_byte, body)
            if message.topic.startswith("$log/"):
                shown.append(parse_log_topic(message.topic, message.payload))
    return shown
