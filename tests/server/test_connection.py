"""The thin layer over a transport, with a transport that only notes what it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from highway.broker.connections.client import Client
from highway.broker.token_bucket import Rate
from highway.server.connection import TURN_BYTES, Connection, Connections
from tests.broker.rig import ManualScheduler, Rig
from tests.harness import packets, packets5

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


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
        self.reading = True

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

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


def test_nothing_is_written_behind_the_disconnect(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    shared = Connections(rig.broker, Loop(rig.clock))  # type: ignore[arg-type]
    connection = Connection(shared)
    transport = SlowTransport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.data_received(packets5.connect("c") + packets5.subscribe(1, ("t", 0)))
    transport.written = b""
    connection.data_received(b"\x00\x00")
    shared.end_turn()
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


def connected(rig: Rig, keep_alive: int = 60) -> tuple[Connection, SlowTransport, Loop]:
    loop = Loop(rig.clock)
    connection = Connection(Connections(rig.broker, loop))  # type: ignore[arg-type]
    transport = SlowTransport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.data_received(packets.connect("c", keep_alive=keep_alive))
    return connection, transport, loop


def test_who_does_not_read_the_answers_is_not_asked_for_more_requests(tmp_path: Path) -> None:
    connection, transport, loop = connected(Rig(tmp_path, write_buffer_bytes=100))
    transport.written = bytes(399)
    connection.pause_writing()
    connection.data_received(packets.PINGREQ)
    loop.run()
    assert not transport.reading
    transport.written = b""
    connection.resume_writing()
    assert transport.reading


def test_a_flood_of_small_packets_is_taken_in_parts(tmp_path: Path) -> None:
    connection, transport, loop = connected(Rig(tmp_path))
    transport.written = b""
    connection.data_received(packets.PINGREQ * 5000)
    connection.eof_received()  # the turn is over
    assert (len(transport.written), transport.reading) == (2 * 1024, False)
    loop.run()
    assert (len(transport.written), transport.reading) == (2 * 5000, True)
    connection.data_received(packets.PINGREQ * 5000)
    connection.close()
    loop.run()
    assert len(transport.written) == 2 * 6024


def test_what_a_flood_ends_with_counts_when_its_peer_is_gone_at_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    shared, _ = connections(rig, 0)
    connection = Connection(shared)
    connection.connection_made(SlowTransport())  # type: ignore[arg-type]
    connection.data_received(packets.connect("c", will=("gone", b"", 0, False)))
    rig.settle()
    flood = (packets.publish("a", b"1") + packets.publish("b", b"2")) * 1500
    connection.data_received(flood + packets.DISCONNECT)
    connection.connection_lost(None)
    assert shared.loop.run()  # type: ignore[attr-defined]
    assert rig.storage.logs["other"].log_end_offset == 3000  # all, and no will
    assert not rig.broker.clients


def test_a_flood_is_paid_for_although_its_peer_is_gone_at_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path, publish_rate=Rate(100, 1))
    shared, ((connection, _),) = connections(rig, 1)
    connection.data_received((packets.publish("a", b"1") + packets.publish("b", b"2")) * 1500)
    connection.connection_lost(None)
    assert shared.loop.run()  # type: ignore[attr-defined]
    owed_s, limit = shared.accounts.charge("c0", 1, 0, 0, rig.clock.monotonic())
    assert (owed_s, limit) == (29.01, "publish_rate")  # 3,001 messages at 100 a second, less the first 100


def test_a_client_is_heard_before_it_is_called_silent(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    connection, transport, loop = connected(rig, keep_alive=10)
    rig.clock.advance(100.0)  # nothing ran for so long
    loop.run()
    connection.data_received(packets.PINGREQ)
    rig.clock.advance(0.2)
    loop.run()
    assert not transport.closing
    rig.clock.advance(15.1)
    loop.run()
    rig.clock.advance(0.2)
    loop.run()
    assert transport.closing


def test_what_was_read_by_now_keeps_a_client_alive(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    connection, transport, loop = connected(rig, keep_alive=10)
    rig.clock.advance(15.1)
    loop.run()
    rig.clock.advance(0.2)
    connection.data_received(packets.PINGREQ)
    connection._check_keep_alive()  # the timer that is due in the same turn
    assert not transport.closing
    assert transport.written.endswith(b"\xd0\0")


def test_a_client_that_we_do_not_read_from_is_not_silent(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    connection, transport, loop = connected(rig, keep_alive=10)
    connection.pause_reading()
    for _ in range(5):
        rig.clock.advance(16.0)
        loop.run()
    assert not transport.closing
    connection.resume_reading()
    for _ in range(3):
        rig.clock.advance(16.0)
        loop.run()
    assert transport.closing


def connections(
    rig: Rig, count: int, speak: Any = packets
) -> tuple[Connections, list[tuple[Connection, SlowTransport]]]:
    """Connected clients of one loop."""
    shared = Connections(rig.broker, Loop(rig.clock))  # type: ignore[arg-type]
    found = []
    for number in range(count):
        connection, transport = Connection(shared), SlowTransport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        connection.data_received(speak.connect(f"c{number}"))
        rig.settle()
        transport.written = b""
        found.append((connection, transport))
    return shared, found


def test_a_fault_that_one_peer_brings_out_ends_its_connection_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shared, ((bad, bad_transport), *others) = connections(Rig(tmp_path), 3)
    handle = Client.handle
    monkeypatch.setattr(Client, "handle", lambda self, events: 1 / (self is not bad.client) and handle(self, events))
    for connection in (others[0][0], bad, others[1][0]):
        connection.data_received(packets.PINGREQ)
    shared.end_turn()
    assert [transport.written for _, transport in others] == [b"\xd0\0"] * 2
    assert bad_transport.closing
    assert "can't be served" in caplog.text


def test_what_came_before_the_end_of_a_connection_counts(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    _, ((gone, _), (closed, _), (failed, _)) = connections(rig, 3)
    for connection, end in (
        (gone, lambda: gone.connection_lost(None)),
        (closed, closed.close),
        (failed, lambda: failed.fail("it broke the rules")),
    ):
        connection.data_received(packets.publish("t", b"last"))
        end()
    assert rig.storage.logs["other"].log_end_offset == 3


def test_much_that_was_read_does_not_wait_for_the_end_of_the_turn(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    _, ((connection, _),) = connections(rig, 1)
    connection.data_received(packets.publish("t", bytes(TURN_BYTES)))
    assert rig.storage.logs["other"].log_end_offset == 1


def test_the_disconnect_is_the_last_thing_that_a_client_is_sent(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    shared, _ = connections(rig, 0)
    old, transport = Connection(shared), SlowTransport()
    old.connection_made(transport)  # type: ignore[arg-type]
    old.data_received(packets5.connect("c"))
    transport.written = b""
    old.data_received(packets.PINGREQ)  # read, and not handled yet
    new = Connection(shared)
    new.connection_made(SlowTransport())  # type: ignore[arg-type]
    new.data_received(packets5.connect("c"))
    assert transport.written == b"\xd0\0" + packets.packet(0xE0, b"\x8e")


def test_what_is_due_by_then_comes_before_the_end(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    shared, ((connection, transport),) = connections(rig, 1, packets5)
    for _ in range(2):  # a log takes offsets for itself with its first message, which waits for that
        connection.data_received(packets5.publish("t", b"1", qos=1, packet_id=1))
        shared.end_turn()
        rig.settle()
    transport.written = b""
    connection.data_received(packets5.publish("t", b"1", qos=1, packet_id=2) + b"\0\0")
    shared.end_turn()
    assert transport.written == b"\x40\x03\0\x02\x10" + packets.packet(0xE0, b"\x81")


def test_whoever_ends_a_connection_hears_it_out_first(tmp_path: Path) -> None:
    _, ((connection, transport),) = connections(Rig(tmp_path), 1, packets5)
    connection.data_received(packets.PINGREQ)
    connection.end()
    assert transport.written == b"\xd0\0" + packets.packet(0xE0, b"\x98")


def test_a_newcomer_comes_behind_what_was_read_before(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    shared, ((connection, _),) = connections(rig, 1)
    connection.data_received(packets.publish("t", b"1"))
    new = Connection(shared)
    new.connection_made(SlowTransport())  # type: ignore[arg-type]
    new.data_received(packets.connect("new") + packets.publish("t", b"2"))
    rig.settle()
    reader = rig.connect("reader").send(packets.subscribe(1, ("$replay/earliest/#", 0)))
    assert [message.payload for message in reader.messages()] == [b"1", b"2"]
