"""RankOneChain: what single rows, added and deleted, have taken from an inverse.

A row u of sign s takes s z z' / (1 + s u'z) from H^-1, for z = H^-1 u before the change; so each
row followed is one vector and its weight, and nothing of the size of the inverse is written.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from expunge.exact import blas

Float = NDArray[np.float64]

_SMALLEST_PIVOT = 2.0**-20  # of a followed row: below this float64 loses too much


class RankOneChain:
    """Vectors and their weights, to be applied after an inverse."""

    def __init__(self, width: int) -> None:
        self.count = 0
        self._columns = np.empty((0, width))
        self._weights = np.empty(0)

    def follow(self, row: Float, sign: int, column: Float) -> bool:
        """Add a row by its H^-1 u; false, and nothing has changed, if the change is infeasible."""
        pivot = 1.0 + sign * float(np.multiply(row, column).sum())
        if not pivot >= _SMALLEST_PIVOT:
            return False
        if self.count == len(self._weights):
            room = max(8, 2 * self.count)
            self._columns = np.resize(self._columns, (room, self._columns.shape[1]))
            self._weights = np.resize(self._weights, room)
        self._columns[self.count], self._weights[self.count] = column, sign / pivot
        self.count += 1
        return True

    def resume(self, earlier: RankOneChain, first: int) -> None:
        """Go on, from nothing, with what another chain has had from its row number `first` on."""
        self._columns = earlier._columns[first : earlier.count].copy()
        self._weights = earlier._weights[first : earlier.count].copy()
        self.count = len(self._weights)

    def correct(self, solution: Float, right: Float) -> None:
        """solution -= what the rows have taken from the inverse @ right; in place."""
        if self.count:
            columns = self._columns[: self.count]
            inner = blas.multiply(columns, np.ascontiguousarray(right))
            inner *= self._weights[: self.count, None]
            solution -= blas.multiply_transposed(columns, inner)

    def drain(self, upper: Float) -> None:
        """Take it all from the upper triangle of the inverse, row-major, and begin anew."""
        for sign in (1.0, -1.0):
            chosen = np.flatnonzero(np.sign(self._weights[: self.count]) == sign)
            scaled = np.sqrt(np.abs(self._weights[chosen]))[:, None] * self._columns[chosen]
            if len(scaled):
                blas.add_gram(scaled, upper, -sign)
        self.count = 0
