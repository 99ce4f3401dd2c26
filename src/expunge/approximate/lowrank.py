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

from expunge.approximate.bounds import UNIT, residual_enclosure
from expunge.approximate.message import PRECISIONS, ApproximateMessage, Batch
from expunge.errors import InputError, ShapeError
from expunge.exact import blas
from expunge.exact.blas import scipy_lapack

Float = NDArray[np.float64]

_SIGNS = 8  # rows of the sketch that each sample enters, under sparse signs


class FrequentDirections:
    """A sketch B of rows that come one block after another, in memory for 2 * rank rows.

    In real arithmetic 0 <= F'F - B'B <= shrunk * I, where F are all rows so far, and shrunk <= ||F
    - F_k||_F^2 / (rank + 1 - k) for the best approximation F_k of every rank k <= rank.

    Parameters
    ----------
    width : int
        The length of a row.
    rank : int
        The most rows that `factor` returns; 1 or more.

    Raises
    ------
    ShapeError
        If `width` or `rank` is below 1.

    Attributes
    ----------
    rank : int
        As given.
    shrunk : float
        The sum of what was taken off the squared singular values.

    See Also
    --------
    compress : a message by this method, with its error proven.

    Notes
    -----
    When the 2 * rank rows are full, their squared singular values are all lowered by the (rank +
    1)-th, which leaves `rank` rows: one row more than where the rank-th is taken. `factor` lowers
    once more where there are more than `rank` rows. The second bound is one of its error too;
    `shrunk` alone is not. After Liberty (2013) and Ghashami, Liberty, Phillips and Woodruff (2016).

    Examples
    --------
    >>> import numpy as np
    >>> from expunge.approximate import FrequentDirections
    >>> rows = np.random.default_rng(0).standard_normal((100, 5))
    >>> sketch = FrequentDirections(width=5, rank=3)
    >>> for start in range(0, 100, 25):
    ...     sketch.extend(rows[start : start + 25])
    >>> factor = sketch.factor()
    >>> factor.shape
    (3, 5)
    >>> bool(np.linalg.eigvalsh(rows.T @ rows - factor.T @ factor).min() > -1e-9)
    True
    """

    def __init__(self, width: int, rank: int) -> None:
        if width < 1 or rank < 1:
            raise ShapeError(f"a sketch needs width and rank of 1 or more, got {width} and {rank}")
        self.rank = rank
        self.shrunk = 0.0
        self._rows = np.zeros((2 * rank, width))
        self._filled = 0

    def extend(self, rows: Float) -> None:
        """Take in more rows.

        Parameters
        ----------
        rows : float64 ndarray of shape (n, width)
            Any number of them.

        Raises
        ------
        ShapeError
            If rows have another length; the sketch is as it was.
        """
        if rows.ndim != 2 or rows.shape[1] != self._rows.shape[1]:
            raise ShapeError(
                f"rows of shape {rows.shape} do not fit a sketch of width {self._rows.shape[1]}: "
                "give an array (n, width)"
            )
        start = 0
        while start < len(rows):
            if self._filled == len(self._rows):
                self._shrink()
            taken = min(len(self._rows) - self._filled, len(rows) - start)
            self._rows[self._filled : self._filled + taken] = rows[start : start + taken]
            self._filled += taken
            start += taken

    def factor(self) -> Float:
        """At most `rank` rows whose Gram is close to that of all rows so far.

        The rows are mixed, such that none of them is a row that came in. The sketch does not
        change.

        Returns
        -------
        float64 ndarray of shape (at most rank, width)
            The factor.
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
    mask = (values > taken) & (np.arange(len(values)) < rank)
    weights = np.sqrt((values[mask] - taken) / values[mask])
    return blas.multiply(
        np.ascontiguousarray(directions[:, mask].T * weights[:, None]), rows
    ), taken


def row_space(rows: Float) -> tuple[Float, Float]:
    """The eigenvalues of F F', falling, and its eigenvectors Q as columns: the rows of Q'F are
    orthogonal and span F's.
    """
    inner = blas.multiply(rows, np.ascontiguousarray(rows.T))
    values, vectors, _ = scipy_lapack.dsyevd(inner, compute_v=1)
    return values[::-1], vectors[:, ::-1]


def frequent_directions(rows: Float, rank: int, draw: np.random.Generator) -> Float:  # noqa: ARG001 - one form for all
    """The frequent directions sketch of these rows, in their order.

    Parameters
    ----------
    rows : float64 ndarray of shape (n, width)
        F.
    rank : int
        The most rows of the factor.
    draw : numpy.random.Generator
        Not used: one form for all methods.

    Returns
    -------
    float64 ndarray of shape (at most rank, width)
        U, with U'U below F'F.
    """
    # more rank than rows would be memory only
    sketch = FrequentDirections(rows.shape[1], max(1, min(rank, len(rows))))
    sketch.extend(rows)
    return sketch.factor()


def gaussian(rows: Float, rank: int, draw: np.random.Generator) -> Float:
    """Omega F for a normal Omega of variance 1 / rank.

    Its Gram is F'F on average, and misses it on both sides.

    Parameters
    ----------
    rows : float64 ndarray of shape (n, width)
        F.
    rank : int
        The rows of the factor.
    draw : numpy.random.Generator
        Where Omega comes from.

    Returns
    -------
    float64 ndarray of shape (rank, width)
        Omega F.
    """
    mixing = draw.normal(size=(rank, len(rows))) / np.sqrt(rank)
    return blas.multiply(mixing, np.ascontiguousarray(rows))


def sparse_sign(rows: Float, rank: int, draw: np.random.Generator) -> Float:
    """Omega F for an Omega with eight entries of random sign in each column, or `rank` if fewer.

    Its Gram is F'F on average, and misses it on both sides.

    Parameters
    ----------
    rows : float64 ndarray of shape (n, width)
        F.
    rank : int
        The rows of the factor.
    draw : numpy.random.Generator
        Where Omega comes from.

    Returns
    -------
    float64 ndarray of shape (rank, width)
        Omega F.
    """
    entries = min(_SIGNS, rank)
    positions = draw.random((len(rows), rank)).argsort(axis=1)[:, :entries]
    signs = draw.integers(2, size=positions.shape) * 2.0 - 1.0
    mixing = np.zeros((rank, len(rows)))
    mixing[positions.T, np.arange(len(rows))] = signs.T / np.sqrt(entries)
    return blas.multiply(mixing, np.ascontiguousarray(rows))


_OVERSAMPLES = 10
_ITERATIONS = 2


def truncated(rows: Float, rank: int, draw: np.random.Generator) -> Float:  # noqa: ARG001 - one form for all
    """The best factor of this rank: 0 <= F'F - U'U <= lambda_(rank + 1) I.

    Parameters
    ----------
    rows : float64 ndarray of shape (n, width)
        F.
    rank : int
        The most rows of the factor.
    draw : numpy.random.Generator
        Not used: one form for all methods.

    Returns
    -------
    float64 ndarray of shape (at most rank, width)
        U.

    Notes
    -----
    By Eckart, Young and Mirsky. With Q the first eigenvectors of F F', U = Q'F; where there are
    more rows than columns, U comes from the eigenvectors of F'F.
    """
    if len(rows) <= rows.shape[1]:
        _, vectors = row_space(rows)
        return blas.multiply(np.ascontiguousarray(vectors[:, :rank].T), np.ascontiguousarray(rows))
    gram = np.zeros((rows.shape[1], rows.shape[1]))
    blas.add_gram(np.ascontiguousarray(rows), gram)
    values, vectors, _ = scipy_lapack.dsyevd(gram.T, compute_v=1, lower=1, overwrite_a=1)
    mask = values[::-1][:rank] > 0.0
    chosen = vectors[:, ::-1][:, :rank][:, mask]
    return np.ascontiguousarray((chosen * np.sqrt(values[::-1][:rank][mask])).T)


def randomized(rows: Float, rank: int, draw: np.random.Generator) -> Float:
    """Nearly the best factor of this rank, from a random basis of the row space.

    Parameters
    ----------
    rows : float64 ndarray of shape (n, width)
        F.
    rank : int
        The most rows of the factor.
    draw : numpy.random.Generator
        Where the basis comes from.

    Returns
    -------
    float64 ndarray of shape (at most rank, width)
        U, with U'U below F'F.

    Notes
    -----
    After Halko, Martinsson and Tropp (2011), without decomposing F itself. With Q an orthonormal
    basis and V the first eigenvectors of Q'F F'Q, U = V'Q'F is a projection.
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
    """The approximate message of a batch at this rank; equal arguments give equal messages.

    Parameters
    ----------
    batch : Batch
        The samples that are added or deleted.
    method : str
        A key of `METHODS`: "truncated", "randomized", "frequent_directions", "gaussian" or
        "sparse_sign".
    rank : int
        The most rows of the factor; 1 or more. A batch with fewer samples gets as many rows as it
        needs.
    seed : int, default 0
        0 or more; for the methods that draw.
    precision : {"float32", "float64"}, default "float32"
        Of the factor. It is rounded first and its error is proven afterwards, so the rounding is
        inside the bound.

    Returns
    -------
    ApproximateMessage
        With the error of its Gram, proven.

    Raises
    ------
    InputError
        If an argument is something else, or the factor is too large for float32.
    PlatformError
        If this machine's BLAS is not exact on small integers.

    See Also
    --------
    rank_for : the smallest rank for a wanted error.

    Examples
    --------
    >>> import numpy as np
    >>> import expunge
    >>> from expunge.approximate import Batch, compress
    >>> X = np.random.default_rng(0).standard_normal((50, 8))
    >>> spec = expunge.Spec(dim=8, outputs=1)
    >>> batch = Batch.of(spec, X, X[:, 0])
    >>> message = compress(batch, "truncated", rank=4)
    >>> message.rank, message.count
    (4, 50)
    >>> message.error.below < 1e-4 < message.error.above
    True
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
    """The largest error of a message with which one update keeps the head within `deviation`.

    Parameters
    ----------
    deviation : float
        How far the head may move from the exact one; positive.
    gamma : float
        The ridge penalty; positive.
    norm : float
        The norm of the current weights, spectral or Frobenius as is that of the deviation;
        positive.
    sign : int, default 1
        1 for an addition, whose error must lie between 0 and the result; -1 for a deletion.

    Returns
    -------
    float
        To be given to `rank_for` as `wanted`.

    Raises
    ------
    InputError
        If deviation, gamma or norm is not positive and finite.

    Notes
    -----
    With an error eps, one addition to an exact ledger moves the head by at most
    eps / sqrt(gamma (gamma + eps)) * norm, and a deletion by eps / gamma * norm. The head after the
    update has a norm of its own, so this is a choice made beforehand; `ApproximateLedger.head` says
    what holds.

    Examples
    --------
    >>> from expunge.approximate import allowed_error
    >>> allowed_error(deviation=0.5, gamma=10.0, norm=2.0, sign=-1)
    2.5
    >>> allowed_error(deviation=0.5, gamma=10.0, norm=2.0) > 2.5
    True
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
    """The message of the smallest rank whose proven error is at most `wanted`.

    Parameters
    ----------
    batch : Batch
        The samples that are added or deleted.
    method : str
        As for `compress`.
    wanted : float
        The largest norm of the error; positive. `allowed_error` gives one for a wanted head.
    seed : int, default 0
        As for `compress`.
    precision : {"float32", "float64"}, default "float32"
        As for `compress`.

    Returns
    -------
    ApproximateMessage
        With `error.norm` at most `wanted`.

    Raises
    ------
    InputError
        If no rank will do, `wanted` is not positive and finite, or another argument is wrong.
    PlatformError
        If this machine's BLAS is not exact on small integers.

    Notes
    -----
    The rank is found by bisection, so it is the smallest where more rows never make a method worse:
    for truncation (up to the hundredth part by which proofs are loose), and in practice for all
    methods but the random projections.

    Examples
    --------
    >>> import numpy as np
    >>> import expunge
    >>> from expunge.approximate import Batch, rank_for
    >>> X = np.random.default_rng(0).standard_normal((50, 8)) * [8, 4, 2, 1, 1, 1, 1, 1]
    >>> spec = expunge.Spec(dim=8, outputs=1, intercept=False)
    >>> batch = Batch.of(spec, X, X[:, 0])
    >>> message = rank_for(batch, "truncated", wanted=100.0)
    >>> message.rank, message.error.norm <= 100.0
    (3, True)
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
