"""Screens of the 2x2 minors of S: where float64 shows that none is negative, integers need not
decide whether a deletion is possible.

A screen never says that a minor is negative. Where it is in doubt, `ridge/plausibility.py` decides.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from expunge.exact import blas
from expunge.ridge.plausibility import close_pairs
from expunge.solvers.system import UNIT, RidgeSystem
from expunge.solvers.truncated import RowStack, TruncatedSystem

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]

_CLOSE = 1.0 - 2.0**-30
_ROWS = 64  # rows screened at a time
_MOST_PAIRS = 4096  # beyond this, a look at all pairs is faster


def minors_are_safe(system: RidgeSystem) -> bool:
    """Whether float64 shows that no diagonal entry and no 2x2 minor of S is negative.

    Features that are zero throughout are left out: nothing about them changes.
    """
    diagonal, alive = system.gram.diagonal(), np.asarray(system.live)
    error = system.entry_error
    least = np.where(alive, diagonal - error, np.inf)
    if float(least.min()) <= 3.0 * error:
        return False
    off = np.full(len(diagonal), error**0.5)
    return not any(close_pairs(system.gram, np.sqrt(least) * _CLOSE, off))


class MinorScreen:
    """The minors of a base S (in float64, each entry to within 2^-50 of itself) and of rows added
    and deleted since.

    The base has no negative minor, and rows that are only added make none; so one of the features
    of a minor in doubt is in a deleted row. Let c_ij = |S_ij| / sqrt(S_ii S_jj), D_i the squares of
    the rows' entries in feature i added up, y_i^2 = D_i / S_ii, and x_i^2 = 1 less the same of the
    deleted rows alone. By Cauchy and Schwarz, c_ij + y_i y_j <= x_i x_j is enough for the minor of
    i and j. The largest c_ij of each feature is found once, so that most deletions cost a look at
    the features, and not at the pairs.
    """

    def __init__(self, system: TruncatedSystem) -> None:
        self._packed, self._base = system.packed, system.diagonal
        self._alive = self._base > 0.0
        self._diagonal = np.where(self._alive, self._base, 1.0)
        self._cosines = self._largest_cosines()

    def _largest_cosines(self) -> Float:
        """For each feature, at least the largest |S_ij| / sqrt(S_ii S_jj) of it."""
        width = len(self._diagonal)
        inverse = np.where(self._alive, 1.0 / np.sqrt(self._diagonal), 0.0)
        largest = np.zeros(width)
        gram = blas.upper_from_packed(width, self._packed)
        above = np.triu(np.ones((_ROWS, _ROWS), dtype=bool), 1)
        for start in range(0, width, _ROWS):
            rows = min(_ROWS, width - start)
            cosines = np.abs(gram[start : start + rows, start:])
            cosines[:, :rows] = np.where(above[:rows, :rows], cosines[:, :rows], 0.0)
            cosines *= inverse[start : start + rows, None]
            cosines *= inverse[start:]
            np.maximum(largest[start:], cosines.max(axis=0), out=largest[start:])
            block = largest[start : start + rows]
            np.maximum(block, cosines.max(axis=1), out=block)
        return largest * (1 + 2.0**-30)

    def is_safe(self, rows: RowStack) -> bool:
        """Whether float64 shows that no diagonal entry and no minor of S with these rows is
        negative.
        """
        kept = self._diagonal * _CLOSE - rows.taken * (1 + 2.0**-30)
        is_known = self._alive | (rows.touched == 0.0)  # the base has every feature
        if not is_known.all() or bool((kept[rows.taken > 0.0] <= 0.0).any()):
            return self._whole_is_safe(rows)
        left = np.sqrt(np.where(self._alive, kept / self._diagonal, 1.0)) * _CLOSE
        moved = np.sqrt(rows.touched / self._diagonal) * (1 + 2.0**-30)
        doubtful = self._cosines + moved * moved.max() >= left * left.min()
        doubtful &= rows.taken > 0.0
        if not doubtful.any():
            return True
        features = np.flatnonzero(doubtful)
        bound = np.minimum.outer(self._cosines[features], self._cosines)
        bound += np.multiply.outer(moved[features], moved)
        close = bound >= np.multiply.outer(left[features], left)
        close[np.arange(len(features)), features] = False
        place, second = np.nonzero(close)
        if len(place) > _MOST_PAIRS:
            return self._whole_is_safe(rows)
        return self._pairs_are_safe(features[place], second, rows)

    def _pairs_are_safe(
        self, first: NDArray[np.int64], second: NDArray[np.int64], rows: RowStack
    ) -> bool:
        """The minors of these pairs of features, with the rows in them."""
        low, high = np.minimum(first, second), np.maximum(first, second)
        least, off, signed = self._now(rows)
        if bool((least[low] <= 0.0).any() or (least[high] <= 0.0).any()):
            return False
        entries = self._packed[blas.packed_diagonal(len(least))[low] + high - low]
        entries += np.einsum("kp,kp->p", signed[:, low], rows.values[:, high])
        allowed = np.sqrt(least[low]) * np.sqrt(least[high]) * _CLOSE
        return bool((np.abs(entries) + off[low] * off[high] < allowed).all())

    def _whole_is_safe(self, rows: RowStack) -> bool:
        """All minors, with the rows in them."""
        least, off, signed = self._now(rows)
        alive = self._alive | (rows.touched > 0.0)
        if bool((least[alive] <= 0.0).any()):
            return False
        gram = blas.upper_from_packed(len(least), self._packed)
        blas.add_product(signed, rows.values, gram)
        roots = np.sqrt(np.where(alive, least, np.inf)) * _CLOSE
        return not any(close_pairs(gram, roots, off))

    def _now(self, rows: RowStack) -> tuple[Float, Float, Float]:
        """At most the diagonal entries of S with the rows; by feature, a factor of what entries in
        float64 are off by; the rows with their signs.

        An entry is off by at most 2^-50 |S_ij| and (rows + 4) 2^-52 sqrt(D_i D_j).
        """
        signed = rows.values * rows.signs[:, None]
        diagonal = self._base
        sizes = diagonal + rows.touched
        share = 2.0**-49 + (rows.count + 4) * 2 * UNIT
        now = diagonal + np.einsum("ki,ki->i", signed, rows.values)
        return now - 4.0 * share * sizes, np.sqrt(share * sizes), signed
