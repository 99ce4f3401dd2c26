"""Gram matrices of low rank that are closest to F'F, or nearly so. Both lie below F'F, up to rounding errors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.linalg import lapack

from expunge.approximation.sketches import row_space
from expunge.exact import blas

Float = NDArray[np.float64]

_OVERSAMPLES = 10
_ITERATIONS = 2


def truncated(rows: Float, rank: int, draw: np.random.Generator) -> Float:  # noqa: ARG001 - one form for all
    """The best approximation of this rank (Eckart, Young, Mirsky): 0 <= F'F - U'U <= lambda_(rank + 1) I.

    With Q the first eigenvectors of F F', U = Q'F; where there are more rows than columns, from the eigenvectors of F'F.
    """
    if len(rows) <= rows.shape[1]:
        _, vectors = row_space(rows)
        return blas.multiply(np.ascontiguousarray(vectors[:, :rank].T), np.ascontiguousarray(rows))
    gram = np.zeros((rows.shape[1], rows.shape[1]))
    blas.add_gram(np.ascontiguousarray(rows), gram)
    values, vectors, _ = lapack.dsyevd(gram.T, compute_v=1, lower=1, overwrite_a=1)
    kept = values[::-1][:rank] > 0.0
    chosen = vectors[:, ::-1][:, :rank][:, kept]
    return np.ascontiguousarray((chosen * np.sqrt(values[::-1][:rank][kept])).T)


def randomized(rows: Float, rank: int, draw: np.random.Generator) -> Float:
    """Nearly the best, by a random basis of the row space (Halko, Martinsson and Tropp 2011), without decomposing F itself.

    With Q an orthonormal basis and V the first eigenvectors of Q'F F'Q, U = V'Q'F: a projection, so U'U lies below F'F.
    """
    plain, flipped = np.ascontiguousarray(rows), np.ascontiguousarray(rows.T)
    sampled = min(rank + _OVERSAMPLES, *rows.shape)
    basis = _orthonormal(blas.multiply(plain, draw.normal(size=(rows.shape[1], sampled))))
    for _ in range(_ITERATIONS):
        basis = _orthonormal(blas.multiply(plain, _orthonormal(blas.multiply(flipped, basis))))
    inner = blas.multiply_transposed(basis, plain)
    _, vectors = row_space(inner)
    return blas.multiply(np.ascontiguousarray(vectors[:, :rank].T), inner)


def _orthonormal(columns: Float) -> Float:
    basis, _ = linalg.qr(columns, mode="economic", check_finite=False)
    return np.ascontiguousarray(basis)
