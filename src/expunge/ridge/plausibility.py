"""What integers alone can prove about statistics: which cannot be those of any set of samples, and
which are those of certain rows.

The checks are exact and one-sided: they can prove a deletion impossible, never that its samples
had been added.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from expunge.exact import blas, wide
from expunge.exact.gram import digits_of, is_gram_of, product
from expunge.ridge.encoding import Rows, Targets
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


def problem_with(statistics: Statistics | Sums, gram: Float | None = None) -> str | None:
    """Why these (settled) statistics are those of no set of samples; None if counts and 2x2 minors
    do not show it.

    `gram` is the upper triangle of S in float64, to within 2^-50 of each entry, where it is known.
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
        or _minor_problem(statistics, diagonal, gram)
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


def _minor_problem(
    statistics: Statistics | Sums, diagonal: list[int], gram: Float | None
) -> str | None:
    """The squared product of two features cannot exceed the product of their squares."""
    width = statistics.spec.width
    upper = gram
    if upper is None:
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


# -- rows that statistics give away ----------------------------------------------------------------


def rows_behind(statistics: Statistics) -> Rows | None:
    """Rows of which these are the statistics, bit for bit, for one sample, or for one of each of
    some classes; None if they are not found.

    Those of one sample are products with its largest feature, and G has the features of the only
    sample of a class. Either is a guess, and exact products decide. The row of one sample may have
    the opposite sign, with that of its targets: the sums are the same.
    """
    guess: tuple[list[list[int]], list[list[int]]] | None = None
    if statistics.count == 1:
        guess = _single_row(statistics)
    elif _all_hard(statistics) and int(statistics.class_counts.max(initial=0)) == 1:
        guess = _rows_of_classes(statistics)
    if guess is None:
        return None
    spec, (features, targets) = statistics.spec, guess
    largest = max(abs(value) for row in features for value in row)
    largest_target = max(abs(value) for row in targets for value in row)
    if largest >> spec.grid.bits or largest_target >> spec.label_grid.bits:
        return None
    integers = np.array(targets, dtype=np.float64)
    rows = Rows(np.array(features, dtype=np.float64), float(largest), Targets.of(spec, integers))
    return rows if _are_behind(rows, statistics) else None


def _single_row(statistics: Statistics) -> tuple[list[list[int]], list[list[int]]] | None:
    """u_i = sqrt(S_ii), u = S_i / u_i and v = G_i / u_i, for the i of the largest S_ii; hard labels
    are positive.
    """
    width, starts = statistics.spec.width, blas.packed_diagonal(statistics.spec.width)
    diagonal = wide.to_ints(statistics.gram[:, starts])
    pivot = max(range(width), key=diagonal.__getitem__)
    root = math.isqrt(max(diagonal[pivot], 0))
    if root == 0:
        return None
    place = int(starts[pivot])
    above = starts[:pivot] + pivot - np.arange(pivot)
    column = np.concatenate([above, np.arange(place, place + width - pivot)])
    moment = wide.to_ints(statistics.moment[:, pivot])
    root = -root if sum(moment) < 0 else root
    features = [value // root for value in wide.to_ints(statistics.gram[:, column])]
    return [features], [[value // root for value in moment]]


def _rows_of_classes(statistics: Statistics) -> tuple[list[list[int]], list[list[int]]]:
    """The columns of G of classes that have a sample."""
    spec = statistics.spec
    bits = spec.label_grid.fraction_bits
    classes = np.flatnonzero(statistics.class_counts).tolist()
    features = [
        [value >> bits for value in wide.to_ints(statistics.moment[:, :, label])]
        for label in classes
    ]
    targets = [
        [int(label == column) << bits for column in range(spec.columns)] for label in classes
    ]
    return features, targets


def _are_behind(rows: Rows, statistics: Statistics) -> bool:
    """Whether these are the rows' statistics, by exact products."""
    spec, targets = statistics.spec, rows.targets
    features = digits_of(rows.integers, spec.grid.digits, rows.largest)
    labels = digits_of(targets.integers, spec.label_grid.digits)
    return (
        len(rows) == statistics.count
        and np.array_equal(targets.class_counts, statistics.class_counts)
        and np.array_equal(product(labels, labels), statistics.label_gram)
        and np.array_equal(product(features, labels), statistics.moment)
        and is_gram_of(statistics.gram, rows.integers.astype(np.int64))
    )
