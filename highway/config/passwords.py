"""Password files in mosquitto's format: `user:hash` on each line, and the hashes that mosquitto and we write.

    $argon2id$v=19$m=47104,t=1,p=1$<salt>$<hash>   argon2id (mosquitto 2.1, `highway users`)
    $7$<iterations>$<salt>$<hash>                  PBKDF2 with SHA-512 (mosquitto 1.6 to 2.0)
    $6$<salt>$<hash>                               SHA-512 of password and salt (mosquitto before 1.6), weak

Salts and hashes are base64. What is read is kept as it is: nothing turns one kind into another without the password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from highway.errors import HighwayError

from .secret_files import secret_file_fault

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "PasswordFileError",
    "Passwords",
    "change_password_file",
    "hash_password",
    "load_passwords",
    "user_name_fault",
    "verify_password",
]

# What mosquitto 2.1 writes: 46 MiB and about 40 ms for one guess, on either side.
_ARGON2_TIME, _ARGON2_KIB, _ARGON2_LANES = 1, 47_104, 1
# A hash of the file is work for the broker, at each login: a digit too many must not stop it.
_MAX_ARGON2_KIB = 1024 * 1024
_MAX_ARGON2_TIME = 64
_MAX_ITERATIONS = 10_000_000
_SHA512_BYTES = 64
_MAX_FILE_BYTES = 64 * 1024 * 1024

_ARGON2 = re.compile(r"\$argon2id\$v=19\$m=(\d{1,9}),t=(\d{1,9}),p=(\d{1,3})\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+")


class PasswordFileError(HighwayError):
    """A password file that can't be used; `problems` are (line, what is wrong), line 0 for the file as a whole."""

    def __init__(self, path: Path, problems: list[tuple[int, str]]) -> None:
        super().__init__("\n".join(f"{path}:{line}: {text}" if line else f"{path}: {text}" for line, text in problems))
        self.problems = problems


@dataclass(frozen=True, slots=True, repr=False)
class Passwords:
    """The hashes of a password file by user. It never changes: a reload makes another one."""

    path: Path
    hashes: Mapping[str, str]

    def __repr__(self) -> str:
        return f"<Passwords of {len(self.hashes)} users in {self.path}>"

    def decoy(self) -> str:
        """The dearest hash of the file, for a user that isn't in it: no answer is quicker than a wrong one; "" for
        none.

        Looks at all of them.
        """
        return max(self.hashes.values(), key=_cost, default="")


def _cost(stored: str) -> int:
    """What a hash costs, roughly: iterations of SHA-512."""
    fields = stored.split("$")
    return _MAX_ITERATIONS + 1 if fields[1] == "argon2id" else int(fields[2]) if fields[1] == "7" else 1


def hash_password(password: bytes) -> str:
    """A new argon2id hash. Takes 40 ms and 46 MiB."""
    from argon2 import PasswordHasher  # noqa: PLC0415  a C library that most commands don't need

    return PasswordHasher(_ARGON2_TIME, _ARGON2_KIB, _ARGON2_LANES, hash_len=32, salt_len=16).hash(password)


def verify_password(stored: str, password: bytes) -> bool:
    """Whether `stored`, a hash out of a `Passwords`, is one of `password`. Takes its time, without GIL."""
    if stored.startswith("$argon2id$"):
        from argon2 import exceptions, low_level  # noqa: PLC0415  see above

        try:
            return low_level.verify_secret(stored.encode(), password, low_level.Type.ID)
        except exceptions.VerificationError:
            return False
    fields = stored.split("$")
    salt, expected = base64.b64decode(fields[-2]), base64.b64decode(fields[-1])
    if fields[1] == "7":
        found = hashlib.pbkdf2_hmac("sha512", password, salt, int(fields[2]), _SHA512_BYTES)
    else:
        found = hashlib.sha512(password + salt).digest()
    return hmac.compare_digest(found, expected)


def _hash_fault(stored: str) -> str:
    """What is wrong with a hash, "" for nothing. The hash itself is never part of it."""
    if match := _ARGON2.fullmatch(stored):
        memory, time, lanes = map(int, match.groups())
        if not (0 < time <= _MAX_ARGON2_TIME and 8 * lanes <= memory <= _MAX_ARGON2_KIB and lanes):
            return f"argon2id with m={memory},t={time},p={lanes} is out of range: at most m={_MAX_ARGON2_KIB}, t=64"
        return ""
    fields = stored.split("$")
    kind = fields[1] if len(fields) > 1 and not fields[0] else ""
    if kind not in ("6", "7"):
        return "this is no hash of mosquitto's ($6$, $7$, $argon2id$); `highway users passwd` makes one"
    if len(fields) != (4 if kind == "6" else 5):
        return f"the hash has {len(fields) - 1} parts, which is not what ${kind}$ has"
    if kind == "7" and not (re.fullmatch("[0-9]{1,9}", fields[2]) and 1 <= int(fields[2]) <= _MAX_ITERATIONS):
        return f"the number of iterations has to be 1 to {_MAX_ITERATIONS}"
    try:
        salt, digest = (base64.b64decode(field, validate=True) for field in fields[-2:])
    except (binascii.Error, ValueError):
        return "salt and hash have to be base64; `$6$` of crypt(3) is another kind, and not mosquitto's"
    return "" if salt and len(digest) == _SHA512_BYTES else "the hash is cut off, or of another kind"


def user_name_fault(name: str) -> str:
    """What keeps `name` from standing in a password file, "" for nothing."""
    if not name:
        return "a user name can't be empty"
    if ":" in name or any(ord(letter) < 0x20 or ord(letter) == 0x7F for letter in name):
        return "a user name can't have ':' or control characters in it"
    if name.startswith("#") or name != name.strip():
        return "a user name can't begin with '#', or begin or end with spaces"
    return "" if len(name.encode("utf-8", "replace")) <= 65_535 else "a user name has at most 65535 bytes"


def load_passwords(path: Path) -> Passwords:
    """The users in the file at `path`. PasswordFileError with everything that is wrong with it."""
    try:
        fault = secret_file_fault(path)
        data = path.read_bytes() if not fault else b""
    except OSError as error:
        raise PasswordFileError(path, [(0, f"can't be read: {error.strerror or error}")]) from error
    if fault:
        raise PasswordFileError(path, [(0, fault)])
    if len(data) > _MAX_FILE_BYTES:
        raise PasswordFileError(path, [(0, f"has {len(data)} bytes, which is no password file")])
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise PasswordFileError(path, [(number, f"byte 0x{data[error.start]:02X} is not UTF-8")]) from error
    hashes: dict[str, str] = {}
    problems = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.removesuffix("\r")
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, stored = line.partition(":")
        stored = stored.strip()
        fault = "`user:hash` is wanted" if not colon else user_name_fault(name) or _hash_fault(stored)
        if not fault and name in hashes:
            fault = f"the user {name!r} stands twice"
        if fault:
            problems.append((number, fault))
        hashes[name] = stored
    if problems:
        raise PasswordFileError(path, problems)
    return Passwords(path, hashes)


def change_password_file(path: Path, name: str, stored: str | None) -> None:
    """Give `name` the hash `stored`, or take it out (None); all other lines stay as they are. OSError if it can't be.

    Whoever reads the file meanwhile sees the old one or the new one. It is readable by its owner only afterwards.
    """
    before = None
    lines: list[str] = []
    try:
        before = path.stat()
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        pass
    kept = [line for line in lines if line.partition(":")[0] != name]
    at = next((number for number, line in enumerate(lines) if line.partition(":")[0] == name), len(kept))
    if stored is not None:
        kept.insert(at, f"{name}:{stored}")
    target = Path(os.path.realpath(path))  # where a link points, so that the link stays one
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in kept))
            file.flush()
            if before is not None and (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), before.st_uid, before.st_gid)  # the service's, when root changes it
            os.fsync(file.fileno())
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
