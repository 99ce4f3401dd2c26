"""alpha: what is asked of Exact-Fun, counted; a deletion that is felt in the very first round
counts as well.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from unlearning_cases import CHOSEN, NAME, library, measured

from expunge_experiments.runs.alpha import Alpha, AlphaSettings
from expunge_experiments.runs.base import Done, Results

SMALL = AlphaSettings(
    dataset=NAME, clients=4, seeds=(0,), alphas=(1e-4, 1e3), slower=(1.0,), deletions=30
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    with pytest.MonkeyPatch.context() as patch:
        return measured(Alpha(), SMALL, library(tmp_path_factory.mktemp("data"), patch))


def test_triggers_and_rounds_are_counted_from_the_first_round_on(results: Results) -> None:
    rounds = CHOSEN["exactfun"]["rounds"]
    fine, coarse = (done.result for done in results)
    assert 0 in fine["first"]
    changed = [one for one in fine["first"] if one is not None]
    assert fine["triggered"] == len(changed) / 30 > 0.5
    assert fine["recomputed"] == pytest.approx(np.mean([rounds - one for one in changed]))
    assert set(coarse["first"]) == {None}
    assert (coarse["triggered"], coarse["recomputed"], coarse["nonzero"]) == (0.0, 0.0, 0.0)


def test_a_skip_costs_trainings_too(results: Results) -> None:
    fine, coarse = (done.result for done in results)
    assert (
        coarse["trainings"] > fine["trainings"] > 0.0
    )  # a change ends the search, and nothing else does


def test_the_claim_on_steps_can_fail(results: Results) -> None:
    def claims(found: Results) -> list[bool | None]:
        return [
            one.holds for one in Alpha().findings(SMALL, found) if "at least as often" in one.text
        ]

    assert claims(results) == [True]
    fine, coarse = results
    assert claims(Results([Done(fine.key, coarse.result), Done(coarse.key, fine.result)])) == [
        False
    ]


def test_what_skips_cost_is_told_where_some_runs_skip_and_others_do_not(results: Results) -> None:
    def told(found: Results) -> list[str]:
        return [one.text for one in Alpha().findings(SMALL, found) if "fewer than half" in one.text]

    fine, coarse = results
    (text,) = told(results)
    gap = 100 * (fine.result["accuracy"] - coarse.result["accuracy"])
    assert f"accuracy is {coarse.result['accuracy']:.4f} at most, {gap:.1f} points below" in text
    assert told(Results([fine])) == told(Results([coarse])) == []


def test_the_same_samples_are_asked_about_at_every_step(
    results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (again,) = measured(Alpha(), replace(SMALL, alphas=(1e-4,)), library(tmp_path, monkeypatch))
    assert again.result["first"] == results[0].result["first"]
