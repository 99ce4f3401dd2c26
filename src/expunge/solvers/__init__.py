"""From statistics to heads: retraining, Variant A, Variant B, and the float arithmetic of the paper."""

from expunge.solvers.certify import solve
from expunge.solvers.cholesky import CholeskySolver
from expunge.solvers.woodbury import WoodburySolver

__all__ = ["CholeskySolver", "WoodburySolver", "solve"]
