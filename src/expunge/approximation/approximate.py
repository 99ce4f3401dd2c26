"""ApproximateHead: weights with proven bounds on how far they are from the exact ones. It is no Head, and never has a digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from expunge.approximation.bounds import Bounds
from expunge.scores import predictions_of, scores_of
from expunge.spec import Spec

Float = NDArray[np.float64]


@final
@dataclass(frozen=True, eq=False, slots=True)
class ApproximateHead:
    """Weights (width, columns) in float64, the last row the intercept if the spec has one.

    Law: the exact solution, that `Head` is the rounding of, lies within `bounds` of `weights`.

    What certificates, receipts and exports ask of a head (digest, integers, bytes) is missing here, and slots keep anybody from
    putting it there.
    """

    spec: Spec
    gamma: float
    weights: Float
    count: int
    bounds: Bounds

    def __init_subclass__(cls, **_: Any) -> None:
        raise TypeError("an ApproximateHead has no subclasses: one could give it what evidence of exactness is made of")

    @property
    def relative_bound(self) -> float:
        """The Frobenius bound over the Frobenius norm of the weights; infinite for a head of zeros that may be off."""
        length = float(np.sqrt(np.square(self.weights).sum()))
        if length > 0.0:
            return self.bounds.frobenius / length
        return 0.0 if self.bounds.frobenius == 0.0 else float("inf")

    def scores(self, features: Any) -> Float:
        """features @ weights plus the intercept, shape (n, columns)."""
        return scores_of(self.spec, self.weights, features)

    def predict(self, features: Any) -> NDArray[Any]:
        """For classification the label of the largest score (the first of equals), shape (n,); for regression the scores."""
        return predictions_of(self.spec, self.weights, features)
