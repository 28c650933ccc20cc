"""Brokers that crash in their hundreds.

The campaigns start every tenth of them as a user does, by `python -m highway serve`, and the others out of a nursery;
all those starts count as recovery time.
"""

from __future__ import annotations

import time
from typing import Any, Self

from tests.harness.broker_process import BrokerProcess
from tests.harness.nursery import Nursery

__all__ = ["CrashBroker", "Nursery"]


class CrashBroker(BrokerProcess):
    """A broker whose data may stand on another file system, and which may come from the nursery."""

    def __init__(self, directory: Any, *, data: Any = None, nursery: Nursery | None = None, **settings: Any) -> None:
        super().__init__(directory)
        self.data = data or self.data
        self.nursery = nursery
        self.longest_start = 0.0  # seconds from the start of a process to `highway: ready`
        self.write_config(settings)

    def start(self) -> Self:
        started = time.monotonic()
        super().start()
        self.longest_start = max(self.longest_start, time.monotonic() - started)
        return self
