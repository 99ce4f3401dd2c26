"""TrackedInverse: T close to (S + gamma I)^-1, kept up to date by Sherman-Morrison-Woodbury updates
in place.

T is held as its upper triangle, in float64 or float32, and updated by symmetric BLAS calls that
touch half of it. It is a cache in the exact Variant B and the state itself in the float one. Single
rows whose H^-1 u is known wait, and are applied together.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.exact.blas import scipy_blas, scipy_lapack, typed_routines
from expunge.solvers.chain import RankOneChain

Array = NDArray[Any]

_SMALLEST_PIVOT = (
    2.0**-20
)  # of I - U T U': below this a float64 downdate loses too much, and a reset is due


_MOST_WAITING = 64  # rows: then applying them costs as much as keeping them


class InfeasibleDowndateError(ArithmeticError):
    """I - U T U' is not safely positive definite: reset T, or refuse the deletion."""


class TrackedInverse:
    """T = H^-1 under additions and deletions of rows U: H +- U'U."""

    def __init__(self, upper: Array) -> None:
        # what BLAS calls a lower triangle, column-major
        self._inverse = np.ascontiguousarray(upper).T
        names = ("symv", "symm", "syr", "syrk", "gemm")
        routines = typed_routines(scipy_blas, names, self._inverse.dtype)
        self._symv, self._symm, self._syr, self._syrk, self._gemm = routines
        self._chain = RankOneChain(len(upper))

    @property
    def upper(self) -> Array:
        """The upper triangle of T, row-major; entries below the diagonal are not meaningful."""
        self._chain.drain(self._inverse.T)
        return self._inverse.T

    def solve(self, right: Array) -> Array:
        """T @ right."""
        if right.shape[1] == 1:
            result = np.asarray(self._symv(1.0, self._inverse, right[:, 0], lower=1))[:, None]
        else:
            result = np.ascontiguousarray(
                self._symm(1.0, self._inverse, np.asfortranarray(right), lower=1)
            )
        self._chain.correct(result, right)
        return result

    def follow(self, row: Array, sign: int, solved: Array) -> None:
        """T after H + sign * the row's outer square, by H^-1 @ row; nothing changes if the downdate
        is infeasible.
        """
        if self._chain.count == _MOST_WAITING:
            self._chain.drain(self._inverse.T)
        if not self._chain.follow(row, sign, solved):
            raise InfeasibleDowndateError

    def update(self, rows: Array, sign: int) -> Array:
        """T after H + sign * rows.T @ rows; returns T_new @ rows.T.

        Nothing changes if the downdate is infeasible.
        """
        if len(rows) == 1:
            return self._update_one(rows[0], sign)
        columns = self.solve(np.ascontiguousarray(rows.T))
        small = np.eye(len(rows), dtype=rows.dtype) + sign * self._gemm(1.0, rows, columns)
        names = ("potrf", "potrs", "trtrs")
        potrf, potrs, trtrs = typed_routines(scipy_lapack, names, small.dtype)
        factor, info = potrf(small, lower=1, clean=1)
        if info != 0 or float(factor.diagonal().min()) ** 2 < _SMALLEST_PIVOT:
            raise InfeasibleDowndateError
        half, _ = trtrs(factor, columns.T, lower=1)
        self._inverse = self._syrk(
            -sign, np.asfortranarray(half.T), beta=1.0, c=self._inverse, lower=1, overwrite_c=1
        )
        after, _ = potrs(factor, columns.T, lower=1)
        return np.ascontiguousarray(after.T)

    def _update_one(self, row: Array, sign: int) -> Array:
        column = self.solve(row[:, None])[:, 0]
        pivot = 1.0 + sign * float(np.multiply(row, column).sum())
        if not pivot >= _SMALLEST_PIVOT:
            raise InfeasibleDowndateError
        self._inverse = self._syr(-sign / pivot, column, lower=1, a=self._inverse, overwrite_a=1)
        return np.asarray(column / pivot)[:, None]
