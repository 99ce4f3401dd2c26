"""Sketches: few rows whose Gram is close to that of many. Frequent directions, and random projections."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from expunge.exact import blas

Float = NDArray[np.float64]

_SIGNS = 8  # rows of the sketch that each sample enters, under sparse signs


class FrequentDirections:
    """The sketch B of rows that come one block after another (Liberty 2013; Ghashami, Liberty, Phillips and Woodruff 2016).

    B has room for 2 * rank rows. When it is full, its squared singular values are all lowered by the (rank + 1)-th, which leaves
    `rank` rows: one row more than where the rank-th is taken. Law, in real arithmetic: 0 <= F'F - B'B <= shrunk * I, where
    `shrunk` is the sum of what was taken off; and shrunk <= ||F - F_k||_F^2 / (rank + 1 - k) for every k <= rank. The `factor`
    is B, lowered once more where it has more than `rank` rows: the second bound is one of its error, `shrunk` alone is not.

    Memory is 2 * rank rows, however many rows come.
    """

    def __init__(self, width: int, rank: int) -> None:
        self.rank = rank
        self.shrunk = 0.0
        self._rows = np.zeros((2 * rank, width))
        self._filled = 0

    def extend(self, rows: Float) -> None:
        """Take in more rows."""
        start = 0
        while start < len(rows):
            if self._filled == len(self._rows):
                self._shrink()
            taken = min(len(self._rows) - self._filled, len(rows) - start)
            self._rows[self._filled : self._filled + taken] = rows[start : start + taken]
            self._filled += taken
            start += taken

    def factor(self) -> Float:
        """At most `rank` rows, mixed such that none of them is a row that came in; nothing of the sketch changes."""
        rows, _ = _shrunk(self._rows[: self._filled], self.rank)
        return rows

    def _shrink(self) -> None:
        rows, taken = _shrunk(self._rows, self.rank)
        self.shrunk += taken
        self._rows[:] = 0.0
        self._rows[: len(rows)] = rows
        self._filled = len(rows)


def _shrunk(rows: Float, rank: int) -> tuple[Float, float]:
    """Rows with squared singular values lowered by the (rank + 1)-th, and that one; only rotated where there is none."""
    values, directions = row_space(rows)
    taken = float(max(values[rank], 0.0)) if len(values) > rank else 0.0
    kept = (values > taken) & (np.arange(len(values)) < rank)
    weights = np.sqrt((values[kept] - taken) / values[kept])
    return blas.multiply(np.ascontiguousarray(directions[:, kept].T * weights[:, None]), rows), taken


def row_space(rows: Float) -> tuple[Float, Float]:
    """The eigenvalues of F F', falling, and its eigenvectors Q as columns: the rows of Q'F are orthogonal and span F's."""
    inner = blas.multiply(rows, np.ascontiguousarray(rows.T))
    values, vectors, _ = lapack.dsyevd(inner, compute_v=1)
    return values[::-1], vectors[:, ::-1]


def frequent_directions(rows: Float, rank: int, draw: np.random.Generator) -> Float:  # noqa: ARG001 - one form for all
    """The sketch of these rows, in their order."""
    sketch = FrequentDirections(rows.shape[1], max(1, min(rank, len(rows))))  # more rank than rows would be memory only
    sketch.extend(rows)
    return sketch.factor()


def gaussian(rows: Float, rank: int, draw: np.random.Generator) -> Float:
    """Omega F for a normal Omega of variance 1 / rank: its Gram is F'F on average, and misses it on both sides."""
    mixing = draw.normal(size=(rank, len(rows))) / np.sqrt(rank)
    return blas.multiply(mixing, np.ascontiguousarray(rows))


def sparse_sign(rows: Float, rank: int, draw: np.random.Generator) -> Float:
    """Omega F for an Omega with eight entries of random sign in each column, or `rank` of them if that is less."""
    entries = min(_SIGNS, rank)
    places = draw.random((len(rows), rank)).argsort(axis=1)[:, :entries]
    signs = draw.integers(2, size=places.shape) * 2.0 - 1.0
    mixing = np.zeros((rank, len(rows)))
    mixing[places.T, np.arange(len(rows))] = signs.T / np.sqrt(entries)
    return blas.multiply(mixing, np.ascontiguousarray(rows))
