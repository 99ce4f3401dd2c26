"""The reference for exactness: ridge systems solved in rational arithmetic by FLINT, and rounded by
integers.

Nothing here uses Expunge's arithmetic. Integers come either from statistics (their 128-bit entries
read as Python integers) or from the samples themselves, put on the grid by fractions; then the
Gram, the solve and the rounding are all exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from flint import fmpq, fmpq_mat
from numpy.typing import NDArray

from expunge import Grid, Spec, Statistics
from expunge.exact import wide

Matrix = list[list[int]]
Rational = list[list[Fraction]]


@dataclass(frozen=True)
class Exact:
    """The rational solution of a ridge system, and the head that must be published for it."""

    spec: Spec
    weights: Rational

    def scaled(self, bits: int | None = None) -> Rational:
        """The weights in units of the publication grid (or of 2^-bits)."""
        places = Fraction(2) ** (self.spec.publication_bits if bits is None else bits)
        return [[weight * places for weight in row] for row in self.weights]

    @property
    def ties(self) -> list[tuple[int, int]]:
        """Where a weight lies exactly between two points of the publication grid."""
        return [
            (row, column)
            for row, values in enumerate(self.scaled())
            for column, value in enumerate(values)
            if value.denominator == 2
        ]

    @property
    def in_range(self) -> bool:
        """Whether every rounded weight is an exact float64."""
        return all(abs(rounded(value)) <= 2**53 for row in self.scaled() for value in row)

    @property
    def integers(self) -> NDArray[np.int64]:
        """weights * 2^publication_bits, each rounded to the nearest integer."""
        return np.array(
            [[rounded(value) for value in row] for row in self.scaled()], dtype=np.int64
        )

    def distance(self, weights: Rational, column: int) -> Fraction:
        """The squared Euclidean distance of a column of `weights` to the same column of the
        solution.
        """
        pairs = zip(weights, self.weights, strict=True)
        return sum(((mine[column] - exact[column]) ** 2 for mine, exact in pairs), Fraction(0))


def rounded(value: Fraction) -> int:
    """The nearest integer (ties go to even; the solvers refuse them)."""
    return round(value)


def solved(spec: Spec, gram: Matrix, moment: Matrix) -> Exact:
    """(S + gamma I)^-1 G for integer S and G on the grids of the spec."""
    features, labels = (
        Fraction(2) ** -spec.grid.fraction_bits,
        Fraction(2) ** -spec.label_grid.fraction_bits,
    )
    width, columns = spec.width, spec.columns
    left = fmpq_mat(width, width)
    right = fmpq_mat(width, columns)
    for row in range(width):
        for column in range(width):
            shift = spec.exact_gamma if row == column else Fraction(0)
            left[row, column] = _rational(gram[row][column] * features**2 + shift)
        for column in range(columns):
            right[row, column] = _rational(moment[row][column] * features * labels)
    solution = left.solve(right)
    return Exact(
        spec,
        [[_fraction(solution[row, column]) for column in range(columns)] for row in range(width)],
    )


def gram_of(statistics: Statistics) -> Matrix:
    """S as integers, both triangles."""
    width = statistics.spec.width
    packed = iter(wide.to_ints(statistics.gram))
    full = [[0] * width for _ in range(width)]
    for row in range(width):
        for column in range(row, width):
            full[row][column] = full[column][row] = next(packed)
    return full


def moment_of(statistics: Statistics) -> Matrix:
    """G as integers."""
    width, columns = statistics.spec.width, statistics.spec.columns
    flat = wide.to_ints(statistics.moment)
    return [flat[row * columns : (row + 1) * columns] for row in range(width)]


def of_statistics(statistics: Statistics) -> Exact:
    """The exact solution of statistics under their own spec."""
    return solved(statistics.spec, gram_of(statistics), moment_of(statistics))


def of_rows(spec: Spec, features: Matrix, targets: Matrix) -> Exact:
    """The exact solution of samples given as integers on the grids; the constant feature is among
    them if there is one.
    """
    width, columns = spec.width, spec.columns
    gram = [[sum(row[i] * row[j] for row in features) for j in range(width)] for i in range(width)]
    pairs = list(zip(features, targets, strict=True))
    moment = [
        [sum(row[i] * target[k] for row, target in pairs) for k in range(columns)]
        for i in range(width)
    ]
    return solved(spec, gram, moment)


def of_samples(spec: Spec, features: Any, labels: Any) -> Exact:
    """The exact solution of samples as people give them: the whole of training, independently of
    Expunge.
    """
    rows = [
        _on_grid(spec.grid, row)
        for row in np.asarray(features, dtype=np.float64).reshape(-1, spec.dim).tolist()
    ]
    if spec.intercept:
        rows = [[*row, 1 << spec.grid.fraction_bits] for row in rows]
    array = np.asarray(labels)
    if spec.is_classification and array.ndim == 1:
        one = 1 << spec.label_grid.fraction_bits
        targets = [
            [one if column == int(label) else 0 for column in range(spec.columns)]
            for label in array.tolist()
        ]
    else:
        targets = [
            _on_grid(spec.label_grid, row)
            for row in array.astype(np.float64).reshape(-1, spec.columns).tolist()
        ]
    return of_rows(spec, rows, targets)


def is_positive_semidefinite(gram: Matrix) -> bool:
    """Whether an integer symmetric matrix is, by exact elimination on a copy."""
    work = [[Fraction(value) for value in row] for row in gram]
    for pivot in range(len(work)):
        head = work[pivot][pivot]
        if head < 0 or (head == 0 and any(work[pivot][pivot:])):
            return False
        if head == 0:
            continue
        for row in range(pivot + 1, len(work)):
            factor = work[row][pivot] / head
            for column in range(pivot, len(work)):
                work[row][column] -= factor * work[pivot][column]
    return True


def _on_grid(grid: Grid, values: Sequence[float]) -> list[int]:
    return [round(Fraction(value) * Fraction(2) ** grid.fraction_bits) for value in values]


def _rational(value: Fraction) -> fmpq:
    return fmpq(value.numerator, value.denominator)


def _fraction(value: fmpq) -> Fraction:
    return Fraction(int(value.p), int(value.q))
