"""Expunge: exact, checkable unlearning for ridge heads on frozen foundation models.

    spec = expunge.Spec(dim=768, labels=("cat", "dog"), gamma=1.0)
    stats = expunge.Statistics.of(spec, features, labels)
    head = expunge.solve(stats - expunge.Statistics.of(spec, gone_features, gone_labels))

The head after a deletion is, bit for bit, the head retrained without the deleted samples.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from expunge import errors
from expunge._version import __version__
from expunge.aggregation import Aggregation
from expunge.exact import Grid
from expunge.head import Diagnostics, Head
from expunge.posterior import Posterior
from expunge.solvers import CholeskySolver, WoodburySolver, solve
from expunge.spec import Spec
from expunge.statistics import Statistics

if TYPE_CHECKING:
    from expunge.estimator import ExactRidgeClassifier, ExactRidgeRegressor

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


_LATER = {"ExactRidgeClassifier": "estimator", "ExactRidgeRegressor": "estimator"}


def __getattr__(name: str) -> Any:
    """The estimators, imported when first asked for: scikit-learn takes longer to import than all the rest."""
    if name in _LATER:
        return getattr(import_module(f"expunge.{_LATER[name]}"), name)
    raise AttributeError(f"module 'expunge' has no attribute {name!r}")
