"""`highway serve` up to the point where the broker takes over: nothing wrong is ever started."""

from __future__ import annotations

import logging

import pytest

from highway.cli.exits import Exit
from highway.config import Listener
from highway.server import daemon


@pytest.fixture
def served(monkeypatch):
    """The settings that the broker was started with."""
    seen = []

    def run(settings, source):
        assert source.load() == settings
        seen.append(settings)
        return 7

    monkeypatch.setattr(daemon, "run", run)
    loggers = [logging.getLogger(name) for name in ("", "websockets", "asyncio")]
    levels = [logger.level for logger in loggers]
    yield seen
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)  # the command sets those of its process


def test_without_a_file(highway, served, tmp_path):
    ran = highway("serve", "--no-http")
    assert (ran.code, ran.out) == (7, "")
    assert ran.err == "highway: anybody on this machine may connect, publish and read, without a password\n"
    assert served[0].listeners == (Listener("local", "127.0.0.1", 1883),)
    assert served[0].http is None
    highway("serve")
    assert served[1].http == ("127.0.0.1", 8080)


def test_options_win_over_the_file(highway, served, tmp_path):
    (tmp_path / "c.yaml").write_text("data_dir: a\nlisteners: {x: {port: 5}}\n")
    highway("serve", "-c", "c.yaml", "--data-dir", "b", "--listen", "[::1]:0", "--http", "[::1]:1")
    assert served[0].data_dir == tmp_path / "b"
    assert served[0].listeners == (Listener("local", "::1", 0),)
    assert served[0].http == ("::1", 1)


def test_warnings_are_shown_and_do_not_stop_it(highway, served, tmp_path):
    (tmp_path / "c.yaml").write_text(
        "insecure: true\nlisteners: {x: {bind: 0.0.0.0}}\ntopics: [{topic: a/+}, {topic: a/b}]\n"
    )
    ran = highway("serve", "-c", "c.yaml")
    assert "highway: warning: c.yaml:3:32: topics[1].topic: never decides" in ran.err
    assert "highway: anybody on the network may connect" in ran.err
    assert len(served) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["-c", "bad.yaml"],
        ["-c", "missing.yaml"],
        ["--listen", "0.0.0.0:1883"],
        ["--listen", "1883"],
        ["--http", "127.0.0.1:8080", "--no-http"],
        ["--http", "0.0.0.0:8080"],
        ["extra"],
    ],
)
def test_what_is_wrong_starts_nothing(words, highway, served, tmp_path):
    (tmp_path / "bad.yaml").write_text("topics: [{topic: a/#/b}]\n")
    ran = highway("serve", *words)
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert ran.err
    assert served == []
