"""Expunge: exact, checkable unlearning for ridge heads on frozen foundation models.

    spec = expunge.Spec(dim=768, labels=("cat", "dog"), gamma=1.0)
    stats = expunge.Statistics.of(spec, features, labels)
    head = expunge.solve(stats - expunge.Statistics.of(spec, gone_features, gone_labels))

The head after a deletion is, bit for bit, the head retrained without the deleted samples.
"""

from typing import TYPE_CHECKING

from expunge import errors
from expunge._lazy import lazy_names
from expunge._version import __version__

if TYPE_CHECKING:
    from expunge.estimators import ExactRidgeClassifier, ExactRidgeRegressor
    from expunge.exact.grid import Grid
    from expunge.posterior import Posterior
    from expunge.ridge.head import Diagnostics, Head
    from expunge.ridge.spec import Aggregation, Spec
    from expunge.ridge.statistics import Statistics
    from expunge.solvers.certify import solve
    from expunge.solvers.variants import CholeskySolver, WoodburySolver

__all__ = [
    "Aggregation",
    "CholeskySolver",
    "Diagnostics",
    "ExactRidgeClassifier",
    "ExactRidgeRegressor",
    "Grid",
    "Head",
    "Posterior",
    "Spec",
    "Statistics",
    "WoodburySolver",
    "__version__",
    "errors",
    "solve",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Aggregation": "expunge.ridge.spec",
        "CholeskySolver": "expunge.solvers.variants",
        "Diagnostics": "expunge.ridge.head",
        "ExactRidgeClassifier": "expunge.estimators",
        "ExactRidgeRegressor": "expunge.estimators",
        "Grid": "expunge.exact.grid",
        "Head": "expunge.ridge.head",
        "Posterior": "expunge.posterior",
        "Spec": "expunge.ridge.spec",
        "Statistics": "expunge.ridge.statistics",
        "WoodburySolver": "expunge.solvers.variants",
        "solve": "expunge.solvers.certify",
    },
)
