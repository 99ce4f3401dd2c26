"""`expunge experiment`: the paper's experiments, each one command; results, tables, figures, a
page.

Expunge finds it by the entry point group `expunge.commands`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from expunge.cli import _command
from expunge.cli._command import Command, Group
from expunge.cli._options import FOLDER, PATH
from expunge.cli._output import (
    Screen,
    Style,
    bullets,
    count,
    facts,
    line,
    short_path,
    table,
    title,
    unwrapped,
)
from expunge.errors import InputError, MissingExtraError
from expunge_experiments import config
from expunge_experiments.datasets.catalogue import Library
from expunge_experiments.flower import subprocess
from expunge_experiments.report.page import findings, missing, tables, write_outcome, write_page
from expunge_experiments.report.tables import seconds_text
from expunge_experiments.runner import (
    ENGINES,
    FLOWER,
    FLOWER_NEEDS,
    ExperimentOutcome,
    Runner,
    available_engines,
)
from expunge_experiments.runs.base import Finding, Table
from expunge_experiments.runs.catalogue import ABOUT, EXPERIMENTS

ALL = "all"
_SHOWN = 60  # characters of what is being done, beside a bar


class Experiments(Group):
    """A command for each experiment, made when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are run."""
        del ctx  # they are the same in every context
        return ["list", *ABOUT, ALL, "features"]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A command by its name."""
        if cmd_name in ABOUT:
            return _experiment_command((cmd_name,), cmd_name, ABOUT[cmd_name])
        if cmd_name == ALL:
            return _experiment_command(
                tuple(ABOUT), ALL, "Run all experiments and write one page with the results."
            )
        if cmd_name == "features":
            command = import_module("expunge_experiments.cli.features").features
            return command if isinstance(command, click.Command) else None
        return super().get_command(ctx, cmd_name)


@click.group("experiment", cls=Experiments)
def experiment() -> None:
    """Run the paper's experiments: every baseline, table and figure, and the appendix.

    Each experiment consists of cells whose results are saved one by one in OUTPUT/NAME: an
    interrupted run resumes, and nothing is measured twice. EXPUNGE_DATA names the folder with the
    data.

    Example:
      expunge experiment list
      expunge experiment accuracy --quick
      expunge experiment all -o docs/results
    """


_OPTIONS: Sequence[Callable[..., Any]] = (
    click.option(
        "--quick", is_flag=True, help="Fewer requests and seeds; never a smaller d, c or K."
    ),
    click.option(
        "--config",
        "config_file",
        type=PATH,
        metavar="FILE",
        help="A TOML file with a table for each experiment.",
    ),
    click.option(
        "--show-config",
        is_flag=True,
        help="Print the complete config; run nothing.",
    ),
    click.option(
        "--dataset",
        "datasets",
        multiple=True,
        metavar="NAME",
        help="Run on this dataset instead: a name or a path. Repeatable.",
    ),
    click.option(
        "-o",
        "--output",
        type=FOLDER,
        default=Path("results"),
        show_default=True,
        help="The folder for results.",
    ),
    click.option(
        "--data",
        type=FOLDER,
        help="The folder with data. [default: EXPUNGE_DATA, or the user's data folder]",
    ),
    click.option(
        "--fresh", is_flag=True, help="Discard earlier results of these cells and measure again."
    ),
    click.option(
        "--only",
        metavar="PATTERN",
        help="Measure only cells whose name contains this, as in 'system=fats'.",
    ),
    click.option(
        "--engine",
        type=click.Choice(ENGINES),
        help="Measure only cells of this engine. [default: all]",
    ),
    click.option(
        "--flower-python",
        type=PATH,
        envvar="EXPUNGE_FLOWER_PYTHON",
        show_envvar=True,
        help=(
            "The Python of an environment with Flower, for cells that need it. [default: this one]"
        ),
    ),
    click.option(
        "--measure-only",
        is_flag=True,
        hidden=True,
        help="Write no tables and figures: another process does.",
    ),
)


def _experiment_command(names: tuple[str, ...], called: str, about: str) -> Command:
    """The command that runs these experiments."""

    def run(**given: Any) -> None:
        _run(names, called == ALL, **given)

    more = (
        "Writes the page OUTPUT/README.md, and a folder beside it for each experiment."
        if called == ALL
        else (
            "Writes results (results.json), tables (table.md) and figures (PNG, SVG) to "
            f"OUTPUT/{called}."
        )
    )
    run.__doc__ = (
        f"{about}\n\n{more}\n\n"
        f"Example:\n  expunge experiment {called} --quick\n"
        f"  expunge experiment {called} --show-config > my.toml\n"
        f"  expunge experiment {called} --config my.toml -o results"
    )
    function: Callable[..., Any] = run
    for option in reversed(_OPTIONS):
        function = option(function)
    return click.command(called, cls=Command)(function)


@experiment.command("list")
def list_experiments() -> None:
    """List all experiments.

    Example:
      expunge experiment list
    """
    Screen.current().result(
        {"experiments": ABOUT}, table(("Experiment", "What it does"), list(ABOUT.items()))
    )


def _run(names: tuple[str, ...], everything: bool, **given: Any) -> None:
    if everything and (given["datasets"] or given["only"] is not None):
        raise click.UsageError(
            "--dataset and --only are for one experiment; for all of them, write a config "
            "(--config)"
        )
    if given["flower_python"] is not None:
        subprocess.require_python(given["flower_python"])
    settings = _settings(names, given["config_file"], given["datasets"], quick=given["quick"])
    screen = Screen.current()
    if given["show_config"]:
        text = "\n".join(config.written(EXPERIMENTS[name], settings[name]) for name in names)
        tables_of = {name: config.as_dict(settings[name]) for name in names}
        screen.result(
            {"config": tables_of, "toml": text},
            Text(text.rstrip("\n"), no_wrap=True, overflow="ignore"),
        )
        return
    engines = _engines(names, settings, given)
    outcomes = []
    with _watched(screen) as report:
        runner = Runner(given["output"], Library(given["data"]), report)
        for name in names:
            options = {
                "quick": given["quick"],
                "fresh": given["fresh"],
                "only": given["only"],
                "engines": engines,
            }
            outcome = runner.run(EXPERIMENTS[name], settings[name], **options)
            if (
                given["flower_python"] is not None
                and FLOWER not in engines
                and given["engine"] in (None, FLOWER)
            ):
                outcome = subprocess.finished(runner, outcome, given)
            if not given["measure_only"]:
                write_outcome(outcome, runner.folder(EXPERIMENTS[name]))
            outcomes.append(outcome)
        page = (
            write_page(outcomes, given["output"])
            if everything and not given["measure_only"]
            else None
        )
    _show(screen, outcomes, given["output"], page)
    if any(outcome.failures for outcome in outcomes):
        click.get_current_context().exit(_command.FAILED)


def _settings(
    names: Sequence[str], path: Path | None, datasets: Sequence[str], *, quick: bool
) -> dict[str, Any]:
    """The settings of these experiments. Whatever else is in the config is checked as well."""
    tables_of: Mapping[str, Any] = config.read(path) if path is not None else {}
    config.check_tables(tables_of, tuple(ABOUT))
    if datasets:
        tables_of = {
            name: {**tables_of.get(name, {}), **config.on_datasets(EXPERIMENTS[name], datasets)}
            for name in names
        }
    wanted = [*names, *(name for name in tables_of if name not in names)]
    return {
        name: config.settings_of(EXPERIMENTS[name], tables_of.get(name, {}), quick=quick)
        for name in wanted
    }


def _engines(
    names: Sequence[str], settings: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[str, ...]:
    """The engines to run cells of in this process.

    Refuses one that was asked for by name, and of which nothing would be run.
    """
    engine, here = given["engine"], available_engines()
    if engine is None:
        return here
    if len(names) == 1 and not any(
        cell.engine == engine for cell in EXPERIMENTS[names[0]].cells(settings[names[0]])
    ):
        raise InputError(
            f"{names[0]} has no cells of the engine {engine} with these settings; leave "
            "--engine out"
        )
    if engine not in here and given["flower_python"] is None:
        raise MissingExtraError(f"cells of the engine {engine} need {FLOWER_NEEDS}")
    return tuple(name for name in here if name == engine)


@contextmanager
def _watched(screen: Screen) -> Iterator[Callable[[str, int, int | None], None]]:
    """Bars where somebody is watching; elsewhere one line for each cell that begins."""
    if screen.is_watched:
        with screen.bars() as show:
            yield lambda what, done, total: show(
                what if len(what) <= _SHOWN else f"{what[: _SHOWN - 1]}…", done, total
            )
        return

    def told(what: str, done: int, total: int | None) -> None:
        kind, _, rest = what.partition(": ")
        if kind == "now" and not done and total is None and ": " not in rest and not screen.as_json:
            screen.note(rest)

    yield told


# -- what is shown ---------------------------------------------------------------------------------


def _show(
    screen: Screen, outcomes: Sequence[ExperimentOutcome], out: Path, page: Path | None
) -> None:
    value = {
        "experiments": [_value(outcome, out) for outcome in outcomes],
        "page": None if page is None else str(page),
    }
    shown: list[RenderableType] = []
    for outcome in outcomes:
        shown += _shown(outcome)
        shown.append(
            unwrapped(f"Written to {short_path(out / outcome.experiment.name)}.", Style.QUIET)
        )
    if page is not None:
        shown.append(unwrapped(f"The page with all results is {short_path(page)}.", "bold"))
    screen.result(value, *shown)


def _value(outcome: ExperimentOutcome, out: Path) -> dict[str, Any]:
    return {
        "name": outcome.experiment.name,
        "folder": str(out / outcome.experiment.name),
        "cells": outcome.wanted,
        "done": len(outcome.results),
        "measured": outcome.measured,
        "seconds": outcome.seconds,
        "findings": [
            {"text": finding.text, "holds": finding.holds} for finding in findings(outcome)
        ],
        "failed": [{"cell": failure.cell, "error": failure.error} for failure in outcome.failures],
        "not_run": [{"cell": failure.cell, "reason": failure.error} for failure in outcome.not_run],
    }


def _shown(outcome: ExperimentOutcome) -> Iterator[RenderableType]:
    done = (
        f"{count(len(outcome.results), 'cell')} of {outcome.wanted}, {outcome.measured} "
        "measured now"
    )
    yield line()
    yield title(outcome.experiment.title)
    yield line(
        f"{outcome.experiment.question} ({done}; {seconds_text(outcome.seconds)} of measuring)",
        Style.QUIET,
    )
    for made in tables(outcome):
        yield from _table(made)
    yield line()
    for finding in findings(outcome):
        yield _finding(finding)
    for kind, reason in missing(outcome):
        mark, style = ("✗", Style.BAD) if kind == "failed" else ("…", Style.WAITS)
        yield bullets([f"{kind}: {reason}"], mark, style)


def _table(content: Table) -> Iterator[RenderableType]:
    yield line()
    yield line(content.title, "bold")
    yield _Fitting(content)
    if content.note:
        yield line(content.note, Style.QUIET, indent=2)


@dataclass(frozen=True)
class _Fitting:
    """A table where its words have room on the screen, and otherwise one list for each of its
    rows.
    """

    content: Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As the screen is wide."""
        del console
        columns, rows = self.content.columns, self.content.rows
        words = [
            [word for cell in column for word in cell.split()]
            for column in zip(columns, *rows, strict=True)
        ]
        if 2 + sum(2 + max(map(len, column), default=0) for column in words) <= options.max_width:
            yield table(columns, rows, right=tuple(self.content.right))
            return
        for row in rows:
            yield line(row[0], indent=2)
            yield facts(
                [(f"  {name}", cell) for name, cell in zip(columns[1:], row[1:], strict=True)]
            )


def _finding(finding: Finding) -> RenderableType:
    mark, style = {True: ("✓", Style.GOOD), False: ("✗", Style.BAD), None: ("-", "")}[finding.holds]
    return bullets([finding.text], mark, style)
