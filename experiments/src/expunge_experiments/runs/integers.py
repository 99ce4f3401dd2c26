"""Exact linear algebra on Python's integers, for small matrices: the reference of `feasibility`.

Nothing here rounds and nothing here uses the solvers. Elimination is fraction-free (Bareiss): all entries are minors, so all
divisions come out even.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

Matrix = list[list[int]]


def product(left: Matrix, right: Matrix) -> Matrix:
    """left @ right."""
    columns = list(zip(*right, strict=True))
    return [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in left]


def transposed(matrix: Matrix) -> Matrix:
    """The transpose."""
    return [list(column) for column in zip(*matrix, strict=True)]


def gram(rows: Matrix) -> Matrix:
    """rows' @ rows."""
    return product(transposed(rows), rows)


def is_positive_definite(symmetric: Matrix) -> bool:
    """Whether every leading principal minor is positive (Sylvester)."""
    work = [row[:] for row in symmetric]
    previous = 1
    for pivot in range(len(work)):
        if work[pivot][pivot] <= 0:
            return False
        _eliminate(work, pivot, previous, range(pivot + 1, len(work)))
        previous = work[pivot][pivot]
    return True


def solved(symmetric: Matrix, right: Matrix) -> tuple[int, Matrix]:
    """det(H) and det(H) * H^-1 @ right, for a positive definite H."""
    size = len(symmetric)
    work = [row[:] + other[:] for row, other in zip(symmetric, right, strict=True)]
    previous = 1
    for pivot in range(size):
        _eliminate(work, pivot, previous, [row for row in range(size) if row != pivot])
        previous = work[pivot][pivot]
    return previous, [row[size:] for row in work]


def _eliminate(work: Matrix, pivot: int, previous: int, rows: Sequence[int]) -> None:
    """One step of Bareiss' elimination on these rows."""
    head = work[pivot]
    for row in rows:
        factor = work[row][pivot]
        work[row] = [(head[pivot] * entry - factor * above) // previous for entry, above in zip(work[row], head, strict=True)]


def characteristic(matrix: Matrix) -> list[int]:
    """The coefficients of det(x I - M), the leading one first (Faddeev and LeVerrier); divisions come out even."""
    size = len(matrix)
    coefficients = [1]
    work = [[0] * size for _ in range(size)]
    for step in range(1, size + 1):
        for place in range(size):
            work[place][place] += coefficients[-1]
        work = product(matrix, work)
        coefficients.append(-sum(work[place][place] for place in range(size)) // step)
    return coefficients


def all_roots_below(coefficients: Sequence[int], bound: int) -> bool:
    """Whether a polynomial with real roots only has all of them below `bound`.

    By Descartes' rule, which is exact where all roots are real: shifted by the bound, the polynomial must have no root at 0 and
    no change of sign among its coefficients.
    """
    degree = len(coefficients) - 1
    shifted = [0] * (degree + 1)
    for place, coefficient in enumerate(coefficients):
        power = degree - place
        for kept in range(power + 1):
            shifted[degree - kept] += coefficient * comb(power, kept) * bound ** (power - kept)
    signs = [value > 0 for value in shifted if value]
    return shifted[-1] != 0 and all(signs) == any(signs)
