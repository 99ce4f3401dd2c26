"""How our commands are made: each takes --json and -h, has its own screen, and help whose examples
keep their lines.

An error becomes a message with its remedy, and an exit code that a script can act on.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from expunge.errors import CarrierError, EvidenceError, ExpungeError, RefusedError, StoreBusyError
from expunge.wire.refusals import PASSING

if TYPE_CHECKING:
    from expunge.cli._output import Screen

DONE, FAILED, USAGE, EVIDENCE, NO_ANSWER, BUSY, NOTHING, NOT_YET = range(8)
INTERRUPTED = 130

EXIT_CODES = {
    DONE: "done",
    FAILED: "refused or failed; nothing changed unless the message says so",
    USAGE: "invalid command line",
    EVIDENCE: "verification failed: a signature, proof, digest or audit",
    NO_ANSWER: "no answer from the server; safe to retry",
    BUSY: "the folder is in use by another process",
    NOTHING: "nothing to do",
    NOT_YET: "not complete yet: others have yet to answer",
    INTERRUPTED: "interrupted; safe to retry",
}


def _grid_remedy(match: re.Match[str]) -> str:
    option = "--label-grid" if match[1] else "--grid"
    return f"create a federation with a wider grid: expunge init {option} {match[2]},{match[3]}"


# What is written in Python is typed otherwise.
_TYPED = {
    "accept_restored=True": "--accept-restored",
    "restored=True": "--old-copy",
    "insecure=True": "--insecure-http",
    "everything=True": "--all",
    "give at least one store": "give at least one, --client-dir DIR",
    "recompute=": "--backbone",
    (
        "Select the columns of the first table, in its order, or give an array, which goes by "
        "position"
    ): "Name the columns of the first file, in its order (--feature-column, repeatable)",
    "(message=)": "(expunge client sync --message)",
    "name them by label_keys": "name them by --label-column",
    "(label_indices=True)": "(--label-indices)",
    (
        "grow the spec: spec.with_labels(...), and a solver's by solver.amend(...)"
    ): "expunge server amend --add-label LABEL",
    "Name the one with the labels": "Name the one with the labels (--label-column)",
    "ay which columns are features": "ay which columns are features (--feature-column)",
    "Name the one with the features": "Name the one with the features (--feature-column)",
    "or name another array": "or name another array (--feature-column)",
    "or name another column": "or name another column (--feature-column)",
    (
        "either in a second .npy file or as its last columns"
    ): "in a second .npy file (--labels) or as last columns (--last-columns)",
    (
        "in a second file or as the last columns"
    ): "in a second file (--labels) or as the last columns (--last-columns)",
}
_TYPED_FORMS: dict[str, str | Callable[[re.Match[str]], str]] = {
    (
        r"choose (label_)?grid=Grid\(digits=(\d+), fraction_bits=(-?\d+)\) when making the "
        r"spec"
    ): _grid_remedy,
    r"Grid\(digits=(\d+), fraction_bits=(-?\d+)\)": r"the grid \1,\2",
}


def exit_code(problem: BaseException) -> int:
    """The exit code of an error."""
    if isinstance(problem, EvidenceError):
        return EVIDENCE
    if isinstance(problem, CarrierError) or (
        isinstance(problem, RefusedError) and problem.code in PASSING
    ):
        return NO_ANSWER
    return BUSY if isinstance(problem, StoreBusyError) else FAILED


def error_value(problem: BaseException) -> dict[str, Any]:
    """An error as programs see it: its kind (the class, in small letters with hyphens) and its
    message.
    """
    name = type(problem).__name__ if isinstance(problem, ExpungeError) else "FailedError"
    kind = re.sub(r"(?<!^)(?=[A-Z])", "-", name.removesuffix("Error")).lower()
    value: dict[str, Any] = {"kind": kind, "message": message(problem)}
    if isinstance(problem, RefusedError):
        value |= {"code": problem.code, "details": problem.details}
    return {"error": value}


def message(problem: BaseException) -> str:
    """What to tell people."""
    if isinstance(problem, OSError) and not isinstance(problem, ExpungeError):
        where = f"{problem.filename}: " if problem.filename else ""
        return f"{where}{problem.strerror or problem}"
    notes = list(getattr(problem, "__notes__", []))
    if isinstance(problem, CarrierError) and not notes:
        notes = ["Nothing is lost: run the same command again to finish"]
    text = ". ".join([str(problem), *notes])
    for written, typed in _TYPED.items():
        text = text.replace(written, typed)
    for form, typed_form in _TYPED_FORMS.items():
        text = re.sub(form, typed_form, text)
    return text


def screen(*, as_json: bool) -> Screen:
    """A screen to show things on."""
    from expunge.cli._output import Screen  # noqa: PLC0415 - brings rich, which no help waits for

    return Screen(as_json=as_json)


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
    """Help by -h as by --help, whichever context asks first: click keeps the first answer for
    good.
    """

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
                help="Print one JSON object and nothing else.",
            )
        )

    def invoke(self, ctx: click.Context) -> Any:
        """Run, with a screen to show things on."""
        ctx.obj = screen(as_json=bool(ctx.meta.get(_JSON)))
        return super().invoke(ctx)


@dataclass(frozen=True)
class LazyCommand:
    """A command that is imported when it is used: where it is, and the first sentence of its help.

    The sentence is repeated here so that a group's help imports none of its commands;
    tests/test_startup.py compares it with the command's own.
    """

    source: str  # module:name
    first_sentence: str

    def load(self) -> click.Command:
        """The command itself."""
        module, _, name = self.source.partition(":")
        loaded = getattr(import_module(module), name)
        if not isinstance(loaded, click.Command):
            raise TypeError(f"{self.source} is no command, but a {type(loaded).__name__}")
        return loaded


class Group(_Helped, click.Group):
    """Commands that belong together; those in `lazy` are imported when they are used."""

    command_class = Command

    def __init__(
        self, *arguments: Any, lazy: Mapping[str, LazyCommand] | None = None, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.help = kept_lines(self.help)
        self.lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - as click has it
        """In the order in which they were defined."""
        return [*self.commands, *self.lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by its name."""
        if cmd_name in self.lazy:
            return self.lazy[cmd_name].load()
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each command with the whole of its first sentence."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.first_sentences(ctx).items()))

    def first_sentences(self, ctx: click.Context) -> dict[str, str]:
        """Every command with the first sentence of its help, without importing lazy commands."""
        sentences = {}
        for name in self.list_commands(ctx):
            if name in self.lazy:
                sentences[name] = self.lazy[name].first_sentence
            elif (command := self.get_command(ctx, name)) is not None:
                sentences[name] = command.get_short_help_str(limit=200)
        return sentences


Group.group_class = Group


def command(name: str | None = None) -> Callable[[Callable[..., Any]], Command]:
    """Make a function a command."""
    return click.command(name, cls=Command)


def group(
    name: str | None = None, *, lazy: Mapping[str, LazyCommand] | None = None
) -> Callable[[Callable[..., Any]], Group]:
    """Make a function a group of commands."""
    return click.group(name, cls=Group, lazy=lazy)
