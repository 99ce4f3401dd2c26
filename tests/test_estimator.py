"""Laws of the scikit-learn estimators: what a split, an order, a solver or a forgotten batch cannot change."""

from __future__ import annotations

import copy
import doctest
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_limits

import expunge
from expunge import ExactRidgeClassifier, ExactRidgeRegressor, Grid, errors, estimator
from expunge.solvers import base

HOW_TO = Path(__file__).parent.parent / "docs" / "how-to" / "scikit-learn.md"
SOLVERS = ("cholesky", "woodbury")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small products are slow when threads fight for cores; no byte depends on their number."""
    with threadpool_limits(1):
        yield


def classification(samples: int = 60, dim: int = 4, classes: int = 3, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    labels = np.arange(samples) % classes
    return random.normal(size=(samples, dim)) + labels[:, None], labels


def regression(samples: int = 40, dim: int = 4, outputs: int | None = None, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    features = random.normal(size=(samples, dim))
    weights = random.normal(size=dim if outputs is None else (dim, outputs))
    return features, features @ weights + 0.5 + random.normal(size=(samples, *weights.shape[1:])) / 10


def published(model: Any) -> tuple[bytes, ...]:
    """Everything that two equal estimators have in common, as bytes."""
    return (
        model.statistics_.to_bytes(),
        model.head_.digest.encode(),
        np.ascontiguousarray(model.coef_).tobytes(),
        np.asarray(model.intercept_).tobytes(),
    )


def state(model: Any) -> tuple[Any, ...]:
    attributes = {key: value for key, value in vars(model).items() if key not in ("_solver", "classes_")}
    return published(model), model.spec_, attributes, getattr(model, "classes_", np.zeros(0)).tolist()


# -- scikit-learn's own conformance suite -------------------------------------------------------------------------------


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


# -- laws ---------------------------------------------------------------------------------------------------------------

splits = st.tuples(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 39), max_size=6, unique=True))


def batches(seed: int, cuts: list[int], samples: int = 40) -> list[Any]:
    return np.split(np.random.default_rng(seed).permutation(samples), sorted(cuts))


@settings(max_examples=15)
@given(splits, st.sampled_from(SOLVERS), st.booleans())
def test_classifier_is_the_same_over_any_split_and_order(split: tuple[int, list[int]], solver: str, intercept: bool) -> None:
    X, y = classification(40)
    options: dict[str, Any] = {"gamma": 0.3, "grid": Grid(), "fit_intercept": intercept}
    whole = ExactRidgeClassifier(**options).fit(X, y)
    parts = ExactRidgeClassifier(solver=solver, **options)
    for batch in batches(*split):
        parts.partial_fit(X[batch], y[batch], classes=[2, 0, 1])
    assert published(parts) == published(whole)


@settings(max_examples=15)
@given(splits, st.sampled_from(SOLVERS), st.sampled_from([None, 1, 2]))
def test_regressor_is_the_same_over_any_split_and_order(split: tuple[int, list[int]], solver: str, outputs: int | None) -> None:
    X, y = regression(40, outputs=outputs)
    options: dict[str, Any] = {"gamma": 0.3, "grid": Grid(1, 15), "label_grid": Grid()}
    whole = ExactRidgeRegressor(**options).fit(X, y)
    parts = ExactRidgeRegressor(solver=solver, **options)
    for batch in batches(*split):
        parts.partial_fit(X[batch], y[batch])
    assert published(parts) == published(whole)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("batch", [1, 5, 35])  # rows are followed one by one, or taken by their statistics
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
    model = ExactRidgeRegressor(gamma=0.01, solver=solver).fit(X, y)
    for row in range(12):
        model.forget(X[row : row + 1], y[row : row + 1])
    retrained = ExactRidgeRegressor(gamma=0.01, grid=model.grid_, label_grid=model.label_grid_).fit(X[12:], y[12:])
    assert published(model) == published(retrained)


@pytest.mark.parametrize("solver", SOLVERS)
def test_forgetting_everything_leaves_nothing(solver: str) -> None:
    X, y = classification()
    model = ExactRidgeClassifier(solver=solver).fit(X, y).forget(X, y)
    assert model.statistics_ == expunge.Statistics.zero(model.spec_)
    assert not model.coef_.any()
    assert model.predict(X[:2]).tolist() == [0, 0]
    assert published(model.partial_fit(X, y)) == published(ExactRidgeClassifier(grid=model.grid_).fit(X, y))


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


# -- against scikit-learn -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("outputs", [None, 1, 3])
def test_regressor_equals_ridge_on_augmented_features(intercept: bool, outputs: int | None) -> None:
    X, y = regression(outputs=outputs)
    model = ExactRidgeRegressor(gamma=0.7, fit_intercept=intercept).fit(X, y)
    augmented = np.column_stack([X, np.ones(len(X))]) if intercept else X
    ridge = Ridge(alpha=0.7, fit_intercept=False, solver="cholesky").fit(augmented, y)
    weights = ridge.coef_.reshape(*y.shape[1:], -1)
    np.testing.assert_allclose(model.coef_, weights[..., :4], rtol=0, atol=1e-9)
    np.testing.assert_allclose(model.intercept_, weights[..., 4] if intercept else np.zeros(y.shape[1:]), rtol=0, atol=1e-9)
    np.testing.assert_allclose(model.predict(X), ridge.predict(augmented).reshape(y.shape), rtol=0, atol=1e-9)
    assert model.predict(X).shape == y.shape
    assert (model.coef_.shape, np.shape(model.intercept_)) == ((*y.shape[1:], 4), y.shape[1:])
    np.testing.assert_allclose(model.predict(X), X @ model.coef_.T + model.intercept_, rtol=0, atol=1e-12)


@pytest.mark.parametrize("classes", [1, 2, 3])
@pytest.mark.parametrize("intercept", [False, True])
def test_classifier_equals_ridge_on_one_hot_labels(classes: int, intercept: bool) -> None:
    X, y = classification(classes=classes)
    model = ExactRidgeClassifier(gamma=0.7, fit_intercept=intercept).fit(X, y)
    augmented = np.column_stack([X, np.ones(len(X))]) if intercept else X
    scores = Ridge(alpha=0.7, fit_intercept=False, solver="cholesky").fit(augmented, np.eye(classes)[y]).predict(augmented)
    expected = scores[:, 1] - scores[:, 0] if classes == 2 else scores.reshape(len(X), classes).squeeze()
    np.testing.assert_allclose(model.decision_function(X), expected, rtol=0, atol=1e-9)
    rows = 1 if classes == 2 else classes
    assert (model.coef_.shape, model.intercept_.shape) == ((rows, 4), (rows,))
    linear = X @ model.coef_.T + model.intercept_
    np.testing.assert_allclose(model.decision_function(X).reshape(len(X), -1), linear, rtol=0, atol=1e-12)
    if classes == 2:
        assert (model.predict(X) == (model.decision_function(X) > 0)).all()
    else:
        assert (model.predict(X) == np.atleast_2d(model.decision_function(X).T).argmax(axis=0)).all()


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
    assert published(stream.partial_fit(X[:3], classes[y[:3]]).forget(X[:3], classes[y[:3]].tolist())) == published(model)


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


# -- state --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("copied", [lambda model: pickle.loads(pickle.dumps(model)), copy.deepcopy])  # noqa: S301  our own bytes
def test_a_copy_goes_on_where_the_original_was(solver: str, copied: Any) -> None:
    X, y = classification()
    model = ExactRidgeClassifier(solver=solver).partial_fit(X[:50], y[:50], classes=range(3)).forget(X[:1], y[:1])
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
    assert {key: value for key, value in model.__getstate__().items() if key in retained} == retained
    longer = ExactRidgeClassifier(grid=Grid()).fit(X[:40], y[:40]).partial_fit(X, y).forget(X, y)
    assert pickle.dumps(longer) == pickled


def test_a_stream_is_solved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    solved = []

    def counted(*arguments: Any) -> Any:
        solved.append(1)
        return certified(*arguments)

    certified = base.certified
    monkeypatch.setattr(base, "certified", counted)
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
@pytest.mark.parametrize("forgetting", [False, True])
def test_gamma_and_solver_may_change_between_calls(solver: str, forgetting: bool) -> None:
    X, y = classification()
    model = ExactRidgeClassifier(solver=solver, grid=Grid()).fit(X[:50], y[:50])
    model.set_params(gamma=17.0, solver="woodbury" if solver == "cholesky" else "cholesky", publication_bits=38)
    if forgetting:
        model.forget(X[40:50], y[40:50])
    else:
        model.partial_fit(X[50:], y[50:])
    kept = slice(0, 40) if forgetting else slice(0, 60)
    retrained = ExactRidgeClassifier(gamma=17.0, publication_bits=38, grid=Grid()).fit(X[kept], y[kept])
    assert published(model) == published(retrained)
    assert model.head_.diagnostics.method == model.solver


# -- refusals -----------------------------------------------------------------------------------------------------------


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
def test_a_refused_fit_changes_nothing(problem: Any, parameters: dict[str, Any], scale: float, fitted: bool) -> None:
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
        (errors.GridRangeError, "a grid that holds it is .* \\(none was given as grid, so the first batch", [1e6, 0, 0, 0], 0),
        (errors.UnknownLabelError, "label 5 of row 1 .*classes=", [0, 0, 0, 0], 5),
        (ValueError, "3 features, but ExactRidgeClassifier is expecting 4", [0, 0, 0], 0),
        (ValueError, "NaN", [np.nan, 0, 0, 0], 0),
    ],
)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_refused_batch_changes_nothing(problem: Any, remedy: str, features: list[float], label: int, solver: str) -> None:
    X, y = classification()
    model = ExactRidgeClassifier(solver=solver).fit(X, y)
    before = state(model)
    for change in (model.partial_fit, model.forget) if problem is not errors.GridRangeError else (model.partial_fit,):
        with pytest.raises(problem, match=remedy):
            change([[0.0] * len(features), features], [0, label])
        assert state(model) == before


def test_classes_are_named_at_the_first_partial_fit_and_stay() -> None:
    X, y = classification()
    model = ExactRidgeClassifier()
    with pytest.raises(errors.InputError, match="classes must be passed on the first call"):
        model.partial_fit(X, y)
    with pytest.raises(errors.UnknownLabelError, match="label 2 of row 2"):
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
    assert published(model.fit(X, y)) == published(ExactRidgeClassifier(**{"grid": Grid(), **parameters}).fit(X, y))


# -- grids --------------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(st.floats(1e-17, 1e30), st.booleans())
def test_a_chosen_grid_has_headroom_and_keeps_bits(largest: float, intercept: bool) -> None:
    X = np.array([[largest, 0.0], [-largest / 3, -largest / 2]])
    largest = np.abs(X).max()
    if intercept and largest > 2.0**38:
        return
    grid = ExactRidgeRegressor(gamma=2.0**90, fit_intercept=intercept).partial_fit(X, [0.0, 0.0]).grid_
    assert grid.limit >= 8.0 * largest
    assert grid.step <= largest * 2.0**-35 or (intercept and grid.fraction_bits == 40)


def test_batches_of_similar_magnitude_choose_the_default_grid() -> None:
    random = np.random.default_rng(0)
    grids = {ExactRidgeRegressor().partial_fit(random.normal(size=(n, 20)), np.zeros(n)).grid_ for n in (1, 3, 10, 1000)}
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
    whole = Ridge(alpha=1.0, fit_intercept=False).fit(np.column_stack([X, np.ones(200)]), np.eye(2)[y])
    scores = whole.predict(np.column_stack([X, np.ones(200)]))
    np.testing.assert_allclose(model.decision_function(X), scores[:, 1] - scores[:, 0], rtol=0, atol=1e-9)
    with pytest.raises(errors.LostColumnError, match="column 1"):
        ExactRidgeClassifier(lost_columns="refuse").fit(X, y)
    row_by_row = ExactRidgeClassifier(grid=model.grid_)
    for row in range(20):
        row_by_row.partial_fit(X[row : row + 1], y[row : row + 1], classes=[0, 1])
    assert published(row_by_row) == published(ExactRidgeClassifier(grid=model.grid_).fit(X[:20], y[:20]))


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
    """Whatever the scales of two columns: what is fitted is what Ridge fits, or the lost one is refused."""
    random = np.random.default_rng(seed)
    y = random.normal(size=30)
    X = np.column_stack([10.0**large * random.normal(size=30), 10.0**small * (y + random.normal(size=30))])
    gamma = max(1e-3, 2.0**-40 * 10 ** (2 * large) * 30)
    try:
        fitted = ExactRidgeRegressor(gamma=gamma, fit_intercept=False).fit(X, y).predict(X)
    except errors.LostColumnError:
        assert large - small > 9
        return
    np.testing.assert_allclose(fitted, Ridge(alpha=gamma, fit_intercept=False).fit(X, y).predict(X), rtol=0, atol=3e-5)


@pytest.mark.parametrize("power", [-60, -9, 30, 60])
def test_the_unit_of_the_targets_is_free(power: int) -> None:
    X, y = regression(outputs=2)
    model, scaled = ExactRidgeRegressor().fit(X, y), ExactRidgeRegressor().fit(X, np.ldexp(y, power))
    assert np.array_equal(scaled.head_.integers, model.head_.integers)
    assert np.array_equal(scaled.coef_, np.ldexp(model.coef_, power))
    assert scaled.label_grid_.fraction_bits == model.label_grid_.fraction_bits - power


def test_targets_of_any_numeric_kind() -> None:
    X, y = regression()
    y = np.rint(np.abs(y) * 20 + 3)
    kinds = [y, y.astype(np.uint8), y.astype(np.int64), y.astype(np.float32), y.astype(object), y.tolist()]
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
        errors.GridRangeError, match=r"labels is 1000000000\.0, .* a grid that holds it is .*as grid and label_grid"
    ):
        model.partial_fit(X[:1], [1e9])
    assert state(model) == before
    with pytest.raises(errors.GridRangeError, match=r"a grid that holds it is Grid\(.*\)$"):
        ExactRidgeRegressor(grid=Grid(), label_grid=Grid()).fit(X, 1e9 * y)


# -- documentation ------------------------------------------------------------------------------------------------------


def test_docstring_examples() -> None:
    results = doctest.testmod(estimator, optionflags=doctest.ELLIPSIS)
    assert results.attempted > 10
    assert results.failed == 0


def test_the_how_to_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", HOW_TO.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(HOW_TO), "exec"), names)  # noqa: S102  our own documentation
    assert "accuracy 0.9" in capsys.readouterr().out
    X, y = load_digits(return_X_y=True)
    assert names["model"].score(X, y) > 0.9
