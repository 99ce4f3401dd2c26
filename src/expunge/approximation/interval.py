"""Interval: how far a symmetric matrix may lie from another, as a pair of proven bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

from expunge.errors import InputError

ROUNDED = 1 + 2.0**-40  # more than a formula of a few float64 operations on positive numbers can lose


@dataclass(frozen=True)
class Interval:
    """-below I <= E <= above I, in the order of symmetric matrices; both are finite and not negative.

    Laws: intervals of E and of E' give one of E + E' by `+`, and one of -E by `-`, rounded outwards.
    """

    below: float = 0.0
    above: float = 0.0

    def __post_init__(self) -> None:
        for name in ("below", "above"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise InputError(f"a bound on the error of a Gram is finite and not negative, but {name} is {value}")

    @property
    def norm(self) -> float:
        """A bound on the spectral norm of E."""
        return max(self.below, self.above)

    def __add__(self, other: Interval) -> Interval:
        return Interval((self.below + other.below) * ROUNDED, (self.above + other.above) * ROUNDED)

    def __neg__(self) -> Interval:
        return Interval(self.above, self.below)

    def widened(self, by: float) -> Interval:
        """The interval of E plus anything whose spectral norm is at most `by`."""
        return self + Interval(by, by)
