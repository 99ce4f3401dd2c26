"""TruncatedSystem: H = S + gamma I for one column at a time, to some hundred bits and no more.

A change of one row needs H^-1 u alone. Exact products with all of S would show its residual to the
last bit; a proven bound on it is enough. So the leading bits of S are multiplied exactly, the rest
in float64, and what that is off by is bounded. docs/exactness.md has the proofs.

The base S is frozen when the system is made; rows added and deleted since enter as they are. All of
it is a cache of the sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from expunge.exact import blas, wide
from expunge.exact.gram import Digits
from expunge.exact.grid import DIGIT_BITS
from expunge.exact.symmetric import (
    LeadingBits,
    add_transposed_product,
    packed_times,
    transposed_bits,
)
from expunge.ridge.spec import Spec
from expunge.solvers.refinement import Propose
from expunge.solvers.system import UNIT, Gamma

Float = NDArray[np.float64]

_UP = 1 + 2.0**-20  # more than what computed norms and sums of few bounds are off by
_COLUMN_BITS = 40  # of a solved column, before its tail: then a tail in float64 does the rest
_LEADING_DIGITS = 2  # of what a column makes of rows: they are multiplied exactly
_NO_ROW = Digits([], [])


@dataclass(frozen=True)
class SolvedColumn:
    """z, close to H^-1 u, as integers: the sum of digits[i] * 2^-scales[i], and tail * 2^-bits.

    `size` is at least the norm of z, `missed` at least that of u - H z. u'z is `product` *
    2^-product_bits, to within `product_error`.
    """

    digits: list[Float]
    scales: list[int]
    tail: Float
    bits: int
    values: Float  # z without its tail, in float64
    size: float
    missed: float
    product: int
    product_bits: int
    product_error: float


class RowStack:
    """Rows that were added (sign 1) and deleted (sign -1), with room for so many."""

    def __init__(self, width: int, room: int) -> None:
        self.count = 0
        self.squares = 0.0  # at least the sum of their squared norms
        self.touched = np.zeros(width)  # by feature: the sum of squares
        self.taken = np.zeros(width)  # the same of deleted rows
        self._digits = np.zeros((2, room, width))
        self._values = np.zeros((room, width))
        self._signs = np.zeros(room)

    @property
    def room(self) -> int:
        """How many rows there may be."""
        return len(self._signs)

    @property
    def digits(self) -> Digits:
        """Their integers."""
        low, high = self._digits[:, : self.count]
        return Digits([low, high], [2.0**20, 2.0**20])

    @property
    def values(self) -> Float:
        """The same rows in float64."""
        return self._values[: self.count]

    @property
    def signs(self) -> Float:
        """1 for an added row and -1 for a deleted one."""
        return self._signs[: self.count]

    def append(self, digits: Digits, values: Float, sign: int) -> None:
        """Add or delete one row."""
        place = self.count
        self._digits[0, place] = digits.parts[0][0]
        self._digits[1, place] = digits.parts[1][0] if len(digits.parts) == 2 else 0.0
        self._values[place] = values
        self._signs[place] = sign
        self._count_squares(values, sign)
        self.count = place + 1

    def keep(self, count: int) -> None:
        """Take back all rows but the first."""
        self.count = count
        self.squares, self.touched[:], self.taken[:] = 0.0, 0.0, 0.0
        for values, sign in zip(self.values, self.signs, strict=True):
            self._count_squares(values, int(sign))

    def since(self, count: int) -> RowStack:
        """The same rows without the first ones."""
        later = RowStack(self.touched.shape[0], self.room)
        later.count = self.count - count
        later._digits[:, : later.count] = self._digits[:, count : self.count]
        later._values[: later.count] = self._values[count : self.count]
        later._signs[: later.count] = self._signs[count : self.count]
        later.keep(later.count)
        return later

    def _count_squares(self, values: Float, sign: int) -> None:
        squares = np.square(values)
        self.touched += squares
        if sign < 0:
            self.taken += squares
        self.squares += float(squares.sum()) * _UP


class TruncatedSystem:
    """H = S + gamma I with a frozen S (packed 128-bit upper triangle), and `rows` since then."""

    def __init__(self, spec: Spec, gram: wide.Wide, room: int) -> None:
        self.spec = spec
        self.gamma = spec.gamma
        self._gamma = Gamma(spec)
        self._leading = LeadingBits(gram, spec.width)
        self.packed = wide.to_float(gram, -2 * spec.grid.fraction_bits)  # S in float64
        self._gram_norm = math.sqrt(2.0) * blas.norm(self.packed) * _UP
        self.gram_error = 2.0**-50 * self._gram_norm  # at least what the float copy is off by
        self.rows = RowStack(spec.width, room)

    @property
    def diagonal(self) -> Float:
        """That of S in float64."""
        return self.packed[blas.packed_diagonal(self.spec.width)]

    def shifted(self, shift: float) -> Float:
        """The upper triangle of S + shift * I in float64, row-major, in memory of its own."""
        upper = blas.upper_from_packed(self.spec.width, self.packed)
        upper.flat[:: len(upper) + 1] += shift
        return upper

    @property
    def norm(self) -> float:
        """At least the Frobenius norm of H, with its rows."""
        gamma = self.spec.gamma * math.sqrt(self.spec.width) * _UP
        return (self._gram_norm + self.rows.squares + gamma) * _UP

    def solved(
        self,
        propose: Propose,
        row: Digits,
        values: Float,
        first: Float,
        *,
        bits: int,
        enough: float = 0.0,
    ) -> SolvedColumn | None:
        """H^-1 u for the one row u, by an approximate inverse and what it has made of u `first`,
        with a tail in units of 2^-bits.

        Where it misses more than `enough`, the leading bits of the tail are multiplied exactly,
        too, and it is corrected once more. None if it is beyond what the integers here can hold.
        """
        largest = float(np.abs(first).max())
        if not math.isfinite(largest):
            return None
        digits, scales = _cut(first, largest, self._leading.digit_bits)
        unit, below = self._gamma.unit(scales[-1]), self.spec.grid.fraction_bits
        if min(unit - below, below + scales[-1]) < 0 or max(unit, abs(scales[-1])) > 900:
            return None
        column = sum(
            (np.ldexp(digit, -scale) for digit, scale in zip(digits, scales, strict=True)),
            np.zeros_like(values),
        )
        column_size = blas.norm(column) * _UP
        residual, error = self._residual(row, digits, scales, column, column_size)
        tail = np.rint(np.ldexp(propose(residual[:, None])[:, 0], bits))
        small = np.ldexp(tail, -bits)
        small_size = blas.norm(small) * _UP
        if not math.isfinite(small_size):
            return None
        left, off = self._left(residual, small, enough)
        if blas.norm(left) > enough:
            again = tail + np.rint(np.ldexp(propose(left[:, None])[:, 0], bits))
            moved = np.ldexp(again - tail, -bits)  # to within a rounding of itself
            left, more = self._left(left, moved, enough)
            off += more + 2 * UNIT * self.norm * blas.norm(moved)
            tail, small = again, np.ldexp(again, -bits)
            small_size = blas.norm(small) * _UP
        error += off
        if not math.isfinite(error):
            return None
        exact, exact_bits = _inner(row, digits, scales, self.spec.grid.fraction_bits)
        rough = float(np.multiply(values, small).sum())
        value_size = blas.norm(values) * _UP
        return SolvedColumn(
            digits=digits,
            scales=scales,
            tail=tail,
            bits=bits,
            values=column,
            size=column_size + small_size,
            missed=(blas.norm(left) + error) * _UP,
            product=exact + int(math.ldexp(rough, exact_bits)),
            product_bits=exact_bits,
            product_error=(self._rounding * value_size * small_size + 2.0**-exact_bits) * _UP,
        )

    def remainder(
        self, moment: wide.Wide, weights: wide.Wide, bits: int, enough: float = 0.0
    ) -> tuple[Float, Float]:
        """G - H W in float64 for weights in units of 2^-bits, while there are no rows since the
        base; and bounds on the norms of what its columns are off by. More bits of S are multiplied
        exactly where these would not be `enough`.
        """
        spec, unit, guard = self.spec, self._gamma.unit(bits), self._gamma.guard_bits
        values = wide.to_float(weights, -bits)
        sizes = blas.column_norms(values) * _UP
        moment_bits = spec.grid.fraction_bits + spec.label_grid.fraction_bits
        largest = self.norm * float(sizes.max())
        largest += math.ldexp(1.0, wide.largest_bits(moment) - moment_bits)
        limbs = max(2, (math.frexp(largest)[1] + unit + 3) // 64 + 1)
        total = wide.shifted_left(moment, unit - moment_bits, limbs)
        is_enough = float((self._rest_error(self._leading) * sizes).max()) <= enough
        deeper = None if is_enough else self._leading.deeper()
        matrices = [one for one in (self._leading, deeper) if one is not None]
        width = min(one.digit_bits for one in matrices) + 1
        digits = wide.balanced_digits(weights, width)
        stacked, columns = np.concatenate([values[:, :0], *digits], axis=1), spec.columns
        for product, at in (found for one in matrices for found in one.leading_products(stacked)):
            for position in range(len(digits)):
                part = -product[:, position * columns : (position + 1) * columns]
                wide.add_shifted(total, part, at + guard + width * position)
        for position, digit in enumerate(digits):
            self._gamma.subtract_multiple(total, digit.astype(np.int64), width * position)
        errors = self._subtract_rest(matrices[-1], total, values, sizes, unit=unit)
        found = wide.to_float(total, -unit)
        return found, errors + 2.0**-50 * blas.column_norms(found)

    @property
    def _rounding(self) -> float:
        """A float64 product of `width` terms is off by at most this, times both norms."""
        return (self.spec.width + 8) * UNIT * _UP

    def _residual(
        self, row: Digits, digits: list[Float], scales: list[int], column: Float, size: float
    ) -> tuple[Float, float]:
        """u - H z in float64 for a z of digits, and a bound on the norm of what it is off by.

        It is added up in integers that hold it in any case, because large terms cancel.
        """
        spec, last = self.spec, scales[-1]
        unit, guard = self._gamma.unit(last), self._gamma.guard_bits
        largest = spec.grid.limit + self.norm * size
        limbs = max(2, (math.frexp(largest)[1] + unit + 3) // 64 + 1)
        residual = wide.zeros((spec.width, 1), limbs)
        total = residual[:, :, 0]
        for index, part in enumerate(row.parts):
            shift = unit - spec.grid.fraction_bits + DIGIT_BITS * index
            wide.add_shifted(total, part[0].astype(np.int64), shift)
        stacked = np.stack(digits, axis=1)
        for product, shift in self._leading.leading_products(stacked):
            for part, scale in zip(product.T, scales, strict=True):
                wide.add_shifted(total, -part, shift + guard + last - scale)
        for digit, scale in zip(digits, scales, strict=True):
            self._gamma.subtract_multiple(total, digit.astype(np.int64), last - scale)
        rows, rows_off = self._subtract_rows(residual, digits, scales)
        sizes = np.array(size)
        off = self._subtract_rest(
            self._leading, residual, column[:, None], sizes, unit=unit, more=rows
        )
        found = wide.to_float(total, -unit)
        return found, float(off) + rows_off + 2.0**-50 * blas.norm(found)

    def _subtract_rows(
        self, residual: wide.Wide, digits: list[Float], scales: list[int]
    ) -> tuple[Float | float, float]:
        """residual -= U'DU z for a z of digits, where U are the rows and D their signs, by the
        leading bits of DU z; what the others make is returned in float64, with a bound on the norm
        of what that is off by.
        """
        rows, below = self.rows, self.spec.grid.fraction_bits + scales[-1]
        if not rows.count:
            return 0.0, 0.0
        inner = wide.zeros((rows.count, 1), 2)
        for index, part in enumerate(rows.digits.parts):
            for digit, scale in zip(digits, scales, strict=True):
                product = blas.multiply(part, digit[:, None]).astype(np.int64)
                wide.add_shifted(inner, product, DIGIT_BITS * index + scales[-1] - scale)
        gone = rows.signs < 0.0
        inner[:, gone] = wide.negated(inner[:, gone])
        low = max(0, wide.largest_bits(inner) + 1 - _LEADING_DIGITS * transposed_bits(rows.digits))
        leading = wide.shifted_right(inner, low)
        add_transposed_product(residual, rows.digits, leading, self._gamma.guard_bits + low, -1)
        if not low:
            return 0.0, 0.0
        others = wide.to_float(wide.low_bits(inner, low), -below)
        share = ((rows.count + 8) * UNIT + 2.0**-50) * math.sqrt(rows.squares) * _UP
        return blas.multiply_transposed(rows.values, others), share * blas.norm(others)

    def _left(self, residual: Float, tail: Float, enough: float) -> tuple[Float, float]:
        """residual - H @ tail in float64, and a bound on the norm of what it is off by."""
        off, largest = 0.0, float(np.abs(tail).max())
        if self.times_error() * blas.norm(tail) > enough:
            (leading, *_), (scale, *_) = _cut(tail, largest, self._leading.digit_bits)
            if self._gamma.unit(scale) <= 900:
                part = np.ldexp(leading, -scale)
                size = blas.norm(part) * _UP
                moved, off = self._residual(_NO_ROW, [leading], [scale], part, size)
                off += 2 * UNIT * (blas.norm(residual) + blas.norm(moved))
                residual, tail = residual + moved, tail - part  # the latter is exact
        product = self.times(tail[:, None])[:, 0]
        off += self.times_error() * blas.norm(tail) * _UP
        off += 8 * UNIT * (blas.norm(residual) + blas.norm(product))
        return residual - product, off * _UP

    def _subtract_rest(
        self,
        matrix: LeadingBits,
        total: wide.Wide,
        right: Float,
        sizes: Float,
        *,
        unit: int,
        more: Float | float = 0.0,
    ) -> Float:
        """total -= rest @ right + more, in float64; returns bounds on the norms of what the columns
        are off by, apart from `more`, for columns of norms up to `sizes`.
        """
        scale = 2.0 ** (-2 * self.spec.grid.fraction_bits)
        product = matrix.rest_times(right) * scale + more
        off = self._rest_error(matrix) * sizes
        largest = float(np.abs(product).max())
        if largest == 0.0:
            return np.asarray(off)
        bits = min(61 - math.frexp(largest)[1], unit)
        wide.add_shifted(total, -np.rint(np.ldexp(product, bits)).astype(np.int64), unit - bits)
        return np.asarray(off + math.sqrt(self.spec.width) * 2.0**-bits)

    def _rest_error(self, matrix: LeadingBits) -> float:
        """The rest of a matrix times a column is off by at most this, times the column's norm."""
        scale = 2.0 ** (-2 * self.spec.grid.fraction_bits)
        return (self._rounding * matrix.rest_norm + matrix.rest_error) * scale * _UP

    def times(self, right: Float) -> Float:
        """H @ right in float64; `times_error` bounds what it is off by."""
        product = packed_times(self.packed, right)
        product += self.gamma * right
        if self.rows.count:
            values = self.rows.values
            inner = blas.multiply(values, right) * self.rows.signs[:, None]
            product += blas.multiply_transposed(values, inner)
        return product

    def times_error(self) -> float:
        """`times` is off by at most this, times the norm of a column."""
        terms = 2 * (self.spec.width + self.rows.count + 16) * UNIT
        rounding = self._rounding * self.norm
        return (rounding + self.gram_error + terms * self.rows.squares) * _UP


def _cut(column: Float, largest: float, bits: int) -> tuple[list[Float], list[int]]:
    """The leading bits of a column as integers of up to 2^bits, with their scales."""
    scales = [bits - math.frexp(largest)[1]]
    rest = np.ldexp(column, scales[0])
    digits = [np.rint(rest)]
    while len(digits) * (bits + 1) < _COLUMN_BITS:
        rest = np.ldexp(rest - digits[-1], bits + 1)
        digits.append(np.rint(rest))
        scales.append(scales[-1] + bits + 1)
    return digits, scales


def _inner(
    row: Digits, digits: list[Float], scales: list[int], fraction_bits: int
) -> tuple[int, int]:
    """u'z for a z of digits as an integer, and how many bits it has below one: no rounding."""
    stacked = np.concatenate([part[:1] for part in row.parts])
    products = blas.multiply(stacked, np.stack(digits, axis=1)).tolist()
    total = sum(
        int(product) << (DIGIT_BITS * index + scales[-1] - scale)
        for index, line in enumerate(products)
        for product, scale in zip(line, scales, strict=True)
    )
    return total, fraction_bits + scales[-1]
