"""Secrets: values that stand in files of their own, and never in the configuration, an argument or a log.

{file: token}     a path, from the folder of the configuration file on; or a name in $CREDENTIALS_DIRECTORY, where
                  systemd puts what `LoadCredential=` names. A file that everybody may read is refused.
"""

from __future__ import annotations

import hmac
import os
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from highway.errors import HighwayError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Secret", "SecretError", "find_secret_file", "read_secret", "secret_file_fault"]

_MAX_BYTES = 1024 * 1024


class SecretError(HighwayError):
    """A file with a secret can't be used."""


class Secret:
    """A value that shows itself nowhere by accident: `reveal` is the only way to it. `path` is where it stands."""

    __slots__ = ("_value", "path")

    def __init__(self, value: str, path: Path) -> None:
        self._value = value
        self.path = path

    def __repr__(self) -> str:
        return f"<Secret in {self.path}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self.matches(other._value) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    def reveal(self) -> str:
        """The value."""
        return self._value

    def matches(self, text: str) -> bool:
        """Whether `text` is the value; how long that takes does not tell where they differ."""
        return hmac.compare_digest(text.encode("utf-8", "surrogateescape"), self._value.encode())


def secret_file_fault(path: Path) -> str:
    """Why a file can't keep a secret, with the command that helps, or "". OSError where it isn't there."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        return "is no file"
    if found.st_mode & stat.S_IROTH:
        return f"everybody on this machine may read it; run: chmod o-rwx {shlex.quote(str(path))}"
    if found.st_mode & stat.S_IWOTH:
        return f"everybody on this machine may write it; run: chmod o-rwx {shlex.quote(str(path))}"
    return ""


def find_secret_file(name: str, folder: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Where the file `name` is: from `folder` on, or else, if it is a bare name, in $CREDENTIALS_DIRECTORY."""
    path = Path(os.path.normpath(folder / name))
    credentials = (os.environ if environ is None else environ).get("CREDENTIALS_DIRECTORY")
    if credentials and Path(name).name == name and (Path(credentials) / name).is_file() and not path.exists():
        return Path(credentials) / name
    return path


def read_secret(path: Path) -> Secret:
    """The secret in the file at `path`, less the line end that an editor leaves. SecretError if there is none."""
    try:
        fault = secret_file_fault(path)
        data = b"" if fault else path.read_bytes()
    except OSError as error:
        raise SecretError(f"{path} can't be read: {error.strerror or error}") from error
    if fault:
        raise SecretError(f"{path}: {fault}")
    if len(data) > _MAX_BYTES:
        raise SecretError(f"{path} has {len(data)} bytes; a secret has at most {_MAX_BYTES}")
    try:
        value = data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise SecretError(f"{path} is not UTF-8 at byte {error.start}") from error
    if not value:
        raise SecretError(f"{path} is empty")
    return Secret(value, path)
