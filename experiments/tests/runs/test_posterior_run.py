"""posterior: KL of float inverses against the product's own, and an exact stream."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from analytic_cases import SmallLibrary, require_shown, run, small_dataset
from scipy import linalg

from expunge import Posterior, Spec, Statistics
from expunge.errors import InputError
from expunge_experiments.runs.base import Done, Results
from expunge_experiments.runs.posterior import PosteriorRun, PosteriorSettings, kl_from

SMALL = PosteriorSettings(
    dataset="small", gamma=0.5, start=200, requests=30, marks=(0, 30), steps=3, probes=20
)


@pytest.fixture(scope="module")
def results() -> Results:
    return run(PosteriorRun(), SMALL)


def test_the_exact_posterior_is_that_of_retraining_and_the_float_ones_are_not(
    results: Results,
) -> None:
    for mark in results.where(part="stream")[0].result["marks"]:
        assert mark["same_statistics"]
        assert mark["same_head"]
        assert mark["kl_exact"] == 0.0
        assert 0.0 < mark["float64"]["deviation"] < 1e-9 < mark["float32"]["deviation"] < 1e-2
        assert mark["float64"]["kl"] < mark["float32"]["kl"] < 1e-2


def test_covariance_and_predictive_variance_move_one_way(results: Results) -> None:
    (done,) = results.where(part="chain")
    steps, variances = done.result["steps"], done.result["variances"]
    assert [one["kind"] for one in steps] == ["delete"] * 3 + ["add"] * 3
    assert all(
        one["ordered"] and one["probes_wrong"] == 0 and one["largest_ratio"] > 1.0 for one in steps
    )
    assert done.result["returned"]
    assert variances[3]["low"] > 1.0
    assert variances[6]["median"] == pytest.approx(1.0)


def test_tables_figures_and_findings(results: Results) -> None:
    require_shown(PosteriorRun(), SMALL, results)


def test_variances_that_move_the_wrong_way_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Posterior.predictive_std
    monkeypatch.setattr(
        Posterior, "predictive_std", lambda *given, **named: 1.0 / right(*given, **named)
    )
    wrong = run(PosteriorRun(), SMALL).where(part="chain")
    assert {one["probes_wrong"] for one in wrong[0].result["steps"]} == {SMALL.probes}
    assert PosteriorRun().findings(SMALL, wrong)[0].holds is False


def test_a_sample_that_does_not_come_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right, calls = Statistics.of, iter(range(99))

    def lossy(spec: Spec, features: Any, labels: Any, **options: Any) -> Statistics:
        lost = int(next(calls) > 3)  # of every piece that is added again
        return right(spec, features[lost:], labels[lost:], **options)

    monkeypatch.setattr(Statistics, "of", lossy)
    cell = next(cell for cell in PosteriorRun().cells(SMALL) if cell.key["part"] == "chain")
    found = cell.run(SmallLibrary(), lambda *_: None)  # type: ignore[arg-type]
    assert found["returned"] is False
    assert PosteriorRun().findings(SMALL, Results([Done(cell.key, found)]))[0].holds is False


def test_kl_of_an_inverse_is_that_of_the_posterior_which_has_it() -> None:
    data = small_dataset()
    spec = Spec(dim=12, labels=(0, 1, 2), gamma=0.5, publication_bits=48)
    mine, other = (
        Posterior(
            Statistics.of(spec, data.train_features[:count], data.train_labels[:count]), sigma=0.7
        )
        for count in (200, 180)
    )
    system = other.statistics.gram_float() + 0.5 * np.eye(13)
    factor = linalg.cholesky(system, lower=True)
    found = kl_from(factor, mine.covariance / 0.49, mine.mean - other.mean, 0.7)
    assert found == pytest.approx(mine.kl_to(other), rel=1e-6)
    assert kl_from(factor, np.linalg.inv(system), np.zeros((13, 3)), 0.7) == pytest.approx(
        0.0, abs=1e-20
    )
    assert kl_from(factor, -np.eye(13), np.zeros((13, 3)), 0.7) is None


def test_more_samples_than_there_are_are_refused() -> None:
    cell = PosteriorRun().cells(replace(SMALL, start=300))[0]
    with pytest.raises(InputError, match=r"start = 300 is more than the 240 samples of small"):
        cell.run(SmallLibrary(), lambda *_: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change", [{"gamma": 0.0}, {"start": 3}, {"marks": (0, 99)}, {"marks": (3, 1)}, {"steps": 10}]
)
def test_impossible_settings_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        replace(SMALL, **change)  # type: ignore[arg-type]
