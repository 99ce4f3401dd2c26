"""What is shown: calm text for people, or exactly one JSON object for programs; progress where a person is watching."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from expunge.errors import InputError
from expunge.evidence.wording import shown

Bars = Callable[[str, int, int | None], None]

GOOD, BAD, WAITS, QUIET, COMMAND = "green", "bold red", "yellow", "dim", "cyan"


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
        """Whether somebody sees bars: not with --json, nor where standard error is no terminal."""
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
            for one in part.renderables:
                self.show(one)
        elif not self.as_json:
            self.out.print(part, soft_wrap=isinstance(part, Text) and part.no_wrap is True)  # what is copied stays in one line

    def note(self, text: str) -> None:
        """Say something beside the result, on standard error, once."""
        if text not in self._noted:
            self._noted.add(text)
            self.complain(Text(shown(text), style=QUIET))

    def complain(self, text: Text) -> None:
        """Write to standard error: for people wrapped where it must be, for logs in one line."""
        self.err.print(text, soft_wrap=not self.err.is_terminal)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask a person; whoever does not say yes ends the command with nothing changed."""
        if yes:
            return
        if self.as_json:
            raise InputError("this must be confirmed, and nothing was changed: give --yes, since --json leaves nobody to ask")
        try:
            agreed = click.confirm(question, err=True)
        except click.Abort as problem:
            self.err.print()
            raise InputError("this must be confirmed, and nothing was changed: answer y, or give --yes") from problem
        if not agreed:
            raise InputError("not confirmed: nothing was changed")

    @contextmanager
    def progress(self, what: str, total: int | None) -> Iterator[Callable[[int], None]]:
        """A bar on standard error, if somebody is watching; the function takes how much is done so far."""
        with self.bars() as show:
            show(what, 0, total)
            yield lambda done: show(what, done, total)

    @contextmanager
    def bars(self) -> Iterator[Bars]:
        """Bars that come when they are first heard of: the function takes what is done, how much so far, and of how much.

        What stands after a colon may change: "Round: joining" and "Round: sharing" are one bar.
        """
        if not self.is_watched:
            yield lambda *_: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=30), _Done(), TimeRemainingColumn())
        tasks: dict[str, TaskID] = {}
        with Progress(*columns, console=self.err, transient=True) as bar:

            def show(what: str, done: int, total: int | None) -> None:
                name = what.partition(":")[0]
                if name not in tasks:
                    tasks[name] = bar.add_task(what, total=total)
                bar.update(tasks[name], description=what, completed=done, total=total)

            yield show


class _Done(ProgressColumn):
    """As in "12,000 of 50,000"."""

    def render(self, task: Task) -> Text:
        """The column of one bar."""
        if task.total is None and not task.completed:
            return Text("")  # whoever waits for others counts nothing
        return Text(f"{int(task.completed):,}" + ("" if task.total is None else f" of {int(task.total):,}"))


def title(text: str) -> RenderableType:
    """What this is about."""
    return Text(shown(text), style="bold")


def line(text: str = "", style: str = "", *, indent: int = 0) -> RenderableType:
    """A line of plain text, wrapped where it must be."""
    words = Text(shown(text), style=style)
    return Padding(words, (0, 0, 0, indent), expand=False) if indent else words


def typed(path: Path) -> str:
    """A path as part of a command that can be pasted into a shell."""
    return shlex.quote(place(path))


def place(path: Path) -> str:
    """A path as one would write it: from here, if it lies below."""
    whole, here = path.absolute(), Path.cwd()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(whole)


def facts(pairs: Iterable[tuple[str, object]]) -> RenderableType:
    """Names and values in two columns."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style=QUIET, no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(f"  {name}", value if isinstance(value, Text) else shown(str(value)))
    return grid


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> RenderableType:
    """A table without a frame; the columns named in `right` are numbers."""
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style=QUIET, pad_edge=False)
    for name in columns:
        grid.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(value if isinstance(value, Text) else shown(str(value)) for value in row))
    return Padding(grid, (0, 0, 0, 2), expand=False)


def bullets(points: Iterable[str], mark: str = "-", style: str = "") -> RenderableType:
    """Sentences, each with a mark before it."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for point in points:
        grid.add_row(Text(f"  {mark}", style=style), Text(shown(point)))
    return grid


def next_steps(*commands: str, why: str = "Next:") -> RenderableType:
    """What to type next: commands that can be copied, one on each line."""
    name = _program()
    typed = [f"{name}{text.removeprefix('expunge')}" if text.startswith("expunge ") else text for text in commands]
    lines = [Text(f"  {text}", style=COMMAND, no_wrap=True, overflow="ignore") for text in typed]
    return Group(Text(""), Text(why, style="bold"), *lines)


def _program() -> str:
    """How this program is called from here: by its name, or by its path where the shell would not find it."""
    called = Path(sys.argv[0])
    if called.name != "expunge":
        return "expunge"
    known = shutil.which("expunge")
    return "expunge" if known is not None and Path(known).resolve() == called.resolve() else place(called)


def count(number: int, noun: str) -> str:
    """A number with its noun, as in "no samples", "1 sample", "1,797 samples"."""
    return f"{number:,} {noun if number == 1 else noun + 's'}" if number else f"no {noun}s"
