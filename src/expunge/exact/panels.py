"""Symmetric matrices so wide that one does not want several of them in memory: worked on a panel of
rows at a time.

A panel is some consecutive rows of an upper triangle, from the diagonal on; in the packed form it
is one contiguous piece.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from expunge.exact import blas, wide
from expunge.exact.gram import Digits, add_digit_products

Float = NDArray[np.float64]

# Of a panel: enough for BLAS to be fast, few enough that little is computed below the diagonal
_ROWS = 256
_MOST_WAITING = 1024  # rows: beyond this their memory would count, and BLAS gets no faster


def panels(size: int) -> Iterator[tuple[slice, slice]]:
    """The rows of each panel of an upper triangle, and where they stand in its packed form."""
    for start in range(0, size, _ROWS):
        stop = min(start + _ROWS, size)
        yield slice(start, stop), slice(_place(size, start), _place(size, stop))


def _place(size: int, row: int) -> int:
    return row * size - row * (row - 1) // 2


def unpacked(packed: Float, rows: int) -> Float:
    """A panel of so many rows as a matrix, zero below the diagonal."""
    length = (len(packed) + rows * (rows - 1) // 2) // rows
    panel = np.zeros((rows, length))
    for row in range(rows):
        panel[row, row:] = packed[_place(length, row) : _place(length, row + 1)]
    return panel


def _packed(panel: Float) -> Float:
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
        self._budget = 0.0  # the largest sum of absolute products that the rows can have

    def add(self, rows: Digits, target: wide.Wide, sign: int = 1) -> None:
        """Add (sign 1) or subtract (sign -1) the rows' Gram; `target` takes what must be drained on
        the way.
        """
        worst = sum(rows.bounds) ** 2
        if worst == 0.0:
            return
        most = min(int(blas.EXACT_LIMIT // worst), _MOST_WAITING)
        for start in range(0, len(rows), most):
            block = rows[start : start + most]
            if (
                len(block) * worst > blas.EXACT_LIMIT - self._budget
                or self._count + len(block) > _MOST_WAITING
            ):
                self.drain(target)
            self._wait(block, sign)
            self._budget += len(block) * worst

    def _wait(self, block: Digits, sign: int) -> None:
        end = self._count + len(block)
        if end > len(self._signs):
            room = min(max(2 * len(self._signs), end, 8), _MOST_WAITING)
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
        for panel, place in panels(self._width):
            products = [
                _packed(blas.multiply_panel(part[:, panel] * signs, part[:, panel.start :]))
                for part in rows
            ]
            add_digit_products(target[:, place], products)
        self._waiting, self._signs = [], np.zeros(0)
        self._count, self._budget = 0, 0.0


def _with_room(array: Float, count: int, room: int) -> Float:
    """The first rows of an array, in one with room for more."""
    larger = np.empty((room, array.shape[1]))
    larger[:count] = array[:count]
    return larger
