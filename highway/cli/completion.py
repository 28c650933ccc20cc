"""`highway completion`: what a shell has to read so that it completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

__all__ = ["completion"]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes the commands and options of highway.

    \b
    For this session, or in the file that the shell reads at its start:
      bash   eval "$(highway completion bash)"                     in ~/.bashrc
      zsh    eval "$(highway completion zsh)"                      in ~/.zshrc, after compinit
      fish   highway completion fish | source                      in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    root = context.find_root()
    click.echo(kind(root.command, {}, "highway", "_HIGHWAY_COMPLETE").source())
