"""Cells that need another Python: they are measured by this same command there, into the same
store.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from expunge.errors import InputError
from expunge_experiments.runner import FLOWER, ExperimentOutcome, Failure, Runner, cell_name


def require_python(path: Path) -> None:
    """Refuse a Python that cannot be started, before anything is run."""
    if not path.is_file() or not os.access(path, os.X_OK):
        raise InputError(
            f"{path} is no program that can be started; --flower-python names the Python of an "
            "environment with expunge[flower] and expunge-experiments"
        )


def finished(
    runner: Runner, outcome: ExperimentOutcome, given: Mapping[str, Any]
) -> ExperimentOutcome:
    """The outcome after the cells of Flower have been measured by the Python that has it."""
    names = {
        cell_name(cell.key)
        for cell in outcome.experiment.cells(outcome.settings)
        if cell.engine == FLOWER
    }
    if not names or not (outcome.not_run or given["fresh"]):
        return outcome
    failed, problem = _measured(outcome.experiment.name, given)
    after = runner.gather(outcome.experiment, outcome.settings, quick=outcome.quick)
    reasons = {failure.cell: failure.error for failure in outcome.failures} | failed
    if problem:
        reasons = dict.fromkeys(names, problem) | reasons
    after.failures = [
        Failure(failure.cell, reasons[failure.cell])
        for failure in after.not_run
        if failure.cell in reasons
    ]
    after.not_run = [failure for failure in after.not_run if failure.cell not in reasons]
    after.measured = outcome.measured + len(after.results) - len(outcome.results)
    return after


def _measured(experiment: str, given: Mapping[str, Any]) -> tuple[dict[str, str], str]:
    """Measure the cells of one experiment; those that failed, with why, and what is wrong with that
    Python, if anything.
    """
    options: list[str] = [
        "--engine",
        FLOWER,
        "--measure-only",
        "--json",
        "--output",
        str(given["output"]),
    ]
    for option, value in (
        ("--config", given["config_file"]),
        ("--data", given["data"]),
        ("--only", given["only"]),
    ):
        options += [option, str(value)] if value is not None else []
    options += [part for name in given["datasets"] for part in ("--dataset", name)]
    options += [f"--{flag}" for flag in ("quick", "fresh") if given[flag]]
    python = str(given["flower_python"])
    command = [python, "-m", "expunge", "experiment", experiment, *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603 - the Python that the user has named
    try:
        report = json.loads(done.stdout)
        return {
            failure["cell"]: failure["error"] for failure in report["experiments"][0]["failed"]
        }, ""
    except (ValueError, KeyError, IndexError):
        output = done.stdout.strip()[-300:] or f"it ended with {done.returncode}"
        return (
            {},
            (
                f"{python} could not measure it: {output}. It must have this version of "
                "expunge[flower] and expunge-experiments"
            ),
        )
