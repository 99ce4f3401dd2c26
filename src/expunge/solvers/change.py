"""Change: rows to be added or deleted, in the forms that a solver's caches follow."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from expunge.exact import wide
from expunge.exact.gram import Digits, digits_of
from expunge.ridge.encoding import Rows
from expunge.ridge.spec import Spec

Float = NDArray[np.float64]


class Change:
    """Rows as digits and as float64 values, with their integer targets; `trace` is that of their
    Gram, as an integer.
    """

    def __init__(self, spec: Spec, rows: Rows) -> None:
        self.digits: Digits = digits_of(rows.integers, spec.grid.digits, rows.largest)
        self.values: Float = np.ldexp(rows.integers, -spec.grid.fraction_bits)
        self.integers: Float = rows.targets.integers
        self.trace = trace_of(rows)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def targets(self) -> wide.Wide:
        """The targets as wide integers."""
        return self.integers.astype(np.int64).view(np.uint64)[None]


def trace_of(rows: Rows) -> int:
    """The trace of the rows' Gram, as an integer; each row's part fits 64 bits for any width."""
    high, low = np.divmod(rows.integers.astype(np.int64), 1 << 21)

    def total(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
        return sum(np.einsum("ij,ij->i", left, right).tolist())

    return (total(high, high) << 42) + (total(high, low) << 22) + total(low, low)
