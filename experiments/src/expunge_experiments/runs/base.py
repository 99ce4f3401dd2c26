"""Experiment: what the runner needs to know of one.

Its work is cut into cells, each of which is done once and kept.

A cell has a key, which says all that its result depends on besides data and code, and a function
that measures. A key that has "dataset" (a name, or a list of names) binds its cell to these data:
if they change, it is measured again. Results are values of JSON, in which there is no NaN and no
infinity. Tables, figures and findings are made from results alone, so they can be regenerated
without measuring again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from expunge_experiments.datasets.catalogue import Library

Key = Mapping[str, Any]
Report = Callable[[str, int, int | None], None]  # what is being done, how much so far, of how much
S = TypeVar("S")


@dataclass(frozen=True)
class Cell:
    """One unit of work.

    `run` returns values of JSON and may report progress; `engine` is "process" or "flower".
    """

    key: Key
    run: Callable[[Library, Report], Mapping[str, Any]]
    engine: str = "process"


@dataclass(frozen=True)
class Done:
    """A cell's key with its result, and how long it took to measure."""

    key: Key
    result: Mapping[str, Any]
    seconds: float = 0.0


class Results(list[Done]):
    """Results of an experiment's cells, in the order of the cells; those not done yet are
    missing.
    """

    def where(self, **wanted: Any) -> Results:
        """Those whose key has these values."""
        return Results(
            done
            for done in self
            if all(done.key.get(name) == value for name, value in wanted.items())
        )

    def values(self, name: str) -> list[Any]:
        """A key's different values, in order of appearance."""
        return list(dict.fromkeys(done.key[name] for done in self if name in done.key))

    def table(self, make: Callable[[Results], Table]) -> list[Table]:
        """Their table, or none if there are no results yet."""
        return [make(self)] if self else []


@dataclass(frozen=True)
class Table:
    """Text in rows and columns, shown in the terminal and as Markdown.

    Columns named in `right` are numbers.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[str] = frozenset()
    note: str = ""


@dataclass(frozen=True)
class Drawing:
    """A figure, drawn when it is wanted: `name` becomes part of its file's name, `caption` is
    printed below it.
    """

    name: str
    caption: str
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class Finding:
    """A sentence about results; `holds` is None unless it is a claim that can fail."""

    text: str
    holds: bool | None = None


class Experiment(ABC, Generic[S]):
    """One experiment with its settings, a frozen dataclass of values of TOML (numbers, words,
    lists) that refuses bad ones.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    question: ClassVar[str]  # what is to be found out, in a sentence or two
    paper: ClassVar[str] = ""  # the paper's table or figure, and what it says
    version: ClassVar[int] = (
        1  # raised when what a cell measures changes: results of another version are measured again
    )
    full: S
    quick: S

    @abstractmethod
    def cells(self, settings: S) -> list[Cell]:
        """The work, in order."""

    @abstractmethod
    def tables(self, settings: S, results: Results, /) -> list[Table]:
        """Tables of what has been measured so far."""

    def drawings(self, _settings: S, _results: Results, /) -> list[Drawing]:
        """Figures of what has been measured so far; some experiments have none."""
        return []

    def findings(self, _settings: S, _results: Results, /) -> list[Finding]:
        """What follows, what differs from the paper and why; some experiments have none."""
        return []


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation (of a sample; 0 for one) over seeds."""

    mean: float
    deviation: float
    count: int


def over_seeds(values: Iterable[float]) -> Summary | None:
    """The summary of some values; None if there are none, as for cells that are not done yet."""
    numbers = [float(value) for value in values]
    if not numbers:
        return None
    return Summary(
        float(np.mean(numbers)),
        float(np.std(numbers, ddof=1)) if len(numbers) > 1 else 0.0,
        len(numbers),
    )
