"""The entry point: `expunge COMMAND`. Finds commands, turns errors into messages and exit codes."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from expunge._version import __version__
from expunge.cli import _command, plugins
from expunge.cli._command import Group, LazyCommand
from expunge.errors import ExpungeError

_COMMANDS = {  # in the order in which they are first needed
    "demo": LazyCommand(
        "expunge.cli.demo:demo",
        "Run a complete demo: train, forget, verify, audit, compare with retraining.",
    ),
    "init": LazyCommand(
        "expunge.cli.init:init", "Create a federation in the new folder DIRECTORY."
    ),
    "serve": LazyCommand(
        "expunge.cli.serve:serve",
        "Serve the federation in DIRECTORY over HTTPS.",
    ),
    "server": LazyCommand(
        "expunge.cli.server:server",
        "Operator commands: enrol clients, show status, amend the spec, back up, restore.",
    ),
    "enroll": LazyCommand(
        "expunge.cli.enroll:enroll",
        "Enrol in a federation with a one-time TOKEN from its operator.",
    ),
    "client": LazyCommand(
        "expunge.cli.client:client",
        "Client commands: add, forget and correct samples, sync with the server, show status.",
    ),
    "order": LazyCommand(
        "expunge.cli.order:order",
        "Erasure orders: a person asks once, every client answers, a signed bundle documents it.",
    ),
    "audit": LazyCommand(
        "expunge.cli.audit:audit",
        "Audit the federation: compare the ledger with what clients recompute.",
    ),
    "arbiter": LazyCommand(
        "expunge.cli.arbiter:arbiter",
        "Arbiter commands: find out which client made a masked sum false.",
    ),
    "aggregator": LazyCommand(
        "expunge.cli.aggregator:aggregator",
        "Serve a group of clients under another server, which sees only the group's sums.",
    ),
    "statistics": LazyCommand(
        "expunge.cli.statistics:statistics",
        "Compute the exact statistics of FILES, even of more samples than one machine holds.",
    ),
    "head": LazyCommand(
        "expunge.cli.head:head",
        "Show the newest head and its certificate, or write it to a file.",
    ),
    "predict": LazyCommand(
        "expunge.cli.predict:predict", "Predict labels (or outputs) for FILES with the newest head."
    ),
    "verify": LazyCommand(
        "expunge.cli.verify:verify",
        "Verify evidence offline: a receipt, bundle, certificate, head or other signed file.",
    ),
    "key": LazyCommand(
        "expunge.cli.key:key",
        "Print the server's public key, as a federation, office or client folder records it.",
    ),
    "simulate": LazyCommand(
        "expunge.cli.simulate:simulate",
        "Simulate federations among faults, and check that every law holds.",
    ),
    "completion": LazyCommand(
        "expunge.cli.completion:completion",
        "Print a completion script for your shell.",
    ),
}

# Python would look through every object for cycles before it exits, which takes as long as a short
# command itself; the memory goes back to the system all the same.
atexit.register(gc.freeze)


class Expunge(Group):
    """All commands, each imported when it is first needed; errors end here."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Our own commands, then those of other distributions."""
        return list(self.first_sentences(ctx))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by its name."""
        command = super().get_command(ctx, cmd_name) or plugins.command(cmd_name)
        if not gc.isenabled():
            gc.freeze()
            gc.enable()
        return command

    def first_sentences(self, ctx: click.Context) -> dict[str, str]:  # noqa: ARG002 - as click has it
        """Every command with the first sentence of its help. Imports none of them."""
        own = {name: command.first_sentence for name, command in self.lazy.items()}
        return own | plugins.short_helps() | own

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as click has it
        """The exit codes."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in _command.EXIT_CODES.items()])

    def main(self, args: Sequence[str] | None = None, *arguments: Any, **options: Any) -> NoReturn:
        """Run a command and exit. Never a traceback for an error that says what to do."""
        given = list(sys.argv[1:] if args is None else args)
        if args is None:  # a process of its own: what is made until its command is found stays
            gc.disable()
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
            _report(KeyboardInterrupt("interrupted; safe to retry"), as_json=as_json)
            code = _command.INTERRUPTED
        except BrokenPipeError:
            # the reader of our output is gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = _command.FAILED
        except (ExpungeError, OSError) as problem:
            _report(problem, as_json=as_json)
            code = _command.exit_code(problem)
        sys.exit(code if isinstance(code, int) else _command.DONE)


def _report(problem: BaseException, *, as_json: bool) -> None:
    screen = _command.screen(as_json=as_json)
    if as_json:
        screen.result(_command.error_value(problem))
    else:
        screen.error(_command.message(problem))


def _usage(problem: click.ClickException, *, as_json: bool) -> None:
    if as_json:
        _command.screen(as_json=True).result(
            {"error": {"kind": "usage", "message": problem.format_message()}}
        )
    else:
        problem.show()


@click.group(cls=Expunge, lazy=_COMMANDS)
@click.version_option(__version__, prog_name="expunge", message="%(prog)s %(version)s")
def main() -> None:
    """Exact, checkable federated unlearning for ridge heads on frozen features.

    A federation has a server, which keeps exact sums, and clients, which keep the samples. When a
    client deletes samples, the server subtracts them exactly: the new head equals, bit for bit, the
    head retrained without them, and a signed receipt says so.

    Start here:
      expunge demo             # run a complete demo, in seconds
      expunge init DIR ...     # create a federation; prints what to type next
      expunge COMMAND --help   # describe a command, with examples

    With --json, every command prints one JSON object and nothing else.
    """
