"""Exact sums of products of integer rows, carried by float64 BLAS.

Integers of up to 42 bits are split into balanced radix-2^21 digits, so that a product of digit
matrices is error-free in float64 as long as rows * max|a| * max|b| <= 2^53: that bounds the sum of
the absolute products, and with it every partial sum in every order. `GramSum` and `CrossSum` add up
digit products in float64 under that guard and drain them into 128-bit integers before it would be
broken; adding a few rows does not drain, and so costs next to nothing.

Law: what has been drained and what is still pending add up to the integer sum, whatever the order,
the blocks, the BLAS and its threads.

Symmetric matrices so wide that one does not want several of them in memory: worked on a panel of
rows at a time.

A panel is some consecutive rows of an upper triangle, from the diagonal on; in the packed form it
is one contiguous piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.exact import blas, wide
from expunge.exact.grid import DIGIT_BITS
from expunge.exact.threads import chunks

Float = NDArray[np.float64]

_RADIX = 2.0**DIGIT_BITS


def largest_of(integers: Float) -> float:
    """max|q| over integers held in float64; 0 for none."""
    return max(float(integers.max()), -float(integers.min())) if integers.size else 0.0


@dataclass(frozen=True)
class Digits:
    """Balanced radix-2^21 digits of integers, least significant first, and bounds on their
    magnitudes.

    integers = sum of parts[i] * 2^(21 i) and |parts[0]| <= 2^20 when there are two. `total` is the
    sum of two parts, where it has been made.
    """

    parts: list[Float]
    bounds: list[float]
    total: Float | None = None

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, rows: slice) -> Digits:
        total = None if self.total is None else self.total[rows]
        return Digits([part[rows] for part in self.parts], self.bounds, total)


def digits_of(
    integers: Float, digits: int, largest: float | None = None, memory: list[Float] | None = None
) -> Digits:
    """The digits of integers no larger than `largest` in magnitude, in `memory` where that is
    given.

    A digit that is zero throughout is left out, if it is the most significant: small integers have
    one digit.
    """
    largest = largest_of(integers) if largest is None else largest
    if digits == 1 or largest <= _RADIX / 2:
        return Digits([integers], [largest])
    memory = memory or [np.empty_like(integers) for _ in range(3)]
    low, high, total = (array[: len(integers)] for array in memory)
    for part in chunks(*integers.shape):
        np.multiply(integers[part], 1.0 / _RADIX, out=high[part])
        np.rint(high[part], out=high[part])
        np.multiply(high[part], -_RADIX, out=low[part])
        np.add(low[part], integers[part], out=low[part])
        np.add(low[part], high[part], out=total[part])
    return Digits([low, high], [_RADIX / 2, float(np.rint(largest / _RADIX))], total)


_FEW = 4  # rows; above this a product of matrices is faster than as many outer squares
_MOST_TOGETHER = 32  # rows that come together and still wait for others
_MOST_FEW = 256  # rows that came a few at a time, and wait to be multiplied together


class GramSum:
    """The exact sum of rows.T @ rows over rows added and deleted; it drains into a packed upper
    triangle.

    For two digits three symmetric products do: the cross term is (q1 + q0)'(q1 + q0) - q1'q1 -
    q0'q0. Rows that come a few at a time wait as they are.
    """

    def __init__(self, width: int) -> None:
        blas.require_exact()
        self._width = width
        self._products: list[
            Float
        ] = []  # of q0, q1 and q0 + q1; the last two only once a second digit has been seen
        self.has_products = False  # whether they are not zero
        self._few = _FewRows(width)
        self._budget = 0.0  # the largest sum of absolute products that any of them may hold

    def add(self, rows: Digits, target: wide.Wide, sign: int = 1) -> None:
        """Add (sign 1) or subtract (sign -1) the rows' Gram; `target` takes what must be drained on
        the way.
        """
        worst = sum(rows.bounds) ** 2
        if worst == 0.0:
            return
        most = int(blas.EXACT_LIMIT // worst)
        for start in range(0, len(rows), most):
            block = rows[start : start + most]
            if not self.has_room(block):
                self.drain(target)
            if len(block) > _MOST_TOGETHER:
                self._accumulate(block, sign)
            else:
                self._few.append(block, sign)
                if self._few.count > _MOST_FEW - _MOST_TOGETHER:
                    self._multiply_few()
            self._budget += len(block) * worst

    def has_room(self, rows: Digits) -> bool:
        """Whether these rows can be added without anything being drained."""
        # the sum of the two might be rounded, this is not
        return len(rows) * sum(rows.bounds) ** 2 <= blas.EXACT_LIMIT - self._budget

    @property
    def is_drained(self) -> bool:
        """Whether nothing waits."""
        return not (self.has_products or self._few.count)

    def waiting(self) -> WaitingRows:
        """A copy of all rows that wait; there may be products besides."""
        return self._few.copied()

    def added_to(self, target: wide.Wide) -> wide.Wide:
        """`target` with all that waits in it, in memory of its own; nothing changes here."""
        if self._few.count > _FEW:
            total = self.waiting().added_to(target)
        else:
            total = target.copy()
            self._few.add_products(total)
        self._add_products(total)
        return total

    def forget(self, count: int) -> None:
        """Leave out the first of the rows that wait: they are in the target by now."""
        self._few.keep_from(count)
        self._budget = self._few.count * _RADIX**2  # digits are of up to 2^20

    def _multiply_few(self) -> None:
        for sign in (1, -1):
            block = self._few.of_sign(sign)
            if len(block):
                self._accumulate(block, sign)
        self._few.count = 0

    def _accumulate(self, block: Digits, sign: int) -> None:
        parts = block.parts
        if len(parts) == 2:
            parts = [*parts, parts[0] + parts[1] if block.total is None else block.total]
        sums = self._products
        self.has_products = True
        if not sums:
            sums += [np.zeros((self._width, self._width)) for _ in parts]
        elif len(sums) < len(parts):  # so far q1 = 0, so q0 + q1 = q0
            sums += [np.zeros((self._width, self._width)), sums[0].copy()]
        if len(parts) < len(sums):  # q1 = 0, so q0 + q1 = q0
            parts, sums = [parts[0], parts[0]], [sums[0], sums[2]]
        for part, total in zip(parts, sums, strict=True):
            blas.add_gram(part, total, sign)

    def drain(self, target: wide.Wide) -> None:
        """target += what has been added up so far, which is then zero."""
        if self._few.count > _FEW or self.has_products:
            self._multiply_few()
        self._few.add_products(target)
        self._few.count = 0
        if self.has_products:
            self._add_products(target)
            for total in self._products:
                total.fill(0.0)
            self.has_products = False
        self._budget = 0.0

    def _add_products(self, target: wide.Wide) -> None:
        if self.has_products:
            add_digit_products(target, [blas.packed_from_upper(one) for one in self._products])


@dataclass(frozen=True)
class WaitingRows:
    """Rows that were added and deleted, for another thread to bring into a Gram: nothing here
    changes.
    """

    added: Digits
    deleted: Digits

    def __len__(self) -> int:
        return len(self.added) + len(self.deleted)

    def added_to(self, gram: wide.Wide) -> wide.Wide:
        """A packed upper triangle with these rows in it, in memory of its own."""
        total = gram.copy()
        if not len(self):
            return total
        product = PanelGramSum(self.added.parts[0].shape[1])
        product.add(self.added, total, 1)
        product.add(self.deleted, total, -1)
        product.drain(total)
        return total


def _waiting_rows(digits: list[Float], signs: Float) -> WaitingRows:
    """The rows of either sign, copied."""
    used = digits if digits[1].any() else digits[:1]
    added, deleted = (
        Digits([part[signs == sign] for part in used], [_RADIX / 2] * len(used))
        for sign in (1.0, -1.0)
    )
    return WaitingRows(added, deleted)


class _FewRows:
    """Rows that were added and deleted, as two digits each."""

    def __init__(self, width: int) -> None:
        self.count = 0
        self._digits = np.empty((2, 0, width))
        self._signs = np.empty(0)

    def append(self, rows: Digits, sign: int) -> None:
        end = self.count + len(rows)
        if end > len(self._signs):
            room = min(max(2 * len(self._signs), _FEW, end), _MOST_FEW)
            larger = np.empty((2, room, self._digits.shape[2]))
            larger[:, : self.count] = self._digits[:, : self.count]
            self._digits, self._signs = larger, np.resize(self._signs, room)
        self._digits[0, self.count : end] = rows.parts[0]
        self._digits[1, self.count : end] = rows.parts[1] if len(rows.parts) == 2 else 0.0
        self._signs[self.count : end] = sign
        self.count = end

    def copied(self) -> WaitingRows:
        """All rows, in memory of their own."""
        return _waiting_rows(list(self._digits[:, : self.count]), self._signs[: self.count])

    def keep_from(self, first: int) -> None:
        """Leave out the rows before the first to be kept."""
        for array in (self._digits[0], self._digits[1], self._signs):
            array[: self.count - first] = array[first : self.count].copy()
        self.count -= first

    def of_sign(self, sign: int) -> Digits:
        """Those that were added, or those that were deleted; a second digit only if it is not zero
        throughout.
        """
        chosen = self._signs[: self.count] == sign
        low, high = (np.ascontiguousarray(part[: self.count][chosen]) for part in self._digits)
        parts = [low, high] if high.any() else [low]
        return Digits(parts, [_RADIX / 2] * len(parts))

    def add_products(self, target: wide.Wide) -> None:
        """target += the Gram of the rows, by their signs."""
        if self.count:
            low, high = self._digits[:, : self.count].astype(np.int64)
            signs = self._signs[: self.count].astype(np.int64)
            for span, piece in _products(low + (high << DIGIT_BITS), signs):
                wide.add_into(target[:, span], piece)


def add_digit_products(target: wide.Wide, products: list[Float]) -> None:
    """target += the Gram of these digit products: of q0, or of q0, q1 and q0 + q1."""
    join = _one_digit if len(products) == 1 else _two_digits
    for part in chunks(target.shape[1], 3):
        wide.add_into(
            target[:, part], join(*(product[part].astype(np.int64) for product in products))
        )


def _one_digit(value: wide.Int64) -> wide.Wide:
    return np.stack([value, value >> 63]).view(np.uint64)


def _two_digits(low: wide.Int64, high: wide.Int64, both: wide.Int64) -> wide.Wide:
    """low + (both - low - high) * 2^21 + high * 2^42 as 128-bit integers; overwrites its
    arguments.
    """
    both -= low
    both -= high
    result = np.empty((2, len(low)), dtype=np.uint64)
    lower, upper = result.view(np.int64)
    np.left_shift(both, DIGIT_BITS, out=lower)
    lower += low
    np.left_shift(high, 2 * DIGIT_BITS, out=upper)
    lower += upper
    np.right_shift(low, DIGIT_BITS, out=upper)
    upper += both
    upper >>= DIGIT_BITS
    upper += high
    upper >>= 64 - 2 * DIGIT_BITS
    return result


_PRODUCT_ROWS = 64  # of a product that is made at a time: little enough for a cache


def _products(rows: wide.Int64, signs: wide.Int64) -> Iterator[tuple[slice, wide.Wide]]:
    """The sum of sign * row.T @ row over fewer than 2^14 rows of integers below 2^42, exactly: the
    packed upper triangle as 128-bit integers, piece by piece.

    Proof. Let P be an entry. 64-bit integers, which wrap around, give P modulo 2^64: the lower limb
    L, here read as signed. For k rows float64 gives P to within (k + 2) 2^-53 k 2^84 <= 2^61, and
    (P - L) / 2^64, an integer, to within 2^-2 with the rounding of L; so the nearest integer is it.
    """
    width = rows.shape[1]
    signed = rows * signs[:, None]
    floats, signed_floats = rows.astype(np.float64), signed.astype(np.float64)
    for panel, span in panels(width, _PRODUCT_ROWS):
        left = signed[:, panel]
        lower = np.multiply.outer(left[0], rows[0, panel.start :])
        for index in range(1, len(rows)):
            lower += np.multiply.outer(left[index], rows[index, panel.start :])
        upper = blas.multiply_panel(
            np.ascontiguousarray(signed_floats[:, panel]), floats[:, panel.start :]
        )
        upper -= lower
        upper *= 2.0**-64
        np.rint(upper, out=upper)
        upper -= lower < 0
        yield span, np.stack([_packed(lower), _packed(upper).astype(np.int64)]).view(np.uint64)


def is_gram_of(packed: wide.Wide, rows: wide.Int64) -> bool:
    """Whether a packed upper triangle of 128-bit integers is rows.T @ rows, for a few rows of
    integers below 2^42.
    """
    signs = np.ones(len(rows), dtype=np.int64)
    return all(np.array_equal(piece, packed[:, span]) for span, piece in _products(rows, signs))


class CrossSum:
    """The exact sum of left.T @ right over rows added and deleted; it drains into a matrix of
    128-bit integers.
    """

    def __init__(self, rows: int, columns: int) -> None:
        blas.require_exact()
        self._shape = (rows, columns)
        # by the digit of left and the number of digits of right, which are side by side
        self._products: dict[tuple[int, int], Float] = {}
        self._budget = 0.0

    def add(self, left: Digits, right: Digits, target: wide.Wide, sign: int = 1) -> None:
        """Add (sign 1) or subtract (sign -1) left.T @ right; `target` takes what must be drained on
        the way.
        """
        worst = max(left.bounds) * max(right.bounds)
        if worst == 0.0:
            return
        most = int(blas.EXACT_LIMIT // worst)
        digits = len(right.parts)
        beside = right.parts[0] if digits == 1 else np.concatenate(right.parts, axis=1)
        for start in range(0, len(left), most):
            block = slice(start, start + most)
            count = len(left.parts[0][block])
            if count * worst > blas.EXACT_LIMIT - self._budget:
                self.drain(target)
            self._budget += count * worst
            for i, left_part in enumerate(left.parts):
                if (i, digits) not in self._products:
                    self._products[i, digits] = np.zeros((self._shape[0], digits * self._shape[1]))
                blas.add_product(left_part[block], beside[block], self._products[i, digits], sign)

    @property
    def is_drained(self) -> bool:
        """Whether nothing waits."""
        return not self._products

    def added_to(self, target: wide.Wide) -> wide.Wide:
        """`target` with all that waits in it, in memory of its own; nothing changes here."""
        total = target.copy()
        self._add_products(total)
        return total

    def drain(self, target: wide.Wide) -> None:
        """target += what has been added up so far, which is then zero."""
        self._add_products(target)
        self._products.clear()
        self._budget = 0.0

    def _add_products(self, target: wide.Wide) -> None:
        for (i, digits), product in self._products.items():
            for j, part in enumerate(np.hsplit(product, digits)):
                wide.add_shifted(target, part.astype(np.int64), DIGIT_BITS * (i + j))


def product(left: Digits, right: Digits) -> wide.Wide:
    """left.T @ right, exactly."""
    shape = left.parts[0].shape[1], right.parts[0].shape[1]
    total, result = CrossSum(*shape), wide.zeros(shape)
    total.add(left, right, result)
    total.drain(result)
    return result


# Enough for BLAS to be fast, few enough that little is computed below the diagonal
PANEL_ROWS = 256
MOST_WAITING = 1024  # rows: beyond this their memory would count, and BLAS gets no faster


def panels(size: int, rows: int | None = None) -> Iterator[tuple[slice, slice]]:
    """The rows of each panel of an upper triangle, and their positions in its packed form."""
    step = PANEL_ROWS if rows is None else rows
    for start in range(0, size, step):
        stop = min(start + step, size)
        yield slice(start, stop), slice(_place(size, start), _place(size, stop))


def _place(size: int, row: int) -> int:
    return row * size - row * (row - 1) // 2


def unpacked(packed: Float, rows: int) -> Float:
    """A panel of `rows` rows as a matrix, zero below the diagonal."""
    length = (len(packed) + rows * (rows - 1) // 2) // rows
    panel = np.zeros((rows, length))
    for row in range(rows):
        panel[row, row:] = packed[_place(length, row) : _place(length, row + 1)]
    return panel


def _packed(panel: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([row[index:] for index, row in enumerate(panel)])


class PanelGramSum:
    """The exact sum of rows.T @ rows over rows added and deleted; it drains into a packed upper
    triangle.

    As `GramSum`, for wide rows: these wait, as digits, until their products would no longer be
    error-free, or are many, or their sum is wanted. Only then are products made, and only a panel
    of them at a time.
    """

    def __init__(self, width: int) -> None:
        blas.require_exact()
        self._width = width
        self._waiting: list[
            Float
        ] = []  # q0, q1 and q0 + q1 of the rows; only q0 as long as every q1 is zero
        self._signs = np.zeros(0)
        self._count = 0
        self.has_products = False  # rows are all that ever waits
        self._budget = 0.0  # the largest sum of absolute products that the rows can have

    def add(self, rows: Digits, target: wide.Wide, sign: int = 1) -> None:
        """Add (sign 1) or subtract (sign -1) the rows' Gram; `target` takes what must be drained on
        the way.
        """
        worst = sum(rows.bounds) ** 2
        if worst == 0.0:
            return
        most = min(int(blas.EXACT_LIMIT // worst), MOST_WAITING)
        for start in range(0, len(rows), most):
            block = rows[start : start + most]
            if not self.has_room(block):
                self.drain(target)
            self._wait(block, sign)
            self._budget += len(block) * worst

    def has_room(self, rows: Digits) -> bool:
        """Whether these rows can be added without anything being drained."""
        is_exact = len(rows) * sum(rows.bounds) ** 2 <= blas.EXACT_LIMIT - self._budget
        return is_exact and self._count + len(rows) <= MOST_WAITING

    @property
    def is_drained(self) -> bool:
        """Whether nothing waits."""
        return not self._count

    def waiting(self) -> WaitingRows:
        """A copy of all rows that wait."""
        low = self._waiting[0] if self._waiting else np.empty((0, self._width))
        high = self._waiting[1] if len(self._waiting) == 3 else np.zeros_like(low)
        return _waiting_rows([low[: self._count], high[: self._count]], self._signs[: self._count])

    def added_to(self, target: wide.Wide) -> wide.Wide:
        """`target` with all that waits in it, in memory of its own; nothing changes here."""
        return self.waiting().added_to(target)

    def forget(self, count: int) -> None:
        """Leave out the first of the rows that wait: they are in the target by now."""
        for array in (*self._waiting, self._signs):
            array[: self._count - count] = array[count : self._count].copy()
        self._count -= count
        self._budget = self._count * _RADIX**2  # digits are of up to 2^20

    def _wait(self, block: Digits, sign: int) -> None:
        end = self._count + len(block)
        if end > len(self._signs):
            room = min(max(2 * len(self._signs), end, 8), MOST_WAITING)
            self._signs = np.resize(self._signs, room)
            self._waiting = [
                _with_room(array, self._count, room)
                for array in self._waiting or [np.empty((0, self._width))]
            ]
        if len(block.parts) == 2 and len(self._waiting) == 1:  # so far q1 = 0, so q0 + q1 = q0
            self._waiting += [np.zeros_like(self._waiting[0]), self._waiting[0].copy()]
        self._signs[self._count : end] = sign
        self._waiting[0][self._count : end] = block.parts[0]
        if len(self._waiting) == 3:
            high = block.parts[1] if len(block.parts) == 2 else 0.0
            self._waiting[1][self._count : end] = high
            np.add(block.parts[0], high, out=self._waiting[2][self._count : end])
        self._count = end

    def drain(self, target: wide.Wide) -> None:
        """target += what has been added up so far, which is then zero."""
        if not self._count:
            return
        rows = [array[: self._count] for array in self._waiting]
        signs = self._signs[: self._count, None]
        for panel, span in panels(self._width):
            products = [
                _packed(blas.multiply_panel(part[:, panel] * signs, part[:, panel.start :]))
                for part in rows
            ]
            add_digit_products(target[:, span], products)
        self._waiting, self._signs = [], np.zeros(0)
        self._count, self._budget = 0, 0.0


def _with_room(array: Float, count: int, room: int) -> Float:
    """The first rows of an array, in one with room for more."""
    larger = np.empty((room, array.shape[1]))
    larger[:count] = array[:count]
    return larger
