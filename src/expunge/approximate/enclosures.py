"""Proofs in float64 about eigenvalues of symmetric matrices: an estimate is made by any means, and
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

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas as _blas
from scipy.linalg import lapack

from expunge.approximate.bounds import ROUNDED, Interval
from expunge.exact import blas

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
    """The lower Cholesky factor, column-major, of sign * A + shift * I; None if the factorisation
    breaks down.
    """
    shifted = upper.copy() if sign > 0 else np.negative(upper)
    shifted.flat[:: len(upper) + 1] += shift
    lower, info = lapack.dpotrf(shifted.T, lower=1, clean=0, overwrite_a=1)
    return None if info != 0 else np.asarray(lower)


def guard(upper: Float, shift: float) -> float:
    """How far below 0 an eigenvalue of A + shift I (or -A + shift I) may lie if its factorisation
    runs to its end.
    """
    width = len(upper)
    trace = float(np.abs(upper.diagonal()).sum()) + width * abs(shift)
    return (width + 8) * UNIT * trace * 1.25 * ROUNDED + UNDERFLOW


def frobenius(upper: Float) -> float:
    """At least the Frobenius norm of the symmetric matrix; what stands below the diagonal is not
    read.
    """
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
        lambda vector: np.asarray(lapack.dpotrs(lower, vector, lower=1)[0]),
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
    """What to try to prove, one after another: near the estimate, or near what rounding explains;
    then coarser and coarser.
    """
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
        values = lapack.dsyevd(upper.T, compute_v=0, lower=1)[0]
        return float(values[0]), float(values[-1])
    return _ritz(
        lambda vector: np.asarray(_blas.dsymv(1.0, upper.T, vector, lower=1)), width, _STEPS
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
        known = basis[: step + 1]
        for _ in range(2):  # twice is enough to stay orthogonal
            image = image - _blas.dgemv(1.0, known.T, _blas.dgemv(1.0, known.T, image, trans=1))
        length = blas.norm(image)
        if not length > 2.0**-40 * max(map(abs, diagonal)):
            break
        beside.append(length)
        vector = image / length
    small = np.diag(diagonal) + np.diag(beside[: len(diagonal) - 1], 1)
    values = lapack.dsyevd(small.T, compute_v=0, lower=1)[0]
    return float(values[0]), float(values[-1])
