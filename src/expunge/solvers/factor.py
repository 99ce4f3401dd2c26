"""A Cholesky factor of H, what it proves, and whether rows can be deleted.

`CholeskyFactor` is a float64 factor, used as a preconditioner; `Proof` says that H is positive
definite. Both are caches: they are made from the float64 copy of S, and nothing published depends
on their rounding errors.

`downdate` is the downdate lemma with its rounding errors bounded: H - U'U is positive definite
exactly if M = I - U H^-1 U' is; and then ||(H - U'U)^-1|| <= ||H^-1|| + ||H^-1 U'||^2 /
lambda_min(M), so a proven bound on the smallest eigenvalue is carried from one deletion to the next
without a factorisation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from expunge.errors import NotAGramError
from expunge.exact import blas
from expunge.exact.blas import scipy_blas, scipy_lapack
from expunge.ridge.spec import Spec
from expunge.solvers.chain import RankOneChain
from expunge.solvers.refinement import Propose
from expunge.solvers.system import UNIT, RidgeSystem

Float = NDArray[np.float64]

_RUNGS = (0.875, 0.5, 0.125)  # of gamma: what a proof tries to show of the smallest eigenvalue
_LEAST = 2.0**-4  # of gamma: what must be left of it
_ITERATIONS = 20
_SMALL_WIDTH = 128  # up to here dpotri would wake threads for nothing


class FloatCopy(Protocol):
    """A system with a float64 copy of S, and what that is off by at most."""

    spec: Spec
    gram_error: float
    gamma: float

    @property
    def diagonal(self) -> Float:
        """That of S."""

    def shifted(self, shift: float) -> Float:
        """The upper triangle of S + shift * I, row-major, in memory of its own."""


class CholeskyFactor:
    """L with L L' close to H, and the rows added and deleted since; `solve` applies the inverse."""

    def __init__(self, system: FloatCopy) -> None:
        self._factor = _cholesky(system, system.gamma)
        self._chain = RankOneChain(system.spec.width)

    @property
    def followed(self) -> int:
        """How many rows were followed since the factor was made."""
        return self._chain.count

    def follow(self, rows: Float, sign: int, solved: Float | None = None) -> bool:
        """Bring the inverse along with rows that were added (sign 1) or deleted (sign -1); false if
        it is not of use any more.

        For a single row H^-1 u may be given, if it is known better.
        """
        return all(
            self._chain.follow(
                row, sign, self.solve(row[:, None])[:, 0] if solved is None else solved
            )
            for row in rows
        )

    def resume(self, earlier: CholeskyFactor, first: int) -> None:
        """Follow the rows that an earlier factor has followed, from its row number `first` on; none
        was followed yet.
        """
        self._chain.resume(earlier._chain, first)

    def solve(self, right: Float) -> Float:
        """An approximation of H^-1 @ right."""
        result = self._solved(right)
        self._chain.correct(result, right)
        return result

    def _solved(self, right: Float) -> Float:
        """(L L')^-1 @ right; LAPACK is slow for a single column."""
        if right.shape[1] == 1:
            half = scipy_blas.dtrsv(self._factor, right[:, 0], lower=1)
            single: Float = scipy_blas.dtrsv(self._factor, half, lower=1, trans=1)
            return single[:, None]
        solution, _ = scipy_lapack.dpotrs(self._factor, right, lower=1)
        return np.ascontiguousarray(solution)

    def inverse(self) -> Float:
        """The upper triangle of an approximation of H^-1, row-major; the factor itself is used
        up.
        """
        width = len(self._factor)
        if width <= _SMALL_WIDTH:
            half = np.ascontiguousarray(
                scipy_lapack.dtrtrs(self._factor, np.eye(width), lower=1)[0]
            )
            return blas.multiply_transposed(half, half)
        inverse: Float = scipy_lapack.dpotri(self._factor, lower=1, overwrite_c=1)[0].T
        return inverse


def _cholesky(system: FloatCopy, shift: float) -> Float:
    """The lower Cholesky factor, column-major, of S + shift * I."""
    shifted = system.shifted(shift)
    info = blas.factor_in_place(shifted)
    if info != 0:
        raise NotAGramError(
            f"S + gamma I is not positive definite (its leading minor of order {info} is not "
            "positive), so these are not the "
            "statistics of any set of samples: something was deleted that had not been added"
        )
    return shifted.T


@dataclass(frozen=True)
class Proof:
    """How far float64 can prove that H is positive definite, by the exact trace and the error of
    the float copy of S.

    If the Cholesky factorisation of A - guard I succeeds with guard >= (width + 3) * 2^-53 *
    trace(A), then A is positive definite. With A = fl(S) + (gamma - floor) I this shows
    lambda_min(H) >= floor - lost.

    The lowest rung decides what is accepted at all, and so that this does not depend on the path,
    proofs are made from a float copy that is fresh; `accepted` says how much of a bound found
    otherwise makes sure that a proof would succeed as well.
    """

    gamma: float
    guard: float
    lost: float

    @classmethod
    def of(cls, system: FloatCopy) -> Proof:
        """The proof that this system's float copy allows."""
        width = system.spec.width
        trace = float(np.abs(system.diagonal).sum()) + width * system.gamma
        return cls(
            system.gamma, (width + 8) * UNIT * trace * 1.25, system.gram_error + 4 * UNIT * trace
        )

    @classmethod
    def by_trace(cls, spec: Spec, trace: float) -> Proof:
        """No better than the proof that a fresh float copy allows, for H with this trace.

        The Frobenius norm of a positive definite H is at most its trace, and its float copy is off
        by less than 2^-49 of that.
        """
        trace *= 1 + 2.0**-20
        return cls(spec.gamma, (spec.width + 8) * UNIT * trace * 1.25, 2.0**-48 * trace)

    @property
    def rungs(self) -> list[float]:
        """What a proof may try to show, the best first."""
        tried = [share * self.gamma for share in _RUNGS]
        return [rung for rung in tried if rung - self.lost >= _LEAST * self.gamma]

    @property
    def accepted(self) -> float:
        """A lower bound on the smallest eigenvalue that makes a proof unnecessary."""
        return self.rungs[-1] + self.guard + self.lost + _LEAST * self.gamma


def proven_floor(system: RidgeSystem) -> float:
    """A proven lower bound on the smallest eigenvalue of H; refuses an S for which there is none.

    Every Gram has one, under the conditioning rule. The system must be fresh.
    """
    proof = Proof.of(system)
    for rung in proof.rungs:
        try:
            _cholesky(system, system.gamma - rung - proof.guard)
        except NotAGramError:
            continue
        return (rung - proof.lost) * (1 - 2.0**-20)
    raise NotAGramError(
        "S + gamma I is not safely positive definite; something was deleted that had not been added"
    )


_SHARES = (0.95, 0.8, 0.5)  # of an estimate of the smallest eigenvalue that are tried to be proven


def raised_floor(system: FloatCopy, propose: Propose, floor: float) -> float:
    """A proven lower bound on the smallest eigenvalue of H that is at least `floor`, and close to
    that eigenvalue if it is much larger. The system must be fresh.

    It tightens the bound on heads. What is accepted does not depend on it.
    """
    column = np.ones((system.spec.width, 1))
    for _ in range(_ITERATIONS):  # inverse iteration: an estimate, which may be wrong
        column = propose(column)
        column /= blas.norm(column) or 1.0
    estimate = 1.0 / (float(np.multiply(column, propose(column)).sum()) or math.inf)
    proof = Proof.of(system)
    for share in _SHARES:
        wanted = share * estimate
        if not wanted - proof.lost > 2.0 * floor:
            return floor
        try:
            _cholesky(system, system.gamma - wanted - proof.guard)
        except NotAGramError:
            continue
        return (wanted - proof.lost) * (1 - 2.0**-20)
    return floor


_NO_PIVOT = 2.0**-48  # of the largest: what is left of a matrix is then its rounding errors


def low_rank(upper: Float, rank: int) -> tuple[Float, float]:
    """At most `rank` rows V for a symmetric A, by a Cholesky factorisation with pivots, and a bound
    on the Frobenius norm of A - V'V. The upper triangle of A is used up.

    A may be any matrix, and V any rows: the bound is computed from the difference, whose entries
    are off by at most (rank + 3) 2^-53 (|A_ij| + (|V|'|V|)_ij).
    """
    diagonal = upper.diagonal().copy()
    least = _NO_PIVOT * float(np.abs(diagonal).max())
    rows = np.zeros((rank, len(upper)))
    count = 0
    while count < rank:
        pivot = int(diagonal.argmax())
        if not diagonal[pivot] > least:
            break
        column = np.concatenate([upper[:pivot, pivot], upper[pivot, pivot:]])
        if count:
            part = np.ascontiguousarray(rows[:count, pivot])
            column -= blas.multiply(part[None], rows[:count])[0]
        rows[count] = column / math.sqrt(diagonal[pivot])
        diagonal -= np.square(rows[count])
        diagonal[pivot] = 0.0
        count += 1
    rows = rows[:count]
    size = math.sqrt(2.0) * blas.norm(blas.packed_from_upper(upper))
    if count:
        blas.add_gram(rows, upper, -1.0)
    left = math.sqrt(2.0) * blas.norm(blas.packed_from_upper(upper))
    rounding = (rank + 3) * UNIT * (size + float(np.square(rows).sum()))
    return rows, (left + rounding) * (1 + 2.0**-20)


class Downdate(Enum):
    """What can be said of a deletion that has no carried bound."""

    IMPOSSIBLE = "proved impossible"
    UNDECIDED = "a factorisation must decide"


def downdate(
    system: RidgeSystem, precondition: Propose, floor: float, rows: Float, least: float
) -> float | Downdate:
    """A proven lower bound on the smallest eigenvalue of H - rows.T @ rows, given one (`floor`) for
    H.

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
    error = (
        size * missed / floor
        + (system.spec.width + len(rows) + 8) * UNIT * (1.0 + size * length) * 4.0
    )
    pivot = blas.smallest_eigenvalue((small + small.T) / 2.0)
    if pivot + 2.0 * error < 0.0:
        return Downdate.IMPOSSIBLE
    if pivot - 2.0 * error <= 0.0:
        return Downdate.UNDECIDED
    carried = (
        1.0
        / (1.0 / floor + (length + missed / floor) ** 2 / (pivot - 2.0 * error))
        * (1 - 2.0**-20)
    )
    return carried if carried >= least else Downdate.UNDECIDED
