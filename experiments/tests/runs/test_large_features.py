"""Experiments take one's own features, however large: on the finest grid that holds them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from analytic_cases import SmallLibrary, run, small_dataset

from expunge_experiments.datasets.dataset import USUAL
from expunge_experiments.runs.base import Experiment
from expunge_experiments.runs.costs.run import Costs, CostsSettings
from expunge_experiments.runs.drift import Drift, DriftSettings
from expunge_experiments.runs.lowrank.run import LowRank, LowRankSettings
from expunge_experiments.runs.posterior import PosteriorRun, PosteriorSettings

CASES: dict[str, tuple[Experiment[Any], Any]] = {
    "costs": (
        Costs(),
        CostsSettings(
            dataset="cifar10", dims=(6,), ranks=(1, 4), classes=(), samples=100, repetitions=1
        ),
    ),
    "drift": (
        Drift(),
        DriftSettings(
            dataset="cifar10", dim=6, conditions=(1e3,), requests=20, every=10, period=15
        ),
    ),
    "lowrank": (
        LowRank(),
        LowRankSettings(
            dataset="cifar10", base=40, requests=2, batch=10, deleted=4, ranks=(4,), seeds=(0,)
        ),
    ),
    "posterior": (
        PosteriorRun(),
        PosteriorSettings(
            dataset="cifar10", gamma=0.5, start=200, requests=6, marks=(0, 6), steps=1, probes=5
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_features_beyond_the_usual_grid_are_measured(name: str) -> None:
    experiment, settings = CASES[name]
    plain = replace(small_dataset(), name="cifar10")
    large = replace(
        plain, train_features=plain.train_features * 1000, test_features=plain.test_features * 1000
    )
    assert np.abs(large.train_features).max() > USUAL.limit
    results = run(experiment, settings, SmallLibrary(large))
    assert results
    experiment.findings(settings, results)
