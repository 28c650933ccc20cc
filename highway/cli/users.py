"""`highway users`: who has a password, in a file of mosquitto's format."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from highway.cli.admin import json_option
from highway.cli.exits import CommandError, Exit

if TYPE_CHECKING:
    from collections.abc import Callable

    from highway.config.passwords import Passwords

__all__ = ["users"]


@click.group()
def users() -> None:
    """Change the password file that `auth: password_file:` names.

    A running broker reads it anew with `highway reload`. Passwords are asked for, or read as one line from standard
    input; they are never arguments, which everybody on the machine can see.
    """


def _file_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give `command` the options that name a password file, and pass it as `path`."""

    @click.option("-c", "--config", "config_file", type=click.Path(path_type=Path), help="Configuration that names it.")
    @click.option("--file", "file", type=click.Path(path_type=Path), help="The password file itself.")
    @functools.wraps(command)
    def with_file(*args: Any, config_file: Path | None, file: Path | None, **options: Any) -> Any:
        return command(*args, path=file if file is not None else _find(config_file), **options)

    return with_file


def _find(config_file: Path | None) -> Path:
    """The password file that a configuration names; it need not be there yet."""
    if config_file is None:
        raise click.UsageError("which file? --file PASSWD names it, or -c FILE the configuration that does")
    from highway.config.access import password_file_of  # noqa: PLC0415  --help shouldn't wait for it

    path = password_file_of(config_file)
    if path is None:
        raise CommandError(f"{config_file} names no auth.password_file", Exit.USAGE)
    return path


def _load(path: Path) -> Passwords:
    from highway.config.passwords import PasswordFileError, load_passwords  # noqa: PLC0415  see above

    try:
        return load_passwords(path)
    except PasswordFileError as error:
        raise CommandError(str(error), Exit.REFUSED) from error


def _read_password() -> bytes:
    """The password, twice from a terminal or once from a pipe."""
    if sys.stdin.isatty():
        text = click.prompt("Password", hide_input=True, confirmation_prompt="Once more", err=True)
    else:
        text = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not text:
        raise CommandError("no password came: an empty line, or nothing, on standard input", Exit.USAGE)
    return str(text).encode()


def _write(path: Path, name: str, password: bytes | None) -> None:
    from highway.config.passwords import change_password_file, hash_password  # noqa: PLC0415  see above

    try:
        change_password_file(path, name, None if password is None else hash_password(password))
    except OSError as error:
        raise CommandError(f"{path} can't be written: {error.strerror or error}") from error


_name = click.argument("name")


@users.command()
@_name
@_file_options
def add(name: str, path: Path) -> None:
    """Add the user NAME, with a password that is asked for; makes the file where there is none, for its owner alone.

    Exit code 6 when there is such a user.
    """
    from highway.config.passwords import user_name_fault  # noqa: PLC0415  see above

    if fault := user_name_fault(name):
        raise click.BadParameter(fault, param_hint="NAME")
    if path.exists() and name in _load(path).hashes:
        raise CommandError(
            f"{path} has a user {name!r} already; `highway users passwd` changes the password", Exit.REFUSED
        )
    _write(path, name, _read_password())
    click.echo(f"{name}: added to {path}", err=True)


@users.command()
@_name
@_file_options
def passwd(name: str, path: Path) -> None:
    """Change the password of the user NAME."""
    _require(path, name)
    _write(path, name, _read_password())
    click.echo(f"{name}: password changed in {path}", err=True)


@users.command()
@_name
@_file_options
def rm(name: str, path: Path) -> None:
    """Remove the user NAME. A client that is connected under that name stays until it disconnects."""
    _require(path, name)
    _write(path, name, None)
    click.echo(f"{name}: removed from {path}", err=True)


def _require(path: Path, name: str) -> None:
    if name not in _load(path).hashes:
        raise CommandError(f"{path} has no user {name!r}", Exit.NOT_FOUND)


_KINDS = {"argon2id": "argon2id", "7": "PBKDF2-SHA512", "6": "SHA-512, weak: set the password anew"}


@users.command("list")
@_file_options
@json_option
def list_(path: Path, *, as_json: bool) -> None:
    """List the users, and how their passwords are hashed."""
    for name, stored in _load(path).hashes.items():
        kind = stored.split("$")[1]
        click.echo(json.dumps({"user": name, "hash": kind}) if as_json else f"{name:<24} {_KINDS[kind]}")
