"""What docs/results says is what its results say: page, tables and the settings that the package
chose from them.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from expunge_experiments import tuned
from expunge_experiments.datasets.catalogue import Library
from expunge_experiments.report import page
from expunge_experiments.runner import ExperimentOutcome, Runner
from expunge_experiments.runs.catalogue import EXPERIMENTS

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[ExperimentOutcome]:
    runner = Runner(RESULTS, Library(tmp_path_factory.mktemp("nothing")))
    return [
        runner.gather(experiment, experiment.full, quick=False)
        for experiment in EXPERIMENTS.values()
    ]


def test_every_cell_of_every_experiment_was_measured(outcomes: list[ExperimentOutcome]) -> None:
    assert [
        (outcome.experiment.name, one.cell) for outcome in outcomes for one in outcome.not_run
    ] == []
    kept = {path for name in EXPERIMENTS for path in (RESULTS / name / "cells").iterdir()}
    assert len(kept) == sum(
        len(outcome.results) for outcome in outcomes
    )  # and none is of a version that is gone


def test_the_page_is_made_from_the_results(outcomes: list[ExperimentOutcome]) -> None:
    """If texts change: expunge experiment all -o docs/results writes it anew, without
    measuring.
    """
    assert page.page(outcomes, RESULTS) == (RESULTS / page.PAGE).read_text(encoding="utf-8")


def test_the_settings_of_the_package_are_those_that_the_sweep_chose() -> None:
    chosen = tuned.read(RESULTS / "sweep" / "results.json")
    assert tuned.written(chosen) == (files("expunge_experiments") / "tuned.json").read_text(
        encoding="utf-8"
    )


def test_the_readme_says_of_other_ways_to_unlearn_what_was_measured(
    outcomes: list[ExperimentOutcome],
) -> None:
    (burst,) = [outcome for outcome in outcomes if outcome.experiment.name == "burst"]
    (table, *_) = page.tables(burst)
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}

    def told(system: str, which: str, digits: int) -> str:
        number, unit = rows[system][which].split()
        return f"{float(number):.{digits}f} {unit} and {float(rows[system]['rounds']):.0f}"

    text = " ".join((RESULTS.parents[1] / "README.md").read_text(encoding="utf-8").split())
    assert rows["Variant B, exact"]["rounds"] == "1"
    assert (
        "ours (Variant B) takes "
        f"{told('Variant B, exact', 'median', 0).replace('and 1', 'and one')} round with"
    ) in text
    assert f"retraining by FedAvg {told('FedAvg retrain', 'median', 1)} rounds" in text
    assert f"Exact-Fun {told('Exact-Fun', 'median', 1)}." in text
    assert f"takes {told('FATS', 'mean', 0)} rounds on average" in text
