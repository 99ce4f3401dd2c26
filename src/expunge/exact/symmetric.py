"""Exact products with a symmetric matrix of 128-bit integers, and with integer rows, carried by
float64 BLAS.

The matrix is cut into its 32-bit words, which costs no arithmetic, and the other factor into
balanced digits so short that size * 2^32 * 2^(digit bits - 1) <= 2^53: then every float64 product
is error-free. All sums are taken modulo 2^(64 L); they are the true integers whenever those are
known to fit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.exact import blas, wide
from expunge.exact.gram import Digits, panels, unpacked
from expunge.exact.grid import DIGIT_BITS

Float = NDArray[np.float64]

_WORD_BITS = 32
_MOST_LEADING_BITS = 28
_DIGIT_BITS = 20  # of a column, at least
_MOST_DIGIT_BITS = 21  # a digit times 41 bits must fit 62
# Beyond this two digits would leave too few bits of the matrix; then three do that are this short
WIDE = 2048
_SHORT_DIGIT_BITS = 15


class SymmetricWords:
    """A symmetric matrix of 128-bit integers (packed upper triangle), ready for exact products.

    With `keep` the float64 words are kept between products (a cache: it can be rebuilt from the
    integers); otherwise they are made for each product, a panel at a time, and `packed` must not
    change unless it is `copied`.
    """

    def __init__(self, packed: wide.Wide, size: int, *, keep: bool, copied: bool = False) -> None:
        blas.require_exact()
        self._size = size
        high = packed[1].view(np.int64)
        small = not high.size or (high.max() < 1 << 31 and high.min() >= -(1 << 31))
        self._words = 3 if small else 4  # what the largest entry needs, its sign included
        self._limbs: list[NDArray[np.unsignedinteger[Any]]] = list(packed)
        if copied:
            self._limbs = [packed[0].copy(), packed[1].astype(np.uint32 if small else np.uint64)]
        every = slice(0, packed.shape[1])
        self._kept: list[Float] | None = None
        if keep:
            self._kept = [
                blas.upper_from_packed(size, self._word(index, every))
                for index in range(self._words)
            ]
        self.digit_bits = (
            int(np.log2(blas.EXACT_LIMIT)) - _WORD_BITS - int(size - 1).bit_length() + 1
        )

    def _word(self, index: int, span: slice) -> Float:
        limb = self._limbs[index // 2][span]
        shifted = limb >> np.uint64(_WORD_BITS) if index % 2 else limb
        word = shifted.astype(np.uint32)
        signed = index + 1 == self._words
        return (word.view(np.int32) if signed else word).astype(np.float64)

    def _times(self, index: int, right: Float) -> Float:
        """A word of the matrix @ right, exactly: the absolute products of each sum add up to at
        most 2^53, in any order.
        """
        if self._kept is not None:
            return blas.symmetric_multiply(self._kept[index], right)
        return _times_by_panels(partial(self._word, index), right)

    def subtract_product(self, target: wide.Wide, digits: list[Float], shift: int) -> None:
        """target -= A @ X * 2^shift, for X given by its balanced digits of `digit_bits` bits."""
        if not digits:
            return
        columns = digits[0].shape[1]
        stacked = np.ascontiguousarray(np.concatenate(digits, axis=1))
        for index in range(self._words):
            product = self._times(index, stacked).astype(np.int64)
            for position in range(len(digits)):
                part = np.negative(product[:, position * columns : (position + 1) * columns])
                wide.add_shifted(
                    target, part, shift + _WORD_BITS * index + self.digit_bits * position
                )


def packed_times(packed: Float, right: Float) -> Float:
    """A @ right for the symmetric A whose packed upper triangle is given."""
    if right.shape[1] <= blas.FEW_COLUMNS:
        return blas.packed_multiply(packed, right)
    if len(right) <= WIDE:  # panels would save little memory, and hold other threads up
        return blas.symmetric_multiply(blas.upper_from_packed(len(right), packed), right)
    return _times_by_panels(packed.__getitem__, right)


def _times_by_panels(packed: Callable[[slice], Float], right: Float) -> Float:
    """The same, for spans of the packed triangle, which are unpacked a panel at a time."""
    total = np.zeros_like(right)
    for rows, span in panels(len(right)):
        panel = unpacked(packed(span), rows.stop - rows.start)
        total[rows] += blas.multiply(panel, right[rows.start :])
        panel.flat[:: panel.shape[1] + 1] = (
            0.0  # the diagonal has been counted; the rest counts for the columns as well
        )
        blas.add_product(panel, right[rows], total[rows.start :])
    return total


def leading_bits(size: int) -> tuple[int, int]:
    """How many bits of entries, at a time, and of a column's integers are multiplied exactly,
    whatever the entries are.
    """
    digit_bits = _DIGIT_BITS if size <= WIDE else _SHORT_DIGIT_BITS
    left = 53 - digit_bits - int(size - 1).bit_length()
    return min(_MOST_LEADING_BITS, left), digit_bits


class LeadingBits:
    """A symmetric matrix of 128-bit integers (packed upper triangle) for products of which the
    leading bits are exact, 44 to 56 of them, and the rest is rounded.

    A = high * 2^high_shift + low * 2^low_shift + rest: `low` has so many bits, and `high` one more
    for its sign, that their products with integers of up to 2^digit_bits are error-free: the
    absolute values of no row add up to more than 2^(53 - digit_bits). Nor do rows of samples'
    digits, of `size` entries up to 2^20, with them. `rest` is rounded to float64.
    """

    def __init__(self, packed: wide.Wide, size: int) -> None:
        blas.require_exact()
        self._size = size
        bits = wide.largest_bits(packed)  # and a sign
        self._bits, self.digit_bits = leading_bits(size)
        self.high_shift = max(bits - self._bits, 0)
        self.low_shift = max(self.high_shift - self._bits, 0)
        high = wide.bits_of(packed, self.high_shift, self.high_shift + self._bits + 1, signed=True)
        self._high = high.astype(np.float64)
        self._low: Float | None = None
        self._rest: Float | None = None
        self.rest_norm = 0.0  # at least the Frobenius norm of the rest
        self.rest_error = 0.0  # and of what rounding it to float64 has changed
        if self.low_shift < self.high_shift:
            low = wide.bits_of(packed, self.low_shift, self.high_shift)
            self._low = low.astype(np.float64)
        parts = [part for part in (self._high, self._low) if part is not None]
        largest = max(_largest_row(part, size) for part in parts)
        rows = DIGIT_BITS - 1 + int(size - 1).bit_length()  # bits of a sum of a row's digits
        allowed = min(_MOST_DIGIT_BITS, 53 - max(rows, (int(largest) - 1).bit_length()))
        self._least_digit_bits = self.digit_bits
        self.digit_bits = max(self.digit_bits, allowed)
        if self.low_shift:
            first = max(0, self.low_shift - 53)
            rest = np.ldexp(wide.bits_of(packed, first, self.low_shift).astype(np.float64), first)
            self._rest = rest
            self.rest_norm = math.sqrt(2.0) * blas.norm(rest) * (1 + 2.0**-20)
            self.rest_error = size * 2.0**first if first else 0.0

    def leading_products(self, digits: Float) -> list[tuple[wide.Int64, int]]:
        """The products of `high` and `low` with integers of up to 2^digit_bits, exactly; each with
        its shift.
        """
        found = [(packed_times(self._high, digits).astype(np.int64), self.high_shift)]
        if self._low is not None:
            found.append((packed_times(self._low, digits).astype(np.int64), self.low_shift))
        return found

    def rest_times(self, right: Float) -> Float:
        """The product of the rest with some columns, in float64.

        It is off by at most ((size + 8) 2^-53 rest_norm + rest_error) times the columns' norms.
        """
        if self._rest is None:
            return np.zeros_like(right)
        return packed_times(self._rest, right)

    def deeper(self) -> LeadingBits | None:
        """The rest alone, with as many of its bits exact; None if there is no rest."""
        if self._rest is None:
            return None
        part = copy.copy(self)
        part.digit_bits = self._least_digit_bits
        part.high_shift, part.low_shift = max(self.low_shift - self._bits, 0), 0
        part._low = None
        high = np.ldexp(self._rest, -part.high_shift)
        part._high = np.floor(high, out=high)
        rest = np.ldexp(high, part.high_shift)
        part._rest = np.subtract(self._rest, rest, out=rest)
        part.rest_norm = self._size * 2.0**part.high_shift
        return part


def _largest_row(packed: Float, size: int) -> float:
    """The largest sum of absolute values in a row of a symmetric matrix of integers; exact, up to
    2^53.
    """
    return float(packed_times(np.abs(packed), np.ones((size, 1))).max(initial=1.0))


def rows_times(rows: Digits, right: wide.Wide, limbs: int) -> wide.Wide:
    """rows @ right, exactly modulo 2^(64 limbs), for integer rows and a wide matrix."""
    size = right.shape[1]
    bits = 53 - DIGIT_BITS - int(size).bit_length()
    result = wide.zeros((len(rows), right.shape[2]), limbs)
    for position, digit in enumerate(wide.digits(right, bits)):
        for index, part in enumerate(rows.parts):
            product = blas.multiply(part, digit).astype(np.int64)
            wide.add_shifted(result, product, DIGIT_BITS * index + bits * position)
    return result


def transposed_bits(rows: Digits) -> int:
    """How many bits at a time `add_transposed_product` takes of the other factor."""
    return 53 - DIGIT_BITS - max(1, len(rows).bit_length())


def add_transposed_product(
    target: wide.Wide, rows: Digits, right: wide.Wide, shift: int, sign: int
) -> None:
    """target += sign * rows.T @ right * 2^shift, exactly modulo the target's width."""
    bits = transposed_bits(rows)
    for position, digit in enumerate(wide.digits(right, bits)):
        for index, part in enumerate(rows.parts):
            product = blas.multiply_transposed(part, np.ascontiguousarray(digit)).astype(np.int64)
            wide.add_shifted(
                target,
                product if sign > 0 else -product,
                shift + DIGIT_BITS * index + bits * position,
            )
