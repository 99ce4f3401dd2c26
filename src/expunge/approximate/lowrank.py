"""Gram matrices of low rank close to F'F, and messages made of them.

- `truncated` and `randomized`: of a given rank, closest to F'F or nearly so. Both lie below F'F, up
  to rounding errors.
- Sketches, few rows whose Gram is close to that of many: frequent directions and random projections
  (`gaussian`, `sparse_sign`).
- `compress`: a batch as an approximate message by any of these methods, with its error proven.
- `rank_for`: the smallest rank that keeps an error within what is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.linalg import lapack

from expunge.approximate.bounds import UNIT, residual_enclosure
from expunge.approximate.message import PRECISIONS, ApproximateMessage, Batch
from expunge.errors import InputError
from expunge.exact import blas

Float = NDArray[np.float64]

_SIGNS = 8  # rows of the sketch that each sample enters, under sparse signs


class FrequentDirections:
    """The sketch B of rows that come one block after another (Liberty 2013; Ghashami, Liberty,
    Phillips and Woodruff 2016).

    B has room for 2 * rank rows. When it is full, its squared singular values are all lowered by
    the (rank + 1)-th, which leaves `rank` rows: one row more than where the rank-th is taken. Law,
    in real arithmetic: 0 <= F'F - B'B <= shrunk * I, where `shrunk` is the sum of what was taken
    off; and shrunk <= ||F - F_k||_F^2 / (rank + 1 - k) for every k <= rank. The `factor` is B,
    lowered once more where it has more than `rank` rows: the second bound is one of its error,
    `shrunk` alone is not.

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
        """At most `rank` rows, mixed such that none of them is a row that came in; nothing of the
        sketch changes.
        """
        rows, _ = _shrunk(self._rows[: self._filled], self.rank)
        return rows

    def _shrink(self) -> None:
        rows, taken = _shrunk(self._rows, self.rank)
        self.shrunk += taken
        self._rows[:] = 0.0
        self._rows[: len(rows)] = rows
        self._filled = len(rows)


def _shrunk(rows: Float, rank: int) -> tuple[Float, float]:
    """Rows with squared singular values lowered by the (rank + 1)-th, and that one; only rotated
    where there is none.
    """
    values, directions = row_space(rows)
    taken = float(max(values[rank], 0.0)) if len(values) > rank else 0.0
    kept = (values > taken) & (np.arange(len(values)) < rank)
    weights = np.sqrt((values[kept] - taken) / values[kept])
    return blas.multiply(
        np.ascontiguousarray(directions[:, kept].T * weights[:, None]), rows
    ), taken


def row_space(rows: Float) -> tuple[Float, Float]:
    """The eigenvalues of F F', falling, and its eigenvectors Q as columns: the rows of Q'F are
    orthogonal and span F's.
    """
    inner = blas.multiply(rows, np.ascontiguousarray(rows.T))
    values, vectors, _ = lapack.dsyevd(inner, compute_v=1)
    return values[::-1], vectors[:, ::-1]


def frequent_directions(rows: Float, rank: int, draw: np.random.Generator) -> Float:  # noqa: ARG001 - one form for all
    """The sketch of these rows, in their order."""
    # more rank than rows would be memory only
    sketch = FrequentDirections(rows.shape[1], max(1, min(rank, len(rows))))
    sketch.extend(rows)
    return sketch.factor()


def gaussian(rows: Float, rank: int, draw: np.random.Generator) -> Float:
    """Omega F for a normal Omega of variance 1 / rank: its Gram is F'F on average, and misses it on
    both sides.
    """
    mixing = draw.normal(size=(rank, len(rows))) / np.sqrt(rank)
    return blas.multiply(mixing, np.ascontiguousarray(rows))


def sparse_sign(rows: Float, rank: int, draw: np.random.Generator) -> Float:
    """Omega F for an Omega with eight entries of random sign in each column, or `rank` of them if
    that is less.
    """
    entries = min(_SIGNS, rank)
    places = draw.random((len(rows), rank)).argsort(axis=1)[:, :entries]
    signs = draw.integers(2, size=places.shape) * 2.0 - 1.0
    mixing = np.zeros((rank, len(rows)))
    mixing[places.T, np.arange(len(rows))] = signs.T / np.sqrt(entries)
    return blas.multiply(mixing, np.ascontiguousarray(rows))


_OVERSAMPLES = 10
_ITERATIONS = 2


def truncated(rows: Float, rank: int, draw: np.random.Generator) -> Float:  # noqa: ARG001 - one form for all
    """The best approximation of this rank (Eckart, Young, Mirsky): 0 <= F'F - U'U <= lambda_(rank +
    1) I.

    With Q the first eigenvectors of F F', U = Q'F; where there are more rows than columns, from the
    eigenvectors of F'F.
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
    """Nearly the best, by a random basis of the row space (Halko, Martinsson and Tropp 2011),
    without decomposing F itself.

    With Q an orthonormal basis and V the first eigenvectors of Q'F F'Q, U = V'Q'F: a projection, so
    U'U lies below F'F.
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


Method = Callable[[Float, int, np.random.Generator], Float]

METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "truncated": truncated,
        "randomized": randomized,
        "frequent_directions": frequent_directions,
        "gaussian": gaussian,
        "sparse_sign": sparse_sign,
    }
)


def compress(
    batch: Batch, method: str, rank: int, *, seed: int = 0, precision: str = "float32"
) -> ApproximateMessage:
    """The message of a batch at this rank; equal arguments give equal messages.

    `seed` matters to the methods that draw. The factor is rounded to `precision` first, and its
    error is proven afterwards, so the rounding is inside the bound. A batch with fewer samples than
    `rank` gets a factor with as many rows as it needs.
    """
    if method not in METHODS:
        raise InputError(f"{method!r} is no method; there are {', '.join(METHODS)}")
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or rank < 1:
        raise InputError(f"a rank is a whole number from 1, not {rank!r}")
    if precision not in PRECISIONS:
        raise InputError(f"a factor is sent as {' or '.join(PRECISIONS)}, not as {precision!r}")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"a seed is a whole number from 0, not {seed!r}")
    rows = batch.features
    draw = np.random.default_rng([int(seed), len(rows), int(rank)])
    exact = METHODS[method](rows, int(rank), draw) if len(rows) else np.zeros((0, rows.shape[1]))
    with np.errstate(over="ignore"):  # what overflows is refused just below
        factor: NDArray[Any] = np.ascontiguousarray(exact.astype(precision))
    if not np.isfinite(factor).all():
        raise InputError(
            "the factor of this batch is too large for float32: choose precision='float64'"
        )
    sent = factor.astype(np.float64)
    rounding = 2.0 * float(np.finfo(factor.dtype).eps) * float(np.square(sent).sum())
    error = residual_enclosure(rows, sent, rounding)
    moment = blas.multiply_transposed(
        np.ascontiguousarray(rows), np.ascontiguousarray(batch.targets)
    )
    lengths = blas.norm(rows) * blas.norm(batch.targets)
    moment_error = (len(rows) + 2) * UNIT * lengths * 1.25
    return ApproximateMessage(
        batch.spec,
        method,
        factor,
        moment,
        len(rows),
        batch.class_counts.copy(),
        error,
        moment_error,
    )


def allowed_error(deviation: float, gamma: float, norm: float, *, sign: int = 1) -> float:
    """How large a message's error may be for one update of an exact ledger to keep the head within
    `deviation`.

    `norm` is the norm of the current weights (spectral or Frobenius, as is the deviation's).
    For an addition (sign 1) whose error lies between 0 and eps, the head moves by at most
    eps / sqrt(gamma (gamma + eps)) * norm; for a deletion by eps / gamma
    * norm. The head after the update has a norm of its own, so this is a choice made beforehand:
      the ledger says what holds.
    """
    if not all(math.isfinite(value) and value > 0.0 for value in (deviation, gamma, norm)):
        raise InputError(
            f"deviation, gamma and norm must be positive, not {deviation}, {gamma} and {norm}"
        )
    share = deviation / norm
    if sign < 0:
        return gamma * share
    return gamma * share * (share + math.sqrt(share * share + 4.0)) / 2.0


def rank_for(
    batch: Batch, method: str, wanted: float, *, seed: int = 0, precision: str = "float32"
) -> ApproximateMessage:
    """The message of the smallest rank whose proven error is at most `wanted`; see `allowed_error`
    for a wanted head.

    The rank is found by bisection, so it is the smallest where more rows never make a method worse:
    truncation (up to the hundredth part by which proofs are loose), and in practice the others but
    the random projections.
    """
    if not (math.isfinite(wanted) and wanted > 0.0):
        raise InputError(f"the wanted error must be positive, not {wanted}")
    most = max(1, min(batch.features.shape))
    best = compress(batch, method, most, seed=seed, precision=precision)
    if best.error.norm > wanted:
        coarse = precision == "float32" and best.error.norm <= 2.0**-20 * float(
            np.square(batch.features).sum()
        )
        raise InputError(
            (
                f"no rank up to {most} brings the error of {method} to {wanted:g}: at {most} it is "
                f"{best.error.norm:g}. "
            )
            + (
                "That is the rounding of float32: choose precision='float64'"
                if coarse
                else "Ask for less, or send exact statistics"
            )
        )
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        message = compress(batch, method, middle, seed=seed, precision=precision)
        if message.error.norm <= wanted:
            best, high = message, middle
        else:
            low = middle
    return best
