"""Integers carried by float64 BLAS: grids, wide integers, exact Grams, exact products.

Knows nothing of learning.
"""

from expunge.exact.grid import Grid

__all__ = ["Grid"]
