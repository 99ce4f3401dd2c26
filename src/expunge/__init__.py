"""Expunge: exact, checkable unlearning for ridge heads on frozen foundation models.

The head after a deletion is, bit for bit, the head retrained without the deleted samples:

>>> import expunge
>>> spec = expunge.Spec(dim=2, labels=("cat", "dog"), gamma=1.0)
>>> features, labels = [[0.0, 1.0], [1.0, 0.5], [3.0, 2.0]], ["cat", "cat", "dog"]
>>> everything = expunge.Statistics.of(spec, features, labels)
>>> gone = expunge.Statistics.of(spec, features[:1], labels[:1])
>>> retrained = expunge.Statistics.of(spec, features[1:], labels[1:])
>>> expunge.solve(everything - gone) == expunge.solve(retrained)
True
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
    modules=(
        "aggregator",
        "approximate",
        "backbones",
        "client",
        "crypto",
        "data",
        "evidence",
        "export",
        "federation",
        "office",
        "posterior",
        "server",
        "solvers",
        "testing",
        "transport",
        "wire",
    ),
)
