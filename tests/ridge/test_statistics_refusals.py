"""What statistics cannot be made of is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from expunge import Spec, Statistics
from expunge.errors import (
    ExpungeError,
    GridRangeError,
    InputError,
    LostColumnError,
    NotFiniteError,
    ShapeError,
    UnknownLabelError,
)

SPEC = Spec(dim=3, labels=("a", "b"))


@pytest.mark.parametrize(
    ("features", "labels", "error", "message"),
    [
        (np.ones((2, 4)), [0, 1], ShapeError, r"\(n, 3\), got \(2, 4\)"),
        (np.ones((2, 3)), [0], ShapeError, "2 rows of features need as many labels, got 1"),
        (np.ones((2, 3)), [0, 2], UnknownLabelError, "row 1"),
        (np.ones((2, 3)), ["a", "z"], UnknownLabelError, "the label of row 1"),
        (np.ones((2, 3)), [0.0, 1.0], ShapeError, "ambiguous"),
        (np.ones((2, 3)), None, ShapeError, "labels are missing"),
        (None, None, ShapeError, "labels are missing"),
        ([(np.ones((2, 3)), [0, 1]), np.ones((2, 3))], None, ShapeError, "batch 1 is not a pair"),
        ([1, 2], None, ShapeError, "batch 0 is not a pair"),
        (np.full((2, 3), np.nan), [0, 1], NotFiniteError, "row 0, column 0 of the features is nan"),
        (
            np.full((2, 3), -np.inf),
            [0, 1],
            NotFiniteError,
            "row 0, column 0 of the features is -inf",
        ),
        (
            np.full((2, 3), 64.0),
            [0, 1],
            GridRangeError,
            "row 0, column 0 of the features is beyond the range",
        ),
        (
            np.ones((2, 3)),
            [[1.0, np.nan], [0.0, 1.0]],
            NotFiniteError,
            "row 0, column 1 of the labels is nan",
        ),
        (
            np.ones((2, 3)),
            [[1.0, 0.0], [0.0, 1e9]],
            GridRangeError,
            "row 1, column 1 of the labels",
        ),
    ],
)
def test_bad_input_is_refused_by_name(
    features: Any, labels: Any, error: type[ExpungeError], message: str
) -> None:
    with pytest.raises(error, match=message):
        Statistics.of(SPEC, features, labels)


@pytest.mark.parametrize("row", [511, 512, 1400])
def test_rows_are_numbered_across_blocks(row: int) -> None:
    features, labels = np.ones((1500, 3)), np.zeros((1500, 2))
    features[row, 1] = np.inf
    with pytest.raises(NotFiniteError, match=f"row {row}, column 1 of the features"):
        Statistics.of(SPEC, features, labels)
    labels[row, 1] = 1e9
    with pytest.raises(GridRangeError, match=f"row {row}, column 1 of the labels"):
        Statistics.of(SPEC, np.ones((1500, 3)), labels)


def test_lost_columns_are_refused_or_accepted() -> None:
    features = np.array([[1.0, 1e-20, 0.0], [2.0, -1e-20, 0.0]])
    with pytest.raises(
        LostColumnError,
        match="column 1 of the features is lost to the grid: every value rounds to zero",
    ) as refusal:
        Statistics.of(SPEC, features, [0, 1])
    assert "1e-20" not in str(refusal.value)  # of one sample it would be that person's
    accepted = Statistics.of(SPEC, features, [0, 1], lost_columns="accept")
    assert accepted.diagonal() == [5 << 70, 0, 0, 2 << 70]
    with pytest.raises(InputError, match="lost_columns='maybe' must be 'refuse' or 'accept'"):
        Statistics.of(SPEC, features, [0, 1], lost_columns="maybe")
    alive = Statistics.of(SPEC, [(features, [0, 1]), (np.ones((1, 3)), [0])])
    assert alive.count == 3, "a column that lives in another batch is not lost"


@pytest.mark.parametrize("earlier", [0, 1])
def test_more_samples_than_128_bits_hold_are_refused(earlier: int) -> None:
    many = np.broadcast_to(np.zeros((1, 1)), ((1 << 44) + 1 - earlier, 1))
    batches = [(many[:earlier], many[:earlier]), (many, many)]
    with pytest.raises(ExpungeError, match=r"17592186044417 samples are more than the 2\^44"):
        Statistics.of(Spec(dim=1, outputs=1), batches)


@pytest.mark.parametrize(("features", "labels"), [(2, 1), (1, 2), (1, 0), (0, 1)])
def test_iterators_of_different_lengths_are_refused_as_ours(features: int, labels: int) -> None:
    with pytest.raises(InputError, match="batch"):
        Statistics.of(SPEC, iter([np.ones((2, 3))] * features), iter([[0, 1]] * labels))


def test_an_iterator_of_features_needs_an_iterator_of_labels() -> None:
    with pytest.raises(ShapeError, match="features"):
        Statistics.of(SPEC, iter([np.ones((2, 3))]), [0, 1])


def test_an_error_of_the_caller_s_own_iterator_is_passed_on() -> None:
    def broken() -> Iterator[tuple[Any, Any]]:
        yield np.ones((2, 3)), [0, 1]
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        Statistics.of(SPEC, broken())
