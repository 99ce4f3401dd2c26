"""Labels, in all the forms people have them, as integers on the label grid.

Law: a hard label is the integer 2^(label fraction bits) in its column whether it came as a class index, as a label name or as
a one-hot row; so the same label gives the same integers on every path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import ShapeError, UnknownLabelError
from expunge.spec import Spec

Float = NDArray[np.float64]

_GROW = "To take a new class in, grow the spec: spec.with_labels(...), and a solver's by solver.amend(...)"


@dataclass(frozen=True)
class Targets:
    """Integer targets of some rows, as float64 of shape (n, columns), and how many rows are hard labels of each class."""

    integers: Float
    class_counts: NDArray[np.int64]


def as_array(values: Any, what: str) -> NDArray[Any]:
    """`values` as an array, or ShapeError where that would lose something: ragged rows, a mask, a sparse matrix."""
    if np.ma.is_masked(values):
        raise ShapeError(f"the {what} have masked values, which have no place in sums: drop those samples or fill them in")
    if hasattr(values, "toarray"):
        raise ShapeError(f"the {what} are sparse ({type(values).__name__}); give a dense array: .toarray()")
    try:
        array = np.asarray(values)
    except ValueError as problem:
        raise ShapeError(f"the {what} cannot be made into an array: {problem}") from problem
    if array.ndim == 0:
        raise ShapeError(f"the {what} must be an array, got {type(values).__name__}")
    return array


def checked_labels(spec: Spec, labels: Any, rows: int, first_row: int = 0) -> NDArray[Any]:
    """`labels` as an array that `targets_of` takes: class indices (n,) or real targets (n, columns).

    Names become indices here. Everything that can be refused without looking at values is refused here. `first_row` is the number
    that errors give to the first of these rows.
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
                f"labels of shape {array.shape} mean outputs=1, but the spec has outputs={spec.outputs}: give an array of shape "
                f"({rows}, {spec.outputs})"
            )
        return _real(spec, array.reshape(-1, 1))
    if array.dtype.kind == "O" and all(isinstance(item, (int, np.integer)) for item in array):
        if any(abs(int(item)) >> 62 for item in array):
            raise UnknownLabelError("an integer label beyond 2^62 cannot be a class index. Mend or drop that sample")
        array = array.astype(np.int64)
    if array.dtype.kind in "OUT":
        return _indices_of_names(spec, array, first_row)
    if rows == 0:
        return np.zeros(0, dtype=np.int64)
    if array.dtype.kind not in "iub":
        raise ShapeError(
            f"labels of kind {array.dtype} are ambiguous for a classification spec: give class indices as integers, "
            f"label names as strings, or an (n, {spec.columns}) array of soft labels"
        )
    return _indices(spec, array, first_row)


def targets_of(spec: Spec, labels: NDArray[Any], first_row: int = 0) -> Targets:
    """Integer targets of labels that `checked_labels` returned (or of a slice of them)."""
    counts = np.zeros(spec.columns if spec.is_classification else 0, dtype=np.int64)
    integers = np.zeros((len(labels), spec.columns))
    one = 2.0**spec.label_grid.fraction_bits
    if labels.ndim == 1:
        integers[np.arange(len(labels)), labels] = one
        counts += np.bincount(labels, minlength=len(counts))
        return Targets(integers, counts)
    spec.label_grid.put(labels, integers, what="labels", first_row=first_row)
    if spec.is_classification:
        hard = (np.count_nonzero(integers, axis=1) == 1) & (integers.max(axis=1, initial=0.0) == one)
        counts += np.bincount(integers[hard].argmax(axis=1), minlength=len(counts))
    return Targets(integers, counts)


def _real(spec: Spec, array: NDArray[Any]) -> NDArray[Any]:
    if array.shape[1] != spec.columns:
        kind = f"{spec.columns} labels" if spec.is_classification else f"outputs={spec.outputs}"
        raise ShapeError(f"labels of shape {array.shape} do not fit a spec with {kind}: {spec.columns} columns are expected")
    if array.dtype.kind not in "iubf":
        raise ShapeError(f"a two-dimensional array of labels must hold real numbers, got {array.dtype}")
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
            f"the label of row {first_row + row} is not a class index: the spec has {spec.columns} labels, so "
            f"indices run from 0 to {spec.columns - 1}. {_GROW if array[row] > 0 else 'Mend or drop that sample'}"
        )
    return array.astype(np.int64)


def _indices_of_names(spec: Spec, array: NDArray[Any], first_row: int) -> NDArray[np.int64]:
    position = {label: index for index, label in enumerate(spec.labels or ())}
    result = np.empty(len(array), dtype=np.int64)
    for row, name in enumerate(array.tolist()):
        index = position.get(name) if isinstance(name, str) else None
        if index is None:
            known = ", ".join(repr(label) for label in (spec.labels or ())[:8])
            raise UnknownLabelError(
                f"the label of row {first_row + row} is not in the spec, which has {known}"
                f"{', ...' if spec.columns > 8 else ''}. "
                f"{_GROW if isinstance(name, str) else 'Label names are strings: mend or drop that sample'}"
            )
        result[row] = index
    return result
