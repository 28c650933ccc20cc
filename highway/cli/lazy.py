"""Groups whose commands are imported one by one, when they are asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

from .manual import add_pages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["LazyGroup"]


class LazyGroup(click.Group):
    """A group with `places`, command name -> (module, name in it): `highway fetch` shouldn't wait for the broker.

    `words` are those of the group itself, behind `highway`.
    """

    def __init__(
        self, *args: Any, places: Mapping[str, tuple[str, str]], words: Sequence[str] = (), **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self._places = places
        self._words = words

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self._places])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._places:
            return super().get_command(ctx, cmd_name)
        module, name = self._places[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), name)
        return add_pages(command, [*self._words, cmd_name])
