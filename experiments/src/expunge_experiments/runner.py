"""Runs an experiment cell by cell and keeps each result at once, so that an interrupted run goes on
where it was.

A cell that fails is reported by its name and tried again by the next run; the others continue.
Cells of an engine that is not at hand are listed as not run, with what they need; they are never
left out in silence.
"""

from __future__ import annotations

import hashlib
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from expunge.errors import ExpungeError, InputError
from expunge.storage.files import FolderLock, write_whole
from expunge_experiments import machine
from expunge_experiments.datasets.dataset import USUAL, Dataset, fitting_grid, largest_of
from expunge_experiments.runs.base import Cell, Done, Experiment, Key, Report, Results
from expunge_experiments.store import CellResult, Store, data_names, plain

if TYPE_CHECKING:
    from expunge_experiments.datasets.catalogue import Library

PROCESS, FLOWER = "process", "flower"
ENGINES = (PROCESS, FLOWER)
FLOWER_NEEDS = (
    "Flower in this Python (pip install 'expunge[flower]'), or another Python that has it: "
    "--flower-python PATH or EXPUNGE_FLOWER_PYTHON"
)


@dataclass(frozen=True)
class Failure:
    """A cell that could not be measured, and why."""

    cell: str
    error: str


@dataclass
class ExperimentOutcome:
    """An experiment's current state: everything that tables, figures and pages are made from."""

    experiment: Experiment[Any]
    settings: Any
    quick: bool
    results: Results
    failures: list[Failure] = field(default_factory=list)
    not_run: list[Failure] = field(default_factory=list)
    data: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    environments: list[Mapping[str, Any]] = field(default_factory=list)
    measured: int = 0  # cells that this run measured; the others were there

    @property
    def seconds(self) -> float:
        """How long it took to measure all that is there."""
        return sum(done.seconds for done in self.results)

    @property
    def wanted(self) -> int:
        """The number of cells, measured or not."""
        return len(self.results) + len(self.failures) + len(self.not_run)


class Runner:
    """Runs experiments on data from one library; results are kept below one folder."""

    def __init__(self, out: Path, library: Library, report: Report | None = None) -> None:
        self.out = out
        self._identities = _Identities(library)
        self._library = library
        self._report = report if report is not None else _quiet

    def folder(self, experiment: Experiment[Any]) -> Path:
        """Where an experiment's results are."""
        return self.out / experiment.name

    def run(
        self,
        experiment: Experiment[Any],
        settings: Any,
        *,
        quick: bool = False,
        fresh: bool = False,
        only: str | None = None,
        engines: Collection[str] | None = None,
    ) -> ExperimentOutcome:
        """Measure what is missing; returns the experiment's state afterwards.

        `fresh` forgets results first; `only` measures (and forgets) those cells only whose name has
        this pattern (*, ?) in it; `engines` are those that are at hand here.
        """
        here = available_engines() if engines is None else engines
        store = Store(self.folder(experiment), experiment)
        cells = _different(experiment, experiment.cells(settings), store)
        chosen = [cell for cell in cells if only is None or matches(cell.key, only)]
        if not chosen:
            names = "; ".join(cell_name(cell.key) for cell in cells[:3])
            raise InputError(
                f"no cell of {experiment.name} has {only!r} in its name. There are cells such as: "
                f"{names}"
            )
        self._prepare(store.folder)
        lock = FolderLock(store.folder)
        try:
            mine = [cell for cell in chosen if cell.engine in here]
            for cell in mine if fresh else ():
                store.forget(cell)
            failures, measured = self._measure(experiment, store, mine)
        finally:
            lock.release()
        outcome = self.gather(experiment, settings, quick=quick, failures=failures)
        outcome.measured = measured
        return outcome

    def gather(
        self,
        experiment: Experiment[Any],
        settings: Any,
        *,
        quick: bool,
        failures: Mapping[Path, str] | None = None,
    ) -> ExperimentOutcome:
        """What is there, in the order of the cells; nothing is measured."""
        store = Store(self.folder(experiment), experiment)
        outcome = ExperimentOutcome(experiment, settings, quick, Results())
        for cell in experiment.cells(settings):
            name, path = cell_name(cell.key), store.path(cell.key)
            record = store.find(cell, self._identities.of(cell.key))
            if record is not None:
                outcome.results.append(Done(record.key, record.result, record.seconds))
                outcome.data.update(record.data)
                if record.environment not in outcome.environments:
                    outcome.environments.append(record.environment)
            elif failures is not None and path in failures:
                outcome.failures.append(Failure(name, failures[path]))
            else:
                needs = (
                    FLOWER_NEEDS
                    if cell.engine == FLOWER
                    else "a run of all cells (without --only and --engine)"
                )
                outcome.not_run.append(Failure(name, f"needs {needs}"))
        return outcome

    def _prepare(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            ignore = self.out / ".gitignore"  # results may be committed; locks should not be
            if not ignore.exists():
                write_whole(ignore, b"lock\n", mode=0o644)
        except OSError as problem:
            why = problem.strerror or problem
            raise InputError(
                f"results cannot be written to {folder}: {why}. Name another folder with -o"
            ) from problem

    def _measure(
        self, experiment: Experiment[Any], store: Store, cells: Sequence[Cell]
    ) -> tuple[dict[Path, str], int]:
        """Measure the cells that are not there; what failed, and how many did not."""
        failures: dict[Path, str] = {}
        measured = 0
        here: dict[str, Any] = {}
        for number, cell in enumerate(cells):
            self._report(f"{experiment.name}: cells", number, len(cells))
            if store.find(cell, self._identities.of(cell.key)) is not None:
                continue
            here = here or machine.environment()
            try:
                record = self._measured(experiment, cell, here)
                store.keep(record)
            except ExpungeError as problem:
                failures[store.path(cell.key)] = str(problem)
            except Exception as problem:  # one failing cell must not stop the others
                failures[store.path(cell.key)] = _told(problem)
            else:
                measured += 1
        self._report(f"{experiment.name}: cells", len(cells), len(cells))
        return failures, measured

    def _measured(
        self, experiment: Experiment[Any], cell: Cell, here: Mapping[str, Any]
    ) -> CellResult:
        name = cell_name(cell.key)
        self._report(f"now: {experiment.name}, {name}", 0, None)
        data = {
            dataset: plain(self._identities.required(dataset)) for dataset in data_names(cell.key)
        }
        began = time.perf_counter()
        result = cell.run(
            self._library,
            lambda what, done, total: self._report(f"now: {name}: {what}", done, total),
        )
        return CellResult(cell.key, result, time.perf_counter() - began, data, here)


class _Identities:
    """What each dataset is, by its name: its description, and a digest of every number in it.

    Each is loaded once.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._found: dict[str, Mapping[str, Any] | None] = {}

    def required(self, name: str) -> Mapping[str, Any]:
        """Of data that must be here."""
        identity = self.of({"dataset": name})[name]
        return identity if identity is not None else _identity(self._library.load(name))

    def of(self, key: Key) -> dict[str, Mapping[str, Any] | None]:
        """Of all data that a key names; None for what is not here."""
        for name in data_names(key):
            if name not in self._found:
                try:
                    self._found[name] = _identity(self._library.load(name))
                except ExpungeError:
                    self._found[name] = None  # reported when a cell asks for them
        return {name: self._found[name] for name in data_names(key)}


def _identity(dataset: Dataset) -> dict[str, Any]:
    content = hashlib.sha256()
    for name in ("train_features", "train_labels", "test_features", "test_labels", "groups"):
        array = getattr(dataset, name)
        if array is not None:
            content.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
            content.update(np.ascontiguousarray(array).data)
    return dataset.described() | {"digest": content.hexdigest()} | _coarser(dataset)


def _coarser(dataset: Dataset) -> dict[str, Any]:
    """For features that the usual grid cannot hold: how large they are, and the grid that exact
    variants take them on.
    """
    grid, largest = fitting_grid(dataset.train_features), largest_of(dataset.train_features)
    if grid == USUAL or largest >= grid.limit:  # features beyond every grid are refused
        return {}
    return {"largest": largest, "fraction_bits": grid.fraction_bits}


def available_engines() -> tuple[str, ...]:
    """The engines that cells can run on in this process."""
    return ENGINES if find_spec("flwr") is not None else (PROCESS,)


def cell_name(key: Key) -> str:
    """A key as people read it: its words and numbers, as in "dataset=cifar10 system=fedavg
    seed=0".
    """
    parts = [
        f"{name}={value}" for name, value in key.items() if isinstance(value, (str, int, float))
    ]
    return " ".join(parts) or "everything"


def matches(key: Key, pattern: str) -> bool:
    """Whether a cell's name has this pattern in it."""
    return fnmatchcase(cell_name(key), f"*{pattern}*")


def _different(experiment: Experiment[Any], cells: list[Cell], store: Store) -> list[Cell]:
    """The cells; two of the same key would overwrite each other."""
    seen: dict[Path, Cell] = {}
    for cell in cells:
        if store.path(cell.key) in seen:
            raise InputError(
                f"two cells of {experiment.name} have the same key: {cell_name(cell.key)}; name "
                "what differs"
            )
        if cell.engine not in ENGINES:
            raise InputError(
                f"a cell of {experiment.name} wants the engine {cell.engine!r}; there are "
                f"{', '.join(ENGINES)}"
            )
        seen[store.path(cell.key)] = cell
    return cells


def _told(problem: Exception) -> str:
    """An unexpected error, with its origin."""
    last = traceback.extract_tb(problem.__traceback__)[-1:]
    where = f" ({Path(last[0].filename).name}, line {last[0].lineno})" if last else ""
    return f"{type(problem).__name__}: {problem}{where}"


def _quiet(_: str, __: int, ___: int | None) -> None:
    """Default hook: does nothing."""
