"""The command line, run in this process as a user would run it."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from highway.cli.main import run


class Ran(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture
def highway(capfd, monkeypatch, tmp_path):
    """Call it with the words of a command line; the current folder is empty, the environment has none of ours."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code = run([str(word) for word in words])
        captured = capfd.readouterr()
        return Ran(code, captured.out, captured.err)

    return call
