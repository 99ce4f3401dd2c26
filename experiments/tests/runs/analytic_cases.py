"""A small dataset, and the way in which tests run an experiment on it: cell by cell, through JSON,
tables and figures.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from expunge.errors import InputError
from expunge_experiments.datasets.dataset import Dataset
from expunge_experiments.report.figures import house_style
from expunge_experiments.report.tables import table_text
from expunge_experiments.runs.base import Done, Experiment, Results


def small_dataset(samples: int = 240, dim: int = 12, classes: int = 3) -> Dataset:
    draw = np.random.default_rng(7)
    centres = draw.standard_normal((classes, dim))
    labels = draw.integers(0, classes, samples + 60)
    features = (centres[labels] + 0.7 * draw.standard_normal((samples + 60, dim))).astype(
        np.float32
    )
    return Dataset(
        "small",
        "made here",
        classes,
        features[:samples],
        labels[:samples],
        features[samples:],
        labels[samples:],
    )


class SmallLibrary:
    """Knows one dataset."""

    def __init__(self, dataset: Dataset | None = None) -> None:
        self._dataset = dataset if dataset is not None else small_dataset()

    def load(self, name: str) -> Dataset:
        if name != self._dataset.name:
            raise InputError(f"there is no dataset {name!r}")
        return self._dataset


def run(experiment: Experiment[Any], settings: Any, library: Any = None) -> Results:
    """All results, as they come back from a file; there is no NaN in them."""
    results = Results()
    for cell in experiment.cells(settings):
        result = cell.run(library if library is not None else SmallLibrary(), lambda *_: None)
        key, kept = json.loads(json.dumps([dict(cell.key), dict(result)], allow_nan=False))
        results.append(Done(key, kept))
    return results


def require_shown(experiment: Experiment[Any], settings: Any, results: Results) -> None:
    """Tables, figures and findings can be made of all results, of some, and of none; and all claims
    hold.
    """
    for count in {0, 1, len(results)}:
        some = Results(results[:count])
        for table in experiment.tables(settings, some):
            assert all(len(row) == len(table.columns) for row in table.rows)
            assert table.right <= set(table.columns)
            assert table.title in table_text(table)
        for drawing in experiment.drawings(settings, some):
            with house_style():
                drawing.draw().canvas.draw()
        for finding in experiment.findings(settings, some):
            assert finding.holds is not False, finding.text
