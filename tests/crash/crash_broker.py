"""Brokers that crash in their hundreds.

The campaigns start every tenth of them as a user does, by `python -m highway serve`, and the others out of a nursery;
all those starts count as recovery time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Self

from tests.harness.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CrashBroker"]


class CrashBroker(BrokerProcess):
    """A broker whose data may stand on another file system; it comes out of a nursery only if it is given one."""

    def __init__(self, directory: Path, *, data: Path | None = None, **settings: Any) -> None:
        super().__init__(directory)
        self.data = data or self.data
        self.nursery = None
        self.longest_start = 0.0  # seconds from the start of a process to `highway: ready`
        self.write_config(settings)

    def start(self) -> Self:
        started = time.monotonic()
        super().start()
        self.longest_start = max(self.longest_start, time.monotonic() - started)
        return self
