"""TLS: who is let in, who is turned away with which words, and that nobody who dawdles keeps others out."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from typing import TYPE_CHECKING

import pytest

from tests.harness import packets
from tests.harness.broker_process import wait_until
from tests.harness.certificates import Authority
from tests.harness.mosquitto import mosquitto_pub, mosquitto_sub
from tests.harness.raw_client import CONNACK, RawClient
from tests.server.conftest import CONNECT_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.harness.broker_process import BrokerProcess


def mutual(trusting: ssl.SSLContext, authority: Authority, name: str) -> ssl.SSLContext:
    """A client's context with a certificate of its own."""
    certificate = authority.client(name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=trusting.get_ca_certs(binary_form=True)[0])
    context.load_cert_chain(certificate.certfile, certificate.keyfile)
    return context


def is_turned_away(client: RawClient) -> bool:
    """Whether a CONNECT is never answered. With TLS 1.3, a client learns only now what became of its certificate."""
    try:
        client.send(packets.connect("x"))
        return client.read_packet() is None
    except (ssl.SSLError, ConnectionResetError, BrokenPipeError):
        return True


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_versions_that_are_spoken(ports: dict[str, int], authority: Authority, version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context(cafile=str(authority.cafile))
    context.minimum_version = context.maximum_version = version
    client = RawClient(ports["secure"], tls=context)
    client.login("versions")
    client.ping()


def test_tls_1_1_is_refused(broker: BrokerProcess, ports: dict[str, int]) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        RawClient(ports["secure"], tls=old)
    broker.wait_for_line("no TLS connection at secure: it speaks no TLS newer than 1.1")


def test_a_client_that_does_not_trust_the_broker_is_logged(broker: BrokerProcess, ports: dict[str, int]) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        RawClient(ports["secure"], tls=ssl.create_default_context())
    broker.wait_for_line("no TLS connection at secure: it doesn't trust our certificate")


def test_certificate_is_required_and_checked(
    broker: BrokerProcess,
    ports: dict[str, int],
    trusting: ssl.SSLContext,
    authority: Authority,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    client = RawClient(ports["mutual"], tls=mutual(trusting, authority, "sensor"))
    client.login("sensor")
    client.ping()
    assert is_turned_away(RawClient(ports["mutual"], tls=trusting))
    broker.wait_for_line("no TLS connection at mutual: it showed no certificate")
    strangers = Authority(tmp_path_factory.mktemp("strangers"))
    assert is_turned_away(RawClient(ports["mutual"], tls=mutual(trusting, strangers, "stranger")))
    broker.wait_for_line("no TLS connection at mutual: its certificate is refused: unable to get local issuer")


def test_certificate_is_asked_for_and_may_be_missing_but_not_wrong(
    ports: dict[str, int], trusting: ssl.SSLContext, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for number, context in enumerate((trusting, mutual(trusting, authority, "sensor"))):
        RawClient(ports["asking"], tls=context).login(f"asked-{number}")
    strangers = Authority(tmp_path_factory.mktemp("strangers"))
    assert is_turned_away(RawClient(ports["asking"], tls=mutual(trusting, strangers, "stranger")))


@pytest.mark.parametrize(
    ("first", "reason"),
    [(packets.connect("x"), "what it sent is not TLS"), (b"GET / HTTP/1.1\r\n\r\n", "it sent an HTTP request")],
)
def test_a_client_without_tls_is_closed_at_once(
    broker: BrokerProcess, ports: dict[str, int], first: bytes, reason: str
) -> None:
    client = RawClient(ports["secure"])
    client.send(first)
    client.expect_closed()
    broker.wait_for_line(f"no TLS connection at secure: {reason}")


def test_a_client_with_tls_at_a_plain_port_is_closed_at_once(ports: dict[str, int], trusting: ssl.SSLContext) -> None:
    for name in ("local", "web"):
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            RawClient(ports[name], tls=trusting)


@pytest.mark.usefixtures("mosquitto_clients", "broker")
def test_mosquitto_over_tls(ports: dict[str, int], authority: Authority) -> None:
    trust = ["--cafile", str(authority.cafile)]
    own = authority.client("mosquitto")
    shown = ["--cert", str(own.certfile), "--key", str(own.keyfile)]
    mosquitto_pub(ports["secure"], *trust, "-q", "2", "-r", "-t", "mosquitto/tls", "-m", "kept")
    code, lines, _ = mosquitto_sub(ports["mutual"], *trust, *shown, "-q", "2", "-t", "mosquitto/#", "-C", "1", "-v")
    assert (code, lines) == (0, ["mosquitto/tls kept"])
    code, _, error = mosquitto_sub(ports["mutual"], *trust, "-t", "mosquitto/#", "-C", "1", "-W", "3")
    assert code != 0, error


def connect_plain(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def is_closed(sock: socket.socket) -> bool:
    """Whether the stream has ended."""
    sock.settimeout(0)
    with contextlib.suppress(BlockingIOError):
        try:
            return not sock.recv(1)
        except ConnectionResetError:
            return True
    return False


@pytest.mark.parametrize("listener", ["secure", "webs"])
def test_stalled_handshakes_keep_nobody_out_and_are_closed_in_time(
    broker: BrokerProcess, ports: dict[str, int], dial: Callable[..., RawClient], listener: str
) -> None:
    """Field report 73."""
    begin = time.monotonic()
    mark = len(broker.stderr)
    with contextlib.ExitStack() as stack:
        stalled = [stack.enter_context(connect_plain(ports[listener])) for _ in range(60)]
        for sock in stalled:
            sock.sendall(b"\x16")
        stalled += [stack.enter_context(connect_plain(ports["local"])) for _ in range(60)]
        half = dial(listener)  # the handshake counts against the time that it has for its CONNECT
        good = [dial(listener) for _ in range(20)]
        for number, client in enumerate(good):
            client.login(f"good-{number}")
        assert not any(is_closed(sock) for sock in stalled), "they had to wait until one that stalls was closed"
        wait_until(lambda: any(is_closed(sock) for sock in stalled), what="an end of one that stalls")
        assert time.monotonic() - begin >= 0.75 * CONNECT_TIMEOUT_S, "closed too early"
        half.expect_closed()
        wait_until(lambda: all(is_closed(sock) for sock in stalled), what="an end of all that stall")
        for client in good:
            client.ping()
    broker.wait_for_line(f"no TLS connection at {listener}: SSL handshake is taking longer than", since=mark)


def test_a_handshake_that_is_cut_off_is_logged_and_forgotten(broker: BrokerProcess, ports: dict[str, int]) -> None:
    mark = len(broker.stderr)
    for _ in range(5):
        with connect_plain(ports["secure"]) as sock:
            sock.sendall(b"\x16\x03\x01")
    broker.wait_for_line("no TLS connection at secure: the peer closed the connection", since=mark)


def test_the_log_holds_no_traceback(broker: BrokerProcess) -> None:
    """Of all that came before in this module, too."""
    assert not broker.lines("Traceback|Exception in callback|never retrieved")


def test_connack_over_tls_is_bytes_like_any_other(dial: Callable[..., RawClient]) -> None:
    client = dial("secure")
    for byte in packets.connect("slowly"):
        client.send(bytes([byte]))
    assert client.expect(CONNACK) == b"\x00\x00"
