"""How our commands are made: each takes --json and -h, has its own screen, and help whose examples keep their lines."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import click

from expunge.cli.screen import Screen

_JSON = "expunge.json"


def _keep_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    context.meta[_JSON] = value


def kept_lines(text: str | None) -> str | None:
    """Help in which paragraphs with indented lines, such as examples, are not wrapped."""
    if text is None:
        return None
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(f"\b\n{part}" if "\n  " in part else part for part in paragraphs)


class _Helped(click.Command):
    """Help by -h as by --help, whichever context asks first: click keeps the first answer for good."""

    def get_help_option_names(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click has it
        """Both."""
        return ["-h", "--help"]


class Command(_Helped):
    """One command."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.help = kept_lines(self.help)
        self.params.append(
            click.Option(
                ["--json", "as_json"],
                is_flag=True,
                expose_value=False,
                is_eager=True,
                callback=_keep_json,
                help="Print one JSON object on standard output, and nothing else.",
            )
        )

    def invoke(self, ctx: click.Context) -> Any:
        """Run, with a screen to show things on."""
        ctx.obj = Screen(as_json=bool(ctx.meta.get(_JSON)))
        return super().invoke(ctx)


class Group(_Helped, click.Group):
    """Commands that belong together."""

    command_class = Command

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.help = kept_lines(self.help)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click has it
        """In the order in which they were defined."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each command with the whole of its first sentence."""
        found = [(name, self.first_sentence(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, text in found if text is not None])

    def first_sentence(self, ctx: click.Context, name: str) -> str | None:
        """The first sentence of a command's help."""
        command = self.get_command(ctx, name)
        return None if command is None else command.get_short_help_str(limit=200)


Group.group_class = Group


def command(name: str | None = None) -> Callable[[Callable[..., Any]], Command]:
    """Make a function a command."""
    return click.command(name, cls=Command)


def group(name: str | None = None) -> Callable[[Callable[..., Any]], Group]:
    """Make a function a group of commands."""
    return click.group(name, cls=Group)
