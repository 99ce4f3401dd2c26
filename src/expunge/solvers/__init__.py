"""From statistics to heads: retraining, Variant A, Variant B, and the float arithmetic of the
paper.
"""

from typing import TYPE_CHECKING

from expunge._lazy import lazy_names

if TYPE_CHECKING:
    from expunge.solvers.certify import solve
    from expunge.solvers.variants import CholeskySolver, WoodburySolver

__all__ = ["CholeskySolver", "WoodburySolver", "solve"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CholeskySolver": "expunge.solvers.variants",
        "WoodburySolver": "expunge.solvers.variants",
        "solve": "expunge.solvers.certify",
    },
    modules=("float64",),
)
