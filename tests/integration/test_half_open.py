"""Ten thousand connections that say nothing, and some that say too much: real clients get in all the same."""

from __future__ import annotations

import contextlib
import errno
import resource
import select
import socket
import time
from typing import TYPE_CHECKING

import pytest

from tests.harness import packets
from tests.harness.broker_process import BrokerProcess
from tests.harness.raw_client import RawClient

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1024 * 1024
CONNECT_TIMEOUT_S = 6.0


@pytest.fixture
def count() -> Iterator[int]:
    """How many connections there may be from here, with the limit on open files raised as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield min(10_000, hard - 500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def crowd(count: int) -> Iterator[list[socket.socket]]:
    """Sockets that are not connected yet; each has one of four addresses of this machine."""
    with contextlib.ExitStack() as stack:
        sockets = []
        for number in range(count):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # no TIME_WAIT is left
            sock.bind((f"127.0.0.{2 + number % 4}", 0))
            sock.setblocking(False)
            sockets.append(sock)
        yield sockets


def connect(sockets: list[socket.socket], port: int) -> None:
    for sock in sockets:
        assert sock.connect_ex(("127.0.0.1", port)) in (0, errno.EINPROGRESS)


def closed(sockets: list[socket.socket]) -> int:
    """How many of them the broker has closed."""
    poller = select.poll()
    for sock in sockets:
        poller.register(sock, select.POLLIN)
    return len(poller.poll(0))


def test_ten_thousand_half_open_connections_keep_nobody_out(crowd: list[socket.socket], tmp_path) -> None:
    limits = {"connect_timeout": f"{CONNECT_TIMEOUT_S:g}s", "max_connections": len(crowd)}
    with BrokerProcess(tmp_path, limits=limits) as broker, broker.client("steady") as steady:
        before = broker.rss_bytes()
        begin = time.monotonic()
        connect(crowd, broker.port)
        steady.ping()
        with RawClient(broker.port) as greedy:
            greedy.send("10ffffff7f" + "00044d51545404020000")  # 256 MiB, it says
            greedy.expect_closed(within=5.0)
        worst, good = 0.0, []
        for number in range(50):
            started = time.monotonic()
            good.append(RawClient.connected(broker.port, f"good-{number}"))
            steady.ping()
            worst = max(worst, time.monotonic() - started)
        during = broker.rss_bytes()
        deadline = begin + CONNECT_TIMEOUT_S + 10
        while (gone := closed(crowd)) < len(crowd):
            assert time.monotonic() < deadline, f"{len(crowd) - gone} are still open"
            started = time.monotonic()
            steady.ping()
            worst = max(worst, time.monotonic() - started)
            time.sleep(0.05)  # between two measurements: each takes something from the broker that is measured
        took = time.monotonic() - begin
        for client in good:
            client.ping()
        figures = (
            f"{len(crowd)} half open: closed after {took:.1f} s, the slowest client waited {worst * 1000:.0f} ms, "
            f"RSS {before / MIB:.0f} -> {during / MIB:.0f} -> {broker.rss_bytes() / MIB:.0f} MiB"
        )
        print(figures)  # noqa: T201  shown with -s
        assert worst < CONNECT_TIMEOUT_S / 2, figures
        assert during - before < 150 * MIB, figures
        assert broker.lines("Traceback|Exception") == []


def test_strangers_that_send_all_but_the_end_hold_little(crowd: list[socket.socket], tmp_path) -> None:
    """Each has sent 60 KB of a CONNECT of 64: without a limit on all of them it would be 120 MB."""
    whole = packets.connect("c", will=("w", bytes(60_000), 0, False))
    greedy = crowd[:2000]
    with BrokerProcess(tmp_path, limits={"connect_timeout": "30s"}) as broker, broker.client("steady") as steady:
        before = broker.rss_bytes()
        connect(greedy, broker.port)
        for sock in greedy:
            sock.setblocking(True)
            with contextlib.suppress(OSError):
                sock.sendall(whole[:-1])
            steady.ping()
        assert broker.rss_bytes() - before < 110 * MIB
        assert closed(greedy) > 800
        with contextlib.suppress(OSError):
            greedy[-1].sendall(whole[-1:])  # the latest is still there
        assert greedy[-1].recv(4) == b"\x20\x02\0\0"
        broker.client("real").ping()
