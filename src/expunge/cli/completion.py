"""`expunge completion`: scripts for shell completion."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class
from rich.text import Text

from expunge.cli._command import command
from expunge.cli._output import Screen
from expunge.errors import InputError

_SHELLS = ("bash", "zsh", "fish")


@command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print a completion script for your shell.

    It completes commands and options in bash, zsh or fish.

    Example:
      expunge completion bash > ~/.local/share/bash-completion/completions/expunge
      expunge completion zsh > ~/.zfunc/_expunge       # with ~/.zfunc in fpath
      expunge completion fish > ~/.config/fish/completions/expunge.fish
    """
    made = get_completion_class(shell)
    root = click.get_current_context().find_root()
    if made is None:
        raise InputError(f"there is no completion for {shell}")
    complete = made(root.command, {}, "expunge", "_EXPUNGE_COMPLETE")
    script = complete.source_template % complete.source_vars()
    Screen.current().result(
        {"shell": shell, "script": script}, Text(script, no_wrap=True, overflow="ignore")
    )
