"""Expunge: exact, checkable unlearning for ridge heads on frozen foundation models."""

from expunge import errors
from expunge.exact import Grid
from expunge.head import Head
from expunge.solvers import CholeskySolver, WoodburySolver, solve
from expunge.spec import Spec
from expunge.statistics import Statistics

__all__ = ["CholeskySolver", "Grid", "Head", "Spec", "Statistics", "WoodburySolver", "errors", "solve"]
