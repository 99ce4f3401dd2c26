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
from expunge.exact import Grid
from expunge.posterior import Posterior
from expunge.ridge.head import Diagnostics, Head
from expunge.ridge.spec import Aggregation, Spec
from expunge.ridge.statistics import Statistics
from expunge.solvers import CholeskySolver, WoodburySolver, solve

if TYPE_CHECKING:
    from expunge.estimators import ExactRidgeClassifier, ExactRidgeRegressor

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


_LATER = {"ExactRidgeClassifier": "estimators", "ExactRidgeRegressor": "estimators"}


def __getattr__(name: str) -> Any:
    """The estimators, imported when first asked for: scikit-learn takes longer to import than all
    the rest.
    """
    if name in _LATER:
        return getattr(import_module(f"expunge.{_LATER[name]}"), name)
    raise AttributeError(f"module 'expunge' has no attribute {name!r}")
