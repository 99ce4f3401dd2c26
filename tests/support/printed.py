"""The command line within this process, and what it printed, whatever the width of the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO

import pytest
from click.testing import CliRunner
from rich.console import Console, Group, RenderableType

from expunge.cli._output import Screen
from expunge.cli.main import main

WIDE = {"COLUMNS": "200"}  # for whoever reads tables: their cells are not wrapped
_WIDTHS = (20, 40, 80, 1000)


class Printed(str):
    """Printed text. `words in printed` asks whether these words stand there one after the other.

    Lines may end between them, though never within one: a path that is broken is not found.
    """

    __slots__ = ()

    @property
    def words(self) -> str:
        """All of it in one line, with one space between two words."""
        return " ".join(self.split())

    def __contains__(self, words: object) -> bool:
        assert isinstance(words, str)
        return " ".join(words.split()) in self.words


@dataclass(frozen=True)
class Ran:
    """How a command ended, and what it printed."""

    exit_code: int
    stdout: Printed
    stderr: Printed
    output: Printed


def run(
    *arguments: object,
    code: int | None = 0,
    given: str | None = None,
    env: Mapping[str, str | None] | None = None,
) -> Ran:
    """Run a command; its exit code must be `code`, unless that is None.

    Whatever it shows is shown at other widths too, where no word of it may be broken.
    """
    runner = CliRunner(env={"EXPUNGE_OFFICE": None, "EXPUNGE_CLIENT": None, **(env or {})})
    typed = [str(one) for one in arguments]
    with _shown_at_all_widths() as broken:
        done = runner.invoke(main, typed, input=given, prog_name="expunge")
    assert code is None or done.exit_code == code, (
        f"{arguments}: exit code {done.exit_code}\n{done.output}\n{done.exception!r}"
    )
    assert not broken, f"{arguments}: broken where a terminal ends: {broken}"
    return Ran(done.exit_code, Printed(done.stdout), Printed(done.stderr), Printed(done.output))


@contextmanager
def _shown_at_all_widths() -> Iterator[set[str]]:
    """Words that are printed on a narrow terminal, and not on a wide one: parts of broken ones."""
    broken: set[str] = set()
    show = Screen.show

    def show_all(screen: Screen, part: RenderableType) -> None:
        show(screen, part)
        if not screen.as_json and not isinstance(part, Group):  # whose parts are shown one by one
            *narrow, wide = (words(part, width) for width in _WIDTHS)
            broken.update(set().union(*narrow) - wide)

    def words(part: RenderableType, width: int) -> set[str]:
        other = Screen(as_json=False)
        other.out = Console(
            file=(file := StringIO()), width=width, color_system=None, highlight=False, markup=False
        )
        show(other, part)
        return set(file.getvalue().split())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Screen, "show", show_all)
        yield broken
