"""Rows: features and labels of some samples, as the integers that enter the statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import InputError, LostColumnError, NotFiniteError, ShapeError
from expunge.exact import Grid
from expunge.spec import Spec
from expunge.targets import Targets, as_array, checked_labels, targets_of

Float = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Integer features (n, width) with the constant feature last if the spec has one, and integer targets (n, columns)."""

    integers: Float
    largest: float
    targets: Targets

    def __len__(self) -> int:
        return len(self.integers)


def checked_features(spec: Spec, features: Any) -> NDArray[Any]:
    """`features` as a real array of shape (n, dim); nothing is copied that is an array already."""
    array = as_array(features, "features")
    if array.ndim != 2 or array.shape[1] != spec.dim:
        hint = " (one sample: features.reshape(1, -1))" if array.ndim == 1 and array.size == spec.dim else ""
        raise ShapeError(f"features must have shape (n, {spec.dim}), got {array.shape}{hint}")
    if array.dtype.kind not in "iubf":
        hint = "; if they are numbers, convert them: .astype(float)" if array.dtype.kind == "O" else ""
        raise ShapeError(f"features must be real numbers, got an array of {array.dtype}{hint}")
    return array


def finite_features(spec: Spec, features: Any) -> NDArray[Any]:
    """`checked_features` that are all finite: for arithmetic on no grid, which would let NaN through."""
    array = checked_features(spec, features)
    bad = np.argwhere(~np.isfinite(array))
    if bad.size:
        row, column = bad[0].tolist()
        raise NotFiniteError(f"row {row}, column {column} of the features is {array[row, column]}: features must be finite")
    return array


def put_features(spec: Spec, features: NDArray[Any], out: Float, first_row: int = 0) -> float:
    """Write integer features, and the constant one if the spec has it, into `out`; return the largest magnitude."""
    largest = spec.grid.put(features, out[:, : spec.dim], first_row=first_row, holding_one=spec.intercept)
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
        """Look at a block of rows, with the largest of its integers; columns known to live are not looked at again."""
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
        """Raise LostColumnError for a column that was lost and lives neither here nor in `living`."""
        lost = self._lost & ~self._live
        if living is not None:
            lost &= ~living
        if not lost.any():
            return
        column = int(np.flatnonzero(lost)[0])
        largest = float(self._example[column])
        grid = self._spec.grid
        everything = self._largest * grid.step
        serving = Grid.covering(everything, digits=2, headroom_bits=1, holding_one=self._spec.intercept)
        kept = largest >= 8 * serving.step and serving.limit > everything
        remedy = f"{serving!r} would keep a few of its bits" if kept else "Scale that column up"
        more = int(lost.sum()) - 1
        raise LostColumnError(
            f"column {column} of the features is lost to the grid{f' (and {more} more)' if more else ''}: its largest magnitude "
            f"is {largest:g}, and every value rounds to zero on {grid!r}, whose step is {grid.step:g}. {remedy}; or drop the "
            "column, or pass lost_columns='accept' if it does not matter"
        )


def seen_columns(spec: Spec, features: Any, rows: Rows) -> ColumnWatch:
    """A watch that has seen this batch."""
    watch = ColumnWatch(spec)
    watch.see(np.asarray(features), rows.integers[:, : spec.dim], rows.largest)
    return watch
