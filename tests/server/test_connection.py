"""The thin layer over a transport, with a transport that only notes what it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from highway.server.connection import Connection, Connections
from tests.broker.rig import ManualScheduler, Rig
from tests.harness import packets, packets5

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Loop(ManualScheduler):
    def time(self) -> float:
        return self.clock.monotonic()

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Any:
        return self.call_later(when - self.time(), callback, *args)


class SlowTransport:
    """A peer that reads nothing: what was written before `close` is still to be sent, and so would be what follows."""

    def __init__(self) -> None:
        self.written = b""
        self.closing = False

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return "peer", 1

    def set_write_buffer_limits(self, *, high: int) -> None:
        assert high > 0

    def write(self, data: bytes) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close


def test_nothing_is_written_behind_the_disconnect(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    connection = Connection(Connections(rig.broker, Loop(rig.clock)))  # type: ignore[arg-type]
    transport = SlowTransport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.data_received(packets5.connect("c") + packets5.subscribe(1, ("t", 0)))
    transport.written = b""
    connection.data_received(b"\x00\x00")
    assert transport.written == packets.packet(0xE0, b"\x81")
    connection.write(b"late")
    assert transport.written == packets.packet(0xE0, b"\x81")


def test_a_fault_before_connack_is_answered_with_connack(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    connection = Connection(Connections(rig.broker, Loop(rig.clock)))  # type: ignore[arg-type]
    transport = SlowTransport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.data_received(packets5.connect("c", session_expiry_interval=60) + b"\x00\x00")
    rig.settle()
    ((first, body),) = packets.PacketSplitter().feed(transport.written)
    assert packets5.parse_connack(first, body).reason_code == 0x81
