"""highdim: the same head from every job, and a residual check that can fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from analytic_cases import require_shown, run

from expunge import Head, Spec, Statistics, solve
from expunge.errors import InputError
from expunge_experiments.runs.base import Done, Results
from expunge_experiments.runs.highdim.jobs import JOBS, measured, residual_is_small
from expunge_experiments.runs.highdim.run import PHASES, Highdim, HighdimSettings

SMALL = HighdimSettings(dims=(6, 9), samples=30, classes=3, gamma=0.5)


def made() -> Results:
    """As the experiment's, but all in this process."""
    return Results(Done(cell.key, measured(cell.key)) for cell in Highdim().cells(SMALL))


def test_every_exact_job_ends_with_the_head_of_retraining() -> None:
    results = made()
    for dim in SMALL.dims:
        exact = [done for done in results.where(dim=dim) if done.key["job"] != "float64"]
        assert len({done.result["digest"] for done in exact}) == 1
    for done in results:
        assert done.result["verified"]
        assert set(done.result["phases"]) <= set(PHASES)
        assert all(
            one["seconds"] > 0.0 and one["peak_bytes"] > 10**6
            for one in done.result["phases"].values()
        )
        assert done.result["ledger_bytes"] == 8 * (done.key["dim"] + 1) * (done.key["dim"] + 2)
    require_shown(Highdim(), SMALL, results)


def test_a_job_with_another_head_is_found_out() -> None:
    results = made()
    wrong = Results(
        replace(
            done,
            result={**done.result, "digest": "another"} if done.key["job"] == "b" else done.result,
        )
        for done in results
    )
    assert Highdim().findings(SMALL, results)[0].holds is True
    assert Highdim().findings(SMALL, wrong)[0].holds is False


def test_a_cell_is_measured_in_a_process_of_its_own() -> None:
    settings = replace(SMALL, dims=(6,))
    cells = Highdim().cells(settings)
    assert [cell.key["job"] for cell in cells] == list(JOBS)
    one = Highdim()
    one.cells = lambda _: cells[:1]  # type: ignore[method-assign]
    (done,) = run(one, settings)
    assert done.result["digest"] == measured(cells[0].key)["digest"]


def test_the_residual_tells_a_wrong_weight() -> None:
    draw = np.random.default_rng(0)
    features, labels = draw.standard_normal((40, 5)).astype(np.float32), draw.integers(0, 3, 40)
    statistics = Statistics.of(Spec(dim=5, labels=(0, 1, 2), gamma=0.5), features, labels)
    head = solve(statistics)
    assert residual_is_small(statistics, head)
    integers = head.integers.copy()
    integers[2, 1] += 1000
    assert not residual_is_small(statistics, Head(head.spec, integers, head.error_bound))


@pytest.mark.parametrize("change", [{"dims": ()}, {"samples": 3}, {"classes": 1}, {"gamma": 0.0}])
def test_impossible_settings_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        replace(SMALL, **change)  # type: ignore[arg-type]
