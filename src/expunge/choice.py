"""Choosing grids from a first batch, and what a grid may lose of the samples put on it.

For estimators, whose users need not know of grids. A federation agrees on its grid beforehand instead.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from expunge.errors import LostColumnError
from expunge.exact import Grid
from expunge.spec import Spec

_LEAST_HEADROOM_BITS = 3
_RUNG_BITS = 3
_NEGLIGIBLE = 2.0**-30


def chosen_grid(values: NDArray[Any], *, holding_one: bool) -> Grid:
    """A two-digit grid with room for at least three doublings of the largest magnitude in `values`.

    Limits stand on a ladder of powers of 2^3 that has the default grid's 64 among them, so that batches of similar magnitude
    choose the same grid, and at least 36 bits are left for the largest value. A grid that must hold 1 gives less room to values
    above 2^38 and fewer bits to values below 2^-5. Values that are all zero choose the default grid.
    """
    largest = _largest(values)
    if largest == 0.0:
        return Grid()
    rung = math.ceil((math.frexp(largest)[1] + _LEAST_HEADROOM_BITS) / _RUNG_BITS) * _RUNG_BITS
    return Grid.covering(2.0 ** min(rung - 1, 1000), headroom_bits=0, holding_one=holding_one)


def chosen_label_grid(targets: NDArray[Any], *, lost_columns: str) -> Grid:
    """`chosen_grid` for real targets; an output that is lost to it is refused unless lost_columns="accept"."""
    grid = chosen_grid(targets, holding_one=False)
    if lost_columns == "accept":
        return grid
    for column, output in enumerate(np.atleast_2d(targets.T)):
        if 0.0 < (largest := _largest(output)) <= grid.step / 2.0:
            raise LostColumnError(
                f"output {column} of the targets is lost to {grid!r}, which the largest output of the first batch asks for: "
                f"its own largest magnitude is {largest:g}, and every value rounds to zero. Scale the outputs to similar "
                "magnitudes, give a label_grid, or pass lost_columns='accept' if that output does not matter"
            )
    return grid


def losses_are_negligible(spec: Spec, samples: int) -> bool:
    """Whether columns that round to zero throughout cannot matter, whichever they are.

    Such columns Z have entries of at most step / 2. Leaving them out of the kernel K = XX' + ZZ' changes the fitted values
    K (K + gamma I)^-1 y by at most ||ZZ'|| / gamma times ||y||; this says that the bound is at most 2^-30.
    """
    return spec.dim * samples * (spec.grid.step / 2.0) ** 2 <= _NEGLIGIBLE * spec.gamma


def _largest(values: NDArray[Any]) -> float:
    return max(float(values.max()), -float(values.min()))
