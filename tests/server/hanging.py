"""`highway` with a switch: while the file in $HANG says `loop` or `journal`, that thread does nothing more.

The event loop hangs in a signal handler (SIGUSR1 lets it look at the file), the journal thread in its sync.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from highway.cli.main import run
from highway.storage.disk.filesystem import OsFileSystem

SWITCH = Path(os.environ["HANG"])
sync = OsFileSystem.fdatasync


def wait(word):
    while SWITCH.exists() and SWITCH.read_text() == word:
        time.sleep(0.01)  # it hangs: that is what it is for


def slow_sync(self, fd):
    wait("journal")
    sync(self, fd)


OsFileSystem.fdatasync = slow_sync
signal.signal(signal.SIGUSR1, lambda *_: wait("loop"))
sys.exit(run())
