"""Doors inside this process, under uvloop and under asyncio's own loop: addresses, limits, and new certificates."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from highway.broker import Broker, BrokerSettings
from highway.clock import SystemClock
from highway.config import Listener, TlsSettings
from highway.config.digests import digest_of
from highway.errors import CertificateError, HighwayError
from highway.server import connection
from highway.server.connection import Connections
from highway.server.listening import Door, open_door
from highway.server.tls import TlsContexts
from highway.storage import LogSettings, Storage, StorageSettings
from tests.harness.raw_client import RawClient
from tests.harness.web_socket import CLOSE, WebSocket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from pathlib import Path

    from tests.harness.certificates import Authority

LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    """Runs a coroutine to its end, on each kind of loop."""

    def run(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(test)

    return run


@contextlib.asynccontextmanager
async def serving(
    directory: Path, listeners: list[Listener], **settings: Any
) -> AsyncIterator[tuple[list[Door], Connections, TlsContexts]]:
    """A broker behind these listeners."""
    loop = asyncio.get_running_loop()
    clock = SystemClock()
    small = StorageSettings(journal_file_bytes=1024 * 1024)
    storage = Storage.open(directory / "data", [LogSettings("other")], scheduler=loop, clock=clock, settings=small)
    broker = Broker(BrokerSettings(**settings), storage, loop, clock)
    connections = Connections(broker, loop)
    contexts = TlsContexts(listeners)
    doors: list[Door] = []
    try:
        for listener in listeners:
            doors.append(await open_door(listener, connections, contexts))  # noqa: PERF401  those before it are closed
        yield doors, connections, contexts
    finally:
        for door in doors:
            door.close()
        broker.close()
        for left in connections.open:
            left._transport.abort()
        await until(lambda: not connections.open)  # a loop that is closed above open transports complains of them
        storage.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  what is waited for has no event
            await asyncio.sleep(0.01)


def logged_in(port: int, context: ssl.SSLContext | None = None, name: str = "x") -> RawClient:
    client = RawClient(port, tls=context)
    client.login(name)
    return client


def serial(client: RawClient) -> str:
    """The serial number of the certificate that the client was shown."""
    assert isinstance(client.socket, ssl.SSLSocket)
    shown = client.socket.getpeercert()
    assert shown is not None
    return str(shown["serialNumber"])


in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread


def test_certificates_are_exchanged_and_nobody_notices(
    run: Callable[..., None], tmp_path: Path, authority: Authority, trusting: ssl.SSLContext
) -> None:
    certificate = authority.server("renewed")
    listener = Listener("secure", "127.0.0.1", 0, TlsSettings(certificate.certfile, certificate.keyfile))

    async def test() -> None:
        async with serving(tmp_path, [listener]) as ([door], _, contexts):
            first = await in_thread(logged_in, door.port, trusting, "first")
            certificate.write(authority.issue())
            same = await in_thread(logged_in, door.port, trusting, "same")
            assert serial(same) == serial(first)
            await contexts.change([listener])
            second = await in_thread(logged_in, door.port, trusting, "second")
            assert serial(second) != serial(first)
            certificate.keyfile.write_text("half a ke")
            with pytest.raises(CertificateError, match="holds no private key in PEM form"):
                await contexts.change([listener])
            third = await in_thread(logged_in, door.port, trusting, "third")
            assert serial(third) == serial(second)
            for client in (first, same, second, third):
                await in_thread(client.ping)

    run(test())


def test_a_context_is_made_anew_only_where_the_files_hold_something_else(
    run: Callable[..., None], tmp_path: Path, authority: Authority
) -> None:
    one, two = authority.server("one"), authority.server("two")

    def listeners(*named: Any) -> list[Listener]:
        settings = [(name, TlsSettings(files.certfile, files.keyfile)) for name, files in named]
        return [
            Listener(name, "127.0.0.1", 0, dataclasses.replace(tls, digest=digest_of(tls.files)))
            for name, tls in settings
        ]

    async def test() -> None:
        both = listeners(("a", one), ("b", two))
        contexts = TlsContexts(both)
        a, b = contexts["a"], contexts["b"]
        await contexts.change(both)
        assert (contexts["a"], contexts["b"]) == (a, b)
        two.write(authority.issue())
        take_back = await contexts.change(listeners(("a", one), ("b", two)))
        assert contexts["a"] is a
        assert contexts["b"] is not b
        take_back()
        assert contexts["b"] is b
        # Files that change between the reading of the configuration and that of the certificates are read once more.
        read = listeners(("a", one), ("b", two))
        two.write(authority.issue())
        await contexts.change(read)
        early = contexts["b"]
        await contexts.change(read)
        assert contexts["b"] is not early
        two.keyfile.write_text("half a ke")
        with pytest.raises(CertificateError):
            await contexts.change(listeners(("a", one), ("b", two)))
        assert contexts["a"] is a
        await contexts.change(listeners(("a", one)))
        assert list(contexts.ends) == ["a"]
        assert contexts["a"] is a

    run(test())


@pytest.mark.parametrize("secure", [False, True])
def test_limit_of_connections(
    run: Callable[..., None], tmp_path: Path, authority: Authority, trusting: ssl.SSLContext, *, secure: bool
) -> None:
    certificate = authority.server()
    tls = TlsSettings(certificate.certfile, certificate.keyfile) if secure else None
    context = trusting if secure else None
    listener = Listener("secure", "127.0.0.1", 0, tls)

    async def test() -> None:
        async with serving(tmp_path, [listener], max_connections=2) as ([door], connections, _):
            first = await in_thread(logged_in, door.port, context, "first")
            silent = RawClient(door.port)  # takes a place, which it has to give to who says something
            await until(lambda: len(connections.admission) == 2)
            second = await in_thread(logged_in, door.port, context, "second")
            assert await in_thread(silent.expect_closed) == []
            refused = RawClient(door.port)
            assert await in_thread(refused.expect_closed) == []
            assert connections.broker.counters.limited["max_connections"] == 2
            await in_thread(first.disconnect)
            await until(lambda: len(connections.admission) == 1)
            await in_thread(logged_in, door.port, context, "third")
            await in_thread(second.ping)

    run(test())


def test_address_that_is_taken(run: Callable[..., None], tmp_path: Path) -> None:
    async def test() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            listeners = [Listener("free", "127.0.0.1", 0), Listener("web", "127.0.0.1", port, websocket="/mqtt")]
            with pytest.raises(HighwayError) as caught:
                async with serving(tmp_path, listeners):
                    pass
        assert str(caught.value) == (
            f"can't listen on 127.0.0.1:{port} (web): Address already in use (is another broker running there?)"
        )

    run(test())


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("192.0.2.1", "Cannot assign requested address (this machine has no such address)"),
        ("2001:db8::1", "Cannot assign requested address (this machine has no such address)"),
        ("no-such-host.invalid", "(no such host name)"),
    ],
)
def test_address_that_is_not_here(tmp_path: Path, host: str, reason: str) -> None:
    async def test() -> None:
        with pytest.raises(HighwayError) as caught:
            async with serving(tmp_path, [Listener("away", host, 1883)]):
                pass
        assert str(caught.value).startswith(f"can't listen on {Listener('away', host, 1883)} (away): ")
        assert str(caught.value).endswith(reason)

    asyncio.run(test())


def test_host_name_with_two_addresses_and_ipv6_for_itself(run: Callable[..., None], tmp_path: Path) -> None:
    async def test() -> None:
        listeners = [Listener("six", "::", 0), Listener("name", "localhost", 0)]
        async with serving(tmp_path, listeners) as ([six, name], _, _):
            assert str(six) == f"MQTT on [::]:{six.port}"
            client = RawClient(six.port, host="::1")
            await in_thread(client.login, "six")
            with socket.create_server(("0.0.0.0", six.port)):
                pass  # its IPv4 side is free
            await in_thread(logged_in, name.port)

    run(test())


@pytest.mark.parametrize("path", [None, "/mqtt"])
def test_a_peer_that_never_leaves_is_cut_off(
    run: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    monkeypatch.setattr(connection, "LINGER_S", 0.3)

    async def test() -> None:
        async with serving(tmp_path, [Listener("x", "127.0.0.1", 0, websocket=path)]) as ([door], connections, _):
            client = RawClient(door.port)
            if path is not None:
                client.socket = await in_thread(WebSocket, client.socket)  # type: ignore[assignment]
            await in_thread(client.login, "stays")
            assert len(connections.open) == 1
            await in_thread(client.send, "f000")
            if path is not None:
                assert isinstance(client.socket, WebSocket)
                assert await in_thread(client.socket.read_frame) == (CLOSE, b"\x03\xe8")
            await until(lambda: not connections.open)
            assert await in_thread(client.expect_closed) == []

    run(test())


def test_closing_ends_the_handshakes_under_way(run: Callable[..., None], tmp_path: Path, authority: Authority) -> None:
    certificate = authority.server()
    listener = Listener("secure", "127.0.0.1", 0, TlsSettings(certificate.certfile, certificate.keyfile))

    async def test() -> None:
        async with serving(tmp_path, [listener]) as ([door], connections, _):
            port = door.port
            stalled = RawClient(port)
            await until(lambda: connections.admission.half_open == 1)
            door.close()
            assert await in_thread(stalled.expect_closed) == []
            assert len(connections.admission) == 0
            with pytest.raises(ConnectionRefusedError):
                RawClient(port)

    run(test())
