"""Whether files hold something else than they did: by what is in them, as no time or size tells it for certain.

A path is followed to the end, so that a link that is turned to another file (Kubernetes swaps `..data`) is a change.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from highway.config.models import Settings

__all__ = ["digest_of", "watched_files"]


def watched_files(settings: Settings) -> list[Path]:
    """Every file that a reload would read."""
    files = list(settings.files)
    for listener in settings.listeners:
        files += [] if listener.tls is None else listener.tls.files
    if settings.auth.passwords is not None:
        files.append(settings.auth.passwords.path)
    return files


def digest_of(paths: Iterable[Path]) -> str:
    """A hash over the contents of files and the names in folders; what can't be read counts as such."""
    found = hashlib.sha256()
    for path in paths:
        try:
            if path.is_dir():
                data = "\0".join(sorted(entry.name for entry in path.iterdir())).encode()
            else:
                data = path.read_bytes()
        except OSError as error:
            data = f"error {error.errno}".encode()
        found.update(b"%b\0%d\0%b" % (str(path).encode(), len(data), data))
    return found.hexdigest()
