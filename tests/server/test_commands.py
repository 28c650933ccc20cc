"""`highway pub`, `sub` and `fetch` over TLS."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from highway.cli.exits import Exit
from tests.harness.broker_process import ROOT
from tests.harness.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("broker")


def highway(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "highway", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=30)


def test_publish_subscribe_and_fetch(ports: dict[str, int], authority: Authority) -> None:
    secure = ["-p", ports["secure"], "--cafile", authority.cafile]
    own = authority.client("command")
    mutual = ["-p", ports["mutual"], "--cafile", authority.cafile, "--cert", own.certfile, "--key", own.keyfile]
    assert highway("pub", *secure, "-t", "safe/command", "-m", "hello").returncode == 0
    got = highway("sub", *mutual, "-t", "safe/command", "--from", "-1", "-C", "1", "-v")
    assert (got.returncode, got.stdout) == (0, "safe/command hello\n")
    combined = [*secure, "--cert", own.both]  # shown to nobody, as nobody asks
    got = highway("fetch", "safe/command", "0", *combined)
    assert (got.returncode, got.stdout) == (0, "hello")


def test_broker_that_is_not_to_be_trusted(ports: dict[str, int], tmp_path: Path) -> None:
    strangers = Authority(tmp_path / "strangers")
    got = highway("pub", "-p", ports["secure"], "--cafile", strangers.cafile, "-t", "a", "-m", "x")
    assert got.returncode == Exit.FAILURE
    assert f"the certificate of 127.0.0.1:{ports['secure']} is not to be trusted: " in got.stderr


def test_what_does_not_fit_together_is_said_at_once(ports: dict[str, int], authority: Authority) -> None:
    trust = ["--cafile", authority.cafile]
    for words, text in {
        ("-p", ports["secure"]): "it was closed without an answer to CONNECT",  # no TLS here, TLS there
        ("-p", ports["mutual"], *trust): "it was closed without an answer to CONNECT",  # no certificate
        ("-p", ports["local"], *trust): "is that a TLS port?",
    }.items():
        got = highway("pub", *words, "-t", "a", "-m", "x")
        assert got.returncode == Exit.FAILURE
        assert text in got.stderr
