"""What is shown: calm text for people, or exactly one JSON object for programs; progress where a
person is watching.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from expunge.errors import InputError
from expunge.evidence.wording import shown

Bars = Callable[[str, int, int | None], None]  # what is done, how much so far, and of how much

_WORD = re.compile(r"\S+")
_NARROWEST = 16  # of a last column, in characters: with less, sentences could not be read


class Style(StrEnum):
    """What the look of a text means."""

    GOOD = "green"
    BAD = "bold red"
    WAITS = "yellow"
    QUIET = "dim"
    COMMAND = "cyan"


class Screen:
    """The one way out of a command. Everything a command found out goes to `result`, once."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.out = Console(highlight=False, markup=False)
        self.err = Console(stderr=True, highlight=False, markup=False)
        self._noted: set[str] = set()

    @classmethod
    def current(cls) -> Screen:
        """The screen of the command that is running."""
        screen = click.get_current_context().find_object(cls)
        return cls(as_json=False) if screen is None else screen

    @property
    def is_watched(self) -> bool:
        """Whether bars are shown: not with --json, and only if standard error is a terminal."""
        return self.err.is_terminal and not self.as_json

    def result(self, value: dict[str, Any], *shown_to_people: RenderableType) -> None:
        """The end of a command: its value for programs, or what people see of it."""
        if self.as_json:
            sys.stdout.write(json.dumps(value, indent=2 if self.out.is_terminal else None) + "\n")
            return
        for part in shown_to_people:
            self.show(part)

    def show(self, part: RenderableType) -> None:
        """Show something to people, on standard output; programs see nothing of it."""
        if isinstance(part, Group):
            for renderable in part.renderables:
                self.show(renderable)
        elif not self.as_json:
            copied = isinstance(part, Text) and part.no_wrap is True
            self.out.print(part, soft_wrap=copied, crop=False)

    def note(self, text: str) -> None:
        """Say something beside the result, on standard error, once."""
        if text not in self._noted:
            self._noted.add(text)
            self.complain(Text(shown(text), style=Style.QUIET))

    def complain(self, text: Text) -> None:
        """Write one line to standard error: it may name a path or command, which people copy."""
        self.err.print(text, soft_wrap=True)

    def error(self, message: str) -> None:
        """Say why a command has failed, on standard error."""
        self.complain(Text.assemble(("Error: ", Style.BAD), shown(message)))

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask for confirmation; any answer but yes ends the command with nothing changed."""
        if yes:
            return
        if self.as_json:
            raise InputError(
                "confirmation is required, and nothing was changed: give --yes, since --json "
                "cannot ask"
            )
        try:
            agreed = click.confirm(question, err=True)
        except click.Abort as problem:
            self.err.print()
            raise InputError(
                "confirmation is required, and nothing was changed: answer y, or give --yes"
            ) from problem
        if not agreed:
            raise InputError("not confirmed: nothing was changed")

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """A bar on standard error, if it is shown; the function takes how much is done so far."""
        with self.bars() as show:
            show(what, 0, total)
            yield lambda done: show(what, done, total)

    @contextmanager
    def bars(self) -> Iterator[Bars]:
        """Progress bars, created on first use: the function takes a description, the amount done
        and the total.

        The text after a colon may change: "Round: joining" and "Round: sharing" are one bar.
        """
        if not self.is_watched:
            yield lambda *_: None
            return
        from expunge.cli import _progress  # noqa: PLC0415 - most commands show no bars

        with _progress.bars(self.err) as show:
            yield show


@dataclass(frozen=True)
class _Columns:
    """Cells side by side, in the width of the terminal.

    Lines end at spaces only. A word without enough room, such as a path or a digest, goes beyond
    the edge; there the terminal wraps it, which puts no line break into what people copy.
    """

    rows: Sequence[Sequence[Text]]
    gap: int = 2
    indent: int = 2
    right: Sequence[bool] = ()  # of each column: whether its cells end at its right edge
    fill: bool = False  # whether the first column takes all the room that is left

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Every row, in as many lines as its longest cell."""
        del console
        widths = self._widths(options.max_width - self.indent)
        for row in self.rows:
            cells = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
            for parts in zip_longest(*cells, fillvalue=Text()):
                yield self._line(parts, widths)

    def _widths(self, room: int) -> list[int]:
        """Widths of all columns: the widest give way until no line is longer than `room`."""
        columns = [[_measured(cell) for cell in column] for column in zip(*self.rows, strict=True)]
        least = [max(word for word, _ in column) for column in columns]
        widths = [max(whole for _, whole in column) for column in columns]
        room -= self.gap * (len(widths) - 1)
        while sum(widths) > room and (
            wide := [at for at, width in enumerate(widths) if width > least[at]]
        ):
            widths[max(wide, key=lambda at: widths[at])] -= 1
        if widths and sum(widths) > room:  # the last column has nothing to its right
            widths[-1] = min(widths[-1], max(room - sum(widths[:-1]), _NARROWEST))
        if self.fill:
            widths[0] += max(room - sum(widths), 0)
        return widths

    def _line(self, parts: Sequence[Text], widths: Sequence[int]) -> Text:
        made = Text(" " * self.indent, no_wrap=True, overflow="ignore")
        right = self.right or [False] * len(widths)
        for at, (part, width) in enumerate(zip(parts, widths, strict=True)):
            blank = " " * max(width - part.cell_len, 0)
            made.append(" " * self.gap * (at > 0) + blank * right[at]).append_text(part)
            made.append(blank * (not right[at]))
        made.rstrip()
        return made


def _measured(cell: Text) -> tuple[int, int]:
    """How wide a cell must be at least, and how wide it would be."""
    whole = max(map(cell_len, cell.plain.splitlines()), default=0)
    return (whole if cell.no_wrap else max(map(cell_len, cell.plain.split()), default=0)), whole


def _wrapped(cell: Text, width: int) -> list[Text]:
    """The lines of a cell, which end at spaces only; those of what people copy are left alone."""
    given = list(cell.split("\n", allow_blank=True))
    lines = (
        given if cell.no_wrap else [part for row in given for part in row.divide(_cuts(row, width))]
    )
    for row in lines:
        row.rstrip()
    return lines


def _cuts(text: Text, width: int) -> Iterator[int]:
    """Where the next line begins: at the first word that would end beyond `width`."""
    start = 0
    for word in _WORD.finditer(text.plain):
        if word.start() > start and cell_len(text.plain[start : word.end()]) > width:
            start = word.start()
            yield start


def title(text: str) -> RenderableType:
    """What this is about."""
    return line(text, "bold")


def line(text: str | Text = "", style: str = "", *, indent: int = 0) -> RenderableType:
    """A line of plain text, wrapped where it must be, though never within a word."""
    words = text if isinstance(text, Text) else Text(shown(text), style=style)
    return _Columns([[words]], indent=indent)


def at_edges(left: str, right: str) -> RenderableType:
    """What this is about at the left edge, and a remark on it at the right one."""
    cells = Text(shown(left), style="bold"), unwrapped(right, Style.QUIET)
    return _Columns([cells], indent=0, right=(False, True), fill=True)


def unwrapped(text: object, style: str = "", *, indent: int = 0) -> Text:
    """A line that is never wrapped: it has a path or a command in it, which people copy."""
    return Text(" " * indent + shown(str(text)), style=style, no_wrap=True, overflow="ignore")


def typed(path: Path) -> str:
    """A path as part of a command that can be pasted into a shell; never taken for an option."""
    shown_path = short_path(path)
    return shlex.quote(f"./{shown_path}" if shown_path.startswith("-") else shown_path)


def short_path(path: Path) -> str:
    """A path as one would write it: from here, if it lies below."""
    whole, here = path.absolute(), Path.cwd()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(whole)


def facts(pairs: Iterable[tuple[str, object]]) -> RenderableType:
    """Names and values in two columns."""
    return _Columns([(unwrapped(name, Style.QUIET), _cell(value)) for name, value in pairs])


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()
) -> RenderableType:
    """A table without a frame; the columns named in `right` are numbers."""
    header = [Text(shown(name), style=Style.QUIET) for name in columns]
    cells = [[_cell(value) for value in row] for row in rows]
    return _Columns([header, *cells], right=[name in right for name in columns])


def _cell(value: object) -> Text:
    """A value as it is shown; a path is never wrapped."""
    if isinstance(value, Text):
        return value
    return unwrapped(value) if isinstance(value, Path) else Text(shown(str(value)))


def bullets(points: Iterable[str], mark: str = "-", style: str = "") -> RenderableType:
    """Sentences, each with a mark before it."""
    return _Columns([(Text(mark, style=style), Text(shown(point))) for point in points], gap=1)


def next_steps(*commands: str, why: str = "Next:") -> Group:
    """What to type next: commands that can be copied, one on each line."""
    name = _program()
    lines = [
        f"{name}{text.removeprefix('expunge')}" if text.startswith("expunge ") else text
        for text in commands
    ]
    return Group(line(), title(why), *(unwrapped(text, Style.COMMAND, indent=2) for text in lines))


def _program() -> str:
    """How this program is called from here: by its name, or by its path where the shell would not
    find it.
    """
    called = Path(sys.argv[0])
    if called.name != "expunge":
        return "expunge"
    executable = shutil.which("expunge")
    return (
        "expunge"
        if executable is not None and Path(executable).resolve() == called.resolve()
        else typed(called)
    )


def count(number: int, noun: str) -> str:
    """A number with its noun, as in "no samples", "1 sample", "1,797 samples"."""
    return f"{number:,} {noun if number == 1 else noun + 's'}" if number else f"no {noun}s"
