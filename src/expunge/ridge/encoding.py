"""Features and labels as the integers that enter the statistics.

`Rows` are those of some samples, with features on the feature grid and labels, in all the forms
people have them, on the label grid.

Law: a hard label is the integer 2^(label fraction bits) in its column whether it came as a class
index, as a label name or as a one-hot row; so the same label gives the same integers on every path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import (
    InputError,
    LostColumnError,
    NotFiniteError,
    ShapeError,
    UnknownLabelError,
)
from expunge.exact import Grid
from expunge.ridge.spec import Spec

Float = NDArray[np.float64]

_GROW = (
    "To take a new class in, grow the spec: spec.with_labels(...), and a solver's by "
    "solver.amend(...)"
)


@dataclass(frozen=True)
class Targets:
    """Integer targets of some rows, as float64 of shape (n, columns), and how many rows are hard
    labels of each class.
    """

    integers: Float
    class_counts: NDArray[np.int64]

    @classmethod
    def of(cls, spec: Spec, integers: Float) -> Targets:
        """These integers, counted."""
        hard = hard_labels(spec, integers)
        classes = spec.columns if spec.is_classification else 0
        return cls(integers, np.bincount(integers[hard].argmax(axis=1), minlength=classes))


def hard_labels(spec: Spec, integers: Float) -> NDArray[np.bool_]:
    """Which rows of integer targets are the hard label of a class: 1 there, and 0 elsewhere."""
    one = 2.0**spec.label_grid.fraction_bits
    single = np.count_nonzero(integers, axis=1) == 1
    return np.asarray(
        spec.is_classification & single & (integers.max(axis=1, initial=0.0) == one), dtype=bool
    )


def as_array(values: Any, what: str) -> NDArray[Any]:
    """`values` as an array, or ShapeError where that would lose something: ragged rows, a mask, a
    sparse matrix.
    """
    if np.ma.is_masked(values):
        raise ShapeError(
            f"the {what} have masked values, which have no place in sums: drop those samples or "
            "fill them in"
        )
    if hasattr(values, "toarray"):
        raise ShapeError(
            f"the {what} are sparse ({type(values).__name__}); give a dense array: .toarray()"
        )
    try:
        array = np.asarray(values)
    except ValueError as problem:
        raise ShapeError(f"the {what} cannot be made into an array: {problem}") from problem
    if array.ndim == 0:
        raise ShapeError(f"the {what} must be an array, got {type(values).__name__}")
    return array


def checked_labels(spec: Spec, labels: Any, rows: int, first_row: int = 0) -> NDArray[Any]:
    """`labels` as an array that `targets_of` takes: class indices (n,) or real targets (n,
    columns).

    Names become indices here. Everything that can be refused without looking at values is refused
    here. `first_row` is the number that errors give to the first of these rows.
    """
    array = as_array(labels, "labels")
    if array.ndim == 0 or array.ndim > 2:
        raise ShapeError(f"labels must have one or two dimensions, got shape {array.shape}")
    if len(array) != rows:
        raise ShapeError(f"{rows} rows of features need as many labels, got {len(array)}")
    if array.ndim == 2:
        return _real(spec, array)
    if not spec.is_classification:
        if spec.columns != 1:
            raise ShapeError(
                f"labels of shape {array.shape} mean outputs=1, but the spec has "
                f"outputs={spec.outputs}: give an array of shape ({rows}, {spec.outputs})"
            )
        return _real(spec, array.reshape(-1, 1))
    if array.dtype.kind == "O" and all(isinstance(item, (int, np.integer)) for item in array):
        if any(abs(int(item)) >> 62 for item in array):
            raise UnknownLabelError(
                "an integer label beyond 2^62 cannot be a class index. Mend or drop that sample"
            )
        array = array.astype(np.int64)
    if array.dtype.kind in "OUT":
        return _indices_of_names(spec, array, first_row)
    if rows == 0:
        return np.zeros(0, dtype=np.int64)
    if array.dtype.kind not in "iub":
        raise ShapeError(
            f"labels of kind {array.dtype} are ambiguous for a classification spec: give class "
            "indices as integers, "
            f"label names as strings, or an (n, {spec.columns}) array of soft labels"
        )
    return _indices(spec, array, first_row)


def targets_of(spec: Spec, labels: NDArray[Any], first_row: int = 0) -> Targets:
    """Integer targets of labels that `checked_labels` returned (or of a slice of them)."""
    integers = np.zeros((len(labels), spec.columns))
    if labels.ndim == 1:
        integers[np.arange(len(labels)), labels] = 2.0**spec.label_grid.fraction_bits
        return Targets(integers, np.bincount(labels, minlength=spec.columns))
    spec.label_grid.put(labels, integers, what="labels", first_row=first_row)
    return Targets.of(spec, integers)


def _real(spec: Spec, array: NDArray[Any]) -> NDArray[Any]:
    if array.shape[1] != spec.columns:
        kind = f"{spec.columns} labels" if spec.is_classification else f"outputs={spec.outputs}"
        raise ShapeError(
            f"labels of shape {array.shape} do not fit a spec with {kind}: {spec.columns} columns "
            "are expected"
        )
    if array.dtype.kind not in "iubf":
        raise ShapeError(
            f"a two-dimensional array of labels must hold real numbers, got {array.dtype}"
        )
    return array


def _indices(spec: Spec, array: NDArray[Any], first_row: int) -> NDArray[np.int64]:
    bad = (
        np.flatnonzero((array < 0) | (array >= spec.columns))
        if array.dtype.kind != "b"
        else np.flatnonzero(array >= spec.columns)
    )
    if bad.size:
        row = int(bad[0])
        raise UnknownLabelError(
            f"the label of row {first_row + row} is not a class index: the spec has {spec.columns} "
            f"labels, so indices run from 0 to {spec.columns - 1}. "
            f"{_GROW if array[row] > 0 else 'Mend or drop that sample'}"
        )
    return array.astype(np.int64)


def _indices_of_names(spec: Spec, array: NDArray[Any], first_row: int) -> NDArray[np.int64]:
    position = {label: index for index, label in enumerate(spec.labels or ())}
    result = np.empty(len(array), dtype=np.int64)
    for row, name in enumerate(array.tolist()):
        index = position.get(name) if isinstance(name, str) else None
        if index is None:
            known = ", ".join(repr(label) for label in (spec.labels or ())[:8])
            remedy = "Label names are strings: mend or drop that sample"
            raise UnknownLabelError(
                f"the label of row {first_row + row} is not in the spec, which has {known}"
                f"{', ...' if spec.columns > 8 else ''}. "
                f"{_GROW if isinstance(name, str) else remedy}"
            )
        result[row] = index
    return result


@dataclass(frozen=True)
class Rows:
    """Integer features (n, width) with the constant feature last if the spec has one, and integer
    targets (n, columns).
    """

    integers: Float
    largest: float
    targets: Targets

    def __len__(self) -> int:
        return len(self.integers)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of one or more parts under one spec, in their order."""
        if len(parts) == 1:
            return parts[0]
        targets = [part.targets for part in parts]
        return cls(
            np.concatenate([part.integers for part in parts]),
            max(part.largest for part in parts),
            Targets(
                np.concatenate([target.integers for target in targets]),
                np.sum([target.class_counts for target in targets], axis=0),
            ),
        )

    def part(self, spec: Spec, places: slice) -> Rows:
        """Some of the rows, which follow one another; nothing is copied."""
        return Rows(
            self.integers[places], self.largest, Targets.of(spec, self.targets.integers[places])
        )


def checked_features(spec: Spec, features: Any) -> NDArray[Any]:
    """`features` as a real array of shape (n, dim); nothing is copied that is an array already."""
    array = as_array(features, "features")
    if array.ndim != 2 or array.shape[1] != spec.dim:
        hint = (
            " (one sample: features.reshape(1, -1))"
            if array.ndim == 1 and array.size == spec.dim
            else ""
        )
        raise ShapeError(f"features must have shape (n, {spec.dim}), got {array.shape}{hint}")
    if array.dtype.kind not in "iubf":
        hint = (
            "; if they are numbers, convert them: .astype(float)" if array.dtype.kind == "O" else ""
        )
        raise ShapeError(f"features must be real numbers, got an array of {array.dtype}{hint}")
    return array


def finite_features(spec: Spec, features: Any) -> NDArray[Any]:
    """`checked_features` that are all finite: for arithmetic on no grid, which would let NaN
    through.
    """
    array = checked_features(spec, features)
    bad = np.argwhere(~np.isfinite(array))
    if bad.size:
        row, column = bad[0].tolist()
        raise NotFiniteError(
            f"row {row}, column {column} of the features is {array[row, column]}: features must "
            "be finite"
        )
    return array


def put_features(spec: Spec, features: NDArray[Any], out: Float, first_row: int = 0) -> float:
    """Write integer features, and the constant one if the spec has it, into `out`; return the
    largest magnitude.
    """
    largest = spec.grid.put(
        features, out[:, : spec.dim], first_row=first_row, holding_one=spec.intercept
    )
    if spec.intercept:
        out[:, -1] = 2.0**spec.grid.fraction_bits
        largest = max(largest, 2.0**spec.grid.fraction_bits)
    return largest


def integer_rows(spec: Spec, features: Any, labels: Any) -> Rows:
    """The integers of a batch that fits in memory, with everything refused that cannot be taken."""
    array = checked_features(spec, features)
    checked = checked_labels(spec, labels, len(array))
    integers = np.empty((len(array), spec.width))
    largest = put_features(spec, array, integers)
    return Rows(integers, largest if len(array) else 0.0, targets_of(spec, checked))


def check_lost_columns(choice: str) -> None:
    """Refuse a choice that is neither to refuse nor to accept lost columns."""
    if choice not in ("refuse", "accept"):
        raise InputError(f"lost_columns={choice!r} must be 'refuse' or 'accept'")


class ColumnWatch:
    """Finds columns that are not zero but whose every value rounds to zero on the grid."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._live = np.zeros(spec.dim, dtype=bool)
        self._lost = np.zeros(spec.dim, dtype=bool)
        self._example = np.zeros(spec.dim)
        self._largest = 0.0

    def see(self, features: NDArray[Any], integers: Float, largest: float) -> None:
        """Look at a block of rows, with the largest of its integers; columns known to live are not
        looked at again.
        """
        self._largest = max(self._largest, largest)
        columns = np.flatnonzero(~self._live)
        if not columns.size or not len(features):
            return
        self._live[columns] = integers[:, columns].any(axis=0)
        dead = np.flatnonzero(~self._live)
        if dead.size:
            magnitude = np.abs(features[:, dead].astype(np.float64)).max(axis=0)
            self._example[dead] = np.maximum(self._example[dead], magnitude)
            self._lost[dead] |= magnitude > 0

    def merge(self, other: ColumnWatch) -> None:
        """Take in what another watch of the same spec has seen."""
        self._live |= other._live
        self._lost |= other._lost
        self._example = np.maximum(self._example, other._example)
        self._largest = max(self._largest, other._largest)

    @property
    def any_lost(self) -> bool:
        """Whether some column was lost and does not live here."""
        return bool((self._lost & ~self._live).any())

    def require_none_lost(self, living: NDArray[np.bool_] | None = None) -> None:
        """Raise LostColumnError for a column that was lost and lives neither here nor in
        `living`.
        """
        lost = self._lost & ~self._live
        if living is not None:
            lost &= ~living
        if not lost.any():
            return
        column = int(np.flatnonzero(lost)[0])
        largest = float(self._example[column])
        grid = self._spec.grid
        everything = self._largest * grid.step
        serving = Grid.covering(
            everything, digits=2, headroom_bits=1, holding_one=self._spec.intercept
        )
        kept = largest >= 8 * serving.step and serving.limit > everything
        remedy = f"{serving!r} would keep a few of its bits" if kept else "Scale that column up"
        more = int(lost.sum()) - 1
        raise LostColumnError(
            f"column {column} of the features is lost to the "
            f"grid{f' (and {more} more)' if more else ''}: its largest magnitude is {largest:g}, "
            f"and every value rounds to zero on {grid!r}, whose step is {grid.step:g}. {remedy}; "
            "or drop the column, or pass lost_columns='accept' if it does not matter"
        )


def seen_columns(spec: Spec, features: Any, rows: Rows) -> ColumnWatch:
    """A watch that has seen this batch."""
    watch = ColumnWatch(spec)
    watch.see(np.asarray(features), rows.integers[:, : spec.dim], rows.largest)
    return watch
