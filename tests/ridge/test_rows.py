"""Features as integers, and columns that are lost to the grid."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from expunge import Grid, Spec
from expunge.errors import ExpungeError, GridRangeError, LostColumnError, NotFiniteError, ShapeError
from expunge.ridge.encoding import (
    ColumnWatch,
    checked_features,
    integer_rows,
    put_features,
    seen_columns,
)

SPEC = Spec(dim=3, labels=("a", "b"))
BARE = Spec(dim=3, labels=("a", "b"), intercept=False)


# -- features --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [SPEC, BARE])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i2", "u1", "?"])
def test_integer_rows_are_features_on_the_grid_with_the_constant_last(
    spec: Spec, dtype: str
) -> None:
    features = np.array([[0, 1, 3], [2, 0, 1]]).astype(dtype)
    rows = integer_rows(spec, features, [0, 1])
    expected = features.astype(np.float64) * 2.0**35
    assert np.array_equal(rows.integers[:, :3], expected)
    assert rows.integers.shape == (2, spec.width)
    if spec.intercept:
        assert (rows.integers[:, 3] == 2.0**35).all()
    assert rows.largest == np.abs(rows.integers).max()
    assert len(rows) == 2
    assert rows.targets.integers.tolist() == [[2.0**35, 0.0], [0.0, 2.0**35]]


def test_the_constant_counts_for_the_largest() -> None:
    assert integer_rows(SPEC, np.full((1, 3), 0.25), [0]).largest == 2.0**35
    assert integer_rows(BARE, np.full((1, 3), 0.25), [0]).largest == 2.0**33


@pytest.mark.parametrize("spec", [SPEC, BARE])
def test_no_rows(spec: Spec) -> None:
    rows = integer_rows(spec, np.zeros((0, 3)), [])
    assert rows.integers.shape == (0, spec.width)
    assert rows.largest == 0.0
    assert len(rows) == 0


def test_nested_lists_and_views_are_taken() -> None:
    wanted = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    fortran = np.asfortranarray(wanted)
    strided = np.repeat(np.array(wanted), 2, axis=1)[:, ::2]
    results = [
        integer_rows(SPEC, form, [0, 1]).integers
        for form in (wanted, fortran, strided, np.array(wanted, dtype=">f8"))
    ]
    assert all(np.array_equal(result, results[0]) for result in results)


def test_an_array_is_not_copied() -> None:
    features = np.ones((2, 3))
    assert checked_features(SPEC, features) is features


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.ones((2, 4)), r"features must have shape \(n, 3\), got \(2, 4\)$"),
        (np.ones((2, 3, 1)), r"got \(2, 3, 1\)"),
        (np.ones(3), r"got \(3,\) \(one sample: features.reshape\(1, -1\)\)"),
        (np.ones(4), r"got \(4,\)$"),
        (1.0, "must be an array"),
        (None, "must be an array"),
        (np.ones((2, 3), dtype=complex), "must be real numbers, got an array of complex128"),
        (np.full((2, 3), "1"), "must be real numbers, got an array of <U1"),
        (np.ones((2, 3), dtype=object), "must be real numbers, got an array of object"),
        ([["a", "b", "c"]], "must be real numbers"),
    ],
)
def test_features_of_the_wrong_shape_or_kind(features: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        checked_features(SPEC, features)


@pytest.mark.parametrize("features", [[[1.0, 2.0, 3.0], [1.0]], [[1.0, 2.0, 3.0], 1.0]])
def test_ragged_features_are_refused_as_ours(features: Any) -> None:
    with pytest.raises(ExpungeError, match="features"):
        checked_features(SPEC, features)


@pytest.mark.parametrize(
    ("value", "error"), [(np.nan, NotFiniteError), (np.inf, NotFiniteError), (64.0, GridRangeError)]
)
def test_bad_values_are_named_by_row_and_column(value: float, error: type[ExpungeError]) -> None:
    features = np.ones((5, 3))
    features[4, 2] = value
    with pytest.raises(error, match="row 4, column 2 of the features"):
        integer_rows(SPEC, features, [0] * 5)
    with pytest.raises(error, match="row 104, column 2 of the features"):
        put_features(SPEC, features, np.empty((5, 4)), 100)


def test_labels_are_checked_with_the_features() -> None:
    with pytest.raises(ShapeError, match="2 rows of features need as many labels, got 3"):
        integer_rows(SPEC, np.ones((2, 3)), [0, 1, 1])


# -- lost columns ----------------------------------------------------------------------------------


def watch_of(spec: Spec, *batches: NDArray[Any]) -> ColumnWatch:
    watch = ColumnWatch(spec)
    for batch in batches:
        watch.merge(seen_columns(spec, batch, integer_rows(spec, batch, [0] * len(batch))))
    return watch


def is_lost(column: list[float], step: float) -> bool:
    return any(column) and all(round(value / step) == 0 for value in column)


VALUE = st.sampled_from(
    [0.0, 0.25, -0.25, 0.5, -0.5, 0.75, 3.0]
)  # in steps of the grid; half a step rounds to zero


@given(st.lists(st.lists(VALUE, min_size=3, max_size=3), max_size=6), st.integers(0, 6))
def test_a_column_is_lost_if_it_is_not_zero_but_rounds_to_zero(
    rows: list[list[float]], cut: int
) -> None:
    spec = Spec(dim=3, labels=("a",), grid=Grid(2, 0))
    features = np.array(rows).reshape(-1, 3)
    lost = [is_lost(features[:, column].tolist(), 1.0) for column in range(3)]
    watch = watch_of(spec, features[:cut], features[cut:])
    if not any(lost):
        watch.require_none_lost()
        return
    more = f" (and {sum(lost) - 1} more)" if sum(lost) > 1 else ""
    expected = f"column {lost.index(True)} of the features is lost to the grid{more}: every value"
    with pytest.raises(LostColumnError, match=re.escape(expected)):
        watch.require_none_lost()
    watch.require_none_lost(np.array(lost))


def test_living_columns_elsewhere_excuse_a_lost_one_only_if_they_are_the_same() -> None:
    watch = watch_of(BARE, np.array([[1e-20, 1.0, 1e-20]]))
    with pytest.raises(LostColumnError, match=r"column 0 .*and 1 more"):
        watch.require_none_lost()
    with pytest.raises(LostColumnError, match=r"column 2 of the features is lost to the grid: "):
        watch.require_none_lost(np.array([True, False, False]))
    watch.require_none_lost(np.array([True, False, True]))


@given(st.integers(-1074, 4), st.booleans(), st.sampled_from([Grid(), Grid(1, 5), Grid(2, 0)]))
def test_the_grid_named_as_remedy_keeps_the_column(
    exponent: int, intercept: bool, grid: Grid
) -> None:
    spec = Spec(dim=3, labels=("a",), grid=grid, intercept=intercept)
    features = np.array([[1.0, 1.25 * 2.0**exponent, 0.0]])
    try:
        watch_of(spec, features).require_none_lost()
    except LostColumnError as refusal:
        text = str(refusal)
        assert "lost_columns='accept'" in text
        if "Scale that column up" not in text:
            found = re.search(r"Grid\(digits=(\d), fraction_bits=(-?\d+)\) would keep", text)
            assert found is not None
            other = Spec(
                dim=3, labels=("a",), grid=Grid(int(found[1]), int(found[2])), intercept=intercept
            )
            watch_of(other, features).require_none_lost()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i8", "?"])
def test_every_kind_of_number_can_be_lost(dtype: str) -> None:
    """The smallest int8 has no absolute value in its own type."""
    spec = Spec(dim=1, labels=("a",), grid=Grid(2, -9), intercept=False)
    value = -128 if dtype != "?" else 1
    with pytest.raises(LostColumnError, match="column 0 of the features is lost"):
        watch_of(spec, np.array([[value]]).astype(dtype)).require_none_lost()


def test_seen_columns_is_a_watch_of_one_batch() -> None:
    features = np.array([[1.0, 1e-20, 0.0]])
    with pytest.raises(LostColumnError, match="column 1"):
        seen_columns(SPEC, features, integer_rows(SPEC, features, [0])).require_none_lost()
    nothing = np.zeros((0, 3))
    seen_columns(SPEC, nothing, integer_rows(SPEC, nothing, [])).require_none_lost()
