"""What integers alone can prove about statistics: which cannot be those of any set of samples.

These checks are exact and one-sided: they can prove a deletion impossible, never that its samples
had been added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from expunge.exact import blas, wide
from expunge.ridge.spec import Spec
from expunge.ridge.statistics import Statistics
from expunge.ridge.sums import Sums

Float = NDArray[np.float64]

_ROWS = 64  # rows of a matrix that are looked at together
_CLOSE = (
    1.0 - 2.0**-30
)  # float64 screens the minors; those this close to zero are decided by integers


def count_problem(spec: Spec, count: int, class_counts: Sequence[int]) -> str | None:
    """Why these numbers of samples, in all and of each class, cannot be; None if they can."""
    if count < 0:
        return f"there would be {count} samples"
    for label, number in zip(spec.labels or (), class_counts, strict=False):
        if number < 0:
            return f"there would be {number} samples of label {label!r}"
    if sum(class_counts) > count:
        return f"there would be {sum(class_counts)} hard labels on {count} samples"
    return None


def problem_with(statistics: Statistics | Sums) -> str | None:
    """Why these (settled) statistics are those of no set of samples; None if counts and 2x2 minors
    do not show it.
    """
    spec = statistics.spec
    problem = count_problem(spec, statistics.count, statistics.class_counts.tolist())
    if problem is not None:
        return problem
    if statistics.count == 0:
        zero = not (statistics.gram.any() or statistics.moment.any() or statistics.label_gram.any())
        return None if zero else "there would be no samples, but their statistics would not be zero"
    diagonal = wide.to_ints(statistics.gram[:, blas.packed_diagonal(spec.width)])
    for index, value in enumerate(diagonal):
        if value < 0:
            return f"the sum of squares of feature {index} would be negative"
    return (
        (_intercept_problem(statistics, diagonal[-1]) if spec.intercept else None)
        or _label_problem(statistics)
        or _minor_problem(statistics, diagonal)
    )


def _all_hard(statistics: Statistics | Sums) -> bool:
    return (
        statistics.spec.is_classification and int(statistics.class_counts.sum()) == statistics.count
    )


def _label_problem(statistics: Statistics | Sums) -> str | None:
    """Where all labels are hard, Y'Y is the diagonal of the class counts, and an empty class has no
    moment.
    """
    if not _all_hard(statistics):
        return None
    spec, counts = statistics.spec, statistics.class_counts.tolist()
    sums = wide.to_ints(statistics.label_gram)
    for index, total in enumerate(sums):
        row, column = divmod(index, spec.columns)
        expected = counts[row] << (2 * spec.label_grid.fraction_bits) if row == column else 0
        if total != expected:
            return (
                "the labels' own products would contradict the number of samples of label "
                f"{(spec.labels or ())[row]!r}"
            )
    for label, number, moment in zip(
        spec.labels or (), counts, np.moveaxis(statistics.moment, 2, 0), strict=True
    ):
        if number == 0 and moment.any():
            return f"label {label!r} would have no samples, but its moment would not be zero"
    return None


def _minor_problem(statistics: Statistics | Sums, diagonal: list[int]) -> str | None:
    """The squared product of two features cannot exceed the product of their squares."""
    width = statistics.spec.width
    upper = blas.upper_from_packed(width, wide.to_float(statistics.gram))
    starts = blas.packed_diagonal(width)
    roots = np.sqrt(np.abs(upper.diagonal()) * _CLOSE)
    for row, column in close_pairs(upper, roots):
        place = int(starts[row]) + column - row
        mixed = wide.to_ints(statistics.gram[:, place : place + 1])[0]
        if mixed * mixed > diagonal[row] * diagonal[column]:
            return f"features {row} and {column} would be correlated by more than 1"
    return None


def close_pairs(upper: Float, roots: Float, off: Float | None = None) -> Iterator[tuple[int, int]]:
    """The pairs i < j of a symmetric matrix with |A_ij| >= roots_i roots_j; a block of rows at a
    time. Entries may be off by off_i off_j; if they are not, a zero is exact, and can do no harm.
    """
    above = np.triu(np.ones((_ROWS, _ROWS), dtype=bool), 1)
    for start in range(0, len(roots), _ROWS):
        rows = min(_ROWS, len(roots) - start)
        block = slice(start, start + rows)
        entries = np.abs(upper[block, start:])
        allowed = np.multiply.outer(roots[block], roots[start:])
        if off is not None:
            allowed -= np.multiply.outer(off[block], off[start:])
        close = entries >= allowed
        close[:, :rows] &= above[:rows, :rows]  # entries below the diagonal are arbitrary
        if not close.any():
            continue
        if off is None:
            close &= entries > 0.0
        for row, column in np.argwhere(close).tolist():
            yield start + row, start + column


def _intercept_problem(statistics: Statistics | Sums, corner: int) -> str | None:
    """The constant feature's row holds the counts: S[-1, -1] = n and, where all labels are hard,
    G[-1] = class counts.
    """
    spec = statistics.spec
    if corner != statistics.count << (2 * spec.grid.fraction_bits):
        return "the number of samples would contradict the sum of squares of the constant feature"
    if not _all_hard(statistics):
        return None
    unit = spec.grid.fraction_bits + spec.label_grid.fraction_bits
    sums = wide.to_ints(statistics.moment[:, -1, :])
    for label, total, number in zip(
        spec.labels or (), sums, statistics.class_counts.tolist(), strict=True
    ):
        if total != number << unit:
            return (
                f"the number of samples of label {label!r} would contradict their moment with "
                "the constant feature"
            )
    return None
