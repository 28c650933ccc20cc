"""The configuration that was last in force, written into the data directory: to see it, or to go on with it.

`highway serve -c DATA_DIR/last-good.yaml` starts with it when the real file is lost or spoilt.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from highway.config.rendering import to_yaml

if TYPE_CHECKING:
    from highway.config import Settings

__all__ = ["LAST_GOOD", "keep_last_good"]

logger = logging.getLogger("highway.server")

LAST_GOOD = "last-good.yaml"

_HEAD = """\
# Written by Highway: the configuration that was last in force, with everything said that the files and the environment
# leave to defaults. Changes here do nothing.
"""


def keep_last_good(settings: Settings) -> bool:
    """Replace the copy, all of it or nothing; whether it says what `settings` say now.

    A disk that doesn't take it is no reason to fail: it is logged.
    """
    path = settings.data_dir / LAST_GOOD
    temporary = path.with_suffix(".tmp")
    data = (_HEAD + to_yaml(settings)).encode()
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123  of a descriptor
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        logger.warning("%s can't be written: %s", path, error.strerror or error)
        return False
    return True
