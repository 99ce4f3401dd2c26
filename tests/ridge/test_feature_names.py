"""Names of features: the first table fixes them; a later one that differs is refused by name."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from expunge import CholeskySolver, ExactRidgeClassifier, ExactRidgeRegressor, Statistics
from expunge.errors import ShapeError
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
