"""Exit codes, and the error that ends a command with one of them.

0 success, 1 failure, 2 wrong usage or configuration, 3 not found or out of range, 4 time out, 5 damaged, 6 refused.
"""

from __future__ import annotations

import enum

import click

from highway.errors import ConfigError, CorruptionError, HighwayError, MqttError, OffsetCorruptError, OffsetError

__all__ = ["CommandError", "Exit", "exit_code_of"]


class Exit(enum.IntEnum):
    """What a script can tell from the exit code."""

    SUCCESS = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    TIME_OUT = 4
    DAMAGED = 5
    REFUSED = 6


class CommandError(click.ClickException):
    """A command that ends with a sentence on standard error, and an exit code of ours."""

    def __init__(self, message: str, exit_code: Exit = Exit.FAILURE) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance as well as from the class


def exit_code_of(error: HighwayError) -> Exit:
    """The exit code that stands for `error`."""
    match error:
        case ConfigError():
            return Exit.USAGE
        case CorruptionError() | OffsetCorruptError():
            return Exit.DAMAGED
        case OffsetError():
            return Exit.NOT_FOUND
        case MqttError():
            return Exit.REFUSED
    return Exit.FAILURE
