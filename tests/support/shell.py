"""The commands of a block of shell, and what can be checked of them without running them."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from expunge.cli.main import main

ROOT = Path(__file__).parents[2]
_HEREDOC = re.compile(r"<<-?'?(\w+)'?(.*\n)(?:.*\n)*?\1\n")
_OPERATOR = re.compile(r"[();<>|&]+")
_ASSIGNMENT = re.compile(r"\w+=")
_TARGETS = re.compile(r"^\.PHONY: (.*)$", re.MULTILINE)
_EXTRAS = re.compile(r"\[([\w,]+)\]$")


@dataclass(frozen=True)
class Command:
    """A command as a shell would split it, with the variables that were exported before it."""

    program: str  # without the folder that it is in
    arguments: tuple[str, ...]
    exported: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return shlex.join([self.program, *self.arguments])


def commands(text: str) -> list[Command]:
    """All commands of a block, in their order."""
    exported: dict[str, str] = {}
    found = []
    for line in _HEREDOC.sub(r"\2", text).replace("\\\n", " ").splitlines():
        for words in _simple_commands(line):
            if words[0] == "export":
                exported |= dict(word.split("=", 1) for word in words[1:])
            if words[1:3] == ["-m", "pip"]:
                del words[:2]
            program = words[0].split("/")[-1]
            found.append(Command(program, tuple(words[1:]), tuple(exported.items())))
    return found


def _simple_commands(line: str) -> Iterator[list[str]]:
    """What stands between operators, without redirections, assignments and comments."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    is_target = False
    for word in [*lexer, ";"]:
        if not _OPERATOR.fullmatch(word):
            words += [] if is_target or (not words and _ASSIGNMENT.match(word)) else [word]
            is_target = False
        elif "<" in word or ">" in word:
            is_target = True
            del words[len(words) - (words[-1:] in (["1"], ["2"])) :]
        else:
            if words:
                yield words
            words = []


def inner(command: Command) -> Command:
    """The command of Expunge that another one runs: by sudo, or in a container."""
    words = list(command.arguments)
    if command.program == "sudo":
        del words[: 2 if words[0] == "-u" else 0]
    elif command.program == "podman" and words[0] == "run":
        del words[: len(words) - words[::-1].index("expunge") - 1]
    else:
        return command
    return Command(words[0].split("/")[-1], tuple(words[1:]), command.exported)


# -- checks ----------------------------------------------------------------------------------------


def problem(command: Command) -> str:
    """What is wrong with a command; nothing, if all that can be checked is right."""
    command = inner(command)
    words = command.arguments
    if missing := [word for word in words if _is_ours(word) and not (ROOT / word).exists()]:
        return f"{command}: there is no {missing[0]}"
    if command.program == "expunge":
        return _unparsed(command)
    if command.program == "make":
        unknown = {word for word in words if "=" not in word} - make_targets()
        return f"{command}: no such target" if unknown else ""
    if command.program == "pip":
        named = {
            name for word in words for extra in _EXTRAS.findall(word) for name in extra.split(",")
        }
        return f"{command}: no such extra" if named - extras() else ""
    return ""


def make_targets() -> set[str]:
    (targets,) = _TARGETS.findall((ROOT / "Makefile").read_text(encoding="utf-8"))
    return set(targets.split())


def extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])


def _is_ours(word: str) -> bool:
    """Whether a word names a file of the repository, as far as its beginning shows."""
    first = word.removeprefix("./").split("/")[0]
    folders = ("docs", "experiments", "packaging", "requirements", "vectors")
    return first in folders or re.fullmatch(r"constraints[\w-]*\.txt", word) is not None


def _unparsed(command: Command, *, whole: bool = True) -> str:
    """Why `expunge` does not take these arguments. Files need not exist, and nothing is run.

    What is not a `whole` command may lack arguments, as those in sentences do.
    """
    given: click.Command = main
    context, words = click.Context(main, info_name="expunge"), list(command.arguments)
    while isinstance(given, click.Group) and words and words[0][:1] != "-":
        name = words.pop(0)
        below = given.get_command(context, name)
        if below is None:
            stands_for_any = name.isupper() and not whole
            return "" if stands_for_any else f"{command}: there is no command {name}"
        given, context = below, click.Context(below, info_name=name, parent=context)
    if isinstance(given, click.Group) and not words:  # the container's own, or within a sentence
        return ""
    try:
        _parse(given, words, context, command.exported)
    except (click.MissingParameter, click.BadOptionUsage) as refused:
        return f"{command}: {refused.format_message()}" if whole else ""
    except click.ClickException as refused:
        return f"{command}: {refused.format_message()}"
    return ""


def _parse(
    command: click.Command,
    words: list[str],
    context: click.Context,
    exported: Iterable[tuple[str, str]],
) -> None:
    with (
        pytest.MonkeyPatch.context() as patch,
        suppress(click.exceptions.Exit),  # --help, --version
    ):
        patch.setattr(click.Path, "convert", lambda _, value, *__: Path(value))
        for name in [name for name in os.environ if name.startswith("EXPUNGE_")]:
            patch.delenv(name)
        for name, value in exported:
            patch.setenv(name, value)
        command.make_context(context.info_name, words, parent=context.parent)


def span_problem(span: str) -> str:
    """What is wrong with code within a sentence; nothing, if it is no command of ours."""
    if not re.match(r"(expunge|make) \w", span) or "[OPTIONS]" in span:
        return ""
    (command, *_) = commands(span)
    if command.program == "make":
        return problem(command)
    words = [word for word in command.arguments if word not in ("...", "…")]
    return _unparsed(Command("expunge", tuple(words)), whole=False)
