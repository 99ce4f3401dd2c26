"""Bars for people who watch: what is done, how much so far, and of how much."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


@contextmanager
def bars(console: Console) -> Iterator[Callable[[str, int, int | None], None]]:
    """Progress bars, created on first use and removed at the end. See `Screen.bars`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        _Done(),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True) as bar:

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
            return Text("")  # waiting for others has no count
        return Text(
            f"{int(task.completed):,}" + ("" if task.total is None else f" of {int(task.total):,}")
        )
