"""The entry point: `expunge COMMAND`. Finds commands, turns errors into messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click
from rich.text import Text

from expunge._version import __version__
from expunge.cli import _command, plugins
from expunge.cli._command import Group
from expunge.cli._output import BAD, Screen
from expunge.errors import ExpungeError
from expunge.evidence.wording import shown

_COMMANDS = {
    "demo": "demo",
    "init": "init",
    "serve": "serve",
    "server": "server",
    "enroll": "enroll",
    "client": "client",
    "order": "order",
    "audit": "audit",
    "aggregator": "aggregator",
    "statistics": "statistics",
    "head": "head",
    "predict": "predict",
    "verify": "verify",
    "key": "key",
    "completion": "completion",
}


class Expunge(Group):
    """All commands, each imported when it is first needed; errors end here."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click has it
        """In the order in which they are first needed, then those of other distributions."""
        return [*_COMMANDS, *(name for name in plugins.short_helps() if name not in _COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as click has it
        """A command by its name."""
        if cmd_name not in _COMMANDS:
            return plugins.command(cmd_name)
        command = getattr(import_module(f"expunge.cli.{_COMMANDS[cmd_name]}"), cmd_name)
        return command if isinstance(command, click.Command) else None

    def first_sentence(self, ctx: click.Context, name: str) -> str | None:
        """The first sentence of a command's help.

        What is of another distribution is not imported for it.
        """
        return (
            super().first_sentence(ctx, name)
            if name in _COMMANDS
            else plugins.short_helps().get(name)
        )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as click has it
        """The exit codes."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in _command.EXIT_CODES.items()])

    def main(self, args: Sequence[str] | None = None, *arguments: Any, **options: Any) -> NoReturn:
        """Run a command and exit. Never a traceback for an error that says what to do."""
        given = list(sys.argv[1:] if args is None else args)
        as_json = "--json" in given
        options["standalone_mode"] = False
        try:
            code = super().main(given, *arguments, **options)
        except click.exceptions.Exit as ending:
            code = ending.exit_code
        except click.ClickException as problem:
            _usage(problem, as_json=as_json)
            code = problem.exit_code
        except (click.Abort, KeyboardInterrupt):
            _report(
                KeyboardInterrupt("interrupted; the same command again is safe"), as_json=as_json
            )
            code = _command.INTERRUPTED
        except BrokenPipeError:
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
            )  # whoever read our output has gone
            code = _command.FAILED
        except (ExpungeError, OSError) as problem:
            _report(problem, as_json=as_json)
            code = _command.exit_code(problem)
        sys.exit(code if isinstance(code, int) else _command.DONE)


def _report(problem: BaseException, *, as_json: bool) -> None:
    screen = Screen(as_json=as_json)
    if as_json:
        screen.result(_command.error_value(problem))
    else:
        screen.complain(Text.assemble(("Error: ", BAD), shown(_command.message(problem))))


def _usage(problem: click.ClickException, *, as_json: bool) -> None:
    if as_json:
        Screen(as_json=True).result(
            {"error": {"kind": "usage", "message": problem.format_message()}}
        )
    else:
        problem.show()


@click.group(cls=Expunge)
@click.version_option(__version__, prog_name="expunge", message="%(prog)s %(version)s")
def main() -> None:
    """Exact, checkable federated unlearning for ridge heads on frozen features.

    A federation is a server, which keeps the exact sums, and clients, which keep the samples.
    Whatever a client deletes is subtracted exactly: the head is then, bit for bit, the one that
    retraining without it would give, and a signed receipt says so.

    Begin here:
      expunge demo               the whole story in a few seconds
      expunge init DIR ...       found a federation; it prints what to type next
      expunge COMMAND --help     what a command does, an example, what comes next

    Every command takes --json, and then prints one JSON object and nothing else.
    """
