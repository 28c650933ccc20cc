"""The fast path of messages that come alone: it is taken, and nobody can tell from anything that it was."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from highway.broker.connections.client import Client
from highway.broker.publishing.fast_path import MAX_HEADS
from highway.broker.publishing.routing import Target
from highway.server.connection import Connection, Connections
from highway.storage import Durability
from tests.broker.rig import RIGS, Rig
from tests.harness import packets, packets5

from .test_connection import Loop, SlowTransport, connections

if TYPE_CHECKING:
    from collections.abc import Callable

SAFE = ((b"#", "other", Durability.SAFE),)


def publish(payload: bytes = b"21.5", topic: str = "t", packet_id: int = 1) -> bytes:
    return packets.publish(topic, payload, qos=1, packet_id=packet_id)


def fast(connection: Connection, data: bytes) -> bool:
    """Whether the connection takes the chunk on the fast path, in a turn for itself."""
    path = connection.fast_path
    if path is None:
        return False
    gathering = connection._shared.broker.gathering
    gathering.begin()
    try:
        return path.take(connection.client, data)
    finally:
        gathering.end()


def stored(rig: Rig, name: str = "other") -> list[tuple[bytes, bytes, int]]:
    """(topic, payload, flags) of all messages of a log; the flags of a plain one are its QoS."""
    log = rig.storage.logs[name]
    found, offset = [], 0
    while (batch := log.read(offset)) is not None:  # all of it is in memory still
        found += [(topic, payload, flags) for _, flags, _, topic, _, payload in batch.records()]
        offset = batch.end_offset
    return found


@pytest.mark.parametrize(("speak", "answer"), [(packets, b"\x40\x02\0\x02"), (packets5, b"\x40\x03\0\x02\x10")])
def test_a_message_like_the_one_before_takes_it(tmp_path: Path, speak: object, answer: bytes) -> None:
    rig = Rig(tmp_path, SAFE)
    shared, ((connection, transport),) = connections(rig, 1, speak)
    message = speak.publish  # type: ignore[attr-defined]
    connection.data_received(message("t", b"1", qos=1, packet_id=1))
    shared.end_turn()
    rig.settle()
    transport.written = b""
    assert fast(connection, message("t", b"2", qos=1, packet_id=2))
    assert transport.written == b""  # SAFE: not before it is synced
    rig.settle()
    assert transport.written == answer
    assert stored(rig) == [(b"t", b"1", 1), (b"t", b"2", 1)]
    counters = rig.broker.counters
    assert (counters.publish_received, counters.publish_bytes_received) == (2, 2)


def test_at_qos_0_nothing_is_answered(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    shared, ((connection, transport),) = connections(rig, 1)
    connection.data_received(packets.publish("t", b"1"))
    shared.end_turn()
    rig.settle()
    assert fast(connection, packets.publish("t", b"2"))
    assert transport.written == b""
    assert stored(rig) == [(b"t", b"1", 0), (b"t", b"2", 0)]


class Other(NamedTuple):
    """What comes behind a message of topic `t`, four bytes of payload and QoS 1, and must not be taken for one like it."""

    name: str
    data: bytes


@pytest.mark.parametrize(
    "other",
    [
        Other("another topic", publish(topic="u")),
        Other("another size", publish(b"1")),
        Other("packet id 0", publish(packet_id=0)),
        Other("retained", packets.publish("t", b"21.5", qos=1, packet_id=1, retain=True)),
        Other("a repetition", packets.publish("t", b"21.5", qos=1, packet_id=1, dup=True)),
        Other("QoS 2", packets.publish("t", b"21.5", qos=2, packet_id=1)),
        Other("two", publish() * 2),
        Other("a part", publish()[:-1]),
        Other("more than one", publish() + packets.PINGREQ),
    ],
    ids=lambda other: other.name,
)
def test_what_is_in_any_way_different_does_not_take_it(tmp_path: Path, other: Other) -> None:
    rig = Rig(tmp_path)
    shared, ((connection, _),) = connections(rig, 1)
    connection.data_received(publish())
    shared.end_turn()
    rig.settle()
    assert not fast(connection, other.data)
    assert fast(connection, publish())


def test_properties_do_not_take_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    shared, ((connection, _),) = connections(rig, 1, packets5)
    plain = packets5.publish("t", bytes(9), qos=1, packet_id=1)
    connection.data_received(plain)
    shared.end_turn()
    rig.settle()
    other = packets5.publish("t", b"1234", qos=1, packet_id=1, message_expiry_interval=9)
    assert len(other) == len(plain)
    assert not fast(connection, other)
    assert fast(connection, plain)


def _rights(rig: Rig, _: Connections, connection: Connection) -> None:
    session = connection.client.session
    assert session is not None
    session.rights = rig.broker.lifecycle.rights_for(connection.client) or object()  # type: ignore[assignment]


def _subscriber(rig: Rig, _: Connections, __: Connection) -> None:
    rig.connect5("reader").subscribe(("t", packets5.option(1, no_local=True)))


def _half_a_packet(_: Rig, shared: Connections, connection: Connection) -> None:
    connection.data_received(publish()[:5])
    shared.end_turn()


def _does_not_read(_: Rig, __: Connections, connection: Connection) -> None:
    connection.pause_writing()


def _is_gone(_: Rig, __: Connections, connection: Connection) -> None:
    connection.close()


@pytest.mark.parametrize("change", [_rights, _subscriber, _half_a_packet, _does_not_read, _is_gone])
def test_what_was_known_holds_no_longer_than_what_it_hangs_on(tmp_path: Path, change: Callable[..., None]) -> None:
    rig = Rig(tmp_path)
    shared, ((connection, _),) = connections(rig, 1)
    connection.data_received(publish())
    shared.end_turn()
    rig.settle()
    assert fast(connection, publish())
    change(rig, shared, connection)
    assert not fast(connection, publish())


def test_who_is_told_offsets_does_not_take_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    shared, _ = connections(rig, 0)
    connection, transport = Connection(shared), SlowTransport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    connection.data_received(packets5.connect("c", user_property=[("ack-offsets", "1")]))
    rig.settle()
    for number in range(3):
        transport.written = b""
        connection.data_received(packets5.publish("t", b"1", qos=1, packet_id=1))
        shared.end_turn()
        rig.settle()
        assert str(number).encode() in transport.written


def test_what_is_retained_does_not_take_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    shared, ((connection, _),) = connections(rig, 1)
    for payload in (b"1", b"2", b"3"):
        data = packets.publish("t", payload, qos=1, packet_id=1, retain=True)
        connection.data_received(data)
        shared.end_turn()
        rig.settle()
        assert not fast(connection, data)
    (message,) = rig.connect("reader").send(packets.subscribe(1, ("t", 0))).messages()
    assert (message.payload, message.retain) == (b"3", True)


def test_what_somebody_may_not_want_from_itself_does_not_take_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.connect5("reader").subscribe(("t", packets5.option(1, no_local=True)))
    shared, ((connection, _),) = connections(rig, 1)
    for _ in range(3):
        connection.data_received(publish())
        shared.end_turn()
        rig.settle()
        assert not fast(connection, publish())


def test_who_is_judged_by_others_does_not_take_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    shared, ((connection, _),) = connections(rig, 1)
    session = connection.client.session
    assert session is not None
    session.rights = SimpleNamespace(has_judge=True, may=lambda *_: True)  # type: ignore[assignment]
    for _ in range(3):
        connection.data_received(publish())
        shared.end_turn()
        rig.settle()
        assert not fast(connection, publish())


@pytest.mark.parametrize("limit", ["publish_rate", "publish_bytes"])
def test_who_is_metered_is_looked_at_message_by_message(tmp_path: Path, limit: str) -> None:
    assert not Rig(tmp_path, **{limit: 1000}).broker.takes_fast()


def test_while_the_disk_takes_nothing_nobody_takes_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    assert rig.broker.takes_fast()
    rig.storage.close()
    assert not rig.broker.takes_fast()


def test_more_than_the_receive_maximum_is_refused_as_ever(tmp_path: Path) -> None:
    rig = Rig(tmp_path, SAFE, receive_maximum=2)
    shared, ((connection, transport),) = connections(rig, 1, packets5)
    message = packets5.publish("t", b"1", qos=1, packet_id=1)
    for _ in range(3):
        connection.data_received(message)
    shared.end_turn()
    assert transport.written == packets.packet(0xE0, b"\x93")


def test_a_device_of_many_sizes_does_not_fill_the_memory(tmp_path: Path) -> None:
    shared, ((connection, _),) = connections(Rig(tmp_path), 1)
    for size in range(3 * MAX_HEADS):
        connection.data_received(packets.publish("t", bytes(size % 100)))
        shared.end_turn()
    assert connection.fast_path is not None
    assert len(connection.fast_path._heads) <= MAX_HEADS


def _alive() -> int:
    return sum(type(thing) in (Client, Target) for thing in gc.get_objects())


def test_what_it_knows_keeps_nobody_alive(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    gc.collect()
    gc.disable()
    try:
        before = _alive()
        reader = rig.connect("reader").send(packets.subscribe(1, ("t", 0)))
        shared, ((connection, _),) = connections(rig, 1)
        connection.data_received(publish())
        shared.end_turn()
        rig.settle()
        assert fast(connection, publish())
        assert _alive() == before + 3
        reader.drop()
        del reader
        rig.settle()
        assert _alive() == before + 1
        connection.connection_lost(None)
        rig.settle()
        assert _alive() == before
    finally:
        gc.enable()


# The same bytes, with the fast path and without it.

TOPICS = ("t", "a/b", "$fetch/0/t", "x" * 300)
CHUNKS = st.one_of(
    st.builds(
        lambda topic, size, qos, packet_id: packets.publish(topic, b"p" * size, qos=qos, packet_id=packet_id),
        st.sampled_from(TOPICS[:2]),
        st.sampled_from([0, 4, 4, 4, 5, 200]),
        st.sampled_from([0, 1, 1, 1, 2]),
        st.sampled_from([1, 2, 3, 3, 3, 0]),
    ),
    st.builds(lambda topic: packets.publish(topic, b"21.5", qos=1, packet_id=7), st.sampled_from(TOPICS)),
    st.builds(
        lambda retain, dup: packets.publish("t", b"21.5", qos=1, packet_id=8, retain=retain, dup=dup),
        st.booleans(),
        st.booleans(),
    ),
    st.just(packets.publish("t", b"p" * 4, qos=1, packet_id=4) * 3),
    st.just(packets.subscribe(9, ("t", 1), ("a/#", 0))),
    st.just(packets.unsubscribe(9, "t")),
    st.just(packets.PINGREQ),
    st.just(packets.ack(0x62, 1)),
    st.just(packets.DISCONNECT),
)
CHUNKS5 = st.one_of(
    st.builds(
        lambda size, qos, packet_id: packets5.publish("t", b"p" * size, qos=qos, packet_id=packet_id),
        st.sampled_from([0, 4, 4, 4, 5]),
        st.sampled_from([0, 1, 1, 1, 2]),
        st.sampled_from([1, 2, 3, 3, 3, 0]),
    ),
    st.builds(
        lambda topic, alias: packets5.publish(topic, b"4444", qos=1, packet_id=5, topic_alias=alias),
        st.sampled_from(["t", "a/b", ""]),
        st.sampled_from([1, 2]),
    ),
    st.just(packets5.publish("t", b"4", qos=1, packet_id=6, message_expiry_interval=60)),
    st.just(packets5.subscribe(9, ("t", packets5.option(1, no_local=True)))),
    st.just(packets5.unsubscribe(9, "t")),
)
CLIENTS = 4  # two of 3.1.1, two of 5.0


@st.composite
def turns(draw: st.DrawFn) -> list[list[tuple[int, bytes]]]:
    """What is read in each turn: which client, and what; cut in two now and then."""
    found = []
    for _ in range(draw(st.integers(1, 8))):
        turn: list[tuple[int, bytes]] = []
        for _ in range(draw(st.integers(1, 6))):
            client = draw(st.integers(0, CLIENTS - 1))
            data = draw(CHUNKS if client < CLIENTS // 2 else CHUNKS5)
            cut = draw(st.sampled_from([0, 0, 0, 1, 3]))
            turn += [(client, part) for part in (data[:cut], data[cut:]) if part]
        found.append(turn)
    return found


def outcome(directory: Path, script: list[list[tuple[int, bytes]]], *, is_fast: bool) -> tuple[object, ...]:
    """All that anybody can see of what came of it: each client's bytes by turn, the log, the counters."""
    rig = Rig(directory, ((b"a/#", "safe", Durability.SAFE), (b"#", "other", Durability.FAST)))
    if not is_fast:
        rig.broker.takes_fast = lambda: False  # type: ignore[method-assign]
    shared = Connections(rig.broker, Loop(rig.clock))  # type: ignore[arg-type]
    found = []
    for number in range(CLIENTS):
        connection, transport = Connection(shared), SlowTransport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        connection.data_received((packets if number < CLIENTS // 2 else packets5).connect(f"c{number}"))
        rig.settle()
        found.append((connection, transport))
    seen = []
    for turn in script:
        for client, data in turn:
            if not found[client][1].closing:
                found[client][0].data_received(data)
        shared.end_turn()
        rig.settle()
        seen.append([transport.written for _, transport in found])
    counters = rig.broker.counters
    counts = [getattr(counters, name) for name in dir(counters) if isinstance(getattr(counters, name), int)]
    result = (seen, stored(rig, "safe"), stored(rig, "other"), counts)
    rig.dispose()
    RIGS.remove(rig)
    return result


@given(turns())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nobody_can_tell_the_difference(script: list[list[tuple[int, bytes]]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        fast_outcome = outcome(Path(name) / "fast", script, is_fast=True)
        assert fast_outcome == outcome(Path(name) / "slow", script, is_fast=False)
