"""Names of features: the first table fixes them; a later one that differs is refused by name."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from expunge import CholeskySolver, ExactRidgeClassifier, ExactRidgeRegressor, Grid, Statistics
from expunge.errors import GridRangeError, LostColumnError, ShapeError
from support.inputs import NAMES, SOLVERS, SPEC, check_refused

X = np.arange(12, dtype=np.float32).reshape(4, 3) / 8
Y = ["cat", "dog", "cat", "dog"]


def table(*names: str) -> pa.Table:
    return pa.table({name: X[:, index % 3] for index, name in enumerate(names)})


WRONG = [
    (table("dose", "age", "weight"), "another order .*: 0 is column 'dose', and was column 'age'"),
    (table("age", "dose", "height"), "lacks column 'weight', and .* had no column 'height'"),
    (table("age", "dose"), "the table lacks column 'weight'"),
    (table(*NAMES, "height"), "the first table had no column 'height'"),
    (
        table(*NAMES).set_column(1, "dose", pa.array(Y)),
        "column 'dose' holds string, where numbers are needed",
    ),
]


@pytest.mark.parametrize("variant", SOLVERS)
@pytest.mark.parametrize(("other", "message"), WRONG)
def test_another_table_is_refused_and_nothing_changes(
    variant: Any, other: pa.Table, message: str
) -> None:
    solver = variant(SPEC)
    solver.add(table(*NAMES), Y)
    for change in (solver.add, solver.delete):
        check_refused(change, other, Y, ShapeError, message)
        check_refused(change, [(other, Y)], None, ShapeError, message)
    many = pa.concat_tables([other] * 30)
    check_refused(solver.add, many, Y * 30, ShapeError, message)


@pytest.mark.parametrize(("other", "message"), WRONG)
def test_batches_of_one_call_must_agree(other: pa.Table, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        Statistics.of(SPEC, [(table(*NAMES), Y), (X, Y), (other, Y)])


@pytest.mark.parametrize("variant", SOLVERS)
def test_a_refused_first_table_fixes_nothing(variant: Any) -> None:
    solver = variant(SPEC)
    check_refused(solver.add, table(*NAMES), ["cat"] * 3, ShapeError, "4 rows of features need")
    check_refused(solver.add, table(*NAMES), ["cat"] * 3 + ["eel"], ValueError, "row 3")  # type: ignore[arg-type]
    assert solver.feature_names is None
    solver.add(X, Y)
    check_refused(solver.delete, table(*NAMES), ["cat"] * 4, ValueError, "nothing was deleted")  # type: ignore[arg-type]
    assert solver.feature_names is None


@pytest.mark.parametrize("variant", SOLVERS)
def test_the_first_table_fixes_names_and_arrays_go_by_position(variant: Any) -> None:
    solver = variant(SPEC)
    solver.add(X, Y)
    solver.delete(table(*NAMES).slice(0, 1), Y[:1])
    assert solver.feature_names == NAMES
    solver.add(X[:1], Y[:1])
    assert solver.statistics == Statistics.of(SPEC, X, Y)
    solver.amend(SPEC.with_gamma(2.0))
    assert solver.feature_names == NAMES
    with pytest.raises(AttributeError):
        solver.feature_names = None


def test_names_are_no_part_of_bytes_and_of_pickles_of_arrays() -> None:
    named, plain = CholeskySolver(SPEC), CholeskySolver(SPEC)
    named.add(table(*NAMES), Y)
    plain.add(X, Y)
    assert named.statistics.to_bytes() == plain.statistics.to_bytes()
    assert pickle.dumps(named.statistics) == pickle.dumps(plain.statistics)
    assert plain.__reduce__() == (CholeskySolver, (SPEC, plain.statistics))  # as before names were
    old = pickle.dumps((CholeskySolver, (SPEC, plain.statistics)))
    made, arguments = pickle.loads(old)  # noqa: S301 - our own bytes
    assert made(*arguments).feature_names is None


@pytest.mark.parametrize(("other", "message"), WRONG)
@pytest.mark.parametrize("estimator", [ExactRidgeClassifier, ExactRidgeRegressor])
def test_an_estimator_refuses_another_table(estimator: Any, other: pa.Table, message: str) -> None:
    y = Y if estimator is ExactRidgeClassifier else [0.0, 1.0, 0.5, 2.0]
    model = estimator().fit(table(*NAMES), y)
    assert model.feature_names_in_.tolist() == list(NAMES)
    for change in (model.partial_fit, model.forget):
        check_refused(change, other, y, ShapeError, f"(?s){message}")
    with pytest.raises(ShapeError, match=f"(?s){message}"):
        model.predict(other)


def test_an_estimator_warns_of_arrays_after_tables_as_scikit_learn_does() -> None:
    model = ExactRidgeClassifier().fit(table(*NAMES), Y)
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        predicted = model.predict(X)
    assert predicted.tolist() == model.predict(table(*NAMES)).tolist()
    plain = ExactRidgeClassifier().fit(X, Y)
    with pytest.warns(UserWarning, match="was fitted without feature names"):
        plain.predict(table(*NAMES))
    assert not hasattr(model.fit(X, Y), "feature_names_in_")


FORMS = {"PyArrow": pa.table, "a dictionary of columns": dict}
BEYOND = "row 2, column 'dose' of the features is beyond the range of Grid"


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("variant", SOLVERS)
def test_a_value_beyond_the_grid_is_refused_by_column_name(variant: Any, form: Any) -> None:
    columns = dict(zip(NAMES, X.T.astype(np.float64), strict=True))
    beyond = form({**columns, "dose": [0.0, 1.0, 98765.5, 2.0]})
    with pytest.raises(GridRangeError, match=BEYOND) as refusal:
        Statistics.of(SPEC, beyond, Y)
    assert "98765" not in str(refusal.value)
    solver = variant(SPEC)
    solver.add(form(columns), Y)
    for change in (solver.add, solver.delete):
        check_refused(change, beyond, Y, GridRangeError, BEYOND)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("estimator", [ExactRidgeClassifier, ExactRidgeRegressor])
def test_an_estimator_names_the_column_of_a_value_beyond_its_grid(
    estimator: Any, form: Any
) -> None:
    y = Y if estimator is ExactRidgeClassifier else [0.0, 1.0, 0.5, 2.0]
    columns = dict(zip(NAMES, X.T.astype(np.float64), strict=True))
    beyond = form({**columns, "dose": [0.0, 1.0, 98765.5, 2.0]})
    with pytest.raises(GridRangeError, match=BEYOND) as refusal:
        estimator(grid=Grid()).fit(beyond, y)
    assert "98765" not in str(refusal.value)
    for model in (estimator(grid=Grid()).fit(form(columns), y), estimator().fit(form(columns), y)):
        for change in (model.partial_fit, model.forget):
            check_refused(change, beyond, y, GridRangeError, BEYOND)
    lost = form({**columns, "dose": [0.0, 1e-13, 0.0, 0.0]})
    with pytest.raises(LostColumnError, match="column 'dose'"):
        estimator(grid=Grid(), lost_columns="refuse").fit(lost, y)


def test_an_array_beyond_the_grid_is_refused_by_the_number_of_its_column() -> None:
    with pytest.raises(GridRangeError, match="row 0, column 1 of the features"):
        ExactRidgeClassifier(grid=Grid()).fit([[1.0, 98765.5], [0.0, 1.0]], Y[:2])
