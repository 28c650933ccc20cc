"""strace on a running broker: system calls that fail, or that kill it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness.broker_process import wait_until

__all__ = ["attach", "needs_strace"]

needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")


def attach(pid: int, *options: str, output: Path | str = "/dev/null") -> subprocess.Popen[bytes]:
    """Return strace, attached to every thread of a process; it ends with the process."""
    strace = subprocess.Popen(
        ["strace", "-f", "-qq", "-o", str(output), *options, "-p", str(pid)], stderr=subprocess.DEVNULL
    )
    wait_until(lambda: _all_traced(pid), what="strace on every thread")
    return strace


def _all_traced(pid: int) -> bool:
    statuses = [task / "status" for task in Path(f"/proc/{pid}/task").iterdir()]
    return all("TracerPid:\t0" not in status.read_text(encoding="utf-8") for status in statuses)
