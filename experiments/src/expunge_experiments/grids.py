"""The grid on which exact arithmetic takes features of experiments: the product's own, or a coarser one for larger features."""

from __future__ import annotations

from expunge import Grid
from expunge_experiments.letter import Array

USUAL = Grid()


def largest_of(features: Array) -> float:
    """The largest magnitude; 0 of nothing."""
    return float(max(features.max(), -features.min())) if features.size else 0.0


def fitting_grid(features: Array) -> Grid:
    """The usual grid where it holds these features, and otherwise the finest that does; the coarsest, where none does."""
    largest = largest_of(features)
    return USUAL if largest < USUAL.limit else Grid.covering(largest, headroom_bits=0)
