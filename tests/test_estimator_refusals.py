"""What the estimators refuse, and that a refusal changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from expunge import ExactRidgeClassifier, ExactRidgeRegressor, Grid, errors
from support.estimators import SOLVERS, classification, published, regression, state


@pytest.mark.parametrize("model", [ExactRidgeClassifier(), ExactRidgeRegressor()])
def test_nothing_can_be_asked_before_fitting(model: Any) -> None:
    with pytest.raises(NotFittedError):
        model.forget([[1.0]], [0])
    with pytest.raises(NotFittedError):
        model.predict([[1.0]])
    for name in ("coef_", "intercept_", "head_", "spec_", "grid_", "statistics_"):
        assert not hasattr(model, name)


def far_away(X: Any, y: Any) -> tuple[Any, Any]:
    return X[:1] + 20.0, y[:1]


def too_many_of_a_class(X: Any, y: Any) -> tuple[Any, Any]:
    return X[:2], np.array([2, 2])


def more_than_there_are(X: Any, y: Any) -> tuple[Any, Any]:
    return np.concatenate([X, X]), np.concatenate([y, y])


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("wrong", [far_away, too_many_of_a_class, more_than_there_are])
def test_an_impossible_deletion_changes_nothing(solver: str, wrong: Any) -> None:
    X, y = classification(30)
    y[3:] %= 2  # leaves one sample of class 2
    model = ExactRidgeClassifier(solver=solver).fit(X, y)
    before = state(model)
    with pytest.raises(errors.ImpossibleDeletionError, match="nothing was deleted"):
        model.forget(*wrong(X, y))
    assert state(model) == before
    assert published(model.forget(X[:3], y[:3])) == published(
        ExactRidgeClassifier(grid=model.grid_).partial_fit(X[3:], y[3:], range(3))
    )


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_impossible_deletion_from_a_regressor_changes_nothing(solver: str) -> None:
    X, y = regression()
    model = ExactRidgeRegressor(solver=solver).fit(X, y)
    before = state(model)
    for features, targets in (far_away(X, y), more_than_there_are(X, y)):
        with pytest.raises(errors.ImpossibleDeletionError):
            model.forget(features, targets)
        assert state(model) == before


@pytest.mark.parametrize(
    ("problem", "parameters", "scale"),
    [
        (errors.IllConditionedError, {"gamma": 1e-18}, 1.0),
        (errors.SpecError, {"gamma": -1.0}, 1.0),
        (errors.SpecError, {"solver": "qr"}, 1.0),
        (errors.SpecError, {"solver": ["cholesky"]}, 1.0),
        (errors.SpecError, {"grid": "fine"}, 1.0),
        (errors.SpecError, {"fit_intercept": "yes"}, 1.0),
        (errors.InputError, {"lost_columns": "ignore"}, 1.0),
        (errors.PublicationRangeError, {"publication_bits": 60, "gamma": 1e-9}, 1e-4),
        (errors.GridRangeError, {}, 1e13),
    ],
)
@pytest.mark.parametrize("fitted", [False, True])
def test_a_refused_fit_changes_nothing(
    problem: Any, parameters: dict[str, Any], scale: float, fitted: bool
) -> None:
    X, y = classification()
    model = ExactRidgeClassifier()
    if fitted:
        model.fit(X[:, :2], np.array(["a", "b", "c"])[y])
    model.set_params(**parameters)
    before = state(model) if fitted else dict(vars(model))
    with pytest.raises(problem):
        model.fit(scale * X, y)
    assert (state(model) if fitted else vars(model)) == before


@pytest.mark.parametrize(
    ("problem", "remedy", "features", "label"),
    [
        (
            errors.GridRangeError,
            "choose grid=.* \\(none was given as grid, so the first batch",
            [1e6, 0, 0, 0],
            0,
        ),
        (errors.UnknownLabelError, "the label of row 1 .*classes=", [0, 0, 0, 0], 5),
        (ValueError, "3 features, but ExactRidgeClassifier is expecting 4", [0, 0, 0], 0),
        (ValueError, "NaN", [np.nan, 0, 0, 0], 0),
    ],
)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_refused_batch_changes_nothing(
    problem: Any, remedy: str, features: list[float], label: int, solver: str
) -> None:
    X, y = classification()
    model = ExactRidgeClassifier(solver=solver).fit(X, y)
    before = state(model)
    for change in (
        (model.partial_fit, model.forget)
        if problem is not errors.GridRangeError
        else (model.partial_fit,)
    ):
        with pytest.raises(problem, match=remedy):
            change([[0.0] * len(features), features], [0, label])
        assert state(model) == before


def test_classes_are_named_at_the_first_partial_fit_and_stay() -> None:
    X, y = classification()
    model = ExactRidgeClassifier()
    with pytest.raises(errors.InputError, match="classes must be passed on the first call"):
        model.partial_fit(X, y)
    with pytest.raises(errors.UnknownLabelError, match="the label of row 2"):
        model.partial_fit(X, y, classes=[0, 1])
    assert vars(model) == vars(ExactRidgeClassifier())
    model.partial_fit(X, y, classes=[0, 1, 2, 3])
    assert model.coef_.shape == (4, 4)
    assert not model.coef_[3].any()
    before = state(model)
    for classes in ([0, 1, 2], [0, 1, 2, 4]):
        with pytest.raises(errors.InputError, match="not those of the first call"):
            model.partial_fit(X, y, classes=classes)
    assert state(model) == before
    assert model.fit(X, y).classes_.tolist() == [0, 1, 2]


@pytest.mark.parametrize("parameters", [{"fit_intercept": False}, {"grid": Grid(2, 20)}])
def test_what_statistics_depend_on_needs_fit(parameters: dict[str, Any]) -> None:
    X, y = classification()
    model = ExactRidgeClassifier(grid=Grid()).fit(X, y).set_params(**parameters)
    before = state(model)
    for change in (model.partial_fit, model.forget):
        with pytest.raises(errors.SpecError, match="Call fit to start anew"):
            change(X[:1], y[:1])
        assert state(model) == before
    assert published(model.fit(X, y)) == published(
        ExactRidgeClassifier(**{"grid": Grid(), **parameters}).fit(X, y)
    )
