"""Grids of experiments: the usual one wherever it will do, and never a coarser one than is
needed.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from expunge import Grid
from expunge_experiments.datasets.dataset import USUAL, fitting_grid, largest_of


@given(st.floats(-(2.0**40), 2.0**40, width=32))
def test_the_grid_holds_the_features_and_is_the_finest_that_does(value: float) -> None:
    features = np.array([[0.5, value]], dtype=np.float32)
    grid = fitting_grid(features)
    grid.put(features, np.empty((1, 2)))  # refuses what it cannot hold
    assert grid.holds_one
    if abs(value) < USUAL.limit:
        assert grid == USUAL
    else:
        assert abs(value) >= Grid(fraction_bits=grid.fraction_bits + 1).limit


def test_of_nothing_it_is_the_usual_one() -> None:
    nothing = np.empty((0, 3), dtype=np.float32)
    assert largest_of(nothing) == 0.0
    assert fitting_grid(nothing) == USUAL
    assert largest_of(np.array([[1.0, -3.0]])) == 3.0
