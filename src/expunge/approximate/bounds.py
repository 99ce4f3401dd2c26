"""Bounds on an approximate head, from what is known of the error of its Gram.

An `Interval` is how far a symmetric matrix may lie from another, as a pair of proven bounds.

Notation: H_ap = S_ap + gamma I is what the ledger holds, H_ex = S + gamma I with S the true Gram, E
= H_ex - H_ap with -b I <= E <= a I; T is the inverse of H. Let m > 0 with H_ap >= m I (proven), and
mu = max(gamma, m - b), so that H_ex >= mu I.

Theorem (the paper's, for the whole stream at once). If ||E|| < m, then ||T_ex - T_ap|| <= ||E|| /
(m (m - ||E||)): its premise ||T_ap E|| < 1 follows from ||E|| < m. Both additions and deletions are
in E, with their signs.

Theorem (inverse). T_ap - T_ex <= a / (m (m + a)) I and T_ex - T_ap <= min(b / (m (m - b)), 1 /
gamma) I, the former of the two only if b < m. Proof: H_ap - b I <= H_ex <= H_ap + a I, inversion
reverses the order, and x -> 1/x - 1/(x + a) falls.

Theorem (weights). For any W, with N = G_ex - G_ap + (G_ap - H_ap W) and W_ex = T_ex G_ex, in any
unitarily invariant norm:
W_ex - W = T_ex (N - E W), hence
  (1) ||W_ex - W|| <= (||N|| + max(a, b) ||W||) / mu, and
  (2) if b < m: ||W_ex - W|| <= (||N|| + b ||W||) / mu + (a + b) ||W|| / sqrt(mu (m + a)).
Proof of (2): E = P - b I with 0 <= P <= (a + b) I, and H_ex >= (m - b) I + P. So
||T_ex^(1/2) P^(1/2)||^2 = ||P^(1/2) T_ex P^(1/2)|| <= (a + b) / (m + a), and
T_ex P W = T_ex^(1/2) (T_ex^(1/2) P^(1/2)) P^(1/2) W. For additions alone b is
about 0, and (2) grows with the square root of a / m where (1) grows with a / m.

Proofs in float64 about eigenvalues of symmetric matrices: an estimate is made by any means, and
then proven by Cholesky.

Theorem (Rump 2006, after Demmel). If the float64 Cholesky factorisation of a symmetric matrix A of
order d runs to its end, in any order of summation, then lambda_min(A) >= -guard with guard = (d +
1) u / (1 - 2 (d + 1) u) * trace(A), u = 2^-53. We use (d + 8) u * 1.25 * trace(A), which also
covers the rounding of the diagonal when a shift is added to it and divisions that are made as
products with a reciprocal, and a constant for underflow. Only the upper triangle of a matrix is
read. It must be finite: a factorisation may run through NaN to its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from expunge.errors import InputError
from expunge.exact import blas
from expunge.exact.blas import scipy_blas, scipy_lapack

ROUNDED = (
    1 + 2.0**-40
)  # more than a formula of a few float64 operations on positive numbers can lose


@dataclass(frozen=True)
class Interval:
    """How far a symmetric matrix E may lie from zero: -below I <= E <= above I.

    Intervals of E and of E' give one of E + E' by `+`, and one of -E by `-`, rounded outwards.

    Parameters
    ----------
    below : float, default 0.0
        Finite and not negative.
    above : float, default 0.0
        Finite and not negative.

    Raises
    ------
    InputError
        If a bound is negative, infinite or NaN.

    Examples
    --------
    >>> from expunge.approximate import Interval
    >>> error = Interval(below=0.25, above=2.0)
    >>> error.norm
    2.0
    >>> -error
    Interval(below=2.0, above=0.25)
    >>> 2.25 <= (error + -error).above < 2.26
    True
    """

    below: float = 0.0
    above: float = 0.0

    def __post_init__(self) -> None:
        for name in ("below", "above"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise InputError(
                    f"a bound on the error of a Gram is finite and not negative, but {name} is "
                    f"{value}"
                )

    @property
    def norm(self) -> float:
        """A bound on the spectral norm of E: the larger of the two."""
        return max(self.below, self.above)

    def __add__(self, other: Interval) -> Interval:
        return Interval((self.below + other.below) * ROUNDED, (self.above + other.above) * ROUNDED)

    def __neg__(self) -> Interval:
        return Interval(self.above, self.below)

    def widened(self, by: float) -> Interval:
        """The interval of E plus anything whose spectral norm is at most `by`.

        Parameters
        ----------
        by : float
            Finite and not negative.

        Returns
        -------
        Interval
            Rounded outwards.

        Raises
        ------
        InputError
            If `by` is negative, infinite or NaN.
        """
        return self + Interval(by, by)


@dataclass(frozen=True)
class Bounds:
    """How far an approximate head is, at most, from the exact one.

    H_ap = S_ap + gamma I is what the ledger holds and H_ex what is true, T are their inverses, and
    W are the weights. The paper's bounds are infinite where their premise cannot be shown; the
    others are always finite.

    Attributes
    ----------
    error : Interval
        The interval of S - S_ap.
    floor : float
        A proven lower bound on the smallest eigenvalue of H_ap.
    paper_inverse : float
        The paper's bound on the spectral norm of T_ex - T_ap.
    paper_spectral : float
        The bound on the spectral norm of W_ex - W_ap that follows from it.
    inverse : float
        A bound on the spectral norm of T_ex - T_ap.
    spectral : float
        A bound on the spectral norm of W_ex - W_ap, rounding included.
    frobenius : float
        A bound on the Frobenius norm of W_ex - W_ap, rounding included.

    Notes
    -----
    The theorems and their proofs are at the top of the module expunge.approximate.bounds. All of
    them rest on what clients claim of their own messages.

    Examples
    --------
    >>> import expunge
    >>> from expunge.approximate import ApproximateLedger, Batch, compress
    >>> spec = expunge.Spec(dim=1, outputs=1)
    >>> ledger = ApproximateLedger(spec)
    >>> ledger.add(compress(Batch.of(spec, [[1.0], [2.0]], [3.0, 5.0]), "truncated", rank=2))
    >>> bounds = ledger.head().bounds
    >>> 0.0 < bounds.frobenius < 1e-3
    True
    """

    error: Interval
    floor: float
    paper_inverse: float
    paper_spectral: float
    inverse: float
    spectral: float
    frobenius: float


@dataclass(frozen=True)
class Norms:
    """A head in one norm: of its weights, of the moment, and bounds on the rest of the system and
    on the moment's error.
    """

    weights: float
    moment: float
    rest: float
    moment_error: float


def paper_inverse(error: Interval, floor: float) -> float:
    """The theorem of the paper, with ||E|| and ||T_ap|| replaced by their bounds."""
    return math.inf if error.norm >= floor else error.norm / (floor - error.norm) / floor * ROUNDED


def inverse_bound(error: Interval, floor: float, gamma: float) -> float:
    """The bound on ||T_ex - T_ap||_2 of this module's theorem."""
    down = error.above / (floor + error.above) / floor  # in this order nothing overflows
    up = error.below / (floor - error.below) / floor if error.below < floor else math.inf
    return max(down, min(up, 1.0 / gamma)) * ROUNDED


def weights_bound(error: Interval, floor: float, gamma: float, norms: Norms) -> float:
    """The smallest of the bounds on ||W_ex - W||: (1), (2), and that by way of the inverse."""
    least = max(gamma, floor - error.below) / ROUNDED
    noise = (norms.rest + norms.moment_error) / least
    candidates = [
        noise + error.norm * norms.weights / least,
        through_inverse(inverse_bound(error, floor, gamma), error, floor, gamma, norms),
    ]
    if error.below < floor:
        reach = (
            (error.below + error.above)
            * norms.weights
            / (math.sqrt(least) * math.sqrt(floor + error.above))
        )
        candidates.append(noise + error.below * norms.weights / least + reach)
    return min(candidates) * ROUNDED


def through_inverse(
    inverse: float, error: Interval, floor: float, gamma: float, norms: Norms
) -> float:
    """||W_ex - W|| <= ||T_ex - T_ap|| ||G|| + ||T_ex|| ||G_ex - G|| + ||T_ap|| ||G - H_ap W||."""
    least = max(gamma, floor - error.below) / ROUNDED
    return (inverse * norms.moment + norms.moment_error / least + norms.rest / floor) * ROUNDED


Float = NDArray[np.float64]

UNIT = 2.0**-53
UNDERFLOW = (
    2.0**-500
    # Absolute: more than all underflows of one factorisation, or of the squares of one matrix, can
    # hide
)
_STEPS = 48  # of Lanczos' iteration
_INVERSE_STEPS = 16  # the same with the inverse, whose largest eigenvalues lie further apart
_BLOCK = 256  # rows that are looked at together
_SMALL = 64  # up to this order all eigenvalues are computed
_RUNGS = (
    2.0**-8,
    2.0**-5,
    2.0**-2,
    1.0,
)  # by how much an estimate is raised before each attempt at its proof
_SHARES = (
    2.0**-16,
    2.0**-12,
    2.0**-8,
    2.0**-4,
)  # of the Frobenius norm, where an estimate was no good
_FLOORS = (
    1 - 2.0**-14,
    1 - 2.0**-7,
    0.875,
    0.5,
    0.125,
    2.0**-6,
    2.0**-10,
)  # of an estimated smallest eigenvalue: what is to be proven


def factor(upper: Float, shift: float, sign: int = 1) -> Float | None:
    """The lower Cholesky factor, column-major, of sign * A + shift * I; None if there is none."""
    shifted = upper.copy() if sign > 0 else np.negative(upper)
    shifted.flat[:: len(upper) + 1] += shift
    lower, info = scipy_lapack.dpotrf(shifted.T, lower=1, clean=0, overwrite_a=1)
    return None if info != 0 else np.asarray(lower)


def guard(upper: Float, shift: float) -> float:
    """How far below 0 an eigenvalue of A + shift I (or -A + shift I) may lie if its factorisation
    runs to its end.
    """
    width = len(upper)
    trace = float(np.abs(upper.diagonal()).sum()) + width * abs(shift)
    return (width + 8) * UNIT * trace * 1.25 * ROUNDED + UNDERFLOW


def frobenius(upper: Float) -> float:
    """At least the Frobenius norm of the symmetric matrix; nothing below the diagonal is read."""
    squares = 0.0
    for start in range(0, len(upper), _BLOCK):
        squares += 2.0 * float(np.square(np.triu(upper[start : start + _BLOCK, start:])).sum())
    return float(np.sqrt(squares)) * ROUNDED + UNDERFLOW


def enclosure(upper: Float, hint: float) -> Interval:
    """-below I <= A <= above I, proven; tight to about one part in a hundred, or to the size of
    rounding errors.

    `hint` is how large an eigenvalue may be that comes from rounding: it says what is worth trying
    to prove, and nothing more.
    """
    low, high = _estimates(upper)
    return Interval(_proven_above(upper, -low, hint, -1), _proven_above(upper, high, hint, 1))


def residual_enclosure(rows: Float, approximation: Float, hint: float) -> Interval:
    """The interval of E = rows' rows - approximation' approximation, with every rounding error of
    finding it inside.

    Theorem. Let M be E as dsyrk computes it, in any order of summation. Then |E - M| <= (n + r + 1)
    u / (1 - ...) * (|F|'|F| + |U|'|U|) entry by entry, so ||E - M||_2 <= (n + r + 2) u (||F||_F^2 +
    ||U||_F^2) * 1.25. An interval of M, widened by that much, is one of E. Nothing is assumed of
    how the approximation was found or rounded.
    """
    blas.require_exact()  # no plain BLAS, no theorem
    width = rows.shape[1]
    upper = np.zeros((width, width))
    blas.add_gram(np.ascontiguousarray(rows), upper)
    blas.add_gram(np.ascontiguousarray(approximation), upper, -1.0)
    squares = float(np.square(rows).sum()) + float(np.square(approximation).sum())
    rounding = (len(rows) + len(approximation) + 2) * UNIT * squares * 1.25 + UNDERFLOW
    return enclosure(upper, hint).widened(rounding)


def floor(upper: Float, shift: float, lower: Float | None = None) -> float:
    """A proven lower bound on the smallest eigenvalue of H = A + shift I, whose computed Cholesky
    factor may be given.

    It is 0 where float64 can prove none. The estimate comes from a few steps of Lanczos on the
    inverse.
    """
    lower = factor(upper, shift) if lower is None else lower
    if lower is None:
        return 0.0
    _, largest = _ritz(
        lambda vector: np.asarray(scipy_lapack.dpotrs(lower, vector, lower=1)[0]),
        len(upper),
        _INVERSE_STEPS,
    )
    value = 1.0 / largest if largest > 0.0 else 0.0
    for share in _FLOORS:
        claimed = share * value
        lost = guard(upper, shift - claimed)
        if claimed > 2.0 * lost and factor(upper, shift - claimed) is not None:
            return (claimed - lost) / ROUNDED
    return 0.0


def spectral(array: Float) -> float:
    """At least the spectral norm of an array, from the Gram of its columns."""
    if not array.any():
        return 0.0
    gram = blas.multiply_transposed(np.ascontiguousarray(array), np.ascontiguousarray(array))
    rounding = (len(array) + 2) * UNIT * float(gram.diagonal().sum()) * 1.25 + UNDERFLOW
    return math.sqrt(_proven_above(gram, _estimates(gram)[1], 0.0, 1) + rounding) * ROUNDED


def _proven_above(upper: Float, estimate: float, hint: float, sign: int) -> float:
    """h with sign * A <= h I, proven; the Frobenius norm, which needs no proof, where nothing
    better succeeds.
    """
    most = frobenius(upper)
    for aim in _aims(max(estimate, 0.0), hint, most):
        claimed = aim + 2.0 * guard(upper, aim)
        lost = guard(upper, claimed)
        if claimed + lost < most and factor(upper, claimed, -sign) is not None:
            return (claimed + lost) * ROUNDED
    return most


def _aims(estimate: float, hint: float, most: float) -> Iterator[float]:
    """What to try to prove in turn: near the estimate or what rounding explains, then coarser."""
    if estimate <= hint:
        yield estimate + hint / 16.0
        yield estimate + hint
    yield from (estimate * (1.0 + rung) + hint for rung in _RUNGS)
    yield from (most * share for share in _SHARES)


def _start(width: int) -> Float:
    """A fixed vector of length 1 with no pattern: estimates need a start, and proofs draw
    nothing at random.
    """
    vector = np.sin(np.arange(1, width + 1, dtype=np.float64) ** 2)
    return np.asarray(vector / blas.norm(vector))


def _estimates(upper: Float) -> tuple[float, float]:
    """About the smallest and the largest eigenvalue: nothing that is claimed rests on them."""
    width = len(upper)
    if width <= _SMALL:
        values = scipy_lapack.dsyevd(upper.T, compute_v=0, lower=1)[0]
        return float(values[0]), float(values[-1])
    return _ritz(
        lambda vector: np.asarray(scipy_blas.dsymv(1.0, upper.T, vector, lower=1)), width, _STEPS
    )


def _ritz(apply: Callable[[Float], Float], width: int, steps: int) -> tuple[float, float]:
    """The outermost eigenvalues of a symmetric operator as Lanczos' iteration sees them after some
    steps.
    """
    basis = np.zeros((min(steps, width), width))
    diagonal: list[float] = []
    beside: list[float] = []
    vector = _start(width)
    for step in range(len(basis)):
        basis[step] = vector
        image = apply(vector)
        diagonal.append(float(np.multiply(image, vector).sum()))
        vectors = basis[: step + 1]
        for _ in range(2):  # twice is enough to stay orthogonal
            image = image - scipy_blas.dgemv(
                1.0, vectors.T, scipy_blas.dgemv(1.0, vectors.T, image, trans=1)
            )
        length = blas.norm(image)
        if not length > 2.0**-40 * max(map(abs, diagonal)):
            break
        beside.append(length)
        vector = image / length
    small = np.diag(diagonal) + np.diag(beside[: len(diagonal) - 1], 1)
    values = scipy_lapack.dsyevd(small.T, compute_v=0, lower=1)[0]
    return float(values[0]), float(values[-1])
