"""System: H = S + gamma I as an exact operator, with its float64 shadow.

The truth is integers: the words of a base S, frozen when the system was made, and the integer rows
added and deleted since. The float64 copy of S and its error bound are a cache, used to propose
corrections and to bound small remainders.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from expunge.errors import IllConditionedError
from expunge.exact import blas, wide
from expunge.exact.gram import Digits
from expunge.exact.symmetric import SymmetricWords, add_transposed_product, rows_times
from expunge.ridge.spec import MOST_GAMMA, Spec

Float = NDArray[np.float64]

UNIT = 2.0**-53
# Beyond this the words of S, three times the memory of S itself, are rebuilt for each product: time
# for memory.
KEPT_WIDTH = 4097
KEPT_ONCE = 2048  # the same for a system used once, which would not gain by keeping them
_HALF = 26  # gamma's mantissa is cut into two parts, so that each times a digit fits 64 bits


class Gamma:
    """A spec's gamma as an integer, in units that are at least as fine as those of S.

    `guard_bits` makes room for a gamma that is finer than the grid.
    """

    def __init__(self, spec: Spec) -> None:
        numerator, denominator = spec.gamma.as_integer_ratio()
        trailing = (numerator & -numerator).bit_length() - 1
        mantissa = numerator >> trailing
        exponent = trailing - (denominator.bit_length() - 1) + 2 * spec.grid.fraction_bits
        self.guard_bits = max(0, -exponent)
        self._unit = 2 * spec.grid.fraction_bits + self.guard_bits
        shift = exponent + self.guard_bits
        halves = ((mantissa & ((1 << _HALF) - 1), shift), (mantissa >> _HALF, shift + _HALF))
        self._parts = [(part, shift) for part, shift in halves if part]

    def unit(self, bits: int) -> int:
        """H times integers in units of 2^-bits has units of 2^-unit(bits)."""
        return self._unit + bits

    def subtract_multiple(self, target: wide.Wide, integers: wide.Int64, shift: int) -> None:
        """target -= gamma * integers * 2^shift, for integers of up to 36 bits."""
        for part, offset in self._parts:
            wide.add_shifted(target, integers * np.int64(-part), shift + offset)


class RidgeSystem:
    """H = S + gamma I, exactly; made from the packed 128-bit upper triangle of S.

    Residuals and products are integers in units of 2^-(2 fraction_bits + guard_bits + b) for an
    iterate in units of 2^-b; `guard_bits` makes room for a gamma that is finer than the grid. A
    system that is used `once` needs less memory, and `gram` must not change meanwhile.
    """

    def __init__(self, spec: Spec, gram: wide.Wide, *, once: bool = False) -> None:
        self.spec = spec
        keep = spec.width <= (KEPT_ONCE if once else KEPT_WIDTH)
        self._words = SymmetricWords(gram, spec.width, keep=keep, copied=not (once or keep))
        self._rows = _ChangedRows(spec.width)
        self.digit_bits = self._words.digit_bits
        packed = wide.to_float(gram, -2 * spec.grid.fraction_bits)
        self.gram = blas.upper_from_packed(spec.width, packed)  # upper triangle, float64: a cache
        # at least the Frobenius norm of S
        self.gram_norm = math.sqrt(2.0) * blas.norm(packed) * (1 + 2.0**-20)
        # at least that of what the float copy is off by
        self.gram_error = 2.0**-50 * self.gram_norm
        # features that are or were not zero throughout
        self.live = gram[:, blas.packed_diagonal(spec.width)].any(axis=0)
        self._largest = float(np.abs(packed).max())
        self.entry_error = 2.0**-50 * self._largest  # the same for every entry
        self.set_gamma(spec)

    def set_gamma(self, spec: Spec) -> None:
        """Go on with another spec's gamma; nothing else changes."""
        self.spec = spec
        self.gamma = spec.gamma
        self._gamma = Gamma(spec)
        self.guard_bits = self._gamma.guard_bits

    @property
    def pending_rows(self) -> int:
        """How many rows were added or deleted since the words of S were frozen."""
        return self._rows.count

    @property
    def diagonal(self) -> Float:
        """That of S in float64."""
        return self.gram.diagonal()

    def shifted(self, shift: float) -> Float:
        """The upper triangle of S + shift * I in float64, row-major, in memory of its own."""
        upper = self.gram.copy()
        upper.flat[:: len(upper) + 1] += shift
        return upper

    @property
    def norm(self) -> float:
        """At least the Frobenius norm of H."""
        return self.gram_norm + self.gamma * math.sqrt(self.spec.width) * (1 + 2.0**-20)

    def unit(self, bits: int) -> int:
        """Residuals of iterates in units of 2^-bits are integers in units of 2^-unit(bits)."""
        return self._gamma.unit(bits)

    def subtract_product(self, residual: wide.Wide, step: wide.Int64, shift: int) -> int:
        """residual -= H @ step * 2^shift, exactly; returns how many digits of `step` were
        multiplied.
        """
        digits = wide.balanced_digits(step.view(np.uint64)[None], self.digit_bits)
        self._words.subtract_product(residual, digits, shift + self.guard_bits)
        for position, digit in enumerate(digits):
            self._gamma.subtract_multiple(
                residual, digit.astype(np.int64), shift + self.digit_bits * position
            )
        if self._rows.count:
            rows, deleted = self._rows.stacked()
            product = rows_times(rows, step.view(np.uint64)[None], 2)
            product[:, deleted] = wide.negated(product[:, deleted])
            add_transposed_product(residual, rows, product, shift + self.guard_bits, -1)
        return len(digits)

    def multiply_float(self, right: Float) -> Float:
        """H @ right in float64; `product_error` bounds what it is off by."""
        return blas.symmetric_multiply(self.gram, right) + self.gamma * right

    def product_error(self, norms: Float) -> Float:
        """A bound on the Euclidean norms of the errors of `multiply_float`, for columns of the
        given norms.
        """
        rounding = (self.spec.width + 8) * UNIT * self.norm
        return (rounding + self.gram_error) * (1 + 2.0**-20) * norms

    def change(self, rows: Digits, values: Float, sign: int) -> None:
        """Add (sign 1) or delete (sign -1) rows: `values` are the same rows in float64."""
        self._rows.append(rows, sign)
        self.live |= values.any(axis=0)
        blas.add_gram(values, self.gram, sign)
        squares = float(np.square(values).sum()) * (1 + 2.0**-20)
        self.gram_norm += squares
        self.gram_error += 2.0**-51 * (self.gram_norm + (len(rows) + 2) * squares)
        self._largest += squares
        self.entry_error += 2.0**-51 * (self._largest + (len(rows) + 2) * squares)


class _ChangedRows:
    """The rows added and deleted since the words of S were frozen, as one stack of digits."""

    def __init__(self, width: int) -> None:
        self.count = 0
        self._low, self._high = np.zeros((0, width)), np.zeros((0, width))
        self._deleted = np.zeros(0, dtype=bool)

    def append(self, rows: Digits, sign: int) -> None:
        end = self.count + len(rows)
        if end > len(self._low):
            room = max(2 * len(self._low), end, 8)
            self._low, self._high = (
                np.resize(array, (room, array.shape[1])) for array in (self._low, self._high)
            )
            self._deleted = np.resize(self._deleted, room)
        self._low[self.count : end] = rows.parts[0]
        self._high[self.count : end] = rows.parts[1] if len(rows.parts) == 2 else 0.0
        self._deleted[self.count : end] = sign < 0
        self.count = end

    def stacked(self) -> tuple[Digits, NDArray[np.bool_]]:
        """All rows, and which of them were deleted."""
        parts = [self._low[: self.count], self._high[: self.count]]
        return Digits(parts, [2.0**20, 2.0**20]), self._deleted[: self.count]


def _trace(spec: Spec, trace_integer: int) -> Fraction:
    return Fraction(trace_integer) / Fraction(4) ** spec.grid.fraction_bits


def is_well_conditioned(spec: Spec, trace_integer: int) -> bool:
    """The rule of `require_well_conditioned`."""
    return _rule(spec.width, _trace(spec, trace_integer), spec.exact_gamma)


def _rule(width: int, trace: Fraction, gamma: Fraction) -> bool:
    return width * (trace + width * gamma) <= gamma * 2**47


def require_well_conditioned(spec: Spec, trace_integer: int) -> None:
    """Refuse a system that float64 could not precondition, by a rule computed from the exact
    statistics alone.

    The rule is width * 2^-53 * trace(H) / gamma <= 2^-6, with the trace of S given in units of
    2^(-2 fraction_bits); it does not depend on how the statistics were reached.
    """
    if is_well_conditioned(spec, trace_integer):
        return
    width, trace = spec.width, _trace(spec, trace_integer)
    smallest = math.nextafter(float(width * trace / (2**47 - width**2)), 0.0)
    while not _rule(width, trace, Fraction(smallest)):
        smallest = math.nextafter(smallest, math.inf)
    remedy = (
        (
            f"The smallest gamma that will do is {smallest!r} (spec.with_gamma(...)); or scale the "
            "features down"
        )
        if smallest <= MOST_GAMMA
        else "Even the largest gamma there is would not do: scale the features down"
    )
    raise IllConditionedError(
        f"the system is too ill-conditioned for a certified head: trace(S) = {float(trace):.4g} "
        f"with gamma = {spec.gamma:g} and {width} features. {remedy}"
    )
