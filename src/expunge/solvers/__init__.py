"""From statistics to heads: retraining, Variant A, Variant B, and the float arithmetic of the
paper.
"""

from expunge.solvers.certify import solve
from expunge.solvers.variants import CholeskySolver, WoodburySolver

__all__ = ["CholeskySolver", "WoodburySolver", "solve"]
