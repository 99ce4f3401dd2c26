"""TrackedHead: weights in fixed point, moved by a rank-one step for each changed row, with a proven
bound on their residual in the place of the residual itself.

Let u be the row, v its target and s its sign (1 added, -1 deleted); R = G - H W. For any z with
r = u - H z, any coefficients a and W' = W + z a' + e (e: rounding),

    R' = R + u (s (v - u'W) - (1 + s u'z) a)' + r a' - H' e,

so one solved column z does for all columns of the head, and a bound on each column of R grows by
what is known of r, e and of how well a solves its equation. The weights are rounded as soon as that
bound, over the smallest eigenvalue of H, decides them all. The same z says whether a deletion is
possible, and what is left of the bound on that eigenvalue (the downdate lemma).

All of it is a cache: where a bound does not decide, the exact refinement does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from expunge.exact import blas, wide
from expunge.exact.gram import Digits
from expunge.exact.grid import DIGIT_BITS
from expunge.solvers.factor import Downdate
from expunge.solvers.refinement import Propose
from expunge.solvers.system import UNIT
from expunge.solvers.truncated import SolvedColumn, TruncatedSystem

Float = NDArray[np.float64]
Int64 = NDArray[np.int64]

_UP = 1 + 2.0**-20  # more than what computed norms and sums of few bounds are off by
_FRACTION_BITS = 60  # of a weight below the publication grid
_LOW_BITS = 36  # of a coefficient; with 41 more its products with digits fit 64 bits
_HIGH_BITS = 41
_MOST_WEIGHT_BITS = 53  # of a published weight: exact in float64
_LITTLE_RISK = 2.0**-12  # of an undecided weight, after a refresh
_MOST_STEPS = 12


@dataclass(frozen=True)
class Mark:
    """A tracked head as it was, to go back to."""

    whole: Int64
    fraction: Int64
    bounds: Float
    grown: Float
    rows: int

    def weights(self) -> wide.Wide:
        """W in the units of its fraction."""
        weights = wide.zeros(self.whole.shape, 2)
        wide.add_shifted(weights, self.whole, _FRACTION_BITS)
        wide.add_shifted(weights, self.fraction, 0)
        return weights


class TrackedHead:
    """W = (whole + fraction * 2^-60) * 2^-publication_bits, and `bounds` on the columns' residuals.

    Law: the norm of column j of G - H W is at most bounds[j], for the sums after all moves.
    """

    def __init__(
        self, system: TruncatedSystem, whole: Int64, fraction: Int64, bounds: Float
    ) -> None:
        self.system = system
        self._whole, self._fraction, self._bounds = whole, fraction, bounds
        self._grown = np.zeros_like(bounds)  # at least what moves since `watch` added to residuals
        self.bits = system.spec.publication_bits + _FRACTION_BITS
        self._digits = np.empty((0, 0))  # of the weights, for the next product
        self._digit_bits = 53 - (DIGIT_BITS - 1) - int(system.spec.width - 1).bit_length() + 1
        self._settle()

    @classmethod
    def of(cls, system: TruncatedSystem, integers: Int64) -> TrackedHead | None:
        """Begin with published weights, of which nothing is known before a refresh; None if the
        grids are too far apart.
        """
        spec = system.spec
        bits = spec.publication_bits + _FRACTION_BITS
        if spec.label_grid.fraction_bits - spec.grid.fraction_bits > bits:
            return None
        unknown = np.full(spec.columns, np.inf)
        return cls(system, integers.copy(), np.zeros_like(integers), unknown)

    def refreshed(self, moment: wide.Wide, propose: Propose, floor: float) -> bool:
        """Whether the bounds are tight, after steps of refinement for all columns; to be called
        while the system has no rows since its base, of which `moment` is the right-hand side.
        """
        before = math.inf
        for _ in range(_MOST_STEPS):
            weights, enough = self.mark().weights(), self.tolerable(floor)
            residual, errors = self.system.remainder(moment, weights, self.bits, enough)
            self._bounds = (blas.column_norms(residual) + errors) * _UP
            if self.risk(floor) > _LITTLE_RISK:
                self._correct(propose(residual), residual, errors)
            if self.risk(floor) <= _LITTLE_RISK:
                return True
            if not float(self._bounds.max()) <= 0.5 * before:
                return False
            before = float(self._bounds.max())
        return False

    def _correct(self, correction: Float, residual: Float, errors: Float) -> None:
        """W += correction, if it fits: the bounds are on what that leaves."""
        step = np.rint(np.ldexp(correction, self.bits))
        if not float(np.abs(step).max()) < 2.0**62:
            return
        exact = np.ldexp(step, -self.bits)
        product = self.system.times(exact)
        off = self.system.times_error() * blas.column_norms(exact) * _UP
        off += 8 * UNIT * (blas.column_norms(residual) + blas.column_norms(product))
        self._bounds = (blas.column_norms(residual - product) + errors + off) * _UP
        self._add(step.astype(np.int64), self.bits)
        self._settle()

    def risk(self, floor: float) -> float:
        """About how likely it is that some weight is undecided."""
        return self._risk(self._bounds, floor)

    def _risk(self, bounds: Float, floor: float) -> float:
        spread = np.ldexp(bounds, self.system.spec.publication_bits + 1).sum() / floor
        return float(spread) * self.system.spec.width

    def tolerable(self, floor: float) -> float:
        """An error of the residual that adds no more than little to the risk."""
        return self._allowed(_LITTLE_RISK / 8.0, floor)

    def _allowed(self, risk: float, floor: float) -> float:
        """An error of each column of the residual that makes for this risk."""
        spec = self.system.spec
        share = risk / (spec.width * spec.columns)
        return share * floor * 2.0 ** -(spec.publication_bits + 1)

    def _tolerable_miss(self, errors: list[int], unit: int, pivot: float, floor: float) -> float:
        """What a solved column may miss, so that a full room of rows adds no more than little to
        the risk: column j of the residual gets its part of it, errors[j] / pivot.
        """
        total = math.ldexp(float(sum(map(abs, errors))), -unit) * self.system.rows.room
        miss = self._allowed(_LITTLE_RISK, floor) * self.system.spec.columns
        return miss * pivot / max(total, 2.0**-900)

    def watch(self) -> Mark:
        """The head as it is now; a residual of it can be used later (`correct_since`)."""
        self._grown = np.zeros_like(self._bounds)
        return self.mark()

    def rebase(self, system: TruncatedSystem) -> None:
        """Go on with a newer base and the rows that are not in it."""
        self.system = system

    def correct_since(
        self, propose: Propose, residual: Float, errors: Float, floor: float
    ) -> float:
        """One step of refinement for all columns, by the residual that the head had when it was
        watched last, to within `errors`: moves since have added at most `grown` to it. Returns the
        risk that is left without them.
        """
        self._correct(propose(residual), residual, (errors + self._grown) * _UP)
        return self._risk(self._bounds - self._grown, floor)

    # -- moving ------------------------------------------------------------------------------------

    def mark(self) -> Mark:
        """The head as it is now."""
        return Mark(
            self._whole.copy(),
            self._fraction.copy(),
            self._bounds,
            self._grown,
            self.system.rows.count,
        )

    def back_to(self, mark: Mark) -> None:
        """Undo what was done since the mark."""
        self._whole, self._fraction = mark.whole, mark.fraction
        self._bounds, self._grown = mark.bounds, mark.grown
        self.system.rows.keep(mark.rows)
        self._settle()

    def move(
        self,
        propose: Propose,
        row: Digits,
        values: Float,
        target: Float,
        *,
        sign: int,
        floor: float,
    ) -> tuple[float, Float] | Downdate:
        """Add or delete one row; the bound on the smallest eigenvalue of H afterwards, and z in
        float64.

        Nothing has changed if a deletion is impossible, or if the bounds here do not tell.
        """
        errors, unit = self._errors(row, values, target)
        first = propose(values[:, None])[:, 0]
        rough = abs(1.0 + sign * float(np.multiply(values, first).sum()))
        enough = self._tolerable_miss(errors, unit, rough, floor)
        column = self.system.solved(propose, row, values, first, bits=self.bits, enough=enough)
        if column is None:
            return Downdate.UNDECIDED
        pivot_bits = column.product_bits
        pivot = (1 << pivot_bits) + sign * column.product
        size = blas.norm(values) * _UP
        after = _floor_after(column, pivot, size, sign, floor)
        if isinstance(after, Downdate):
            return after
        step = self._step(column, pivot, errors, unit, sign)
        if step is None:
            return Downdate.UNDECIDED
        coefficients, coefficient_bits = step
        sizes = np.array([math.ldexp(float(abs(one)), -coefficient_bits) for one in coefficients])
        weight = math.ldexp(float(abs(pivot)), -pivot_bits)
        spec = self.system.spec
        fractions = math.sqrt(spec.width) * 2.0 ** -(spec.publication_bits + self._digit_bits + 1)
        unsolved = (
            (weight + column.product_error) * 2.0 ** (1 - coefficient_bits)
            + column.product_error * sizes
            + (spec.width + 8) * UNIT * size * fractions
            + 2.0 ** -(self.bits + spec.grid.fraction_bits)
        )
        finest = [scale + coefficient_bits for scale in column.scales]
        floors = sum((unit > self.bits) + (unit - _LOW_BITS > self.bits) for unit in finest)
        units = (floors + 2) * math.sqrt(spec.width) * 2.0**-self.bits
        tails = 2.0**-50 * math.ldexp(blas.norm(column.tail), -self.bits) * sizes
        rounding = (self.system.norm + size * size) * (units + tails)
        added = size * unsolved + column.missed * sizes + rounding
        self._bounds = (self._bounds + added) * (1 + 2.0**-50) + 2.0**-1000
        self._grown = (self._grown + added) * (1 + 2.0**-50) + 2.0**-1000
        self._add_outer(column, coefficients, coefficient_bits)
        self.system.rows.append(row, values, sign)
        self._settle()
        return after, column.values

    def _errors(self, row: Digits, values: Float, target: Float) -> tuple[list[int], int]:
        """v - u'W as integers, and how many bits they have below one.

        The product with the last bits of W is made in float64, and off by at most (width + 8) *
        2^-53 times both norms.
        """
        spec, columns = self.system.spec, self.system.spec.columns
        parts = [part[0] for part in row.parts]
        products = blas.multiply(np.stack([*parts, values]), self._digits).tolist()
        count = len(self._digits[0]) // columns - 1
        bits = self.bits + spec.grid.fraction_bits
        found = []
        for j in range(columns):
            whole = sum(
                int(products[index][digit * columns + j])
                << (DIGIT_BITS * index + self._digit_bits * digit)
                for index in range(len(parts))
                for digit in range(count)
            )
            fraction = int(math.ldexp(products[-1][count * columns + j], spec.grid.fraction_bits))
            wanted = int(target[j]) << (bits - spec.label_grid.fraction_bits)  # `of` sees to it
            whole <<= _FRACTION_BITS - self._digit_bits
            found.append(wanted - whole - fraction)
        return found, bits

    def _step(
        self, column: SolvedColumn, pivot: int, errors: list[int], unit: int, sign: int
    ) -> tuple[list[int], int] | None:
        """Coefficients close to sign * errors / pivot, of 77 bits, and how many of these are below
        one; None if the weights would not fit.
        """
        largest = max(map(abs, errors))
        ratio = largest.bit_length() - unit - (abs(pivot).bit_length() - column.product_bits) + 1
        bits = min(_LOW_BITS + _HIGH_BITS - ratio, 2 * self.bits)
        reach = ratio + math.frexp(column.size)[1] + self.system.spec.publication_bits
        if reach > 60 or self._largest > 1 << 60:
            return None
        shift = bits + column.product_bits - unit
        scaled = [one << shift if shift >= 0 else one >> -shift for one in errors]
        return [(2 * sign * one // pivot + 1) >> 1 for one in scaled], bits

    def _add_outer(self, column: SolvedColumn, coefficients: list[int], bits: int) -> None:
        """W += z a', to within a unit of the fraction for the tail, and one for each product that
        is rounded down; and what float64 rounds of the tail's product.
        """
        sizes = np.array([math.ldexp(float(one), -bits) for one in coefficients])
        tails = np.multiply.outer(column.tail, sizes)
        carry = np.rint(np.ldexp(tails, -_FRACTION_BITS))
        self._whole += carry.astype(np.int64)
        self._fraction += (tails - np.ldexp(carry, _FRACTION_BITS)).astype(np.int64)
        low = np.array([one & ((1 << _LOW_BITS) - 1) for one in coefficients], dtype=np.int64)
        high = np.array([one >> _LOW_BITS for one in coefficients], dtype=np.int64)
        for digit, scale in zip(column.digits, column.scales, strict=True):
            integers = digit.astype(np.int64)
            self._add(np.multiply.outer(integers, high), scale + bits - _LOW_BITS)
            self._add(np.multiply.outer(integers, low), scale + bits)

    def _add(self, integers: Int64, unit: int) -> None:
        """W += integers * 2^-unit, rounded down to the units of the fraction."""
        if unit > self.bits:
            integers, unit = integers >> min(unit - self.bits, 63), self.bits
        below = unit - self.system.spec.publication_bits
        if below <= 0:
            self._whole += integers << -below
            return
        self._whole += integers >> below
        self._fraction += (integers & ((1 << below) - 1)) << (_FRACTION_BITS - below)

    def _settle(self) -> None:
        """Carry, so that the whole part is the nearest integer; cut it into digits for the next
        product, with one of the fraction and what is left of that.
        """
        carry = (self._fraction + (1 << (_FRACTION_BITS - 1))) >> _FRACTION_BITS
        self._whole += carry
        self._fraction -= carry << _FRACTION_BITS
        bits, half = self._digit_bits, 1 << (self._digit_bits - 1)
        shift = _FRACTION_BITS - bits
        leading = (self._fraction + (1 << (shift - 1))) >> shift
        rest, parts = self._whole, [leading]
        self._largest = largest = max(int(rest.max()), -int(rest.min()))
        while largest >= half:
            higher = (rest + half) >> bits
            parts.append(rest - (higher << bits))
            rest, largest = higher, (largest + half) >> bits
        stacked = np.concatenate([*parts, rest, self._fraction - (leading << shift)], axis=1)
        self._digits = np.ascontiguousarray(stacked, dtype=np.float64)

    # -- the head ----------------------------------------------------------------------------------

    def rounded(self, floor: float) -> tuple[Int64, float] | None:
        """The published integers, and a bound on the distance of W to the exact solution; None if a
        weight is undecided, or too large to be published.
        """
        bounds = self._bounds / floor * _UP
        if not float(bounds.max()) < 2.0 ** -(self.system.spec.publication_bits + 2):
            return None
        margin = (np.ldexp(bounds, self.bits) + 8.0).astype(np.int64)
        room = (1 << (_FRACTION_BITS - 1)) - margin
        largest = np.maximum(self._fraction.max(axis=0), -self._fraction.min(axis=0))
        if not (largest < room).all():
            return None
        if self._largest > 1 << _MOST_WEIGHT_BITS:
            return None
        return self._whole.copy(), blas.norm(bounds) * _UP


def _floor_after(
    column: SolvedColumn, pivot: int, size: float, sign: int, floor: float
) -> float | Downdate:
    """The bound on the smallest eigenvalue after the row was added or deleted, if it can be."""
    if sign > 0:
        return floor if pivot > 0 else Downdate.UNDECIDED
    value = math.ldexp(float(pivot), -column.product_bits)
    error = (column.product_error + size * column.missed / floor + 2.0**-50 * abs(value)) * _UP
    if value + error < 0.0:
        return Downdate.IMPOSSIBLE
    if value - error <= 0.0:
        return Downdate.UNDECIDED
    reach = (column.size + column.missed / floor) * _UP
    return 1.0 / (1.0 / floor + reach * reach / (value - error)) * (1 - 2.0**-20)
