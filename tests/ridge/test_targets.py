"""Labels in all their forms give the same integers, or are refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge import Grid, Spec
from expunge.errors import (
    ExpungeError,
    GridRangeError,
    NotFiniteError,
    ShapeError,
    UnknownLabelError,
)
from expunge.ridge.encoding import Targets, checked_labels, targets_of

NAMES = ("cat", "dog", "cow")
SPEC = Spec(dim=2, labels=NAMES)


def targets(spec: Spec, labels: Any, rows: int | None = None) -> Targets:
    return targets_of(spec, checked_labels(spec, labels, len(labels) if rows is None else rows))


def same(left: Targets, right: Targets) -> bool:
    return bool(
        np.array_equal(left.integers, right.integers)
        and np.array_equal(left.class_counts, right.class_counts)
    )


@given(st.lists(st.integers(0, 2), max_size=12), st.integers(0, 40))
def test_index_name_and_one_hot_row_give_the_same_integers(
    indices: list[int], fraction: int
) -> None:
    spec = Spec(dim=2, labels=NAMES, label_grid=Grid(2, fraction))
    hot = np.eye(3)[indices] if indices else np.zeros((0, 3))
    names = [NAMES[index] for index in indices]
    forms: list[Any] = [
        indices,
        np.array(indices, dtype=np.int8),
        np.array(indices, dtype=np.uint64),
        names,
        tuple(names),
        np.array(names, dtype="U5"),
        np.array(names, dtype=object),
        np.array(names, dtype=np.dtypes.StringDType()),
        hot,
        hot.astype(np.float16),
        hot.astype(bool),
        hot.astype(np.int64),
    ]
    expected = [[2.0**fraction * (column == index) for column in range(3)] for index in indices]
    for form in forms:
        result = targets(spec, form)
        assert result.integers.reshape(-1, 3).tolist() == expected
        assert result.integers.shape == (len(indices), 3)
        assert result.class_counts.tolist() == [indices.count(index) for index in range(3)]


def test_booleans_are_the_indices_of_two_classes() -> None:
    spec = Spec(dim=2, labels=("no", "yes"))
    assert same(targets(spec, np.array([True, False, True])), targets(spec, [1, 0, 1]))


def test_integer_labels_are_class_indices() -> None:
    spec = Spec(dim=2, labels=(0, 1, 2))
    assert targets(spec, [2, 0]).class_counts.tolist() == [1, 0, 1]


@given(
    st.lists(
        st.lists(
            st.sampled_from([0.0, 1.0, 0.5, -1.0, 2.0, 2.0**-35, 2.0**-37]), min_size=3, max_size=3
        ),
        max_size=8,
    )
)
def test_soft_labels_are_rounded_and_only_hard_ones_counted(rows: list[list[float]]) -> None:
    result = targets(SPEC, np.array(rows).reshape(-1, 3))
    rounded = [[round(value * 2**35) for value in row] for row in rows]
    assert result.integers.tolist() == rounded
    for label in range(3):
        hard = [2**35 * (column == label) for column in range(3)]
        assert result.class_counts[label] == rounded.count(hard)


def test_regression_targets_have_no_classes() -> None:
    result = targets(Spec(dim=2, outputs=2), [[1.0, -2.5], [0.0, 1.0]])
    assert result.integers.tolist() == [[2.0**35, -2.5 * 2**35], [0.0, 2.0**35]]
    assert result.class_counts.shape == (0,)


def test_one_dimension_means_one_output() -> None:
    spec = Spec(dim=2, outputs=1)
    for labels in (
        [1.0, -2.0],
        [[1.0], [-2.0]],
        np.array([1, -2]),
        np.array([1.0, -2.0], dtype=np.float16),
    ):
        assert targets(spec, labels).integers.tolist() == [[2.0**35], [-(2.0**36)]]


def test_a_single_label_is_a_column_of_ones() -> None:
    assert targets(Spec(dim=2, labels=("only",)), ["only", "only"]).integers.tolist() == [
        [2.0**35],
        [2.0**35],
    ]


@pytest.mark.parametrize(
    "empty", [[], np.zeros(0), np.zeros(0, dtype=int), np.zeros(0, dtype="U1"), np.zeros((0, 3))]
)
def test_no_labels(empty: Any) -> None:
    result = targets(SPEC, empty)
    assert result.integers.shape == (0, 3)
    assert result.class_counts.tolist() == [0, 0, 0]


def test_slices_of_checked_labels_give_slices_of_the_targets() -> None:
    for labels in ([2, 0, 1, 1], ["cow", "cat", "dog", "dog"], np.eye(3)[[2, 0, 1, 1]]):
        checked = checked_labels(SPEC, labels, 4)
        whole = targets_of(SPEC, checked)
        assert np.array_equal(targets_of(SPEC, checked[1:3]).integers, whole.integers[1:3])


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            [0, 3],
            (
                r"^the label of row 1 is not a class index: the spec has 3 labels, so indices run "
                r"from 0 to 2.*with_labels"
            ),
        ),
        ([-1, 0], r"^the label of row 0 is not a class index"),
        (np.array([0, 2**63], dtype=np.uint64), r"row 1 is not a class index"),
        (
            ["cat", "Dog"],
            (
                r"^the label of row 1 is not in the spec, which has 'cat', 'dog', 'cow'\. "
                r".*with_labels"
            ),
        ),
        (["cat", ""], r"^the label of row 1"),
        (np.array(["cat", None], dtype=object), r"^the label of row 1 .*Label names are strings"),
        (np.array(["cat", 1], dtype=object), r"^the label of row 1 .*Label names are strings"),
    ],
)
def test_unknown_labels_are_refused_by_their_row(labels: Any, message: str) -> None:
    with pytest.raises(UnknownLabelError, match=message):
        targets(SPEC, labels)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint8, np.uint64])
def test_an_unknown_index_is_refused_in_every_integer_type(dtype: type) -> None:
    with pytest.raises(UnknownLabelError, match="the label of row 1"):
        targets(SPEC, np.array([0, 3], dtype=dtype))


def test_true_is_unknown_where_there_is_one_label() -> None:
    with pytest.raises(UnknownLabelError, match="row 1"):
        targets(Spec(dim=2, labels=("only",)), np.array([False, True]))


def test_many_known_labels_are_not_all_listed() -> None:
    spec = Spec(dim=2, labels=tuple(f"class {index}" for index in range(100)))
    with pytest.raises(UnknownLabelError, match=r"'class 7', \.\.\.") as caught:
        targets(spec, ["none"])
    assert "class 8" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "rows", "message"),
    [
        (1, 1, "must be an array, got int"),
        (np.zeros((2, 3, 1)), 2, r"one or two dimensions, got shape \(2, 3, 1\)"),
        ([0, 1], 3, "3 rows of features need as many labels, got 2"),
        (np.zeros((2, 3)), 1, "1 rows of features need as many labels, got 2"),
        (np.zeros((2, 2)), 2, r"shape \(2, 2\) do not fit a spec with 3 labels: 3 columns"),
        (np.zeros((2, 0)), 2, r"shape \(2, 0\) do not fit"),
        (np.array([["cat", "dog", "cow"]]), 1, "must hold real numbers"),
        (np.array([[1j, 0, 0]]), 1, "must hold real numbers, got complex128"),
        ([0.0, 1.0], 2, "float64 are ambiguous for a classification spec"),
        (np.array([b"cat"]), 1, "are ambiguous"),
        (np.array([1j]), 1, "are ambiguous"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), 1, "are ambiguous"),
    ],
)
def test_labels_of_the_wrong_shape_or_kind(labels: Any, rows: int, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        targets(SPEC, labels, rows)


@pytest.mark.parametrize("labels", [[[1.0], [1.0, 2.0]], [["cat"], []], [1, [2]]])
def test_ragged_labels_are_refused_as_ours(labels: Any) -> None:
    with pytest.raises(ExpungeError, match="labels"):
        targets(SPEC, labels)


def test_one_dimension_is_refused_for_several_outputs() -> None:
    with pytest.raises(ShapeError, match=r"mean outputs=1, but the spec has outputs=2: .*\(4, 2\)"):
        targets(Spec(dim=2, outputs=2), np.zeros(4))


@pytest.mark.parametrize(
    "labels", [["a"], np.array(["a"], dtype=object), np.array([1j]), np.array([b"a"])]
)
def test_regression_refuses_what_is_not_real(labels: Any) -> None:
    with pytest.raises(ShapeError, match="must hold real numbers"):
        targets(Spec(dim=2, outputs=1), labels)


@pytest.mark.parametrize(
    ("value", "error"),
    [(np.nan, NotFiniteError), (np.inf, NotFiniteError), (-64.0, GridRangeError)],
)
@pytest.mark.parametrize("spec", [SPEC, Spec(dim=2, outputs=3)])
def test_targets_beyond_the_label_grid_are_named(
    spec: Spec, value: float, error: type[ExpungeError]
) -> None:
    labels = np.zeros((4, 3))
    labels[2, 1] = value
    with pytest.raises(error, match=r"row 12, column 1 of the labels"):
        targets_of(spec, checked_labels(spec, labels, 4), first_row=10)
