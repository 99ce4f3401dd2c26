"""feasibility: integers against FLINT, the lemma, and judges near the boundary.

Not the test of the solvers' own screening.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from analytic_cases import require_shown, run
from flint import fmpq_mat, fmpz_mat
from hypothesis import given, settings
from hypothesis import strategies as st

from expunge.errors import InputError
from expunge_experiments.runs import feasibility
from expunge_experiments.runs.base import Results
from expunge_experiments.runs.feasibility import (
    BITS,
    JUDGES,
    KINDS,
    Feasibility,
    FeasibilitySettings,
    answer,
    boundary_case,
    judged,
    random_case,
)

SMALL = FeasibilitySettings(cases=40, gaps=(1e-3, 1e-9, 1e-15), boundary_cases=6)


@pytest.fixture(scope="module")
def results() -> Results:
    return run(Feasibility(), SMALL)


def test_the_conditions_agree_and_expunge_is_never_wrong(results: Results) -> None:
    for done in results.where(part="lemma"):
        assert done.result["agree"] == done.result["cases"] == 40
    feasible = {done.key["kind"]: done.result["feasible"] for done in results.where(part="lemma")}
    assert feasible["deletes retained rows"] == 40
    assert feasible["on the boundary"] == 0
    assert 0 < feasible["arbitrary rows"] < 40
    for done in results.where(part="boundary"):
        assert done.result["agree"] == 12
        for side in done.result["counts"].values():
            assert side["expunge"]["wrong"] == 0
            assert all(sum(side[judge].values()) == 6 for judge in JUDGES)


def test_single_precision_is_wrong_where_double_is_not(results: Results) -> None:
    (done,) = results.where(gap=1e-9)
    wrong = {
        judge: sum(side[judge]["wrong"] for side in done.result["counts"].values())
        for judge in JUDGES
    }
    assert wrong["float32, (ii)"] > 0
    assert wrong["float64, (ii)"] == 0


def test_tables_figures_and_findings(results: Results) -> None:
    require_shown(Feasibility(), SMALL, results)


def test_a_condition_that_is_computed_wrongly_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feasibility, "all_roots_below", lambda *_: True)
    wrong = run(Feasibility(), replace(SMALL, gaps=(1e-3,)))
    (arbitrary,) = wrong.where(kind="arbitrary rows")
    assert arbitrary.result["agree"] == arbitrary.result["feasible"] < 40
    claims = {one.text.split(" in ")[0]: one.holds for one in Feasibility().findings(SMALL, wrong)}
    assert claims["The three conditions agree"] is False
    assert claims["Near the boundary the conditions agree"] is False
    assert claims["A deletion of rows that were added is feasible"] is True


def test_deletions_of_what_was_added_must_be_feasible(results: Results) -> None:
    wrong = Results(
        replace(one, result={**one.result, "feasible": 39}) for one in results.where(kind=KINDS[0])
    )
    (claim,) = [
        one.holds
        for one in Feasibility().findings(SMALL, wrong)
        if "rows that were added" in one.text
    ]
    assert claim is False


# -- integers --------------------------------------------------------------------------------------

entries = st.integers(-(2**40), 2**40)


@st.composite
def square(draw: st.DrawFn) -> feasibility.Matrix:
    size = draw(st.integers(1, 5))
    return draw(
        st.lists(st.lists(entries, min_size=size, max_size=size), min_size=size, max_size=size)
    )


@given(square())
def test_the_characteristic_polynomial_is_flints(matrix: feasibility.Matrix) -> None:
    expected = [int(one) for one in fmpz_mat(matrix).charpoly()]
    assert feasibility.characteristic(matrix) == expected[::-1]


@given(square())
def test_positive_definite_is_what_the_minors_say(matrix: feasibility.Matrix) -> None:
    symmetric = feasibility.gram(matrix)
    size = len(symmetric)
    for shift in (0, 1, -1):
        shifted = [
            [entry + shift * (i == j) for j, entry in enumerate(row)]
            for i, row in enumerate(symmetric)
        ]
        minors = [
            int(fmpz_mat([row[:order] for row in shifted[:order]]).det())
            for order in range(1, size + 1)
        ]
        assert feasibility.is_positive_definite(shifted) == all(minor > 0 for minor in minors)


@given(square(), st.integers(0, 2**32 - 1))
def test_solved_is_flints(matrix: feasibility.Matrix, seed: int) -> None:
    symmetric = [
        [entry + (i == j) for j, entry in enumerate(row)]
        for i, row in enumerate(feasibility.gram(matrix))
    ]
    right = np.random.default_rng(seed).integers(-99, 99, (len(matrix), 2)).tolist()
    determinant, columns = feasibility.solved(symmetric, right)
    assert determinant == int(fmpz_mat(symmetric).det())
    expected = fmpq_mat(fmpz_mat(symmetric)).solve(fmpq_mat(fmpz_mat(right))) * determinant
    assert columns == [[int(one) for one in row] for row in expected.tolist()]


@given(st.lists(st.integers(-50, 50), min_size=1, max_size=6), st.integers(-60, 60))
def test_roots_below_a_bound(roots: list[int], bound: int) -> None:
    coefficients = [1]
    for root in roots:
        coefficients = [
            a - root * b for a, b in zip([*coefficients, 0], [0, *coefficients], strict=True)
        ]
    assert feasibility.all_roots_below(coefficients, bound) == (max(roots) < bound)


# -- cases -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_random_cases_have_a_positive_definite_system(kind: str) -> None:
    draw = np.random.default_rng(11)
    for _ in range(30):
        system, rows = random_case(kind, draw)
        assert feasibility.is_positive_definite(system)
        assert all(len(row) == len(system) for row in rows)


@settings(max_examples=30)
@given(st.floats(-16.0, -2.0), st.sampled_from([1, -1]), st.integers(0, 2**32 - 1))
def test_a_boundary_case_has_the_gap_it_says(power: float, sign: int, seed: int) -> None:
    wanted = sign * 10.0**power
    case = boundary_case(wanted, np.random.default_rng(seed))
    assert float(case.gap) == pytest.approx(wanted, rel=0.25)
    assert max(map(abs, case.row)) < 2**41
    row = fmpq_mat(fmpz_mat([case.row]))
    ratio = (row * fmpq_mat(fmpz_mat(case.system)).solve(row.transpose()))[0, 0]
    assert 1 - Fraction(int(ratio.p), int(ratio.q)) == case.gap
    found = answer(case.system, [case.row])
    assert found.agree
    assert found.difference == (wanted > 0)
    assert judged(case)["expunge"] in (None, wanted > 0)
    assert case.gamma * 4**BITS == int(case.gamma * 4**BITS)


@pytest.mark.parametrize(
    "change", [{"cases": 0}, {"boundary_cases": 0}, {"gaps": ()}, {"gaps": (0.7,)}]
)
def test_impossible_settings_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        replace(SMALL, **change)  # type: ignore[arg-type]
