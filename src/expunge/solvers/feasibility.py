"""Whether rows can be deleted: the downdate lemma with its rounding errors bounded, and a screen for the 2x2 minors.

H - U'U is positive definite exactly if M = I - U H^-1 U' is; and then
||(H - U'U)^-1|| <= ||H^-1|| + ||H^-1 U'||^2 / lambda_min(M), so a proven bound on the smallest eigenvalue is carried from one
deletion to the next without a factorisation.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
from numpy.typing import NDArray

from expunge.exact import blas
from expunge.solvers.refinement import Propose
from expunge.solvers.system import UNIT, System

Float = NDArray[np.float64]

_CLOSE = 1.0 - 2.0**-30
_ROWS = 64  # rows screened at a time


class Downdate(Enum):
    """What can be said of a deletion that has no carried bound."""

    IMPOSSIBLE = "proved impossible"
    UNDECIDED = "a factorisation must decide"


def downdate(system: System, precondition: Propose, floor: float, rows: Float, least: float) -> float | Downdate:
    """A proven lower bound on the smallest eigenvalue of H - rows.T @ rows, given one (`floor`) for H.

    One below `least` is not worth carrying on.
    """
    columns = np.ascontiguousarray(rows.T)
    solution = precondition(columns)
    remainder = columns - system.multiply_float(solution)
    solution += precondition(remainder)
    remainder = columns - system.multiply_float(solution)
    size, length = blas.norm(columns), blas.norm(solution)
    missed = blas.norm(remainder) + float(system.product_error(np.array(length))) + 2.0**-50 * size
    missed *= 1 + 2.0**-20
    small = np.eye(len(rows)) - blas.multiply(rows, solution)
    error = size * missed / floor + (system.spec.width + len(rows) + 8) * UNIT * (1.0 + size * length) * 4.0
    pivot = blas.smallest_eigenvalue((small + small.T) / 2.0)
    if pivot + 2.0 * error < 0.0:
        return Downdate.IMPOSSIBLE
    if pivot - 2.0 * error <= 0.0:
        return Downdate.UNDECIDED
    carried = 1.0 / (1.0 / floor + (length + missed / floor) ** 2 / (pivot - 2.0 * error)) * (1 - 2.0**-20)
    return carried if carried >= least else Downdate.UNDECIDED


def minors_are_safe(system: System) -> bool:
    """Whether float64 shows that no diagonal entry and no 2x2 minor of S is negative.

    False means that integers must decide. Features that are zero throughout are left out: nothing about them changes.
    """
    diagonal = system.gram.diagonal()
    error = system.entry_error
    alive = system.live
    if float(diagonal[alive].min(initial=np.inf)) <= 4.0 * error:
        return False
    roots = np.where(alive, np.sqrt(np.maximum(diagonal - error, 0.0)) * _CLOSE, np.inf)
    width = len(diagonal)
    above = np.triu(np.ones((_ROWS, _ROWS), dtype=bool), 1)
    for start in range(0, width, _ROWS):
        rows = min(_ROWS, width - start)
        allowed = np.multiply.outer(roots[start : start + rows], roots[start:])
        allowed -= error
        close = np.abs(system.gram[start : start + rows, start:]) >= allowed
        close[:, :rows] &= above[:rows, :rows]  # anything may stand below the diagonal
        if close.any():
            return False
    return True
