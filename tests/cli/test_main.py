"""The group of commands: help, exit codes, and errors without a traceback."""

from __future__ import annotations

import shlex
import subprocess
import sys

import click
import pytest

from highway import __version__
from highway.cli import main
from highway.cli.exits import CommandError, Exit, exit_code_of
from highway.cli.manual import MANUAL
from highway.errors import (
    ConfigError,
    CorruptionError,
    DataDirectoryError,
    OffsetCorruptError,
    OffsetGapError,
    OffsetNotFoundError,
    ProtocolError,
)


def commands(group, path=("highway",)):
    """(words of the command, the command) for every command below `group`."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


COMMANDS = dict(commands(main.highway))


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_for_itself_and_for_its_options(words, highway):
    ran = highway(*words[1:], "--help")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"Usage: {' '.join(words)}")
    command = COMMANDS[words]
    assert command.help
    obvious = {"--port", "--timeout"}
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not obvious & set(parameter.opts):
            assert parameter.help, f"{' '.join(words)} {parameter.opts}"


LEAVES = [words for words, command in COMMANDS.items() if not isinstance(command, click.Group)]


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_every_help_ends_with_exit_codes_and_examples_that_parse(words, highway):
    text = highway(*words[1:], "--help").out
    assert "exit code" in " ".join(text.lower().split()), "a page in highway/cli/manual.py, or in its own text"
    _, found, examples = text.rpartition("Examples:\n")
    lines = [line.strip() for line in examples.splitlines() if " ".join(words) in line]
    assert found, "a page in highway/cli/manual.py"
    assert lines
    for line in lines:
        command = line[line.index(" ".join(words)) :].split("|")[0].split(">")[0].rstrip(')" ')
        arguments = shlex.split(command)[len(words) :]
        COMMANDS[words].make_context(words[-1], arguments, resilient_parsing=False)


def test_no_page_is_about_a_command_that_is_gone():
    assert set(MANUAL) <= {" ".join(words[1:]) for words in LEAVES}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_a_shell_names_our_variable(shell, highway):
    ran = highway("completion", shell)
    assert (ran.code, ran.err) == (0, "")
    assert "_HIGHWAY_COMPLETE" in ran.out
    assert highway("completion", "tcsh").code == Exit.USAGE


def test_version(highway):
    assert highway("--version") == (0, f"highway, version {__version__}\n", "")


@pytest.mark.parametrize(
    "words", [["nope"], ["config", "nope"], ["config", "check", "--nope"], ["fetch", "t", "x"], [], ["config"]]
)
def test_wrong_usage_is_exit_code_2(words, highway):
    ran = highway(*words)
    assert ran.code == Exit.USAGE
    assert ran.out == ""
    assert "Usage: highway" in ran.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError(["f.yaml:1:1: x"]), Exit.USAGE),
        (DataDirectoryError("in use"), Exit.FAILURE),
        (OffsetNotFoundError("x", 5, 0, 3), Exit.NOT_FOUND),
        (OffsetGapError("x", 5, 0, 3), Exit.NOT_FOUND),
        (OffsetCorruptError("x", 5, 0, 9, 6), Exit.DAMAGED),
        (CorruptionError("f", 0, "bad"), Exit.DAMAGED),
        (ProtocolError("no"), Exit.REFUSED),
    ],
)
def test_error_becomes_a_sentence_and_an_exit_code(error, code, highway, monkeypatch):
    assert exit_code_of(error) == code

    def fail(*_, **__):
        raise error

    monkeypatch.setattr("highway.cli.config.load_document", fail)
    ran = highway("config", "show")
    assert (ran.code, ran.out) == (code, "")
    assert str(error) in ran.err
    assert "Traceback" not in ran.err


def test_command_error_carries_its_exit_code(highway, monkeypatch):
    def fail(*_, **__):
        raise CommandError("too late", Exit.TIME_OUT)

    monkeypatch.setattr("highway.cli.config.load_document", fail)
    assert highway("config", "show") == (Exit.TIME_OUT, "", "Error: too late\n")


def test_interrupt_ends_without_a_traceback(highway, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("highway.cli.config.load_document", interrupt)
    ran = highway("config", "show")
    assert (ran.code, ran.out) == (Exit.FAILURE, "")
    assert ran.err.strip() == "highway: interrupted"


def test_module_is_the_command():
    ran = subprocess.run([sys.executable, "-m", "highway", "--version"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, f"highway, version {__version__}\n")


def test_help_does_not_load_the_broker_or_the_models():
    code = "import sys; from highway.cli.main import run; run(['--version']); print(sorted(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "highway.cli.main" in ran.stdout
    for module in ("pydantic", "aiomqtt", "highway.broker", "rich"):
        assert f"'{module}'" not in ran.stdout
