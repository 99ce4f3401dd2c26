"""Features and labels as the integers that enter the statistics.

`Rows` are those of some samples, with features on the feature grid and labels, in all the forms
people have them, on the label grid.

Law: a hard label is the integer 2^(label fraction bits) in its column whether it came as a class
index, as a label name or as a one-hot row; so the same label gives the same integers on every path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
from expunge.ridge import inputs
from expunge.ridge.feature_names import FeatureNames, shown_column, shown_columns
from expunge.ridge.spec import Spec
from expunge.ridge.tables import Matrix, names_of, readable_again, require_unmasked

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
    unit = 2.0**spec.label_grid.fraction_bits
    single = np.count_nonzero(integers, axis=1) == 1
    return np.asarray(
        spec.is_classification & single & (integers.max(axis=1, initial=0.0) == unit), dtype=bool
    )


def as_array(
    values: Any, what: str, first_row: int = 0, classes: Sequence[object] | None = None
) -> NDArray[Any]:
    """`values` as an array, or ShapeError where that would lose something: ragged rows, a mask, a
    sparse matrix.

    A dataset's codes of classes become names, unless the known `classes` are integers.
    """
    require_unmasked(values, what)
    converted = inputs.labels_of(values, first_row)
    if isinstance(converted, inputs.ClassCodes):
        converted = converted.under(classes, first_row)
    try:
        array = np.asarray(values if converted is None else converted)
    except ValueError as problem:
        raise ShapeError(f"the {what} cannot be made into an array: {problem}") from problem
    except (TypeError, RuntimeError) as problem:  # of objects that are arrays only in name
        raise ShapeError(
            f"the {what} cannot be made into an array; give an array of numpy"
        ) from problem
    if array.ndim == 0:
        raise ShapeError(f"the {what} must be an array, got {type(values).__name__}")
    return array


def checked_labels(spec: Spec, labels: Any, rows: int, first_row: int = 0) -> NDArray[Any]:
    """`labels` as an array that `targets_of` takes: class indices (n,) or real targets (n,
    columns).

    Names become indices here. Everything that can be refused without looking at values is refused
    here. `first_row` is the number that errors give to the first of these rows.
    """
    labels = readable_again(labels)
    _require_order(spec, inputs.target_names(labels))
    array = as_array(labels, "labels", first_row, spec.labels)
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


def _require_order(spec: Spec, names: tuple[str, ...] | None) -> None:
    """Columns of targets that are called as the spec's labels are must be in their order."""
    labels = tuple(map(str, spec.labels or ()))
    if names is not None and names != labels and sorted(names) == sorted(labels):
        raise ShapeError(
            "the columns of the labels are called as the spec's labels are, in another order: put "
            "them into the order of spec.labels. Nothing was changed"
        )


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
            labels = ", ".join(repr(label) for label in (spec.labels or ())[:8])
            remedy = "Label names are strings: mend or drop that sample"
            raise UnknownLabelError(
                f"the label of row {first_row + row} is not in the spec, which has {labels}"
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

    def part(self, spec: Spec, span: slice) -> Rows:
        """Some of the rows, which follow one another; nothing is copied."""
        return Rows(
            self.integers[span], self.largest, Targets.of(spec, self.targets.integers[span])
        )


def checked_features(
    spec: Spec, features: Any, names: FeatureNames | None = None, first_row: int = 0
) -> Matrix:
    """`features` as a real matrix of shape (n, dim), to be sliced by rows; nothing is copied that
    is an array already.

    The columns of a table must have these names. `first_row` is the number that errors give to the
    first of these rows.
    """
    matrix = inputs.features_of(features, spec.dim, first_row)
    if matrix is None:
        matrix = as_array(features, "features")
    own = names_of(matrix)
    if names is not None:
        names.require(own)
    if matrix.ndim != 2 or matrix.shape[1] != spec.dim:
        raise ShapeError(
            f"features must have shape (n, {spec.dim}), got {matrix.shape}"
            f"{_shape_hint(spec, matrix)}"
        )
    if isinstance(matrix, np.ndarray) and matrix.dtype.kind not in "iubf":
        hint = (
            "; if they are numbers, convert them: .astype(float)"
            if matrix.dtype.kind == "O"
            else ""
        )
        raise ShapeError(f"features must be real numbers, got an array of {matrix.dtype}{hint}")
    return matrix


def _shape_hint(spec: Spec, matrix: Matrix) -> str:
    """What may be meant by features of another shape."""
    if matrix.ndim == 1 and matrix.shape[0] == spec.dim:
        return " (one sample: features.reshape(1, -1))"
    own = names_of(matrix)
    return "" if own is None else f": the table has {shown_columns(own)}"


BLOCK_ROWS = 4096  # of new samples at a time: more take more memory, and BLAS gets no faster


def finite_blocks(spec: Spec, features: Any, most: int = BLOCK_ROWS) -> Iterator[Float]:
    """The features as float64, all finite, in blocks of rows, at least one: for arithmetic on no
    grid, which would let NaN through.

    Law: whatever form the same numbers come in, the blocks are the same.
    """
    names, first_row = FeatureNames(), 0
    for batch in inputs.feature_batches(features):
        matrix = checked_features(spec, batch, names, first_row)
        for start in range(0, max(1, len(matrix)), most):
            block = np.ascontiguousarray(matrix[start : start + most], dtype=np.float64)
            _require_finite(block, names_of(matrix), first_row + start)
            yield block
        first_row += len(matrix)


def _require_finite(block: Float, names: Sequence[str] | None, first_row: int) -> None:
    finite = np.isfinite(block)
    if not finite.all():
        row, column = np.argwhere(~finite)[0].tolist()
        raise NotFiniteError(
            f"row {first_row + row}, {shown_column(names, column)} of the features is "
            f"{block[row, column]}: features must be finite"
        )


def finite_features(spec: Spec, features: Any) -> Float:
    """`finite_blocks` in one piece."""
    return np.concatenate([np.empty((0, spec.dim)), *finite_blocks(spec, features)])


def gathered(features: Any, *, labelled: bool) -> tuple[NDArray[Any], Any, tuple[str, ...] | None]:
    """Batches of any number of columns in one piece: features, labels if they are wanted, and the
    names of the columns, in which tables must agree.

    For callers that need all samples at once.
    """
    names, parts, labels = FeatureNames(), [], []
    pairs = (
        inputs.batches(features, None)
        if labelled
        else ((batch, None) for batch in inputs.feature_batches(features))
    )
    rows = 0
    for batch, batch_labels in pairs:
        matrix = inputs.features_of(batch, 0, rows)
        names.require(None if matrix is None else names_of(matrix))
        parts.append(as_array(batch, "features") if matrix is None else np.asarray(matrix))
        if labelled:
            labels.append(inputs.labels_of(batch_labels, rows))
            if labels[-1] is None:
                labels[-1] = as_array(batch_labels, "labels")
        rows += len(parts[-1])
    if not parts:
        raise ShapeError("the batches are none at all: give at least one sample")
    joined = _joined_labels(labels) if labelled else None
    return _concatenated(parts, "features"), joined, names.names


def _joined_labels(parts: list[Any]) -> Any:
    """The labels of all batches; codes of classes remain such."""
    if isinstance(parts[0], inputs.ClassCodes):
        return inputs.ClassCodes(np.concatenate([part.codes for part in parts]), parts[0].names)
    return _concatenated(parts, "labels")


def _concatenated(parts: list[Any], what: str) -> NDArray[Any]:
    try:
        return np.concatenate(parts)
    except ValueError as problem:
        raise ShapeError(f"the {what} of the batches differ in their width") from problem


def require_finite(matrix: Matrix) -> None:
    """Refuse NaN and infinities by row and column name."""
    for start in range(0, len(matrix), BLOCK_ROWS):
        block = np.asarray(matrix[start : start + BLOCK_ROWS], dtype=np.float64)
        _require_finite(block, names_of(matrix), start)


def put_features(
    spec: Spec,
    features: NDArray[Any],
    out: Float,
    first_row: int = 0,
    names: Sequence[str] | None = None,
) -> float:
    """Write integer features, and the constant one if the spec has it, into `out`; return the
    largest magnitude.
    """
    largest = spec.grid.put(
        features,
        out[:, : spec.dim],
        first_row=first_row,
        holding_one=spec.intercept,
        column=partial(shown_column, names),
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
    largest = put_features(spec, array[:], integers, names=names_of(array))
    return Rows(integers, largest if len(array) else 0.0, targets_of(spec, checked))


def check_lost_columns(choice: str) -> None:
    """Refuse a choice that is neither to refuse nor to accept lost columns."""
    if choice not in ("refuse", "accept"):
        raise InputError(f"lost_columns={choice!r} must be 'refuse' or 'accept'")


_FIRST_ROWS = 8  # of a block: they show of most columns that these are not zero


class ColumnWatch:
    """Finds columns that are not zero but whose every value rounds to zero on the grid."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._live = np.zeros(spec.dim, dtype=bool)
        self._lost = np.zeros(spec.dim, dtype=bool)
        self._example = np.zeros(spec.dim)
        self._largest = 0.0
        self.names: Sequence[str] | None = None  # of the columns, for errors

    def see(self, features: NDArray[Any], integers: Float, largest: float) -> None:
        """Look at a block of rows, with the largest of its integers; columns known to live are not
        looked at again.
        """
        self._largest = max(self._largest, largest)
        dead = np.flatnonzero(~self._live)
        for part in (integers[:_FIRST_ROWS], integers[_FIRST_ROWS:]):
            if dead.size:
                self._live[dead] = part[:, dead].any(axis=0)
                dead = np.flatnonzero(~self._live)
        if dead.size and len(features):
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
        is_enough = largest >= 8 * serving.step and serving.limit > everything
        remedy = (
            f"{serving!r} would keep a few of its bits" if is_enough else "Scale that column up"
        )
        more = int(lost.sum()) - 1
        raise LostColumnError(
            f"{shown_column(self.names, column)} of the features is lost to the "
            f"grid{f' (and {more} more)' if more else ''}: every value rounds to zero on {grid!r}, "
            f"whose step is {grid.step:g}. {remedy}; "
            "or drop the column, or pass lost_columns='accept' if it does not matter"
        )


def seen_columns(spec: Spec, features: Matrix, rows: Rows) -> ColumnWatch:
    """A watch that has seen this batch."""
    watch = ColumnWatch(spec)
    watch.names = names_of(features)
    watch.see(features[:], rows.integers[:, : spec.dim], rows.largest)
    return watch
