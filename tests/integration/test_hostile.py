"""Hostile clients against the real broker: it lives, the others don't notice, and its memory stays where it was."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.harness import packets

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.broker_process import BrokerProcess
    from tests.harness.raw_client import RawClient

MIB = 1024 * 1024


def flood(client: RawClient, data: bytes, seconds: float) -> None:
    """Send as much as the broker takes in that time, and read nothing."""
    client.socket.settimeout(0.1)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            client.socket.send(data)


FLOODS: dict[str, Callable[[], bytes]] = {
    "PINGREQ": lambda: packets.PINGREQ * 50_000,
    "PUBREL": lambda: b"".join(packets.ack(0x62, number) for number in range(1, 20_000)),
    "PUBREC": lambda: b"".join(packets.ack(0x50, number) for number in range(1, 20_000)),
    "SUBSCRIBE": lambda: packets.subscribe(1, ("a", 0)) * 5000,
    "$fetch": lambda: packets.subscribe(1, ("$fetch/0/highway/big/telemetry", 0)) * 2000,
    "PUBLISH": lambda: packets.publish("highway/f/telemetry", bytes(900_000)),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_from_a_client_that_reads_nothing_harms_nobody_else(broker: BrokerProcess, kind: str) -> None:
    with broker.client("steady") as steady:
        steady.publish("highway/big/telemetry", bytes(900_000))
        before = broker.rss_bytes()
        worst = 0.0
        with broker.client("flooding") as flooding:
            thread = threading.Thread(target=flood, args=(flooding, FLOODS[kind](), 2.0))
            thread.start()
            while thread.is_alive():
                started = time.monotonic()
                steady.ping()
                worst = max(worst, time.monotonic() - started)
                thread.join(0.05)
        steady.ping()
    # One read holds 130,000 of the smallest packets: a second and more, were they all taken in one turn.
    assert worst < 3.0
    assert broker.rss_bytes() - before < 300 * MIB
    assert broker.lines("Traceback") == []


def test_clients_are_not_taken_for_silent_when_it_was_the_broker_that_slept(own_broker: BrokerProcess) -> None:
    with own_broker as broker:
        clients = [broker.client(f"c{number}", keep_alive=1) for number in range(5)]
        assert broker.process is not None
        os.kill(broker.process.pid, signal.SIGSTOP)
        try:
            for _ in range(4):
                time.sleep(0.6)  # the time of the test: a pause longer than one and a half times the keep alive
                for client in clients:
                    client.send(packets.PINGREQ)
        finally:
            os.kill(broker.process.pid, signal.SIGCONT)
        for client in clients:
            client.ping()
        assert broker.lines("silent for") == []
