"""Cases for `feasibility`: H = S + gamma I and rows U to be deleted, all integers, with the exact answer.

`random` cases are small integers of any kind. `boundary` cases are built so that u H^-1 u' is 1 - gap for a rational gap that is
known, down to 1e-16: H = L'L for a triangular L, whose rows are orthonormal directions in the sense of H^-1, and u is an integer
combination of these, with weights whose squares add up to (1 - gap) 4^bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

import numpy as np

from expunge_experiments.runs import integers
from expunge_experiments.runs.integers import Matrix

BITS = 29  # of the scale of boundary cases: rows stay below 2^41, which the grid holds
_STRETCH = 10  # rows of L are up to 2^10 times as long as others, so that H is not well-conditioned
_EXACT_PLACES = 6  # directions that take up what is left over: enough for 1e-16
KINDS = ("deletes retained rows", "arbitrary rows", "on the boundary", "scaled rows", "repeated rows")


@dataclass(frozen=True)
class Answer:
    """The lemma's three conditions, each by a computation of its own."""

    difference: bool  # H - U'U is positive definite: leading minors
    small: bool  # I - U H^-1 U' is positive definite: leading minors
    largest: bool  # the largest eigenvalue of U H^-1 U' is below 1: characteristic polynomial

    @property
    def agree(self) -> bool:
        """What the lemma says."""
        return self.difference == self.small == self.largest


def answer(system: Matrix, rows: Matrix) -> Answer:
    """All three conditions in integers, for a positive definite system."""
    size = len(rows)
    removed = integers.gram(rows)
    difference = [[a - b for a, b in zip(left, right, strict=True)] for left, right in zip(system, removed, strict=True)]
    determinant, columns = integers.solved(system, integers.transposed(rows))
    scaled = integers.product(rows, columns)  # det(H) * U H^-1 U'
    small = [[determinant * (i == j) - scaled[i][j] for j in range(size)] for i in range(size)]
    return Answer(
        integers.is_positive_definite(difference),
        integers.is_positive_definite(small),
        integers.all_roots_below(integers.characteristic(scaled), determinant),
    )


def random_case(kind: str, draw: np.random.Generator) -> tuple[Matrix, Matrix]:
    """A positive definite H and rows U."""
    width, rank, most = int(draw.integers(1, 6)), int(draw.integers(1, 5)), int(2 ** draw.integers(1, 12))
    if kind == "on the boundary":  # rows of a factor: U H^-1 U' is the identity
        factor = _unit_triangular(width, draw)
        return integers.gram(factor), _some_rows(factor, min(rank, width), draw)
    features = _rows(width + rank + 1, width, most, draw)
    gamma = int(draw.integers(1, most + 1))
    system = _plus(integers.gram(features), gamma)
    if kind == "deletes retained rows":
        return system, _some_rows(features, rank, draw)
    if kind == "repeated rows":  # more often than they were added
        return system, _some_rows(features, 1, draw) * (rank + 1)
    if kind == "scaled rows":
        times = int(draw.integers(1, 4))
        return system, [[times * entry for entry in row] for row in _some_rows(features, rank, draw)]
    return system, _rows(rank, width, most, draw)


@dataclass(frozen=True)
class Boundary:
    """H = `system` * 4^-BITS and u = `row` * 2^-BITS with u H^-1 u' = 1 - gap exactly; gamma is what may stand in H."""

    system: Matrix
    row: list[int]
    gap: Fraction
    gamma: float


def boundary_case(gap: float, draw: np.random.Generator, width: int = 9) -> Boundary:
    """A case whose gap is close to `gap` (negative: infeasible), and known exactly."""
    stretch = [1 << int(bits) for bits in draw.integers(0, _STRETCH + 1, width)]
    factor = [[times * entry for entry in line] for times, line in zip(stretch, _unit_triangular(width, draw), strict=True)]
    scale = 1 << BITS
    rest = scale * scale - round(Fraction(gap) * scale * scale)
    weights = []
    for place, share in enumerate(draw.dirichlet(np.ones(width))):
        part = int(share * scale * scale) if place < width - _EXACT_PLACES else rest
        weights.append(isqrt(min(part, rest)) * int(draw.choice((-1, 1))))
        rest -= weights[-1] ** 2
    row = [sum(weight * line[column] for weight, line in zip(weights, factor, strict=True)) for column in range(width)]
    reached = Fraction(sum(weight**2 for weight in weights), scale * scale)
    system = integers.gram(factor)
    smallest = float(np.linalg.eigvalsh(np.array(system, dtype=float))[0])
    gamma = 2.0 ** (int(np.floor(np.log2(smallest))) - 1)
    return Boundary([[entry * scale * scale for entry in line] for line in system], row, 1 - reached, gamma)


def _unit_triangular(width: int, draw: np.random.Generator) -> Matrix:
    """Upper triangular with ones on the diagonal and -1, 0 or 1 above."""
    above = np.triu(draw.integers(-1, 2, (width, width)), 1) + np.eye(width, dtype=np.int64)
    found: Matrix = above.astype(int).tolist()
    return found


def _rows(count: int, width: int, most: int, draw: np.random.Generator) -> Matrix:
    found: Matrix = draw.integers(-most, most + 1, (count, width)).tolist()
    return found


def _some_rows(rows: Matrix, count: int, draw: np.random.Generator) -> Matrix:
    return [rows[place] for place in draw.choice(len(rows), count, replace=False)]


def _plus(matrix: Matrix, shift: int) -> Matrix:
    return [[entry + shift * (i == j) for j, entry in enumerate(row)] for i, row in enumerate(matrix)]
