"""`highway serve`: run the broker."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from highway.config import Overrides
from highway.config.listeners import is_open
from highway.config.loading import Source
from highway.log_lines import LogLines

if TYPE_CHECKING:
    from highway.config import Settings

__all__ = ["serve"]


@click.command()
@click.option(
    "-c", "--config", "config_file", type=click.Path(path_type=Path), help="Configuration file; without it, built-in."
)
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where everything is kept, instead of the file's.")
@click.option("--listen", metavar="HOST:PORT", help="Listen here, instead of the file's listeners.")
@click.option("--http", metavar="HOST:PORT", help="Serve the HTTP API here, instead of where the file says.")
@click.option("--no-http", is_flag=True, help="Serve the HTTP API on the socket in the data directory only.")
def serve(
    config_file: Path | None, data_dir: Path | None, listen: str | None, http: str | None, *, no_http: bool
) -> int:
    """Run the broker until SIGTERM or SIGINT.

    Without a file: MQTT on 127.0.0.1:1883 and HTTP on 127.0.0.1:8080 for anybody on this machine, data in
    ./highway-data, highway/+/telemetry acknowledged when the journal has it, highway/+/control when the disk has it.
    `highway config show` prints all.

    Ready when `highway: ready` stands on standard error.
    """
    from highway.server import daemon  # noqa: PLC0415  --help shouldn't load the broker

    if http is not None and no_http:
        raise click.UsageError("--http and --no-http exclude each other")
    source = Source(config_file, Overrides(data_dir, listen, "" if no_http else http))
    settings = source.load()
    lines = LogLines()
    lines.apply(settings.logging)
    for warning in settings.warnings:
        lines.say(f"warning: {warning}", logging.WARNING)
    lines.say(_who_may_connect(settings))
    return daemon.run(settings, source)


def _who_may_connect(settings: Settings) -> str:
    """One sentence that an operator can hold against what was meant."""
    auth, rules = settings.auth, settings.broker.acl is not None
    may = "may connect, and do what the rules say" if rules else "may connect, publish and read"
    if auth.plugins and not rules:
        may = "may connect, and do what no plugin forbids"
    known = []
    if auth.passwords is not None:
        known.append(f"{len(auth.passwords.hashes)} users with a password")
    if auth.plugins:
        known.append("whom plugins let in")
    if any(listener.tls is not None and listener.tls.cafile is not None for listener in settings.listeners):
        known.append("clients with a certificate")
    if not auth.anonymous:
        return f"{', '.join(known)}, and nobody else, {may}"
    reach = "on the network" if any(is_open(listener) for listener in settings.listeners) else "on this machine"
    return f"anybody {reach} {may}, without a password"
