"""Exponents and crossovers from measured costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Exponent:
    """The slope of log(cost) against log(size), with its standard error (None for two points, through which any line goes)."""

    value: float
    error: float | None

    def text(self) -> str:
        """As in 2.03 ± 0.04."""
        return f"{self.value:.2f}" if self.error is None else f"{self.value:.2f} ± {self.error:.2f}"


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> Exponent | None:
    """By least squares; None for fewer than two sizes."""
    if len(set(sizes)) < 2:
        return None
    x, y = np.log(np.asarray(sizes, float)), np.log(np.asarray(costs, float))
    centred = x - x.mean()
    spread = float(np.square(centred).sum())
    slope = float((centred * y).sum()) / spread
    rest = y - y.mean() - slope * centred
    freedom = len(x) - 2
    error = math.sqrt(float(np.square(rest).sum()) / freedom / spread) if freedom > 0 else None
    return Exponent(slope, error)


def upper_half(sizes: Sequence[int]) -> list[int]:
    """The larger half of some sizes, the middle one included: where the leading term shows."""
    ordered = sorted(set(sizes))
    return ordered[len(ordered) // 2 :]


def crossover(sizes: Sequence[float], falling: Sequence[float], rising: Sequence[float]) -> float | None:
    """From which size on `falling` is the cheaper one of two costs; None if it is not, even at the largest size.

    Between two measured sizes it is interpolated, on logarithmic scales. The smallest size means: everywhere measured.
    """
    if not sizes or not falling[-1] < rising[-1]:
        return None
    last = next((place for place in reversed(range(len(sizes))) if falling[place] >= rising[place]), None)
    if last is None:
        return float(sizes[0])
    gaps = [math.log(rising[place] / falling[place]) for place in (last, last + 1)]
    share = -gaps[0] / (gaps[1] - gaps[0])
    low, high = math.log(sizes[last]), math.log(sizes[last + 1])
    return math.exp(low + share * (high - low))
