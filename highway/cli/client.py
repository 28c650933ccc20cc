"""What `pub`, `sub` and `fetch` share: the options for the connection, in mosquitto's letters, and its errors.

MQTT 3.1.1 through aiomqtt, and MQTT 5 where an acknowledgement may say no. Whatever goes wrong on the way becomes a
CommandError with a sentence.
"""

from __future__ import annotations

import functools
import os
import ssl
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiomqtt
import click

from highway.cli.exits import CommandError, Exit
from highway.errors import MqttError
from highway.mqtt.topics import validate_topic_filter, validate_topic_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from paho.mqtt.reasoncodes import ReasonCode

__all__ = [
    "Client",
    "Connection",
    "check_topic_filter",
    "check_topic_name",
    "connect",
    "connection_options",
    "refused_filters",
]

# How long one acknowledgement may take. A broker that pauses publishers while its disk is slow is no failure.
ACK_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach the broker."""

    host: str
    port: int
    username: str | None
    password: str | None
    client_id: str | None
    tls: ssl.SSLContext | None = None


def connection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the options of a connection, and pass them as one argument `connection`."""

    @click.option("-h", "--host", default="127.0.0.1", show_default=True, help="Host of the broker.")
    @click.option(
        "-p", "--port", type=click.IntRange(1, 65_535), help="Port of the broker.  [default: 1883, with --cafile 8883]"
    )
    @click.option("-u", "--username", metavar="NAME", help="User name to log in with.")
    @click.option("-P", "--password", "ask", is_flag=True, help="Ask for a password, or read it from a line of stdin.")
    @click.option("-i", "--id", "client_id", metavar="ID", help="Client id; without it, a random one.")
    @click.option("--cafile", metavar="FILE", help="Connect over TLS, to a broker whose certificate these vouch for.")
    @click.option("--cert", metavar="FILE", help="Certificate to show to a broker that asks for one.")
    @click.option("--key", metavar="FILE", help="Private key of --cert; without it, the key stands in that file.")
    @functools.wraps(command)
    def with_connection(
        *args: Any,
        host: str,
        port: int | None,
        username: str | None,
        ask: bool,
        client_id: str | None,
        cafile: str | None,
        cert: str | None,
        key: str | None,
        **options: Any,
    ) -> Any:
        if ask and username is None:
            raise click.UsageError("a password without a user name (-u)")
        tls = _tls_context(cafile, cert, key)
        password = _ask_password() if ask else None
        port = port or (1883 if tls is None else 8883)
        connection = Connection(host, port, username, password, client_id, tls)
        return command(*args, connection=connection, **options)

    return with_connection


def check_topic_name(text: str) -> None:
    """Return if `text` names one topic; UsageError with the rule that it breaks."""
    _check(text, validate_topic_name)


def check_topic_filter(text: str) -> None:
    """Return if `text` may be subscribed to; UsageError with the rule that it breaks."""
    _check(text, validate_topic_filter)


def _check(text: str, validate: Callable[[bytes], None]) -> None:
    try:
        validate(text.encode())
    except (MqttError, UnicodeEncodeError) as error:
        raise click.UsageError(f"{text!r} can't be used here: {error}") from error


def _tls_context(cafile: str | None, cert: str | None, key: str | None) -> ssl.SSLContext | None:
    """The context for these files; None without any. UsageError says which of them can't be used."""
    if cafile is None:
        if cert or key:
            raise click.UsageError("--cert and --key are for TLS, which --cafile asks for")
        return None
    if key and not cert:
        raise click.UsageError("--key without the --cert that it belongs to")
    try:
        context = ssl.create_default_context(cafile=cafile)
    except OSError as error:
        raise click.BadParameter(f"{cafile}: {_file_fault(error)}", param_hint="--cafile") from error
    try:
        if cert:
            context.load_cert_chain(cert, key)
    except OSError as error:
        raise click.BadParameter(f"{cert}, {key or cert}: {_file_fault(error)}", param_hint="--cert, --key") from error
    return context


def _file_fault(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return "no certificate in PEM form, or one and the key of another"
    return error.strerror or str(error)


def _ask_password() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, err=True))
    # Byte by byte: what follows the line belongs to whoever reads standard input next.
    line = bytearray()
    while (byte := os.read(sys.stdin.fileno(), 1)) not in (b"", b"\n"):
        line += byte
    return line.removesuffix(b"\r").decode()


class Client(aiomqtt.Client):
    """aiomqtt's client, but for its patience, and its deafness to refusals.

    It would wait for a CONNACK after the broker has closed, and take any PUBACK for a yes: `refusal` is the first no.
    """

    refusal: ReasonCode | None = None

    def _on_publish(self, client: Any, userdata: Any, mid: int, reason_code: ReasonCode, properties: Any) -> None:
        if self.refusal is None and reason_code.is_failure:
            self.refusal = reason_code
        super()._on_publish(client, userdata, mid, reason_code, properties)

    def _on_disconnect(self, *details: Any) -> None:
        if not self._connected.done():
            self._connected.set_exception(aiomqtt.MqttError("it was closed without an answer to CONNECT"))
        super()._on_disconnect(*details)


@asynccontextmanager
async def connect(
    connection: Connection, *, clean_session: bool = True, window: int = 20, is_v5: bool = False
) -> AsyncIterator[Client]:
    """A connected client; CommandError if the broker can't be reached or says no, or if the connection breaks.

    `window` is how many QoS 1 and 2 messages may be on their way at once. With `is_v5` the session ends with the
    connection.
    """
    client = Client(
        connection.host,
        connection.port,
        username=connection.username,
        password=connection.password,
        identifier=connection.client_id,
        clean_session=None if is_v5 else clean_session,
        protocol=aiomqtt.ProtocolVersion.V5 if is_v5 else aiomqtt.ProtocolVersion.V311,
        max_inflight_messages=window,
        tls_context=connection.tls,
        timeout=ACK_TIMEOUT_S,
    )
    client.pending_calls_threshold = window + 1
    connected = False
    try:
        async with client:
            connected = True
            yield client
    except (aiomqtt.MqttError, ExceptionGroup) as error:
        raise _explain(error, f"{connection.host}:{connection.port}", connected=connected) from error


def _explain(error: Exception, where: str, *, connected: bool) -> Exception:
    """What to raise for `error`, or for the first error of a task group."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, aiomqtt.exceptions.MqttConnectError):
        return CommandError(f"{where} refused the connection: {error.rc}", Exit.REFUSED)
    if not isinstance(error, aiomqtt.MqttError):
        return error
    if "timed out" in str(error):
        return CommandError(f"no answer from {where} within {ACK_TIMEOUT_S:g} s", Exit.TIME_OUT)
    cause = error.__context__  # aiomqtt hides it, as the text is in its own
    if isinstance(cause, ssl.SSLCertVerificationError):
        return CommandError(f"the certificate of {where} is not to be trusted: {cause.verify_message}")
    if isinstance(cause, ssl.SSLError):
        return CommandError(f"no TLS connection to {where}: {cause.reason or cause}; is that a TLS port?")
    if connected:
        return CommandError(f"the connection to {where} broke: {error}")
    question = (
        "is a broker running there?" if isinstance(cause, OSError) else "is that port for TLS, or for certificates?"
    )
    return CommandError(f"no connection to {where}: {error}; {question}")


def refused_filters(granted: Any, filters: list[str]) -> list[str]:
    """Those of `filters` that the SUBACK in `granted` refuses."""
    codes = [getattr(code, "value", code) for code in granted]
    return [topic_filter for topic_filter, code in zip(filters, codes, strict=True) if code >= 0x80]
