"""Exact products with a symmetric matrix of 128-bit integers, and with integer rows, carried by
float64 BLAS.

The matrix is cut into its 32-bit words, which costs no arithmetic, and the other factor into
balanced digits so short that size * 2^32 * 2^(digit bits - 1) <= 2^53: then every float64 product
is error-free. All sums are taken modulo 2^(64 L); they are the true integers whenever those are
known to fit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.exact import blas, wide
from expunge.exact.gram import Digits, panels, unpacked
from expunge.exact.grid import DIGIT_BITS

Float = NDArray[np.float64]

_WORD_BITS = 32


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
        total = np.zeros_like(right)
        for rows, span in panels(self._size):
            panel = unpacked(self._word(index, span), rows.stop - rows.start)
            total[rows] += blas.multiply(panel, right[rows.start :])
            panel.flat[:: panel.shape[1] + 1] = (
                0.0  # the diagonal has been counted; the rest counts for the columns as well
            )
            blas.add_product(panel, right[rows], total[rows.start :])
        return total

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


def add_transposed_product(
    target: wide.Wide, rows: Digits, right: wide.Wide, shift: int, sign: int
) -> None:
    """target += sign * rows.T @ right * 2^shift, exactly modulo the target's width."""
    bits = 53 - DIGIT_BITS - max(1, len(rows).bit_length())
    for position, digit in enumerate(wide.digits(right, bits)):
        for index, part in enumerate(rows.parts):
            product = blas.multiply_transposed(part, np.ascontiguousarray(digit)).astype(np.int64)
            wide.add_shifted(
                target,
                product if sign > 0 else -product,
                shift + DIGIT_BITS * index + bits * position,
            )
