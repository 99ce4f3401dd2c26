"""Grids that estimators choose, and what a grid may lose: nothing that matters, nothing in
silence.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.linear_model import Ridge

import expunge
from expunge import ExactRidgeClassifier, ExactRidgeRegressor, Grid, errors
from support.estimators import published, regression, state


@settings(max_examples=25)
@given(st.floats(1e-17, 1e30), st.booleans())
def test_a_chosen_grid_has_headroom_and_keeps_bits(largest: float, intercept: bool) -> None:
    X = np.array([[largest / 3, 0.0], [largest / 2, -largest]])
    if intercept and largest > 2.0**38:
        return
    grid = (
        ExactRidgeRegressor(gamma=2.0**90, fit_intercept=intercept).partial_fit(X, [0.0, 0.0]).grid_
    )
    assert grid.limit >= 8.0 * largest
    assert grid.step <= largest * 2.0**-35 or (intercept and grid.fraction_bits == 40)


def test_batches_of_similar_magnitude_choose_the_default_grid() -> None:
    random = np.random.default_rng(0)
    grids = {
        ExactRidgeRegressor().partial_fit(random.normal(size=(n, 20)), np.zeros(n)).grid_
        for n in (1, 3, 10, 1000)
    }
    assert grids == {Grid()}
    assert ExactRidgeRegressor().fit([[0.0]], [0.0]).grid_ == Grid()


def columns_of_two_scales(small: float, large: float) -> tuple[Any, Any]:
    """The small column alone tells the classes apart."""
    random = np.random.default_rng(0)
    y = np.arange(200) % 2
    return np.column_stack([large * random.normal(size=200), small * (2.0 * y - 1.0)]), y


def test_a_lost_column_that_cannot_matter_is_accepted() -> None:
    X, y = columns_of_two_scales(1e-17, 1.0)  # such as a constant column that was centred in floats
    model = ExactRidgeClassifier().fit(X, y)
    assert not model.coef_[0, 1]
    whole = Ridge(alpha=1.0, fit_intercept=False).fit(
        np.column_stack([X, np.ones(200)]), np.eye(2)[y]
    )
    scores = whole.predict(np.column_stack([X, np.ones(200)]))
    np.testing.assert_allclose(
        model.decision_function(X), scores[:, 1] - scores[:, 0], rtol=0, atol=1e-9
    )
    with pytest.raises(errors.LostColumnError, match="column 1"):
        ExactRidgeClassifier(lost_columns="refuse").fit(X, y)
    row_by_row = ExactRidgeClassifier(grid=model.grid_)
    for row in range(20):
        row_by_row.partial_fit(X[row : row + 1], y[row : row + 1], classes=[0, 1])
    assert published(row_by_row) == published(
        ExactRidgeClassifier(grid=model.grid_).fit(X[:20], y[:20])
    )


def test_a_lost_column_that_might_matter_is_refused() -> None:
    X, y = columns_of_two_scales(0.01, 1.0)
    model = ExactRidgeClassifier(gamma=1e-3, grid=Grid(1, 5))
    with pytest.raises(errors.LostColumnError, match=r"column 1 .*lost_columns='accept'"):
        model.partial_fit(X, y, classes=[0, 1])
    assert vars(model) == vars(clone(model))
    assert model.set_params(lost_columns="accept").fit(X, y).score(X, y) < 0.7
    assert ExactRidgeClassifier(gamma=1e-3, grid=Grid(1, 12)).fit(X, y).score(X, y) == 1.0


@settings(max_examples=25)
@given(st.floats(-12, 0), st.floats(0, 6), st.integers(0, 99))
def test_a_chosen_grid_never_loses_what_matters(small: float, large: float, seed: int) -> None:
    """Whatever the scales of two columns: what is fitted is what Ridge fits, or the lost one is
    refused.
    """
    random = np.random.default_rng(seed)
    y = random.normal(size=30)
    X = np.column_stack(
        [10.0**large * random.normal(size=30), 10.0**small * (y + random.normal(size=30))]
    )
    gamma = max(1e-3, 2.0**-40 * 10 ** (2 * large) * 30)
    try:
        fitted = ExactRidgeRegressor(gamma=gamma, fit_intercept=False).fit(X, y).predict(X)
    except errors.LostColumnError:
        assert large - small > 9
        return
    np.testing.assert_allclose(
        fitted, Ridge(alpha=gamma, fit_intercept=False).fit(X, y).predict(X), rtol=0, atol=3e-5
    )


@pytest.mark.parametrize("power", [-60, -9, 30, 60])
def test_the_unit_of_the_targets_is_free(power: int) -> None:
    X, y = regression(outputs=2)
    model, scaled = (
        ExactRidgeRegressor().fit(X, y),
        ExactRidgeRegressor().fit(X, np.ldexp(y, power)),
    )
    assert np.array_equal(scaled.head_.integers, model.head_.integers)
    assert np.array_equal(scaled.coef_, np.ldexp(model.coef_, power))
    assert scaled.label_grid_.fraction_bits == model.label_grid_.fraction_bits - power


def test_targets_of_any_numeric_kind() -> None:
    X, y = regression()
    y = np.rint(np.abs(y) * 20 + 3)
    kinds = [
        y,
        y.astype(np.uint8),
        y.astype(np.int64),
        y.astype(np.float32),
        y.astype(object),
        y.tolist(),
    ]
    assert len({ExactRidgeRegressor().fit(X, kind).head_.digest for kind in kinds}) == 1


def test_an_output_lost_to_the_chosen_label_grid_is_refused() -> None:
    X, y = regression(outputs=2)
    y = y * [1.0, 1e-13]
    model = ExactRidgeRegressor()
    with pytest.raises(errors.LostColumnError, match=r"output 1 .*label_grid"):
        model.fit(X, y)
    assert vars(model) == vars(ExactRidgeRegressor())
    assert not model.set_params(lost_columns="accept").fit(X, y).coef_[1].any()
    assert ExactRidgeRegressor().fit(X, y[:, ::-1] * [1e12, 1.0]).coef_.any(axis=1).all()


def test_targets_beyond_the_chosen_label_grid_are_refused() -> None:
    X, y = regression()
    model = ExactRidgeRegressor().fit(X, y)
    before = state(model)
    with pytest.raises(
        errors.GridRangeError,
        match=r"labels is beyond the range .* choose label_grid=.*as grid and label_grid",
    ):
        model.partial_fit(X[:1], [1e9])
    assert state(model) == before
    with pytest.raises(
        errors.GridRangeError, match=r"choose label_grid=Grid\([^)]*\) when making the spec$"
    ):
        ExactRidgeRegressor(grid=Grid(), label_grid=Grid()).fit(X, 1e9 * y)


# -- remedies that the core names ------------------------------------------------------------------


def named_grid(refusal: BaseException) -> Grid | None:
    """The grid that a message recommends, which is the last one it names, if it recommends one."""
    message = str(refusal)
    if "would keep" not in message and "choose grid=" not in message:
        return None
    digits, fraction_bits = re.findall(r"Grid\(digits=(\d+), fraction_bits=(-?\d+)\)", message)[-1]
    return Grid(int(digits), int(fraction_bits))


@pytest.mark.parametrize(
    ("problem", "features", "grid"),
    [
        (
            errors.LostColumnError,
            [[1e6, 1e-5], [2e6, -1e-5]],
            Grid(2, 14),
        ),  # no grid holds both columns
        (
            errors.GridRangeError,
            [[1e13]],
            Grid(),
        ),  # no grid holds both this and the constant feature 1
        (errors.GridRangeError, [[1e3, 1.0]], Grid()),
        (errors.LostColumnError, [[1.0, 1e-5]], Grid(1, 5)),
    ],
)
@pytest.mark.parametrize("intercept", [False, True])
def test_a_recommended_grid_takes_the_batch(
    problem: Any, features: Any, grid: Grid, intercept: bool
) -> None:
    targets = np.zeros(len(features))
    model = ExactRidgeRegressor(
        grid=grid, label_grid=Grid(), fit_intercept=intercept, lost_columns="refuse"
    )
    with pytest.raises(problem) as refusal:
        model.partial_fit(features, targets)
    recommended = named_grid(refusal.value)
    if recommended is not None:
        model.set_params(grid=recommended).partial_fit(features, targets)


@pytest.mark.parametrize(
    "rows", [1, 100]
)  # rows are followed one by one, or taken by their statistics
def test_solvers_refuse_an_unknown_treatment_of_lost_columns(rows: int) -> None:
    solver = expunge.CholeskySolver(expunge.Spec(dim=1, outputs=1))
    with pytest.raises(errors.InputError, match="lost_columns='ignore'"):
        solver.add(np.ones((rows, 1)), np.ones(rows), lost_columns="ignore")
