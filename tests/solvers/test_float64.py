"""The paper's arithmetic: both variants in float32 and float64 stay near the exact head, and no
nearer than they can.
"""

from __future__ import annotations

import numpy as np
import pytest

import expunge
from expunge.errors import NotAGramError, NotFiniteError, SpecError
from expunge.solvers.float64 import FloatCholeskySolver, FloatWoodburySolver, relative_deviation
from expunge.solvers.inverse import InfeasibleDowndateError, TrackedInverse

VARIANTS = [FloatCholeskySolver, FloatWoodburySolver]
SPEC = expunge.Spec(dim=20, labels=("a", "b", "c"), gamma=0.5)
DRAW = np.random.default_rng(3)
FEATURES = DRAW.standard_normal((150, 20)).astype(
    np.float32
)  # float32 lies on the grid, so only arithmetic differs
LABELS = DRAW.integers(0, 3, 150)


def streamed(variant: type, dtype: str) -> FloatCholeskySolver | FloatWoodburySolver:
    solver = variant(SPEC, dtype)
    for start in range(0, 150, 30):
        solver.add(FEATURES[start : start + 30], LABELS[start : start + 30])
    solver.delete(FEATURES[:30], LABELS[:30])
    for row in range(30, 50):
        solver.delete(FEATURES[row : row + 1], LABELS[row : row + 1])
    return solver


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("dtype", "limit"), [("float64", 1e-11), ("float32", 1e-4)])
def test_a_stream_ends_near_the_exact_head(variant: type, dtype: str, limit: float) -> None:
    exact = expunge.solve(expunge.Statistics.of(SPEC, FEATURES[50:], LABELS[50:]))
    solver = streamed(variant, dtype)
    deviation = relative_deviation(solver.weights, exact.weights)
    assert solver.weights.dtype == np.dtype(dtype)
    assert 0.0 < deviation < limit


def test_single_precision_is_worse_than_double() -> None:
    exact = expunge.solve(expunge.Statistics.of(SPEC, FEATURES[50:], LABELS[50:])).weights
    for variant in VARIANTS:
        single, double = (
            relative_deviation(streamed(variant, dtype).weights, exact)
            for dtype in ("float32", "float64")
        )
        assert single > 100 * double


@pytest.mark.parametrize("count", [1, 5, 21, 80])
def test_a_factor_message_holds_gram_and_moment(count: int) -> None:
    rows, targets = FEATURES[:count].astype(np.float64), LABELS[:count]
    factor = FloatWoodburySolver(SPEC).message(rows, targets)
    gram = FloatCholeskySolver(SPEC).message(rows, targets)
    assert len(factor.r) == min(count, SPEC.width)
    np.testing.assert_allclose(factor.r.T @ factor.r, gram.gram, atol=1e-12)
    np.testing.assert_allclose(factor.moment, gram.moment, atol=1e-12)
    if count > 1:
        assert np.array_equal(factor.r, np.triu(factor.r))


def test_a_message_of_no_rows_changes_nothing() -> None:
    for variant in VARIANTS:
        solver = streamed(variant, "float64")
        before = solver.weights.copy()
        solver.add(FEATURES[:0], LABELS[:0])
        np.testing.assert_array_equal(solver.weights, before)


def test_an_infeasible_downdate_resets_and_is_counted() -> None:
    spec = expunge.Spec(dim=2, outputs=1, gamma=1e-9, intercept=False)
    solver = FloatWoodburySolver(spec)
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    solver.add(rows, np.ones(3))
    solver.delete(rows[1:], np.ones(2))
    assert solver.resets == 1
    exact = expunge.solve(expunge.Statistics.of(spec, rows[:1], np.ones(1)))
    assert relative_deviation(solver.weights, exact.weights) < 1e-6


def test_a_tracked_inverse_follows_the_matrix_and_refuses_untouched() -> None:
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((30, 6))
    inverse = TrackedInverse(np.eye(6))
    inverse.update(rows, 1)
    inverse.update(rows[:1], -1)
    after = inverse.update(rows[1:4], -1)
    expected = np.linalg.inv(np.eye(6) + rows[4:].T @ rows[4:])
    np.testing.assert_allclose(np.triu(inverse.upper), np.triu(expected), atol=1e-12)
    np.testing.assert_allclose(after, expected @ rows[1:4].T, atol=1e-12)
    kept = inverse.upper.copy()
    for impossible in (100 * rows[:1], 100 * rows[:2]):
        with pytest.raises(InfeasibleDowndateError):
            inverse.update(impossible, -1)
        np.testing.assert_array_equal(np.triu(inverse.upper), np.triu(kept))


def test_bad_input_is_refused_by_name() -> None:
    with pytest.raises(SpecError, match="float16"):
        FloatCholeskySolver(SPEC, "float16")
    bad = FEATURES[:2].copy()
    bad[1, 3] = np.nan
    with pytest.raises(NotFiniteError, match="row 1, column 3"):
        FloatWoodburySolver(SPEC).add(bad, LABELS[:2])
    solver = FloatCholeskySolver(SPEC)
    solver.delete(FEATURES, LABELS)
    with pytest.raises(NotAGramError, match="larger gamma"):
        _ = solver.weights
