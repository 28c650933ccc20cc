"""What needs attention, and what the sampler makes of the growth of the logs, on a broker without sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from highway.server.condition import BridgeLag, Condition
from highway.server.http.attention import attention
from highway.server.http.sampler import Sampler
from tests.broker.rig import RIGS, Rig

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from highway.broker import Broker

DAY_S = 86_400.0


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    RIGS.remove(rig)
    rig.dispose()


def kinds(broker: Broker, condition: Condition | None = None, days_left: float | None = None) -> list[tuple[str, str]]:
    return [(item["level"], item["kind"]) for item in attention(broker, condition or Condition(), days_left)]


def test_nothing_when_all_is_well(rig: Rig) -> None:
    assert kinds(rig.broker) == []


@pytest.mark.parametrize(("days", "expected"), [(None, []), (4.0, []), (2.9, [("warning", "disk")])])
def test_a_disk_that_is_full_soon(rig: Rig, days: float | None, expected: list[tuple[str, str]]) -> None:
    assert kinds(rig.broker, days_left=days) == expected


@pytest.mark.parametrize(
    ("days", "expected"), [(30, []), (13.5, [("warning", "certificate")]), (-1, [("error", "certificate")])]
)
def test_a_certificate_that_ends(rig: Rig, days: float, expected: list[tuple[str, str]]) -> None:
    end = rig.broker.clock.now_ms() / 1000 + days * DAY_S
    assert kinds(rig.broker, Condition(lambda: {"secure": end})) == expected


def test_a_certificate_that_is_not_valid_yet(rig: Rig) -> None:
    assert kinds(rig.broker, Condition(lambda: {"secure": 0.0})) == [("warning", "certificate")]


def test_a_failed_reload_until_the_next_good_one(rig: Rig) -> None:
    condition = Condition()
    condition.reload_failed("c.yaml:1:1: no", rig.broker.clock.now_ms())
    (item,) = attention(rig.broker, condition, None)
    assert (item["kind"], item["level"]) == ("reload", "error")
    assert "c.yaml:1:1: no" in item["text"]
    condition.reloaded()
    assert kinds(rig.broker, condition) == []


@pytest.mark.parametrize(("seconds", "expected"), [(5.0, []), (600.0, [("warning", "bridge")])])
def test_a_bridge_that_lags(rig: Rig, seconds: float, expected: list[tuple[str, str]]) -> None:
    condition = Condition()
    condition.bridges = lambda: [BridgeLag("up", 1200, seconds, connected=False)]
    assert kinds(rig.broker, condition) == expected


def test_a_client_that_acknowledges_nothing(rig: Rig) -> None:
    stuck = rig.connect("stuck")
    session = rig.broker.sessions["stuck"]
    session.window_full_since_ms = rig.broker.clock.now_ms()
    assert kinds(rig.broker) == []
    rig.clock.advance(61)
    assert kinds(rig.broker) == [("warning", "stuck")]
    stuck.drop()


def test_errors_come_first(rig: Rig) -> None:
    condition = Condition()
    condition.reload_failed("no", 0)
    rig.broker.counters.gap_messages = 7
    assert kinds(rig.broker, condition, 1.0) == [("error", "reload"), ("warning", "disk"), ("warning", "missed")]


class Inline:
    """As much of an event loop as the sampler uses; it has no threads."""

    def __init__(self, rig: Rig) -> None:
        self.call_later = rig.scheduler.call_later

    def run_in_executor(self, _: None, work: Callable[..., object], *args: object) -> None:
        work(*args)


def look(sampler: Sampler, rig: Rig, bytes_each: list[int]) -> None:
    """One look at the disk for each size that the logs have, ten seconds apart."""
    for size in bytes_each:
        sampler._disk.append((rig.clock.monotonic(), size))
        rig.clock.advance(10)


def test_days_left_by_the_growth_of_the_logs(rig: Rig) -> None:
    sampler = Sampler(rig.broker, Condition(), cast("asyncio.AbstractEventLoop", Inline(rig)))
    sampler.start()
    assert sampler.free_bytes > 0
    look(sampler, rig, [0, 1000])
    assert (sampler.growth, sampler.days_left) == (None, None), "too short to say"
    look(sampler, rig, [n * 1000 for n in range(2, 9)])
    assert sampler.growth == pytest.approx(100, rel=0.15)
    sampler.free_bytes = int(100 * DAY_S * 20)
    assert sampler.days_left == pytest.approx(20, rel=0.2)
    sampler._disk.clear()
    look(sampler, rig, [1000] * 10)
    assert (sampler.growth, sampler.days_left) == (0.0, None), "not filling"
    sampler.close()
