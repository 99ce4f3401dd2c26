"""The reference page of all commands, made from the commands themselves: `python -m
expunge.cli.reference > FILE`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

import click

from expunge.cli import _command
from expunge.cli.main import main

_SHORT = 8  # rows of a table of options that may be repeated
_HEAD = """\
# The command line

Generated from the commands' own help by `python -m expunge.cli.reference`; a test keeps it up to
date. Every command takes `-h` and `--json`. With `--json` it prints one JSON object on standard
output and nothing else: errors as `{"error": {"kind", "message"}}`, numbers that secure aggregation
does not disclose as `null`. Output is coloured only on a terminal, and not if `NO_COLOR` is set.
For a tutorial see [first-federation.md](../how-to/first-federation.md); with masks,
[secure-aggregation.md](../how-to/secure-aggregation.md).

| variable | meaning |
|---|---|
| `EXPUNGE_OFFICE` | the operator's or officer's folder, instead of `--office` |
| `EXPUNGE_CLIENT` | the client's folder, instead of `--dir` |
| `EXPUNGE_DATA` | the folder with the experiments' data, instead of `--data` |
| `EXPUNGE_FLOWER_PYTHON` | the Python of an environment with Flower, instead of `--flower-python` |
| `EXPUNGE_SWEEP` | results.json of your own sweep, whose settings the experiments use |
| `NO_COLOR` | no colours |

| exit code | meaning |
|---|---|
"""


def page() -> str:
    """The whole page."""
    codes = "".join(f"| {code} | {text} |\n" for code, text in _command.EXIT_CODES.items())
    context = click.Context(main, info_name="expunge")
    return _HEAD + codes + "".join(_sections(main, context, {}))


def _sections(
    command: click.Command, context: click.Context, shown: dict[str, str]
) -> Iterator[str]:
    """The command and those below it; `shown` are tables of options printed further up, with their
    commands.
    """
    if context.parent is not None:
        yield _section(command, context, shown)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            if subcommand is not None:
                yield from _sections(
                    subcommand, click.Context(subcommand, info_name=name, parent=context), shown
                )


def _section(command: click.Command, context: click.Context, shown: dict[str, str]) -> str:
    depth = 2 if context.parent is not None and context.parent.parent is None else 3
    text = inspect.cleandoc(command.help or "").replace("\b\n", "\b")
    paragraphs = [_paragraph(part) for part in text.split("\n\n")]
    usage = command.collect_usage_pieces(context)
    parts = [f"{'#' * depth} {context.command_path}", *paragraphs]
    if not isinstance(command, click.Group):
        parts.insert(1, f"`{' '.join([context.command_path, *usage])}`")
        options = _options(command, context)
        same = shown.setdefault(options, context.command_path)
        repeated = same != context.command_path and options.count("\n") > _SHORT
        parts.append(
            f"Options: as for [{same}](#{same.replace(' ', '-')})." if repeated else options
        )
    return "\n" + "\n\n".join(part for part in parts if part) + "\n"


def _paragraph(part: str) -> str:
    """Examples become code; the rest is running text."""
    if not part.startswith("\b"):
        return " ".join(part.split("\n"))
    head, *lines = part[1:].split("\n")
    return (
        f"{head}\n\n```console\n" + "\n".join(line.removeprefix("  ") for line in lines) + "\n```"
    )


def _options(command: click.Command, context: click.Context) -> str:
    own = [
        option
        for option in command.params
        if isinstance(option, click.Option) and "--json" not in option.opts
    ]
    records = [record for option in own if (record := option.get_help_record(context)) is not None]
    rows = [
        f"| `{names.replace('|', chr(92) + '|')}` | {text.replace('  [', ' [')} |"
        for names, text in records
    ]
    return "\n".join(["| option | meaning |", "|---|---|", *rows]) if rows else ""


if __name__ == "__main__":
    sys.stdout.write(page())
