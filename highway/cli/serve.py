"""`highway serve`: run the broker."""

from __future__ import annotations

from pathlib import Path

import click

from highway.config import Overrides, load_settings
from highway.config.listeners import is_open

__all__ = ["serve"]


@click.command()
@click.option(
    "-c", "--config", "config_file", type=click.Path(path_type=Path), help="Configuration file; without it, built-in."
)
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where everything is kept, instead of the file's.")
@click.option("--listen", metavar="HOST:PORT", help="Listen here, instead of the file's listeners.")
@click.option("--no-http", is_flag=True, help="Serve no HTTP; this version has none yet.")
def serve(config_file: Path | None, data_dir: Path | None, listen: str | None, *, no_http: bool) -> int:  # noqa: ARG001
    """Run the broker until SIGTERM or SIGINT.

    Without a file: MQTT on 127.0.0.1:1883 for anybody on this machine, data in ./highway-data, highway/+/telemetry
    acknowledged when the journal has it, highway/+/control when the disk has it. `highway config show` prints all.

    Ready when `highway: ready` stands on standard error.
    """
    from highway.server import daemon  # noqa: PLC0415  --help shouldn't load the broker

    settings = load_settings(config_file, overrides=Overrides(data_dir, listen))
    for warning in settings.warnings:
        click.echo(f"highway: warning: {warning}", err=True)
    reach = "on the network" if any(is_open(listener) for listener in settings.listeners) else "on this machine"
    click.echo(f"highway: anybody {reach} may connect, publish and read, without a password", err=True)
    return daemon.run(settings)
