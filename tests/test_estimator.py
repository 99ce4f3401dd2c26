"""Laws of the scikit-learn estimators: what a split, an order, a solver or a forgotten batch cannot
change.
"""

from __future__ import annotations

import copy
import doctest
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_limits

import expunge
from expunge import ExactRidgeClassifier, ExactRidgeRegressor, Grid, estimators
from expunge.solvers import following
from support.estimators import SOLVERS, classification, published, regression, state


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small products are slow when threads fight for cores; no byte depends on their number."""
    with threadpool_limits(1):
        yield


# -- scikit-learn's own conformance suite ----------------------------------------------------------


@parametrize_with_checks(
    [
        ExactRidgeClassifier(),
        ExactRidgeClassifier(fit_intercept=False, solver="woodbury"),
        ExactRidgeRegressor(),
        ExactRidgeRegressor(fit_intercept=False, solver="woodbury"),
    ]
)
def test_scikit_learn_conformance(estimator: Any, check: Any) -> None:
    check(estimator)


# -- laws ------------------------------------------------------------------------------------------

splits = st.tuples(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 39), max_size=6, unique=True))


def batches(seed: int, cuts: list[int], samples: int = 40) -> list[Any]:
    return np.split(np.random.default_rng(seed).permutation(samples), sorted(cuts))


@settings(max_examples=15)
@given(splits, st.sampled_from(SOLVERS), st.booleans())
def test_classifier_is_the_same_over_any_split_and_order(
    split: tuple[int, list[int]], solver: str, intercept: bool
) -> None:
    X, y = classification(40)
    options: dict[str, Any] = {"gamma": 0.3, "grid": Grid(), "fit_intercept": intercept}
    whole = ExactRidgeClassifier(**options).fit(X, y)
    parts = ExactRidgeClassifier(solver=solver, **options)
    for batch in batches(*split):
        parts.partial_fit(X[batch], y[batch], classes=[2, 0, 1])
    assert published(parts) == published(whole)


@settings(max_examples=15)
@given(splits, st.sampled_from(SOLVERS), st.sampled_from([None, 1, 2]))
def test_regressor_is_the_same_over_any_split_and_order(
    split: tuple[int, list[int]], solver: str, outputs: int | None
) -> None:
    X, y = regression(40, outputs=outputs)
    options: dict[str, Any] = {"gamma": 0.3, "grid": Grid(1, 15), "label_grid": Grid()}
    whole = ExactRidgeRegressor(**options).fit(X, y)
    parts = ExactRidgeRegressor(solver=solver, **options)
    for batch in batches(*split):
        parts.partial_fit(X[batch], y[batch])
    assert published(parts) == published(whole)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    "batch", [1, 5, 35]
)  # rows are followed one by one, or taken by their statistics
@pytest.mark.parametrize("solving", [False, True])
def test_forget_is_the_inverse_of_partial_fit(solver: str, batch: int, solving: bool) -> None:
    X, y = classification(60)
    model = ExactRidgeClassifier(grid=Grid(), solver=solver).fit(X[:25], y[:25])
    before = published(model)
    model.partial_fit(X[25 : 25 + batch], y[25 : 25 + batch])
    if solving:
        assert published(model) != before
    assert published(model.forget(X[25 : 25 + batch], y[25 : 25 + batch])) == before


@pytest.mark.parametrize("solver", SOLVERS)
def test_forget_equals_retraining_even_with_a_chosen_grid(solver: str) -> None:
    X, y = regression(outputs=2)
    y *= 1000.0
    model = ExactRidgeRegressor(gamma=0.01, solver=solver).fit(X, y)
    for row in range(12):
        model.forget(X[row : row + 1], y[row : row + 1])
    retrained = ExactRidgeRegressor(gamma=0.01, grid=model.grid_, label_grid=model.label_grid_).fit(
        X[12:], y[12:]
    )
    assert published(model) == published(retrained)


@pytest.mark.parametrize("solver", SOLVERS)
def test_forgetting_everything_leaves_nothing(solver: str) -> None:
    X, y = classification()
    model = ExactRidgeClassifier(solver=solver).fit(X, y).forget(X, y)
    assert model.statistics_ == expunge.Statistics.zero(model.spec_)
    assert not model.coef_.any()
    assert model.predict(X[:2]).tolist() == [0, 0]
    assert published(model.partial_fit(X, y)) == published(
        ExactRidgeClassifier(grid=model.grid_).fit(X, y)
    )


def test_the_digest_is_that_of_the_core() -> None:
    X, y = classification()
    names = np.array(["ant", "bee", "cow"])[y]
    model = ExactRidgeClassifier(gamma=2.5, publication_bits=30, grid=Grid()).fit(X, names)
    spec = expunge.Spec(dim=4, labels=("ant", "bee", "cow"), gamma=2.5, publication_bits=30)
    assert model.spec_ == spec
    assert model.head_.digest == expunge.solve(expunge.Statistics.of(spec, X, names)).digest
    assert (model.predict(X) == model.head_.predict(X)).all()


def test_the_form_of_the_input_does_not_matter() -> None:
    X, y = classification()
    X = X.astype(np.float32)
    forms = [X, X.astype(np.float64), np.asfortranarray(X), X.tolist(), X.astype(object)]
    digests = {ExactRidgeClassifier().fit(form, y).head_.digest for form in forms}
    assert len(digests) == 1


# -- against scikit-learn --------------------------------------------------------------------------


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("outputs", [None, 1, 3])
def test_regressor_equals_ridge_on_augmented_features(intercept: bool, outputs: int | None) -> None:
    X, y = regression(outputs=outputs)
    model = ExactRidgeRegressor(gamma=0.7, fit_intercept=intercept).fit(X, y)
    augmented = np.column_stack([X, np.ones(len(X))]) if intercept else X
    ridge = Ridge(alpha=0.7, fit_intercept=False, solver="cholesky").fit(augmented, y)
    weights = ridge.coef_.reshape(*y.shape[1:], -1)
    np.testing.assert_allclose(model.coef_, weights[..., :4], rtol=0, atol=1e-9)
    np.testing.assert_allclose(
        model.intercept_, weights[..., 4] if intercept else np.zeros(y.shape[1:]), rtol=0, atol=1e-9
    )
    np.testing.assert_allclose(
        model.predict(X), ridge.predict(augmented).reshape(y.shape), rtol=0, atol=1e-9
    )
    assert model.predict(X).shape == y.shape
    assert (model.coef_.shape, np.shape(model.intercept_)) == ((*y.shape[1:], 4), y.shape[1:])
    np.testing.assert_allclose(
        model.predict(X), X @ model.coef_.T + model.intercept_, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("intercept", [False, True])
def test_classifier_equals_ridge_on_one_hot_labels(classes: int, intercept: bool) -> None:
    X, y = classification(classes=classes)
    model = ExactRidgeClassifier(gamma=0.7, fit_intercept=intercept).fit(X, y)
    augmented = np.column_stack([X, np.ones(len(X))]) if intercept else X
    scores = (
        Ridge(alpha=0.7, fit_intercept=False, solver="cholesky")
        .fit(augmented, np.eye(classes)[y])
        .predict(augmented)
    )
    expected = (
        scores[:, 1] - scores[:, 0] if classes == 2 else scores.reshape(len(X), classes).squeeze()
    )
    np.testing.assert_allclose(model.decision_function(X), expected, rtol=0, atol=1e-9)
    rows = 1 if classes == 2 else classes
    assert (model.coef_.shape, model.intercept_.shape) == ((rows, 4), (rows,))
    linear = X @ model.coef_.T + model.intercept_
    np.testing.assert_allclose(
        model.decision_function(X).reshape(len(X), -1), linear, rtol=0, atol=1e-12
    )
    if classes == 2:
        assert (model.predict(X) == (model.decision_function(X) > 0)).all()
    else:
        assert (
            model.predict(X) == np.atleast_2d(model.decision_function(X).T).argmax(axis=0)
        ).all()


@pytest.mark.parametrize(
    ("classes", "labels"),
    [
        (["no", "yes"], ("no", "yes")),
        (np.array(["no", "yes"], dtype=object), ("no", "yes")),
        ([False, True], (0, 1)),
        ([0, 1], (0, 1)),
        ([0.0, 1.0], (0, 1)),
        ([-1, 1], ("-1", "1")),
        ([3.0, 7.0], ("3", "7")),
        (np.array([5, 200], dtype=np.uint8), ("5", "200")),
    ],
)
def test_classes_of_every_kind(classes: Any, labels: tuple[Any, ...]) -> None:
    X, y = classification(classes=2)
    classes = np.asarray(classes)
    model = ExactRidgeClassifier(gamma=0.1).fit(X, classes[y])
    assert model.spec_.labels == labels
    assert model.classes_.dtype == classes.dtype
    assert model.predict(X).dtype == classes.dtype
    assert model.score(X, classes[y]) > 0.75
    stream = ExactRidgeClassifier(gamma=0.1).partial_fit(X, classes[y], classes=classes[::-1])
    assert published(stream) == published(model)
    assert published(
        stream.partial_fit(X[:3], classes[y[:3]]).forget(X[:3], classes[y[:3]].tolist())
    ) == published(model)


def test_pipeline_grid_search_and_clone() -> None:
    X, y = regression(200)
    pipeline = make_pipeline(StandardScaler(), ExactRidgeRegressor(grid=Grid()))
    search = GridSearchCV(pipeline, {"exactridgeregressor__gamma": [0.1, 1e3]}, cv=3).fit(X, y)
    assert search.best_params_ == {"exactridgeregressor__gamma": 0.1}
    assert search.score(X, y) > 0.9
    best = search.best_estimator_[-1]
    copied = clone(best)
    assert copied.get_params() == best.get_params()
    with pytest.raises(NotFittedError):
        copied.predict(X)
    assert published(copied.fit(search.best_estimator_[0].transform(X), y)) == published(best)


# -- state -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("copied", [lambda model: pickle.loads(pickle.dumps(model)), copy.deepcopy])  # noqa: S301  our own bytes
def test_a_copy_goes_on_where_the_original_was(solver: str, copied: Any) -> None:
    X, y = classification()
    model = (
        ExactRidgeClassifier(solver=solver)
        .partial_fit(X[:50], y[:50], classes=range(3))
        .forget(X[:1], y[:1])
    )
    model.head_  # noqa: B018  fills the caches
    other = copied(model.forget(X[1:2], y[1:2]))
    assert state(other) == state(model)
    other.partial_fit(X[50:], y[50:]).forget(X[2:3], y[2:3])
    assert model.statistics_.count == 48
    assert published(other) == published(model.forget(X[2:3], y[2:3]).partial_fit(X[50:], y[50:]))


def test_a_pickle_is_a_function_of_what_is_retained() -> None:
    X, y = classification()
    model = ExactRidgeClassifier(grid=Grid()).fit(X, y).forget(X[40:], y[40:])
    model.head_  # noqa: B018  fills the caches
    pickled = pickle.dumps(model)
    retained = {"_pickled": (expunge.CholeskySolver, model.statistics_)}
    assert {
        key: value for key, value in model.__getstate__().items() if key in retained
    } == retained
    longer = ExactRidgeClassifier(grid=Grid()).fit(X[:40], y[:40]).partial_fit(X, y).forget(X, y)
    assert pickle.dumps(longer) == pickled


def test_a_stream_is_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = []

    def counted(*arguments: Any) -> Any:
        solved.append(1)
        return certified(*arguments)

    certified = following.certified
    monkeypatch.setattr(following, "certified", counted)
    X, y = regression(30)
    model = ExactRidgeRegressor(grid=Grid(), label_grid=Grid())
    for row in range(30):
        model.partial_fit(X[row : row + 1], y[row : row + 1])
    model.forget(X[:1], y[:1])
    assert not solved
    model.predict(X)
    model.predict(X)
    assert model.coef_.any()
    assert len(solved) == 1


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("after", SOLVERS)
@pytest.mark.parametrize("forgetting", [False, True])
def test_gamma_and_solver_may_change_between_calls(
    solver: str, after: str, forgetting: bool
) -> None:
    X, y = classification()
    model = ExactRidgeClassifier(solver=solver, grid=Grid()).fit(X[:50], y[:50])
    model.set_params(gamma=17.0, solver=after, publication_bits=38)
    if forgetting:
        model.forget(X[40:50], y[40:50])
    else:
        model.partial_fit(X[50:], y[50:])
    kept = slice(0, 40) if forgetting else slice(0, 60)
    retrained = ExactRidgeClassifier(gamma=17.0, publication_bits=38, grid=Grid()).fit(
        X[kept], y[kept]
    )
    assert published(model) == published(retrained)
    assert model.head_.diagnostics.method == after


# -- documentation ---------------------------------------------------------------------------------


def test_docstring_examples() -> None:
    results = doctest.testmod(estimators, optionflags=doctest.ELLIPSIS)
    assert results.attempted > 10
    assert results.failed == 0
